"""Controllers with a fixed period, whose first run was at startup."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from karpenter.kube.errors import KubeError
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_operator import PeriodicRefresh
from karpenter.providers.contract import ProviderError
from karpenter.runtime.reconciler import SingletonReconciler
from karpenter.simulation import virtual_time as virtual
from karpenter.simulation.virtual_time import LoopClock

START = datetime(2026, 1, 5, tzinfo=UTC)
HOUR = 3600.0


class Work:
    """Records the seconds of its runs since the start; fails with errors from ``faults``."""

    def __init__(self, clock: LoopClock, *faults: Exception) -> None:
        self.clock = clock
        self.faults = list(faults)
        self.at: list[float] = []

    async def __call__(self) -> None:
        self.at.append((self.clock.now() - START).total_seconds())
        if self.faults:
            raise self.faults.pop(0)


def seconds_of_runs(during: float, *faults: Exception) -> list[float]:
    """The run times of an hourly controller."""

    async def main(clock: LoopClock) -> list[float]:
        work = Work(clock, *faults)
        refresh = PeriodicRefresh(work, timedelta(hours=1), clock)
        loop = asyncio.create_task(SingletonReconciler("test", refresh.reconcile).run())
        await asyncio.sleep(during)
        loop.cancel()
        return work.at

    return virtual.run_virtual(main, START)


def test_a_run_returns_when_the_next_one_is_due() -> None:
    assert seconds_of_runs(2.5 * HOUR) == [0.0, HOUR, 2 * HOUR]


@pytest.mark.parametrize("fault", [ProviderError("no"), AwsError("InternalError", "no"), KubeError("no")], ids=type)
def test_errors_are_retried_with_growing_delays(fault: Exception) -> None:
    assert seconds_of_runs(HOUR, *[fault] * 8) == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0, 183.0]


def due_after(age: float, *faults: Exception) -> float:
    """The delay until an hourly refresh is due, by the age of the refresh at startup."""

    async def main(clock: LoopClock) -> float:
        refresh = PeriodicRefresh(Work(clock, *faults), timedelta(hours=1), clock)
        with suppress(ProviderError):
            await refresh.refresh()
        await asyncio.sleep(age)
        return refresh.due_seconds()

    return virtual.run_virtual(main, START)


@pytest.mark.parametrize(("age", "due"), [(0.0, HOUR), (0.25 * HOUR, 0.75 * HOUR), (HOUR, 0.0), (100 * HOUR, 0.0)])
def test_a_new_leader_refreshes_old_data_at_once(age: float, due: float) -> None:
    """AWS-281, AWS-366"""
    assert due_after(age) == due


def test_data_that_could_not_be_read_at_the_start_is_due_at_once() -> None:
    """AWS-366"""
    assert due_after(0.0, ProviderError("throttled")) == 0.0


def test_refreshes_start_when_they_are_due() -> None:
    async def main(clock: LoopClock) -> list[float]:
        work = Work(clock)
        refresh = PeriodicRefresh(work, timedelta(hours=1), clock)
        await refresh.refresh()
        await asyncio.sleep(600)
        controller = SingletonReconciler("test", refresh.reconcile, initial_delay=refresh.due_seconds)
        loop = asyncio.create_task(controller.run())
        await asyncio.sleep(1.5 * HOUR)
        loop.cancel()
        return work.at

    assert virtual.run_virtual(main, START) == [0.0, HOUR]
