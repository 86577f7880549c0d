"""Sentences for unschedulable reasons and exposure violations; the event about a pod.

Users alert on upstream's texts, so these are kept byte for byte and come first (SCH-334, SCH §33); the nearest fit follows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from karpenter.model import resources as res
from karpenter.model import taints
from karpenter.model.resources import Resources
from karpenter.scheduling.explain.nearest_fit_messages import filter_subject, nearest_fit_sentence
from karpenter.scheduling.failed_filters import (
    NODE_LIMIT,
    ConflictingRequirement,
    FailedFilter,
    HostPortTaken,
    NearestFit,
    NodePoolLimitReached,
    OfferingsUnavailable,
    StaticPoolFull,
    TopologyUnsatisfiable,
    UndefinedLabel,
    UntoleratedTaint,
)
from karpenter.scheduling.solution import (
    ExposureViolation,
    PackingFallback,
    PlacedPods,
    SkippedNodePool,
    Solution,
    UnschedulablePod,
    ViolationCause,
)
from karpenter.scheduling.unschedulable_reasons import (
    GangIncomplete,
    GangShortfall,
    InvalidPod,
    NodePoolSkipped,
    NoFittingType,
    NoNodePool,
    NoRoom,
    OptedOut,
    PoolSkipReason,
    ReasonCategory,
    ResourceClaimUnusable,
    UnschedulableCause,
    UnschedulableReason,
    UnsupportedResourceClaims,
    VolumeUnusable,
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
_NO_TYPES_LEFT = "nodepool requirements filtered out all available instance types"
_FILTERED = "NodePool requirements filtered out all compatible available instance types"
_SKIP_MESSAGES = {
    PoolSkipReason.STATIC: "NodePool is static and full: pods bring it no nodes beyond spec.replicas",
    PoolSkipReason.DELETING: "NodePool is being deleted",
    PoolSkipReason.NOT_READY: "NodePool is not ready",
    PoolSkipReason.ASLEEP: "NodePool is asleep",
    PoolSkipReason.UNRESOLVED: "instance types could not be resolved",
    PoolSkipReason.NO_TYPES: "no resolved instance types found",
    PoolSkipReason.FILTERED: _FILTERED,
    PoolSkipReason.FILTERED_MIN_VALUES: f"{_FILTERED} due to minValues incompatibility",
}
_FIXED_MESSAGES: Mapping[type[UnschedulableCause], str] = {
    NoNodePool: "no dynamic nodepools found",
    NoRoom: "no machine can hold it",  # part of an event text that users know
}
#: From this many cores on a request is probably meant in millicores (SCH-334 row 7).
_SUSPICIOUS_CPU = 1_000_000 * res.ONE_UNIT


def reason_message(reason: UnschedulableReason) -> str:
    """One sentence for one reason."""
    match reason.cause:
        case NoFittingType():
            return _no_fitting_type_message(reason.cause, reason.category, reason.node_pool)
        case NodePoolSkipped():
            return _skipped_cause_message(reason.cause)
        case TopologyUnsatisfiable():
            return _topology_message(reason.cause)
        case InvalidPod(errors):
            return "; ".join(errors)
        case OptedOut():
            return (
                "configured to not run on a Karpenter provisioned node (requirement=karpenter.sh/nodepool DoesNotExist)"
            )
        case UnsupportedResourceClaims(claims):
            return (
                "pod has Dynamic Resource Allocation requirements that are not yet supported by Karpenter "
                f"(claims {', '.join(claims)})"
            )
        case VolumeUnusable(error) | ResourceClaimUnusable(error):
            return error
        case GangIncomplete():
            return _gang_message(reason.cause)
        case NoNodePool() | NoRoom():
            return _FIXED_MESSAGES[type(reason.cause)]


def _gang_message(cause: GangIncomplete) -> str:
    """Why the gang of a pod gets no places, and which pod is missing."""
    match cause.shortfall:
        case GangShortfall.UNUSABLE:
            return cause.detail
        case GangShortfall.TOO_FEW_PODS:
            return f"{cause.gang} waits for pods: {cause.available} of at least {cause.minimum} exist"
        case GangShortfall.PAUSED:
            return f"{cause.gang} failed to start and is not tried again before {cause.detail}"
        case GangShortfall.NOT_TRIED:
            return f"{cause.gang} is not decided in this pass: gangs of higher priority and older ones come first"
        case GangShortfall.NO_PLACE:
            where = f" in {cause.domain}" if cause.domain else ""
            counts = f"at least {cause.minimum} pods at once, {cause.available} would have one{where}"
            missing = f"; missing {cause.missing_pod}: {cause.detail}" if cause.missing_pod else f"; {cause.detail}"
            return f"{cause.gang} needs places for {counts}{missing}"


def short_reason_message(reason: UnschedulableReason) -> str:
    """The sentence without the requirements, resources and counts that make it long."""
    match reason.cause:
        case NoFittingType() if reason.category in _TYPE_MESSAGES:
            return _TYPE_MESSAGES[reason.category]
        case TopologyUnsatisfiable(relation=relation, key=key):
            return f"unsatisfiable topology constraint for {relation}, key={key}"
        case _:
            return reason_message(reason)


def skipped_pool_message(skipped: SkippedNodePool) -> str:
    """Why a NodePool took no part (SCH-653)."""
    return _with_detail(_SKIP_MESSAGES[skipped.reason], skipped.detail)


def _skipped_cause_message(cause: NodePoolSkipped) -> str:
    text = _skipped_message(cause)
    return f"no dynamic nodepools found ({text})" if cause.none_tried and text != _NO_TYPES_LEFT else text


def _skipped_message(cause: NodePoolSkipped) -> str:
    if cause.skip_reason in (PoolSkipReason.FILTERED, PoolSkipReason.FILTERED_MIN_VALUES):
        return _NO_TYPES_LEFT
    return _with_detail(_SKIP_MESSAGES[cause.skip_reason], cause.detail)


def _with_detail(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text


def unschedulable_message(
    reasons: Iterable[UnschedulableReason], message: Callable[[UnschedulableReason], str] = reason_message
) -> str:
    """All reasons of a pod in one text, each headed by the pool it concerns, equal ones once (SCH-312 Beyond)."""
    by_text: dict[str, list[str]] = {}
    for reason in reasons:
        by_text.setdefault(message(reason), []).append(reason.node_pool)
    parts = []
    for text, pools in by_text.items():
        named = [pool for pool in pools if pool]
        parts.append(f"{text}" if not named else f"nodepool {', '.join(named)}: {text}")
    return "; ".join(parts)


def _no_fitting_type_message(cause: NoFittingType, category: ReasonCategory, node_pool: str) -> str:
    filters = cause.breakdown.failed_filters
    match category:
        case ReasonCategory.LIMITS:
            return f"{_limits_message(filters)} (NodePool={node_pool})"
        case ReasonCategory.TAINT:
            untolerated = [
                failed_filter.taint for failed_filter in filters if isinstance(failed_filter, UntoleratedTaint)
            ]
            return "; ".join(f"did not tolerate taint (taint={taints.taint_text(taint)})" for taint in untolerated)
        case ReasonCategory.REQUIREMENTS:
            return "incompatible requirements, " + "; ".join(filter(None, map(_incompatibility_clause, filters)))
        case ReasonCategory.HOST_PORT:
            port = next(failed_filter for failed_filter in filters if isinstance(failed_filter, HostPortTaken))
            ports = f"(existing={port.taken}, pod={port.port})"
            return f"pod hostport conflicts with existing hostport configuration {ports}"
        case _:
            return _types_message(cause, category)


def _limits_message(filters: Iterable[FailedFilter]) -> str:
    has_node_limit = any(
        isinstance(failed_filter, NodePoolLimitReached) and failed_filter.resource == NODE_LIMIT
        for failed_filter in filters
    )
    return (
        "node limits have been exhausted for nodepool"
        if has_node_limit
        else "all available instance types exceed limits for nodepool"
    )


def _incompatibility_clause(failed: FailedFilter) -> str:
    match failed:
        case UndefinedLabel(asked, suggestion):
            hint = f' (typo of "{suggestion}"?)' if suggestion else ""
            return f'label "{asked.key}" does not have known values{hint}'
        case ConflictingRequirement(asked, offered):
            return f"key {asked.key}, {asked} not in {offered}"
        case _:
            return ""


def _topology_message(cause: TopologyUnsatisfiable) -> str:
    """Upstream's text for a topology group that leaves no domain (SCH-523)."""
    domain_counts = cause.known_domains
    listed = ", ".join(f"{domain}: {count}" for domain, count in domain_counts.pods)
    more = f" and {domain_counts.more_domains} other(s)" if domain_counts.more_domains else ""
    return (
        f"unsatisfiable topology constraint for {cause.relation}, key={cause.key} "
        f"(counts = {listed}{more}, podDomains = {cause.asked}, nodeDomains = {domain_counts.node_domains}"
    )


