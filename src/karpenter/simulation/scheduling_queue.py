"""The pods that wait for the simulated scheduler, in the order in which they are tried.

A pod that was rejected is tried again when its backoff has passed and the cluster has changed for it since. So rejected pods
are kept aside until the cluster changes for them; then they go to a heap by the end of their backoff. A wake-up costs what is
tried, not what waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from karpenter.kube.informer import ObjectKey, key_of
from karpenter.simulation.scheduler_node_info import PodInfo

INITIAL_BACKOFF = timedelta(seconds=1)
MAX_BACKOFF = timedelta(seconds=10)

_MAX_DOUBLINGS = 10
#: Change count of a pod that is to be tried whatever has changed.
_UNTRIED = -1
#: Priority, then age, then name; see ``_queue_order``.
_Order = tuple[int, str, ObjectKey]


@dataclass(frozen=True, slots=True)
class QueuedPod:
    """A pending pod: its rejections, when it may be tried again, and the cluster's change count at its last attempt."""

    pod_info: PodInfo
    order: _Order
    attempts: int = 0
    not_before: datetime | None = None
    change_count: int = _UNTRIED


class SchedulingQueue:
    """Pending pods by key. ``change_count`` counts the changes of the cluster that matter to a pod; it never falls.

    Pods with and without terms about other pods have a count each: all pods of one side have the same count at one moment.
    """

    def __init__(self, change_count: Callable[[PodInfo], int]) -> None:
        self._change_count = change_count
        self._pods: dict[ObjectKey, QueuedPod] = {}
        #: Not tried yet.
        self._untried: dict[ObjectKey, None] = {}
        #: Rejected, and the cluster has not changed for them since, by ``has_inter_pod_terms``.
        self._rejected: dict[bool, _RejectedPods] = {False: _RejectedPods(), True: _RejectedPods()}
        #: Rejected, and the cluster has changed since, by the end of the backoff. What was dropped or tried since is still there.
        self._backoff: list[tuple[datetime, ObjectKey]] = []

    def get(self, key: ObjectKey) -> QueuedPod | None:
        """The pod, if it waits."""
        return self._pods.get(key)

    def put(self, pod_info: PodInfo) -> None:
        """Add a pod, or its present version. A version that is another pod to the scheduler has no rejections."""
        key = key_of(pod_info.pod.metadata)
        before = self._pods.get(key)
        if before is not None and _is_unchanged(before.pod_info, pod_info):
            self._pods[key] = replace(before, pod_info=pod_info, order=_queue_order(key, pod_info))
        else:
            self.remove(key)
            self._pods[key] = QueuedPod(pod_info, _queue_order(key, pod_info))
            self._untried[key] = None

    def remove(self, key: ObjectKey) -> None:
        """Drop a pod, if it waits."""
        queued = self._pods.pop(key, None)
        if queued is not None:
            self._untried.pop(key, None)
            self._rejected[queued.pod_info.has_inter_pod_terms].backoff_ends.pop(key, None)

    def reject(self, queued: QueuedPod, now: datetime) -> None:
        """No node fits the pod: it waits for its backoff and for a change."""
        key, count = queued.order[2], self._change_count(queued.pod_info)
        not_before = self._back_off(queued, now, count)
        rejected = self._rejected[queued.pod_info.has_inter_pod_terms]
        if rejected.change_count != count:
            self._release(rejected)
            rejected.change_count = count
        rejected.backoff_ends[key] = not_before

    def retry(self, queued: QueuedPod, now: datetime) -> None:
        """An attempt failed for a reason of its own: the pod waits for its backoff only."""
        heapq.heappush(self._backoff, (self._back_off(queued, now, _UNTRIED), queued.order[2]))

    def _back_off(self, queued: QueuedPod, now: datetime, count: int) -> datetime:
        key = queued.order[2]
        delay = min(INITIAL_BACKOFF * (1 << min(queued.attempts, _MAX_DOUBLINGS)), MAX_BACKOFF)
        not_before = now + delay
        self.remove(key)
        self._pods[key] = QueuedPod(queued.pod_info, queued.order, queued.attempts + 1, not_before, count)
        return not_before

    def due(self, now: datetime) -> list[ObjectKey]:
        """The pods to try now: highest priority first, then oldest, then by name. Each must be bound, rejected or removed."""
        self._release_changed()
        found = dict(self._untried)
        while self._backoff and self._backoff[0][0] <= now:
            entry = heapq.heappop(self._backoff)
            if self._is_current(*entry):
                found[entry[1]] = None
        return sorted(found, key=lambda key: self._pods[key].order)

    def next_retry(self) -> datetime | None:
        """When the next backoff ends of a pod for which the cluster has changed; None if there is none."""
        self._release_changed()
        while self._backoff and not self._is_current(*self._backoff[0]):
            heapq.heappop(self._backoff)
        return self._backoff[0][0] if self._backoff else None

    def _is_current(self, not_before: datetime, key: ObjectKey) -> bool:
        queued = self._pods.get(key)
        if queued is None or queued.not_before != not_before:
            return False
        return key not in self._rejected[queued.pod_info.has_inter_pod_terms].backoff_ends

    def _release_changed(self) -> None:
        for rejected in self._rejected.values():
            if rejected.backoff_ends:
                key = next(iter(rejected.backoff_ends))
                if self._change_count(self._pods[key].pod_info) != rejected.change_count:
                    self._release(rejected)

    def _release(self, rejected: _RejectedPods) -> None:
        for key, not_before in rejected.backoff_ends.items():
            heapq.heappush(self._backoff, (not_before, key))
        rejected.backoff_ends.clear()


class _RejectedPods:
    """Pods that were rejected at one change count, with the end of their backoff."""

    def __init__(self) -> None:
        self.change_count = _UNTRIED
        self.backoff_ends: dict[ObjectKey, datetime] = {}


def _is_unchanged(left: PodInfo, right: PodInfo) -> bool:
    return (
        left.pod.metadata.uid == right.pod.metadata.uid
        and left.signature == right.signature
        and left.pod.spec == right.pod.spec
    )


def _queue_order(key: ObjectKey, pod_info: PodInfo) -> _Order:
    created = pod_info.pod.metadata.creation_timestamp
    return (-pod_info.priority, created.isoformat() if created is not None else "", key)
