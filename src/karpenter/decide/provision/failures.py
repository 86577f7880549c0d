"""Why nothing new can be bought for a class, pool by pool (SCH §13): the same checks as placing, asked for their answers.

Fit is judged without offerings here, so that "too large" and "sold out" are told apart (SCH-331 Beyond).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from karpenter.catalog.index import TypeSet
from karpenter.cluster.classes import PodClass
from karpenter.decide.provision import reservations
from karpenter.decide.provision.misses import Seeking, Study
from karpenter.decide.provision.templates import Template
from karpenter.decide.reasons import Category, Reason
from karpenter.model import resources as res
from karpenter.model import taints
from karpenter.model.requirements import compatible, incompatibilities


def why_not(
    seeking: Seeking, templates: Sequence[Template], limits: Mapping[str, Mapping[str, int]]
) -> tuple[Reason, ...]:
    """One reason per template, in the order they are tried, each with what its types fall to and the nearest miss there.

    ``limits``: what is left of each limited pool's limits.
    """
    return tuple(_studied(seeking, template, limits.get(template.name)) for template in templates)


def _studied(seeking: Seeking, template: Template, left: Mapping[str, int] | None) -> Reason:
    study = Study(seeking, template, left)
    reason = _why_not(seeking, template, left)
    return replace(reason, breakdown=study.breakdown, miss=study.miss)


def _why_not(seeking: Seeking, template: Template, left: Mapping[str, int] | None) -> Reason:
    pod_class, variant = seeking.pod_class, seeking.variant
    types = template.types
    if left is not None:
        if left.get(res.NODES, res.ONE) < res.ONE:
            return Reason(Category.LIMITS, template.name, detail="node limits have been exhausted for nodepool")
        types &= template.index.within({name: amount for name, amount in left.items() if name != res.NODES})
        if not types:
            return Reason(
                Category.LIMITS, template.name, detail="all available instance types exceed limits for nodepool"
            )
    untolerated = taints.untolerated(template.taints, variant.tolerations)
    if untolerated:
        return Reason(Category.TAINT, template.name, taints=untolerated)
    if not compatible(template.requirements, variant.requirements, template.index.well_known):
        found = incompatibilities(template.requirements, variant.requirements, template.index.well_known)
        return Reason(Category.REQUIREMENTS, template.name, incompatible=found)
    free = types & template.open_to(pod_class.ports)
    if types and not free:
        return Reason(Category.HOST_PORT, template.name, detail=_collision(pod_class, template))
    return _type_reason(seeking, template, free)


def _collision(pod_class: PodClass, template: Template) -> str:
    """The ports DaemonSets take that the pods ask for as well (SCH-417)."""
    held, port = next(
        (held, port)
        for group in template.daemons
        for held in group.ports
        for port in pod_class.ports
        if held.collides(port)
    )
    return f"pod hostport conflicts with existing hostport configuration (existing={held}, pod={port})"


def _type_reason(seeking: Seeking, template: Template, types: TypeSet) -> Reason:
    pod_class, variant, index = seeking.pod_class, seeking.variant, template.index
    requirements = template.requirements.intersect(variant.requirements)
    free = template.open_to(pod_class.ports)  # a DaemonSet's host ports close types to everything (SCH-336)
    matching = types & free & index.matching(requirements) & index.matching(variant.requirements)
    holding = types & free & template.holding(pod_class.requests)
    offered = types & free & reservations.buyable(index, requirements, seeking.units)
    together = matching & holding & offered
    short = index.shortages(requirements, together) if together else {}
    overheads = [group.overhead for group in template.daemons if group.types & types and group.overhead]
    return Reason(
        Category.MIN_VALUES if short else _row(matching, holding, offered),
        template.name,
        min_values=tuple(sorted(short)),
        requirements=requirements,
        requests=pod_class.requests,
        least_daemon_requests=res.minimum(overheads),
        most_daemon_requests=res.maximum(overheads),
        considered=types.bit_count(),
        matching=matching.bit_count(),
        holding=holding.bit_count(),
        offered=offered.bit_count(),
    )


def _row(matching: TypeSet, holding: TypeSet, offered: TypeSet) -> Category:
    """The row of SCH-334 that describes which of the three sets are empty, alone and together."""
    empty = (not matching, not holding, not offered)
    rows = {
        (True, True, True): Category.TYPES_NOTHING,
        (True, True, False): Category.TYPES_REQUIREMENTS_RESOURCES,
        (True, False, True): Category.TYPES_REQUIREMENTS_OFFERING,
        (False, True, True): Category.TYPES_RESOURCES_OFFERING,
        (True, False, False): Category.TYPES_REQUIREMENTS,
        (False, True, False): Category.TYPES_RESOURCES,
        (False, False, True): Category.TYPES_OFFERING,
    }
    if empty in rows:
        return rows[empty]
    if matching & holding & offered:
        return Category.TYPES_NEVER_TOGETHER
    if matching & holding:
        return Category.TYPES_NOT_ALL_OFFERING
    if holding & offered:
        return Category.TYPES_NOT_ALL_REQUIREMENTS
    if matching & offered:
        return Category.TYPES_NOT_ALL_RESOURCES
    return Category.TYPES_NEVER_TOGETHER
