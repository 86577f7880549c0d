"""The scheduler's queue says what one says that looks through all waiting pods at each question."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from karpenter.api.scheduling_constraints import TopologySpreadConstraint
from karpenter.kube.informer import ObjectKey, key_of
from karpenter.simulation.scheduler_node_info import PodInfo, to_pod_info
from karpenter.simulation.scheduling_queue import INITIAL_BACKOFF, MAX_BACKOFF, SchedulingQueue
from support.stand_in_cluster import pod

_START = datetime(2026, 1, 5, tzinfo=UTC)
_NAMES = tuple(f"p{number}" for number in range(6))
_SPREAD = TopologySpreadConstraint(max_skew=1, topology_key="zone", when_unsatisfiable="DoNotSchedule")
_UNTRIED = -1
_STEPS = ("put", "put another", "remove", "gain room", "change", "wait", "reject", "bind one", "fail to bind")


def _pod_info(name: str, version: int = 0) -> PodInfo:
    """A pod; the priority, the age and whether it looks at other pods differ by name. Another version is another pod."""
    number = int(name[1:])
    own = pod(name, priority=number % 2)
    created = _START + timedelta(seconds=number % 3)
    metadata = replace(own.metadata, uid=f"{name}-{version}", creation_timestamp=created)
    spec = replace(own.spec, topology_spread_constraints=(_SPREAD,) if number >= len(_NAMES) // 2 else ())
    return to_pod_info(replace(own, metadata=metadata, spec=spec))


@dataclass
class _ScannedPod:
    pod_info: PodInfo
    attempts: int = 0
    not_before: datetime | None = None
    change_count: int = _UNTRIED


class _BothQueues:
    """The queue, and one that looks through all pods."""

    def __init__(self) -> None:
        self._now = _START
        self._counts = {False: 0, True: 0}
        self._versions = dict.fromkeys(_NAMES, 0)
        self._queue = SchedulingQueue(self._count)
        self._scanned: dict[ObjectKey, _ScannedPod] = {}

    def _count(self, pod_info: PodInfo) -> int:
        return self._counts[pod_info.has_inter_pod_terms]

    def step(self, what: str, name: str) -> None:
        match what:
            case "put":
                self._put(_pod_info(name, self._versions[name]))
            case "put another":
                self._versions[name] += 1
                self._put(_pod_info(name, self._versions[name]))
            case "remove":
                self._remove(key_of(_pod_info(name).pod.metadata))
            case "gain room":
                self._counts = {side: count + 1 for side, count in self._counts.items()}
            case "change":
                self._counts[True] += 1
            case "wait":
                self._now += timedelta(seconds=1 + int(name[1:]))
            case _:
                self._attempt(what)
        assert self._queue.next_retry() == self._scan_next_retry()

    def _put(self, pod_info: PodInfo) -> None:
        self._queue.put(pod_info)
        key = key_of(pod_info.pod.metadata)
        before = self._scanned.get(key)
        if before is None or before.pod_info.pod.metadata.uid != pod_info.pod.metadata.uid:
            self._scanned[key] = _ScannedPod(pod_info)

    def _remove(self, key: ObjectKey) -> None:
        self._queue.remove(key)
        self._scanned.pop(key, None)

    def _attempt(self, what: str) -> None:
        """Try all pods that are due. The cluster changes in between, as it does while the server is told of a rejection."""
        due = self._queue.due(self._now)
        assert due == self._scan_due()
        for number, key in enumerate(due):
            self._counts[True] += number % 2
            self._counts[False] += number % 3 == 2
            if what == "bind one" and number == 0:
                self._remove(key)
            elif what == "fail to bind":
                self._back_off(key, _UNTRIED)
            else:
                self._back_off(key, self._count(self._scanned[key].pod_info))

    def _back_off(self, key: ObjectKey, change_count: int) -> None:
        queued = self._queue.get(key)
        assert queued is not None
        (self._queue.retry if change_count == _UNTRIED else self._queue.reject)(queued, self._now)
        scanned = self._scanned[key]
        scanned.not_before = self._now + min(INITIAL_BACKOFF * 2**scanned.attempts, MAX_BACKOFF)
        scanned.attempts += 1
        scanned.change_count = change_count

    def _is_changed_for(self, scanned: _ScannedPod) -> bool:
        return scanned.change_count != self._count(scanned.pod_info)

    def _scan_due(self) -> list[ObjectKey]:
        due = [
            (-scanned.pod_info.priority, scanned.pod_info.pod.metadata.creation_timestamp or _START, key)
            for key, scanned in self._scanned.items()
            if self._is_changed_for(scanned) and (scanned.not_before is None or scanned.not_before <= self._now)
        ]
        return [key for _, _, key in sorted(due)]

    def _scan_next_retry(self) -> datetime | None:
        ends = (scanned.not_before for scanned in self._scanned.values() if self._is_changed_for(scanned))
        return min((end for end in ends if end is not None), default=None)


@pytest.mark.parametrize("seed", range(40))
def test_the_queue_tries_the_pods_that_a_scan_of_all_pods_finds(seed: int) -> None:
    """Chosen by dice: what can go wrong takes dozens of steps, more than hypothesis makes of short lists."""
    dice = random.Random(seed)
    queues = _BothQueues()
    for name in _NAMES:
        queues.step("put", name)
    for _ in range(80):
        queues.step(dice.choice(_STEPS), dice.choice(_NAMES))


def test_a_rejected_pod_waits_for_a_change_and_for_its_backoff() -> None:
    changes = [0]
    queue = SchedulingQueue(lambda _: changes[0])
    own = _pod_info("p0")
    key = key_of(own.pod.metadata)
    queue.put(own)
    queued = queue.get(key)
    assert queued is not None
    queue.reject(queued, _START)
    assert (queue.due(_START + MAX_BACKOFF), queue.next_retry()) == ([], None)
    changes[0] += 1
    assert queue.next_retry() == _START + INITIAL_BACKOFF
    assert queue.due(_START) == []
    assert queue.due(_START + INITIAL_BACKOFF) == [key]
