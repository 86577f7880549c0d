"""What ``model.advice`` and the reader of manifests say, as matches of rules: their checks are not repeated here."""

from __future__ import annotations

from collections.abc import Iterator

from karpenter.api.capacity_buffer import CapacityBuffer
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.api.node_overlay import NodeOverlay
from karpenter.lint.lint_input import LintInput, ReaderFinding
from karpenter.lint.rule import Match
from karpenter.lint.source_object import SourceObject
from karpenter.model.advice import AdvisedObject, advise_object
from karpenter.model.structural_schema import Finding

_ADVISED = (NodePool, NodeClaim, KWOKNodeClass, EC2NodeClass, NodeOverlay, CapacityBuffer)


def advice(lint_input: LintInput) -> Iterator[tuple[SourceObject, AdvisedObject, Finding]]:
    """All advice about the objects of the input."""
    for where in lint_input.objects:
        if isinstance(where.wire, _ADVISED):
            for finding in advise_object(where.wire):
                yield where, where.wire, finding


def matched(where: SourceObject, finding: Finding) -> Match:
    """A finding at its place."""
    return Match(where, finding.path, finding.message)


def reported(finding: ReaderFinding) -> Match:
    """A finding of the reader at its place."""
    return Match(finding.where, finding.path, finding.message)
