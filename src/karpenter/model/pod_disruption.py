"""PodDisruptionBudgets as far as they speak about one pod (DIS-083, DIS-084). Budgets of NodePools are in ``budgets``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from karpenter.api.core import Node, Pod, PodDisruptionBudget
from karpenter.model import conditions, durations, labels, selectors, taints
from karpenter.model.pods import is_active, is_finished, is_mirror_pod, is_reschedulable


def pdbs_selecting(pod: Pod, pdbs: Iterable[PodDisruptionBudget]) -> list[PodDisruptionBudget]:
    """The budgets that select the pod; evictions of a pod with several are refused."""
    return [
        budget
        for budget in pdbs
        if budget.metadata.namespace == pod.metadata.namespace
        and selectors.selector_matches(budget.spec.selector, pod.metadata.labels)
    ]


def allows_unready_eviction(pdb: PodDisruptionBudget, pod: Pod) -> bool:
    """Whether the budget lets the pod go whatever it counts, because the pod is not ready (DIS-084)."""
    always = pdb.spec.unhealthy_pod_eviction_policy == "AlwaysAllow"
    return always and conditions.is_false(pod.status.conditions, "Ready")


def blocking_pdbs(pod: Pod, pdbs: Iterable[PodDisruptionBudget]) -> list[PodDisruptionBudget]:
    """The budgets that keep the pod from being evicted now (DIS-080, DIS-081): of several all, whatever they allow."""
    selecting = pdbs_selecting(pod, pdbs)
    if len(selecting) > 1:
        return selecting
    return [
        budget
        for budget in selecting
        if not budget.status.disruptions_allowed and not allows_unready_eviction(budget, pod)
    ]


_CRITICAL_PRIORITY_CLASSES = frozenset({"system-cluster-critical", "system-node-critical"})
#: A pod this long past its deletion time is not waited for any more (DIS-S302).
STUCK_TERMINATING_AFTER = timedelta(minutes=1)

#: Says which pods of a workload to give up first (DIS-110).
DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
#: The same for disruption alone; it wins (K15-340).
DISRUPTION_COST_ANNOTATION = "karpenter.sh/disruption-cost"
_MAX_EVICTION_COST = 10.0
_INTEGER = re.compile(r"[+-]?[0-9]{1,12}", re.ASCII)
_FORMER_PROTECTION_ANNOTATIONS = ("karpenter.sh/do-not-evict", "karpenter.sh/do-not-consolidate")
_PROTECTION_ANNOTATIONS = frozenset((labels.DO_NOT_DISRUPT, *_FORMER_PROTECTION_ANNOTATIONS))


def has_eviction_annotation(pod: Pod) -> bool:
    """Whether an annotation of the pod says that it should stay where it is, whatever that comes to now."""
    annotations = pod.metadata.annotations
    return bool(annotations) and (
        labels.SAFE_TO_EVICT in annotations or not _PROTECTION_ANNOTATIONS.isdisjoint(annotations)
    )


def is_critical(pod: Pod) -> bool:
    """Whether the pod is evicted last (DIS-522)."""
    return pod.spec.priority_class_name in _CRITICAL_PRIORITY_CLASSES


def is_stuck_terminating(pod: Pod, now: datetime) -> bool:
    """Whether the pod should have been gone for over a minute."""
    deleted = pod.metadata.deletion_timestamp
    return deleted is not None and now - deleted > STUCK_TERMINATING_AFTER


@dataclass(frozen=True, slots=True)
class DisruptionProtection:
    """What ``karpenter.sh/do-not-disrupt`` on a pod or a Node says (DIS-090 to DIS-094, API-451).

    ``until`` is the end of a protection that has one, known once the pod has started; ``error`` says why the annotation counts
    for nothing.
    """

    active: bool
    until: datetime | None = None
    error: str = ""


def disruption_protection(pod: Pod, now: datetime) -> DisruptionProtection | None:
    """The pod's protection from disruption, None without annotation; old spellings count when ``"true"`` (API-450, API-464).

    Whether the pod still runs is not asked: terminating and finished pods block nothing whatever they carry (DIS-095).
    """
    return _protection(pod.metadata.annotations, pod.status.start_time, now)


def node_disruption_protection(node: Node, now: datetime) -> DisruptionProtection | None:
    """The Node's own protection, None without annotation; a duration counts from the creation of the Node (API-451, API-464)."""
    return _protection(node.metadata.annotations, node.metadata.creation_timestamp, now)