def _types_message(cause: NoFittingType, category: ReasonCategory) -> str:
    short = f" (label(s)=[{' '.join(cause.short_labels)}])" if cause.short_labels else ""
    text = f"{_TYPE_MESSAGES[category]}{short}, requirements={cause.requirements}, resources={_resources(cause)}"
    if category is ReasonCategory.TYPES_RESOURCES and cause.requests.get(res.CPU, 0) >= _SUSPICIOUS_CPU:
        text += " (CPU request >= 1 Million, m vs M typo?)"
    return text


def _resources(cause: NoFittingType) -> str:
    """The pod's requests with the least and the most DaemonSets add (SCH-335)."""
    least = _json(res.add(cause.requests, cause.least_daemon_requests))
    most = _json(res.add(cause.requests, cause.most_daemon_requests))
    return least if least == most else f"min={least}, max={most}"


def _json(resources: Resources) -> str:
    return json.dumps(res.resources_to_wire(resources), separators=(",", ":"), sort_keys=True)


_CAUSE_CLAUSES = {
    ViolationCause.TOGETHER: "its pods ask to share a host",
    ViolationCause.LIMITS: "limits of NodePools allow no other nodes",
    ViolationCause.PRICE: "nodes with fewer would cost over a tenth more",
    ViolationCause.NOTHING_ELSE: "nothing else at about that price would hold the pods",
}


