"""Pods that wait for a node, each with the reason, and how many pods there are in which phase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from karpenter.api.core import Event, Pod
from karpenter.console.console_input import ConsoleInput
from karpenter.model import conditions, pods
from karpenter.model.resources import Resources
from karpenter.scheduling.explain.nearest_fit_messages import nearest_fit_sentence
from karpenter.scheduling.explain.reason_messages import short_reason_message
from karpenter.scheduling.solution import Solution, UnschedulablePod
from karpenter.state.snapshot import PodKey, pod_key


@dataclass(frozen=True)
class PodCounts:
    """Pods by phase, without finished and deleting ones (OPS-801). ``bound``: with a node, whatever the phase."""

    total: int
    pending: int
    running: int
    bound: int


@dataclass(frozen=True)
class PendingPod:
    """A pod without a node. ``reason``: why it waits, with the nearest fit where a scheduling pass was computed."""

    namespace: str
    name: str
    since: datetime | None
    requests: Resources
    reason: str

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def count_pods(all_pods: Iterable[Pod]) -> PodCounts:
    """The pods that count (OPS-801)."""
    counted = [pod for pod in all_pods if not pods.is_finished(pod) and pod.metadata.deletion_timestamp is None]
    return PodCounts(
        total=len(counted),
        pending=sum(pod.status.phase == "Pending" for pod in counted),
        running=sum(pod.status.phase == "Running" for pod in counted),
        bound=sum(bool(pod.spec.node_name) for pod in counted),
    )


def pending_pods(given: ConsoleInput) -> tuple[PendingPod, ...]:
    """Pods without a node, the longest waiting first.

    The reason is that of ``given.placements``, else that of the latest FailedScheduling event, else the scheduler's.
    """
    said = _latest_failures(given.events)
    waiting = [pod for pod in given.pods if _is_waiting(pod)]
    rows = (_pending_pod(pod, given.placements, said) for pod in waiting)
    return tuple(sorted(rows, key=lambda row: (row.since is None, row.since, row.full_name)))


def _is_waiting(pod: Pod) -> bool:
    return not pod.spec.node_name and not pods.is_finished(pod) and pod.metadata.deletion_timestamp is None


def _pending_pod(pod: Pod, placements: Mapping[PodKey, str], said: Mapping[PodKey, str]) -> PendingPod:
    key = pod_key(pod)
    reason = placements.get(key) or said.get(key) or _scheduler_reason(pod)
    since = pod.metadata.creation_timestamp
    return PendingPod(*key, since, pods.pod_requests(pod), reason)


def _scheduler_reason(pod: Pod) -> str:
    if pod.spec.scheduling_gates:
        return f"has scheduling gates: {', '.join(gate.name for gate in pod.spec.scheduling_gates)}"
    condition = conditions.find_condition(pod.status.conditions, "PodScheduled")
    if condition is None or condition.status != conditions.FALSE:
        return "the scheduler has not looked at it yet"
    return condition.message or condition.reason


def _latest_failures(events: Iterable[Event]) -> Mapping[PodKey, str]:
    failed = [event for event in events if event.reason == "FailedScheduling" and event.last_timestamp is not None]
    failed.sort(key=lambda event: event.last_timestamp.timestamp() if event.last_timestamp is not None else 0.0)
    return {(event.involved_object.namespace, event.involved_object.name): event.message for event in failed}


def pod_placements(plan: Solution) -> Mapping[PodKey, str]:
    """What a plan says about each of its pods, in one sentence."""
    return dict(_placements(plan))


def _placements(plan: Solution) -> Iterator[tuple[PodKey, str]]:
    for left in plan.unschedulable:
        yield pod_key(left.pod), f"unschedulable: {unschedulable_sentence(left)}"
    for claim in plan.new_claims:
        text = (
            f"new node: {claim.instance_types[0]} of NodePool {claim.node_pool}, ${claim.price_per_hour:.4f} per hour"
        )
        yield from ((pod_key(pod), text) for pod in claim.pods)
    for placed in plan.placed_on_existing:
        yield from ((pod_key(pod), f"planned on node {placed.node_name}") for pod in placed.pods)


def unschedulable_sentence(left: UnschedulablePod) -> str:
    """Why a pod fits nowhere: with the nearest fit, or without one the reason of each NodePool."""
    nearest = nearest_fit_sentence(left.nearest_fit, left.nearest_node)
    return nearest or "; ".join(short_reason_message(reason) for reason in left.reasons)
