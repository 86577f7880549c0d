"""Marks a node as about to be disrupted and unmarks it: the taint on its Node, the reason on its NodeClaim (DIS-302, DIS-054).

The mark is stored in the API server, so that users see it and a later process finds it. Both parts are written with the version
that was read; on a conflict the object is read again, a few times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.api.scheduling_constraints import Taint
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import Conflict, NotFound
from karpenter.model import conditions, labels, taints
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft
from karpenter.runtime.patching import merge_patch
from karpenter.state.state_node import StateNode
from karpenter.termination.terminating_node import tainted_node

#: How often a write is tried when it conflicts with another client's.
_MAX_ATTEMPTS = 3
_DISRUPTION_REASON = "DisruptionReason"
#: Annotations for the decision on a NodeClaim that is being deleted.
_DISRUPTION_ANNOTATIONS = (labels.DISRUPTION_DECISION, labels.DISRUPTION_REPLACEMENTS)


@dataclass(frozen=True)
class DisruptionMark:
    """What is written on a claim that is about to go: why, and as annotations by which decision."""

    reason: str
    annotations: Mapping[str, str] = field(default_factory=dict)


async def taint_node(context: ControllerContext, node: Node) -> None:
    """Close the node to new pods. Raises ``KubeError``."""
    await _patch_node(context, node, tainted_node)


async def set_disruption_reason(context: ControllerContext, claim: NodeClaim, mark: DisruptionMark) -> None:
    """Set the condition DisruptionReason and the annotations on the claim. Raises ``KubeError``."""

    def change(draft: NodeClaimDraft) -> None:
        draft.set_condition(_DISRUPTION_REASON, conditions.TRUE, mark.reason, mark.reason)
        draft.merge_metadata({}, mark.annotations)

    await _patch_claim(context, claim, change)


async def unmark(context: ControllerContext, view: StateNode) -> None:
    """Undo both; what has gone or is going meanwhile is left as it is. Raises ``KubeError``."""
    if view.node is not None:
        node = context.state.node(view.node.metadata.name)
        with suppress(NotFound):
            await _patch_node(context, node or view.node, _untainted_node)
    if view.claim is not None:
        claim = context.state.claim(view.claim.metadata.name)
        with suppress(NotFound):
            await _patch_claim(context, claim or view.claim, _clear_disruption_reason)


def _untainted_node(node: Node) -> Node:
    if node.metadata.deletion_timestamp is not None:
        return node
    kept = tuple(taint for taint in node.spec.taints if not _is_mark(taint))
    return msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=kept))


def _is_mark(taint: Taint) -> bool:
    """Whether the taint marks a node for disruption; an upgrade from ``v1beta1`` may have left its one behind (API-473)."""
    return any(taints.is_same_taint(taint, mark) for mark in (labels.DISRUPTED_TAINT, labels.OLDER_DISRUPTION_TAINT))


def _clear_disruption_reason(draft: NodeClaimDraft) -> None:
    if draft.claim.metadata.deletion_timestamp is None:
        draft.clear_condition(_DISRUPTION_REASON)
        draft.remove_annotations(_DISRUPTION_ANNOTATIONS)


async def _patch_node(context: ControllerContext, node: Node, change: Callable[[Node], Node]) -> None:
    name = node.metadata.name
    for _ in range(_MAX_ATTEMPTS):
        patch = merge_patch(node, change(node))
        if not patch:
            return
        try:
            await context.kube.patch(NODE, name, patch, resource_version=node.metadata.resource_version)
            return
        except Conflict:
            node = await context.kube.get(NODE, name)
    raise Conflict(f"node {name} keeps changing")


async def _patch_claim(context: ControllerContext, claim: NodeClaim, change: Callable[[NodeClaimDraft], None]) -> None:
    name = claim.metadata.name
    for _ in range(_MAX_ATTEMPTS):
        draft = NodeClaimDraft(claim, context.clock.now())
        change(draft)
        try:
            await draft.write(context.kube)
            return
        except Conflict:
            claim = await context.kube.get(NODE_CLAIM, name)
    raise Conflict(f"nodeclaim {name} keeps changing")


def is_stale_mark(view: StateNode) -> bool:
    """Whether a node that stays has the taint or the condition of a disruption that no command pursues (DIS-054, K15-205)."""
    node, claim = view.node, view.claim
    if node is None or claim is None or view.marked_for_deletion or view.rebooting or not view.initialized:
        return False
    if node.metadata.deletion_timestamp is not None:
        return False
    return (
        any(map(_is_mark, node.spec.taints))
        or conditions.find_condition(claim.status.conditions, _DISRUPTION_REASON) is not None
    )