def _protection(annotations: Mapping[str, str], since: datetime | None, now: datetime) -> DisruptionProtection | None:
    if _PROTECTION_ANNOTATIONS.isdisjoint(annotations):
        return None
    value = annotations.get(labels.DO_NOT_DISRUPT)
    if value == "true" or any(annotations.get(old) == "true" for old in _FORMER_PROTECTION_ANNOTATIONS):
        return DisruptionProtection(active=True)
    return None if value is None else _time_limited_protection(value, since, now)


def _time_limited_protection(value: str, since: datetime | None, now: datetime) -> DisruptionProtection:
    """The protection of a value other than ``true``: for so long after the pod's start or the Node's creation."""
    try:
        period = durations.parse_duration(value)
    except durations.DurationError:
        return DisruptionProtection(
            active=False, error=f"{value!r} is neither true nor a duration such as 30m or 1h30m"
        )
    if period <= timedelta(0):
        return DisruptionProtection(active=False, error=f"{value!r} is not a positive duration")
    if since is None:
        return DisruptionProtection(active=True)
    return DisruptionProtection(active=now - since < period, until=since + period)


def is_protected(pod: Pod, now: datetime) -> bool:
    """Whether ``karpenter.sh/do-not-disrupt`` is active on the pod (SCH-061)."""
    protection = disruption_protection(pod, now)
    return protection is not None and protection.active


def is_not_safe_to_evict(pod: Pod) -> bool:
    """Whether Cluster Autoscaler would keep a node for the pod. A drain that a user requested evicts it nevertheless."""
    return pod.metadata.annotations.get(labels.SAFE_TO_EVICT) == "false"


def eviction_cost(pod: Pod) -> float:
    """How much it hurts to evict the pod, 1 for an ordinary one, between -10 and 10 (DIS-110, K15-340, K15-342).

    A cost that is no 32-bit integer counts as none; an unreadable disruption cost does not fall back to the deletion cost.
    """
    if not pod.metadata.annotations and not pod.spec.priority:
        return 1.0
    annotation = cost_annotation(pod)
    wanted = _cost_value(pod.metadata.annotations[annotation]) if annotation else None
    cost = 1.0 + (wanted or 0) / 2**27 + (pod.spec.priority or 0) / 2**25
    return min(max(cost, -_MAX_EVICTION_COST), _MAX_EVICTION_COST)


def cost_annotation(pod: Pod) -> str:
    """The annotation that says what evicting the pod costs: that of disruption first; empty without any (K15-340)."""
    for key in (DISRUPTION_COST_ANNOTATION, DELETION_COST_ANNOTATION):
        if key in pod.metadata.annotations:
            return key
    return ""


def without_deletion_cost(pod: Pod) -> Pod:
    """The pod without its deletion cost, which this controller writes and which no decision may read then (K15-340)."""
    if DELETION_COST_ANNOTATION not in pod.metadata.annotations:
        return pod
    kept = {key: value for key, value in pod.metadata.annotations.items() if key != DELETION_COST_ANNOTATION}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=kept))


def unreadable_cost(pod: Pod) -> tuple[str, str] | None:
    """Annotation and value of a cost that does not parse; None if there is no such annotation or it parses (K15-341)."""
    annotation = cost_annotation(pod)
    value = pod.metadata.annotations[annotation] if annotation else ""
    return (annotation, value) if annotation and _cost_value(value) is None else None


def _cost_value(text: str) -> int | None:
    """A decimal 32-bit integer; None for anything else (K15-341)."""
    if not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if -(2**31) <= value < 2**31 else None


def tolerates_disruption(pod: Pod) -> bool:
    """Whether the pod tolerates the disruption taint and so stays on a draining node."""
    return taints.tolerates_taint(pod.spec.tolerations, labels.DISRUPTED_TAINT)


def needs_draining(pod: Pod, now: datetime) -> bool:
    """Whether a drain waits for the pod (DIS-520)."""
    return not (is_finished(pod) or is_mirror_pod(pod) or tolerates_disruption(pod) or is_stuck_terminating(pod, now))


def is_currently_reschedulable(pod: Pod, now: datetime) -> bool:
    """Whether the pod will need another place when its node goes (SCH-060, without disruption budgets)."""
    return is_reschedulable(pod) and not (is_active(pod) and is_protected(pod, now))
