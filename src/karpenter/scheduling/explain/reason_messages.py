"""Sentences for reasons. Users alert on these texts, so the known ones are kept as prefixes (SCH-334, SCH §33)."""

from __future__ import annotations

import json
from collections.abc import Iterable

from karpenter.model import resources as res
from karpenter.model import taints
from karpenter.model.requirements import Incompatibility, UndefinedLabel
from karpenter.model.resources import Resources
from karpenter.scheduling.explain.nearest_fit_messages import nearest_fit_sentence
from karpenter.scheduling.solution import ExposureViolation, SkippedNodePool, Solution, UnschedulablePod, ViolationCause
from karpenter.scheduling.unschedulable_reasons import (
    FailedFilter,
    NearestFit,
    PoolSkipReason,
    ReasonCategory,
    UnschedulableReason,
)

_NO = "no instance type"
_TYPE_MESSAGES = {
    ReasonCategory.TYPES_NOTHING: f"{_NO} met the scheduling requirements or had enough resources or had a required offering",
    ReasonCategory.TYPES_REQUIREMENTS_RESOURCES: f"{_NO} met the scheduling requirements or had enough resources",
    ReasonCategory.TYPES_REQUIREMENTS_OFFERING: f"{_NO} met the scheduling requirements or had a required offering",
    ReasonCategory.TYPES_RESOURCES_OFFERING: f"{_NO} had enough resources or had a required offering",
    ReasonCategory.TYPES_REQUIREMENTS: f"{_NO} met all requirements",
    ReasonCategory.TYPES_RESOURCES: f"{_NO} has enough resources",
    ReasonCategory.TYPES_OFFERING: f"{_NO} has the required offering",
    ReasonCategory.TYPES_NOT_ALL_OFFERING: (
        f"{_NO} which met the scheduling requirements and had enough resources, had a required offering"
    ),
    ReasonCategory.TYPES_NOT_ALL_REQUIREMENTS: (
        f"{_NO} which had enough resources and the required offering met the scheduling requirements"
    ),
    ReasonCategory.TYPES_NOT_ALL_RESOURCES: (
        f"{_NO} which met the scheduling requirements and the required offering had the required resources"
    ),
    ReasonCategory.TYPES_NEVER_TOGETHER: f"{_NO} met the requirements/resources/offering tuple",
    ReasonCategory.MIN_VALUES: "minValues requirement is not met for label(s)",
}
_FILTERED = "NodePool requirements filtered out all compatible available instance types"
_SKIP_MESSAGES = {
    PoolSkipReason.STATIC: "NodePool is static and full: pods bring it no nodes beyond spec.replicas",
    PoolSkipReason.DELETING: "NodePool is being deleted",
    PoolSkipReason.NOT_READY: "NodePool is not ready",
    PoolSkipReason.UNRESOLVED: "instance types could not be resolved",
    PoolSkipReason.NO_TYPES: "no resolved instance types found",
    PoolSkipReason.FILTERED: _FILTERED,
    PoolSkipReason.FILTERED_MIN_VALUES: f"{_FILTERED} due to minValues incompatibility",
}
#: From this many cores on a request is probably meant in millicores (SCH-334 row 7).
_SUSPICIOUS_CPU = 1_000_000 * res.ONE_UNIT


def reason_message(reason: UnschedulableReason) -> str:
    """One sentence for one reason."""
    if reason.category in _TYPE_MESSAGES:
        return _types_message(reason)
    if reason.category is ReasonCategory.TAINT:
        return "; ".join(f"did not tolerate taint (taint={taints.taint_text(taint)})" for taint in reason.taints)
    if reason.category is ReasonCategory.REQUIREMENTS:
        return "incompatible requirements, " + "; ".join(
            _incompatibility_clause(item) for item in reason.incompatibilities
        )
    if reason.category is ReasonCategory.LIMITS:
        return f"{reason.detail} (NodePool={reason.node_pool})"
    if reason.category is ReasonCategory.NO_POOL:
        return (
            f"no dynamic nodepools found ({_skip_message(reason)})"
            if reason.skip_reason
            else "no dynamic nodepools found"
        )
    return _skip_message(reason) if reason.category is ReasonCategory.SKIPPED_POOL else reason.detail


def skipped_pool_message(skipped: SkippedNodePool) -> str:
    """Why a NodePool took no part (SCH-653)."""
    return _with_detail(_SKIP_MESSAGES[skipped.reason], skipped.detail)


def _skip_message(reason: UnschedulableReason) -> str:
    return _with_detail(_SKIP_MESSAGES[reason.skip_reason], reason.detail) if reason.skip_reason else reason.detail


