"""Rules about two NodePools that serve the same pods: one that is never reached, two between which nothing decides."""

from __future__ import annotations

from collections.abc import Iterator

from karpenter.lint.lint_input import LintInput
from karpenter.lint.rule import Match, Rule, Severity, Topic
from karpenter.lint.rules.pools import pools_with_offers
from karpenter.lint.source_object import SourceObject
from karpenter.model import labels
from karpenter.model.requirements import Requirements, intersects
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate

_SHOWN = 3
_Placed = tuple[SourceObject, NodePoolTemplate]


def _dynamic_templates(lint_input: LintInput) -> list[_Placed]:
    return [
        (where, offer.template)
        for where, offer in pools_with_offers(lint_input)
        if offer.template is not None and offer.template.types and offer.pool.spec.replicas is None
    ]


def _shadowed(lint_input: LintInput) -> Iterator[Match]:
    templates = _dynamic_templates(lint_input)
    for where, template in templates:
        heavier = [other for _, other in templates if other.weight > template.weight and not other.pool.spec.limits]
        cover = next((other for other in heavier if _covers(other, template)), None)
        if cover is not None:
            text = (
                f"is never used: NodePool {cover.name} (weight {cover.weight}) takes every pod that fits here, "
                "allows every instance type of this pool and has no limits"
            )
            yield Match(where, "metadata.name", text)


def _covers(heavy: NodePoolTemplate, light: NodePoolTemplate) -> bool:
    """Whether a pod that fits the light pool fits the heavy one, on each of the same types."""
    if _type_names(light) - _type_names(heavy) or not _taints(heavy) <= _taints(light):
        return False
    theirs, own = _asked(light), _asked(heavy)
    custom = [key for key in theirs if key not in light.index.well_known]
    return all(theirs.requirement_for(key).is_subset_of(own.requirement_for(key)) for key in own) and all(
        key in own for key in custom
    )


def _tied(lint_input: LintInput) -> Iterator[Match]:
    templates = _dynamic_templates(lint_input)
    for position, (where, template) in enumerate(templates):
        others = [other.name for _, other in templates[:position] if _is_tied(other, template)]
        if others:
            more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
            text = (
                f"serves the same pods as {', '.join(others[:_SHOWN])}{more} with the same weight ({template.weight}): the "
                "cheaper plan decides, and Karpenter chooses any; give one a higher weight, or requirements of its own"
            )
            yield Match(where, "spec.weight", text)


def _is_tied(first: NodePoolTemplate, second: NodePoolTemplate) -> bool:
    return first.weight == second.weight and _taints(first) == _taints(second) and _overlap(first, second)


def _overlap(first: NodePoolTemplate, second: NodePoolTemplate) -> bool:
    return intersects(_asked(first), _asked(second)) and bool(_type_names(first) & _type_names(second))


def _asked(template: NodePoolTemplate) -> Requirements:
    """What nodes of the pool are like, without the labels that only name the pool and its class."""
    reference = template.pool.spec.template.spec.node_class_ref
    own = (labels.NODE_POOL, f"{reference.group}/{reference.kind.lower()}", *labels.SIMULATION_ONLY)
    return template.requirements.without(own)


def _type_names(template: NodePoolTemplate) -> frozenset[str]:
    types = template.index.types
    return frozenset(types[position].name for position in range(len(types)) if template.types >> position & 1)


def _taints(template: NodePoolTemplate) -> frozenset[tuple[str, str, str]]:
    return frozenset((taint.key, taint.value, taint.effect) for taint in template.taints)


RULES = (
    Rule(
        "KL220",
        "shadowed-pool",
        Severity.WARNING,
        Topic.POOLS,
        "A NodePool behind a heavier one that takes the same pods, launches the same types and has no limits.",
        "The lighter pool never launches a node.",
        "Give the heavier pool limits or narrower requirements, or drop the lighter one.",
        _shadowed,
    ),
    Rule(
        "KL221",
        "weights-tie",
        Severity.NOTE,
        Topic.POOLS,
        "Two NodePools of the same weight that serve the same pods.",
        "Which of them launches a node follows from prices, and from chance in Karpenter.",
        "Give them different weights, or make their requirements or taints exclude each other.",
        _tied,
    ),
)
