"""Cost of a run and waiting times of its pods, as figures.

The price per hour is a step function of time, so the cost between two moments is an integral. It is kept in whole numbers
(nano-dollars per hour, microseconds) with running sums: costs of adjoining spans add up exactly, and a query costs two
binary searches, however long the run.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction

from karpenter.api.core import Pod
from karpenter.kube.informer import ObjectKey, key_of

#: Nano-dollars in a dollar.
NANO = 10**9
MICROSECOND = timedelta(microseconds=1)
_HOUR = timedelta(hours=1) // MICROSECOND


def exact_usd(integral: int) -> Fraction:
    """USD of a price in nano-dollars per hour, integrated over microseconds."""
    return Fraction(integral, NANO * _HOUR)


class StepFunction:
    """A whole number that changes at moments; 0 before the first. Moments must not go backwards (``ValueError``)."""

    def __init__(self) -> None:
        self._moments: list[datetime] = []
        self._levels: list[int] = []
        self._sums: list[int] = []

    def set(self, at: datetime, level: int) -> None:
        """Set the level from ``at`` on."""
        if self._moments and at < self._moments[-1]:
            raise ValueError(f"{at.isoformat()} is before the last change at {self._moments[-1].isoformat()}")
        if self._moments and at == self._moments[-1]:
            self._levels[-1] = level
            return
        self._sums.append(self._sum_until(at))
        self._moments.append(at)
        self._levels.append(level)

    def add(self, at: datetime, difference: int) -> None:
        """Raise the level by this from ``at`` on."""
        self.set(at, (self._levels[-1] if self._levels else 0) + difference)

    def changes(self) -> list[tuple[datetime, int]]:
        """The moments and the levels that begin there."""
        return list(zip(self._moments, self._levels, strict=True))

    def level(self, at: datetime) -> int:
        """The level at a moment."""
        index = bisect_right(self._moments, at) - 1
        return self._levels[index] if index >= 0 else 0

    def integral(self, start: datetime, end: datetime) -> int:
        """Level times microseconds between two moments; negative when they are swapped."""
        return self._sum_until(end) - self._sum_until(start)

    def peak(self, start: datetime, end: datetime) -> int:
        """The highest level at any moment from ``start`` to before ``end``; that at ``start`` for an empty span."""
        first = bisect_right(self._moments, start)
        inside = [
            level for moment, level in zip(self._moments[first:], self._levels[first:], strict=True) if moment < end
        ]
        return max([self.level(start), *inside])

    def mean(self, start: datetime, end: datetime) -> float:
        """The average level between two moments; the level at ``start`` for an empty span."""
        width = (end - start) // MICROSECOND
        return self.integral(start, end) / width if width else float(self.level(start))

    def _sum_until(self, at: datetime) -> int:
        index = bisect_right(self._moments, at) - 1
        if index < 0:
            return 0
        return self._sums[index] + self._levels[index] * ((at - self._moments[index]) // MICROSECOND)


class CostMeter:
    """Adds up the cost of instances. Any hashable value identifies an instance, such as its provider ID."""

    def __init__(self) -> None:
        self._prices: dict[Hashable, int] = {}
        self._rate = StepFunction()
        self._instances = StepFunction()

    def set_price(self, instance: Hashable, at: datetime, usd_per_hour: float) -> None:
        """The instance costs this much from now on; the first price starts it. Moments must not go backwards."""
        nano = round(usd_per_hour * NANO)
        self._rate.add(at, nano - self._prices.get(instance, 0))
        if instance not in self._prices:
            self._instances.add(at, 1)
        self._prices[instance] = nano

    def stop(self, instance: Hashable, at: datetime) -> None:
        """The instance costs nothing from now on; an unknown instance is ignored."""
        nano = self._prices.pop(instance, None)
        if nano is not None:
            self._rate.add(at, -nano)
            self._instances.add(at, -1)

    def exact_cost_usd(self, start: datetime, end: datetime) -> Fraction:
        """What all instances cost between two moments, in USD; costs of adjoining spans add up exactly."""
        return exact_usd(self._rate.integral(start, end))

    def cost_usd(self, start: datetime, end: datetime) -> float:
        """The same as a plain number."""
        return float(self.exact_cost_usd(start, end))

    def rate_usd_per_hour(self, at: datetime) -> float:
        """What all instances cost per hour at a moment."""
        return self._rate.level(at) / NANO

    def rate_changes(self) -> list[tuple[datetime, float]]:
        """When the cost per hour changed, and to what, in USD."""
        return [(at, level / NANO) for at, level in self._rate.changes()]

    def bill(self, start: datetime, end: datetime) -> CostBill:
        """Everything about the span as one value."""
        return CostBill(
            start=start,
            end=end,
            cost_usd=self.cost_usd(start, end),
            mean_usd_per_hour=self._rate.mean(start, end) / NANO,
            peak_usd_per_hour=self._rate.peak(start, end) / NANO,
            mean_instances=self._instances.mean(start, end),
            peak_instances=self._instances.peak(start, end),
        )


@dataclass(frozen=True, slots=True)
class CostBill:
    """What a span of time cost."""

    start: datetime
    end: datetime
    cost_usd: float
    mean_usd_per_hour: float
    peak_usd_per_hour: float
    mean_instances: float
    peak_instances: int


@dataclass(frozen=True, slots=True)
class WaitStatistics:
    """Waiting times of ``count`` pods, in seconds; percentiles are waits that really occurred (nearest rank)."""

    count: int
    mean_seconds: float
    p50_seconds: float
    p90_seconds: float
    p95_seconds: float
    p99_seconds: float
    max_seconds: float


def wait_statistics(seconds: Iterable[float]) -> WaitStatistics:
    """Statistics of waiting times; all 0 where there are none."""
    ordered = sorted(seconds)
    if not ordered:
        return WaitStatistics(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    mean = math.fsum(ordered) / len(ordered)
    p50, p90, p95, p99 = (_percentile(ordered, percent) for percent in (50, 90, 95, 99))
    return WaitStatistics(len(ordered), mean, p50, p90, p95, p99, ordered[-1])


def _percentile(ordered: list[float], percent: int) -> float:
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


@dataclass(slots=True)
class _ObservedPod:
    """A pod that is there, and what has been observed of it."""

    key: ObjectKey
    created: datetime
    is_bound: bool = False
    is_ready: bool = False


class PodWaitTimes:
    """Remembers how long each pod took to be bound and to be ready for the first time, also after it is gone."""

    def __init__(self) -> None:
        #: Pods that are there, by uid. Of one that is gone only the waits are kept.
        self._present: dict[str, _ObservedPod] = {}
        self._bound_after: list[float] = []
        self._ready_after: list[float] = []
        self._left_unready: list[ObjectKey] = []

    def observe(self, pod: Pod, now: datetime) -> None:
        """Record a pod's current state. The first observation of a state counts, at the time of its condition if it has one."""
        uid = pod.metadata.uid
        observed = self._present.get(uid)
        if observed is None:
            observed = _ObservedPod(key_of(pod.metadata), pod.metadata.creation_timestamp or now)
            self._present[uid] = observed
        if pod.spec.node_name and not observed.is_bound:
            observed.is_bound = True
            self._bound_after.append((now - observed.created).total_seconds())
        if observed.is_ready:
            return
        for condition in pod.status.conditions:
            if condition.type == "Ready" and condition.status == "True":
                observed.is_ready = True
                self._ready_after.append(((condition.last_transition_time or now) - observed.created).total_seconds())
                return

    def remove(self, pod: Pod) -> None:
        """The pod is gone."""
        observed = self._present.pop(pod.metadata.uid, None)
        if observed is not None and not observed.is_ready:
            self._left_unready.append(observed.key)

    def time_to_bound(self) -> WaitStatistics:
        """From creation to a node."""
        return wait_statistics(self._bound_after)

    def time_to_ready(self) -> WaitStatistics:
        """From creation to ready."""
        return wait_statistics(self._ready_after)

    def never_ready(self) -> tuple[ObjectKey, ...]:
        """Pods that were never seen ready, by namespace and name."""
        unready = (observed.key for observed in self._present.values() if not observed.is_ready)
        return tuple(sorted((*self._left_unready, *unready)))


@dataclass(frozen=True, slots=True)
class RunReport:
    """The outcome of a run."""

    bill: CostBill
    time_to_bound: WaitStatistics
    time_to_ready: WaitStatistics
    never_ready: tuple[ObjectKey, ...]


def summarize_run(meter: CostMeter, times: PodWaitTimes, start: datetime, end: datetime) -> RunReport:
    """The report of a run."""
    return RunReport(meter.bill(start, end), times.time_to_bound(), times.time_to_ready(), times.never_ready())
