"""Queues and batches: no key is reconciled twice at once, none is lost, none spins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest

from karpenter.kube.errors import ServerUnavailable
from karpenter.providers.contract import ProviderError
from karpenter.provisioning.batcher import ProvisioningBatcher
from karpenter.runtime.batch_window import BatchWindow
from karpenter.runtime.reconciler import Reconciler, SingletonReconciler, run_supervised
from karpenter.runtime.workqueue import WorkQueue
from karpenter.simulation.virtual_time import run_virtual

Answer = float | Exception | None


def run_in_virtual_time(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtual(lambda clock: scenario(), datetime(2026, 1, 1, tzinfo=UTC))


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


class Reconciles:
    """A scripted reconcile that records the times of its calls."""

    def __init__(self, *answers: Answer, takes: float = 0.0) -> None:
        self.answers = list(answers)
        self.takes = takes
        self.at: list[float] = []
        self.at_once = self.most_at_once = 0
        self.during: Callable[[], None] = lambda: None

    async def __call__(self, name: str) -> float | None:
        self.at.append(now())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.during()
        await asyncio.sleep(self.takes)
        self.at_once -= 1
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


async def working(reconciles: Reconciles, workers: int = 4) -> tuple[WorkQueue[str], asyncio.Task[None]]:
    reconciler: Reconciler[str] = Reconciler("test", reconciles, workers)
    return reconciler.queue, asyncio.create_task(reconciler.run())


def test_a_name_that_waits_already_is_looked_at_once() -> None:
    async def scenario() -> None:
        reconciles = Reconciles()
        queue, task = await working(reconciles)
        for _ in range(5):
            queue.add("a")
        await asyncio.sleep(1)
        assert reconciles.at == [0.0]
        task.cancel()

    run_in_virtual_time(scenario)


def test_events_during_a_reconcile_cause_one_more_reconcile_and_never_two_at_once() -> None:
    async def scenario() -> None:
        reconciles = Reconciles(takes=1.0)
        queue, task = await working(reconciles)
        queue.add("a")
        await asyncio.sleep(0.5)
        queue.add("a")
        queue.add("a")
        await asyncio.sleep(5)
        assert reconciles.at == [0.0, 1.0]
        assert reconciles.most_at_once == 1
        task.cancel()

    run_in_virtual_time(scenario)


def test_different_names_are_looked_at_side_by_side_as_far_as_workers_go() -> None:
    async def scenario() -> None:
        reconciles = Reconciles(takes=1.0)
        queue, task = await working(reconciles, workers=2)
        for name in "abc":
            queue.add(name)
        await asyncio.sleep(5)
        assert reconciles.at == [0.0, 0.0, 1.0]
        assert reconciles.most_at_once == 2
        task.cancel()

    run_in_virtual_time(scenario)


def test_a_reconcile_may_requeue_and_the_earlier_time_counts() -> None:
    async def scenario() -> None:
        reconciles = Reconciles(10.0, None)
        queue, task = await working(reconciles)
        queue.add("a")
        await asyncio.sleep(1)
        queue.add_after("a", 3)
        queue.add_after("a", 30)
        await asyncio.sleep(60)
        assert reconciles.at == [0.0, 4.0]
        task.cancel()

    run_in_virtual_time(scenario)


@pytest.mark.parametrize("error", [ServerUnavailable("x"), ProviderError("x"), ValueError("a bug")])
def test_faults_are_tried_again_with_growing_pauses_up_to_a_minute(error: Exception) -> None:
    """OPS-008, OPS-371"""

    async def scenario() -> None:
        reconciles = Reconciles(*[error] * 9, None)
        queue, task = await working(reconciles)
        queue.add("a")
        await asyncio.sleep(1000)
        pauses = [later - earlier for earlier, later in zip(reconciles.at, reconciles.at[1:], strict=False)]
        assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        task.cancel()

    run_in_virtual_time(scenario)


def test_success_resets_the_failures_before_it() -> None:
    async def scenario() -> None:
        reconciles = Reconciles(ServerUnavailable("x"), ServerUnavailable("x"), None, ServerUnavailable("x"), None)
        queue, task = await working(reconciles)
        queue.add("a")
        await asyncio.sleep(50)
        queue.add("a")
        await asyncio.sleep(50)
        assert reconciles.at == [0.0, 1.0, 3.0, 50.0, 51.0]
        task.cancel()

    run_in_virtual_time(scenario)


def test_an_event_shortens_the_backoff_of_a_failed_key_to_one_second_at_least() -> None:
    async def scenario() -> None:
        reconciles = Reconciles(*[ServerUnavailable("x")] * 4, None)
        queue, task = await working(reconciles)
        queue.add("a")
        await asyncio.sleep(8)  # failed at 0, 1, 3 and 7: due again at 15
        queue.add("a")
        await asyncio.sleep(2)
        assert reconciles.at == [0.0, 1.0, 3.0, 7.0, 8.0]
        task.cancel()

    run_in_virtual_time(scenario)


def test_a_reconcile_that_fails_and_requeues_itself_runs_once_a_second_at_most() -> None:
    """A write that wakes its own look, then a fault: without a floor this would turn for ever at one instant."""

    async def scenario() -> None:
        reconciles = Reconciles(*[ServerUnavailable("x")] * 1000)
        queue, task = await working(reconciles)
        reconciles.during = lambda: queue.add("a")
        queue.add("a")
        await asyncio.sleep(60)
        assert len(reconciles.at) <= 61
        task.cancel()

    run_in_virtual_time(scenario)


def test_a_loop_that_breaks_is_started_again_later_and_later() -> None:
    """OPS-371"""

    async def scenario() -> None:
        started: list[float] = []

        async def work() -> None:
            started.append(now())
            if len(started) < 5:
                raise RuntimeError("a bug")

        await run_supervised("test", work)
        assert started == [0, 1, 3, 7, 15]

    run_in_virtual_time(scenario)


def test_a_loop_that_held_for_long_starts_again_soon() -> None:
    async def scenario() -> None:
        started: list[float] = []

        async def work() -> None:
            started.append(now())
            await asyncio.sleep(100 if len(started) == 4 else 0)
            if len(started) < 6:
                raise RuntimeError("a bug")

        await run_supervised("test", work)
        assert started[3:] == [7.0, 108.0, 110.0]

    run_in_virtual_time(scenario)


async def _closes_at(batcher: ProvisioningBatcher, triggers: list[tuple[float, str]]) -> float:
    async def trigger() -> None:
        for at, uid in triggers:
            await asyncio.sleep(at - now())
            batcher.trigger(uid)

    feeding = asyncio.create_task(trigger())
    await batcher.queue.get()
    feeding.cancel()
    return now()


@pytest.mark.parametrize(
    ("window", "triggers", "closes"),
    [
        (BatchWindow(5, 10), [(0, "A"), (3, "A")], 5),
        (BatchWindow(5, 10), [(0, "A"), (3, "B")], 8),
        (BatchWindow(1, 10), [(0.9 * number, str(number)) for number in range(33)], 10),
    ],
    ids=["S-001", "S-002", "S-003"],
)
def test_when_a_batch_closes(window: BatchWindow, triggers: list[tuple[float, str]], closes: float) -> None:
    """SCH-005, SCH-006"""

    async def scenario() -> None:
        assert await _closes_at(ProvisioningBatcher(window), triggers) == pytest.approx(closes, abs=0.01)

    run_in_virtual_time(scenario)


def test_events_during_a_pass_open_the_next_window_at_once() -> None:
    """SCH-007"""

    async def scenario() -> None:
        batcher = ProvisioningBatcher(BatchWindow(1, 10))
        started: list[float] = []

        async def reconcile() -> None:
            started.append(now())
            await asyncio.sleep(5)
            batcher.release()

        task = asyncio.create_task(SingletonReconciler("test", reconcile, queue=batcher.queue).run())
        batcher.trigger("A")
        await asyncio.sleep(2)
        batcher.trigger("A")
        batcher.trigger("B")
        await asyncio.sleep(100)
        assert started == [1, 7]
        task.cancel()

    run_in_virtual_time(scenario)