def _with_detail(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text


def unschedulable_message(reasons: Iterable[UnschedulableReason]) -> str:
    """All reasons of a pod in one text, each headed by the pool it concerns, equal ones said once (SCH-312 Beyond)."""
    by_text: dict[str, list[str]] = {}
    for reason in reasons:
        by_text.setdefault(reason_message(reason), []).append(reason.node_pool)
    parts = []
    for text, pools in by_text.items():
        named = [pool for pool in pools if pool]
        parts.append(f"{text}" if not named else f"nodepool {', '.join(named)}: {text}")
    return "; ".join(parts)


def _types_message(reason: UnschedulableReason) -> str:
    short = f" (label(s)=[{' '.join(reason.min_values)}])" if reason.min_values else ""
    text = (
        f"{_TYPE_MESSAGES[reason.category]}{short}, requirements={reason.requirements}, resources={_resources(reason)}"
    )
    if reason.category is ReasonCategory.TYPES_RESOURCES and reason.requests.get(res.CPU, 0) >= _SUSPICIOUS_CPU:
        text += " (CPU request >= 1 Million, m vs M typo?)"
    return text


def _resources(reason: UnschedulableReason) -> str:
    """The pod's requests with the least and the most DaemonSets add (SCH-335)."""
    least = _json(res.add(reason.requests, reason.least_daemon_requests))
    most = _json(res.add(reason.requests, reason.most_daemon_requests))
    return least if least == most else f"min={least}, max={most}"


def _json(resources: Resources) -> str:
    return json.dumps(res.resources_to_wire(resources), separators=(",", ":"), sort_keys=True)


def _incompatibility_clause(incompatibility: Incompatibility) -> str:
    if isinstance(incompatibility, UndefinedLabel):
        hint = f' (typo of "{incompatibility.suggested_key}"?)' if incompatibility.suggested_key else ""
        return f'label "{incompatibility.required.key}" does not have known values{hint}'
    return f"key {incompatibility.required.key}, {incompatibility.required} not in {incompatibility.offered}"


_CAUSE_CLAUSES = {
    ViolationCause.TOGETHER: "its pods ask to share a host",
    ViolationCause.LIMITS: "limits of NodePools leave no other machines",
    ViolationCause.NOTHING_ELSE: "nothing else at about that price would hold the pods",
}


def exposure_messages(solution: Solution) -> list[str]:
    """One line for the worst of all concessions, one for each unreadable annotation; none where all is as wished."""
    lines = [_annotation_message(item.subject, item.annotation, item.error) for item in solution.unreadable_annotations]
    if solution.exposure_violations:
        worst = max(solution.exposure_violations, key=lambda item: (item.actual - item.limit, item.subject, item.place))
        others = len(solution.exposure_violations) - 1
        more = f" ({others} more like this)" if others else ""
        lines.insert(0, f"exposure gives way{more}: {_violation_clause(worst)}")
    return lines


def _violation_clause(violation: ExposureViolation) -> str:
    what = (
        f"{violation.actual} pods"
        if violation.cause is not ViolationCause.NOTHING_ELSE
        else f"{violation.actual} spot machines"
    )
    return f"{what} of {violation.subject} in {violation.place}, wished are at most {violation.limit}: {_CAUSE_CLAUSES[violation.cause]}"


def _annotation_message(subject: str, annotation: str, fault: str) -> str:
    return f"annotation {annotation} of {subject}: {fault}; the default holds"


#: How the event begins (SCH-652).
EVENT_PREFIX = "Failed to schedule pod, "
_CUT = "..."
#: What the API server takes of an event's message, in bytes.
MAX_EVENT_BYTES = 1024


def unschedulable_event_message(pod: UnschedulablePod) -> str:
    """At most ``LONGEST_BYTES`` long; where that is short, the reasons of the many pools are cut, not the nearest miss."""
    known = nearest_fit_sentence(pod.nearest_fit, pod.nearest_node)
    near = _cut(f"; {known}", MAX_EVENT_BYTES // 2) if known else ""
    return _cut(EVENT_PREFIX + unschedulable_message(pod.reasons), MAX_EVENT_BYTES - len(near.encode())) + near


def _cut(text: str, most_bytes: int) -> str:
    encoded = text.encode()
    if len(encoded) <= most_bytes:
        return text
    return encoded[: most_bytes - len(_CUT)].decode(errors="ignore") + _CUT


def unschedulable_fingerprint(pod: UnschedulablePod) -> str:
    """What the pod waits for without the amounts, which change from pass to pass: equal as long as there is no news."""
    misses = [miss for miss in (pod.nearest_fit, pod.nearest_node) if miss is not None]
    return "; ".join([unschedulable_message(pod.reasons), *map(_fit_fingerprint, misses)])


def _fit_fingerprint(miss: NearestFit) -> str:
    where = miss.node or miss.node_pool
    confined = [f"{item.relation} {item.key} {item.domain}" for item in miss.confinements]
    return ", ".join([where, *confined, *sorted(_filter_fingerprint(item) for item in miss.failed_filters)])


def _filter_fingerprint(obstacle: FailedFilter) -> str:
    about = (getattr(obstacle, name, "") for name in ("resource", "key", "taint", "asked", "zones"))
    return " ".join([type(obstacle).__name__, *(str(item) for item in about if item and not isinstance(item, int))])