def placed_when_message(placed: PlacedPods) -> str:
    """When pods fit on the node that has room for them: " once ..." where they wait, and nothing where they fit at once."""
    return " once pods that are being deleted there have ended" if placed.awaits_terminating_pods else ""


def exposure_messages(solution: Solution) -> list[str]:
    """One line for the largest exposure violation, one for each unreadable annotation; none if there are neither."""
    lines = [
        _annotation_message(annotation.subject, annotation.annotation, annotation.error)
        for annotation in solution.unreadable_annotations
    ]
    if solution.exposure_violations:
        worst = max(solution.exposure_violations, key=lambda each: (each.actual - each.limit, each.subject, each.place))
        others = len(solution.exposure_violations) - 1
        more = f" ({others} more like this)" if others else ""
        lines.insert(0, f"exposure limit not kept{more}: {_violation_clause(worst)}")
    return lines


_FALLBACK_CLAUSES = {
    PackingFallback.TOO_MUCH_WORK: "too many pods and nodes to try each pod on each node",
    PackingFallback.PODS_LEFT_OUT: "limits would leave out more pods",
}


def packing_fallback_message(solution: Solution) -> str | None:
    """A line where pods were not dealt as ``fewest-pods`` deals them; None where they were, or another packing is asked for."""
    if solution.packing_fallback is None:
        return None
    return f"packed first-fit decreasing, not fewest-pods: {_FALLBACK_CLAUSES[solution.packing_fallback]}"


def _violation_clause(violation: ExposureViolation) -> str:
    counted = "pods" if violation.cause is not ViolationCause.NOTHING_ELSE else "spot nodes"
    return (
        f"{violation.actual} {counted} of {violation.subject} in {violation.place}, preferred at most {violation.limit}: "
        f"{_CAUSE_CLAUSES[violation.cause]}"
    )


def _annotation_message(subject: str, annotation: str, fault: str) -> str:
    return f"annotation {annotation} of {subject}: {fault}; the default holds"


#: How the event begins (SCH-652).
EVENT_PREFIX = "Failed to schedule pod, "
_CUT = "..."
#: What the API server takes of an event's message, in bytes.
MAX_EVENT_BYTES = 1024


def unschedulable_event_message(pod: UnschedulablePod) -> str:
    """At most ``MAX_EVENT_BYTES`` long; if it would be longer, the reasons of the many pools are cut, not the nearest fit."""
    sentence = nearest_fit_sentence(pod.nearest_fit, pod.nearest_node)
    nearest = _cut(f"; {sentence}", MAX_EVENT_BYTES // 2) if sentence else ""
    return _cut(EVENT_PREFIX + unschedulable_message(pod.reasons), MAX_EVENT_BYTES - len(nearest.encode())) + nearest


def _cut(text: str, most_bytes: int) -> str:
    encoded = text.encode()
    if len(encoded) <= most_bytes:
        return text
    return encoded[: most_bytes - len(_CUT)].decode(errors="ignore") + _CUT


def unschedulable_fingerprint(pod: UnschedulablePod) -> str:
    """The reasons without amounts, which change from pass to pass: equal while nothing else changes (SCH-654 Beyond)."""
    fits = [fit for fit in (pod.nearest_fit, pod.nearest_node) if fit is not None]
    return "; ".join([unschedulable_message(pod.reasons), *map(_fit_fingerprint, fits)])


def _fit_fingerprint(fit: NearestFit) -> str:
    place = fit.node or fit.node_pool
    confined = [f"{confinement.relation} {confinement.key} {confinement.domain}" for confinement in fit.confinements]
    changes = (f"{failed.kind} {_fingerprint_subject(failed)}" for failed in fit.failed_filters)
    return ", ".join([place, *confined, *sorted(changes)])


def _fingerprint_subject(failed: FailedFilter) -> str:
    match failed:
        case OfferingsUnavailable(zones):
            return " ".join(zones)
        case StaticPoolFull():
            return ""
        case _:
            return filter_subject(failed)
