"""Why nothing new can be bought for a class, pool by pool (SCH §13): the same checks as placing, asked for their answers.

Fit is judged without offerings here, so that "too large" and "sold out" are told apart (SCH-331 Beyond).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model import resources as res
from karpenter.model import taints
from karpenter.model.requirements import compatible, incompatibilities
from karpenter.scheduling.explain.nodepool_diagnosis import DiagnosisInput, NodePoolDiagnosis
from karpenter.scheduling.offerings import remaining_capacity
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.unschedulable_reasons import ReasonCategory, UnschedulableReason
from karpenter.state.pod_signature import PodSignature


def nodepool_reasons(
    subject: DiagnosisInput, templates: Sequence[NodePoolTemplate], limits: Mapping[str, Mapping[str, int]]
) -> tuple[UnschedulableReason, ...]:
    """One reason per template, in the order they are tried, each with what its types fall to and the nearest miss there.

    ``limits``: what is left of each limited pool's limits.
    """
    return tuple(_diagnosed_reason(subject, template, limits.get(template.name)) for template in templates)


def _diagnosed_reason(
    subject: DiagnosisInput, template: NodePoolTemplate, left: Mapping[str, int] | None
) -> UnschedulableReason:
    study = NodePoolDiagnosis(subject, template, left)
    reason = _first_failing_check(subject, template, left)
    return replace(reason, filter_breakdown=study.breakdown, nearest_fit=study.nearest_fit)


def _first_failing_check(
    subject: DiagnosisInput, template: NodePoolTemplate, left: Mapping[str, int] | None
) -> UnschedulableReason:
    pod_class, variant = subject.signature, subject.relaxation_step
    types = template.types
    if left is not None:
        if left.get(res.NODES, res.ONE_UNIT) < res.ONE_UNIT:
            return UnschedulableReason(
                ReasonCategory.LIMITS, template.name, detail="node limits have been exhausted for nodepool"
            )
        types &= template.index.within_limits({name: amount for name, amount in left.items() if name != res.NODES})
        if not types:
            return UnschedulableReason(
                ReasonCategory.LIMITS, template.name, detail="all available instance types exceed limits for nodepool"
            )
    untolerated = taints.untolerated(template.taints, variant.tolerations)
    if untolerated:
        return UnschedulableReason(ReasonCategory.TAINT, template.name, taints=untolerated)
    if not compatible(template.requirements, variant.requirements, template.index.well_known):
        found = incompatibilities(template.requirements, variant.requirements, template.index.well_known)
        return UnschedulableReason(ReasonCategory.REQUIREMENTS, template.name, incompatibilities=found)
    free = types & template.types_with_free_ports(pod_class.host_ports)
    if types and not free:
        return UnschedulableReason(ReasonCategory.HOST_PORT, template.name, detail=_port_conflict(pod_class, template))
    return _type_reason(subject, template, free)


def _port_conflict(signature: PodSignature, template: NodePoolTemplate) -> str:
    """The ports DaemonSets take that the pods ask for as well (SCH-417)."""
    held, port = next(
        (held, port)
        for group in template.daemons
        for held in group.ports
        for port in signature.host_ports
        if held.conflicts_with(port)
    )
    return f"pod hostport conflicts with existing hostport configuration (existing={held}, pod={port})"


def _type_reason(subject: DiagnosisInput, template: NodePoolTemplate, types: TypeSet) -> UnschedulableReason:
    pod_class, variant, index = subject.signature, subject.relaxation_step, template.index
    requirements = template.requirements.intersect(variant.requirements)
    free = template.types_with_free_ports(
        pod_class.host_ports
    )  # a DaemonSet's host ports close types to everything (SCH-336)
    matching = types & free & index.matching(requirements) & index.matching(variant.requirements)
    holding = types & free & template.types_fitting(pod_class.requests)
    offered = types & free & remaining_capacity.types_with_units_left(index, requirements, subject.reservation_units)
    together = matching & holding & offered
    short = index.min_values_shortages(requirements, together) if together else {}
    overheads = [group.overhead for group in template.daemons if group.types & types and group.overhead]
    return UnschedulableReason(
        ReasonCategory.MIN_VALUES if short else _type_category(matching, holding, offered),
        template.name,
        min_values=tuple(sorted(short)),
        requirements=requirements,
        requests=pod_class.requests,
        least_daemon_requests=res.minimum(overheads),
        most_daemon_requests=res.maximum(overheads),
        considered_types=types.bit_count(),
        matching_types=matching.bit_count(),
        types_with_room=holding.bit_count(),
        offered_types=offered.bit_count(),
    )


def _type_category(matching: TypeSet, holding: TypeSet, offered: TypeSet) -> ReasonCategory:
    """The row of SCH-334 that describes which of the three sets are empty, alone and together."""
    empty = (not matching, not holding, not offered)
    rows = {
        (True, True, True): ReasonCategory.TYPES_NOTHING,
        (True, True, False): ReasonCategory.TYPES_REQUIREMENTS_RESOURCES,
        (True, False, True): ReasonCategory.TYPES_REQUIREMENTS_OFFERING,
        (False, True, True): ReasonCategory.TYPES_RESOURCES_OFFERING,
        (True, False, False): ReasonCategory.TYPES_REQUIREMENTS,
        (False, True, False): ReasonCategory.TYPES_RESOURCES,
        (False, False, True): ReasonCategory.TYPES_OFFERING,
    }
    if empty in rows:
        return rows[empty]
    if matching & holding & offered:
        return ReasonCategory.TYPES_NEVER_TOGETHER
    if matching & holding:
        return ReasonCategory.TYPES_NOT_ALL_OFFERING
    if holding & offered:
        return ReasonCategory.TYPES_NOT_ALL_REQUIREMENTS
    if matching & offered:
        return ReasonCategory.TYPES_NOT_ALL_RESOURCES
    return ReasonCategory.TYPES_NEVER_TOGETHER
