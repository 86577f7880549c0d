"""Workers of a reconciler: there are as many as work was found for, and each is as if it had been there from the start."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from karpenter.runtime.reconciler import Reconciler
from karpenter.runtime.workqueue import ReconcileResult
from karpenter.simulation.virtual_time import run_virtual


def run_in_virtual_time(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtual(lambda clock: scenario(), datetime(2026, 1, 1, tzinfo=UTC))


async def busy_for_a_second(_key: str) -> None:
    await asyncio.sleep(1)


def test_keys_find_workers_and_idle_ones_take_the_next() -> None:
    """A controller may have a thousand workers, of which an idle cluster needs none."""

    async def scenario() -> None:
        reconciler: Reconciler[str] = Reconciler("test", busy_for_a_second, 1000)
        reconciler.add("before its start")
        before = len(asyncio.all_tasks())
        task = asyncio.create_task(reconciler.run())
        counts = []
        for keys in ([], ["a", "b"], ["c", "d", "e"], ["f"]):
            for key in keys:
                reconciler.add(key)
            await asyncio.sleep(1.5)
            counts.append(len(asyncio.all_tasks()) - before)
        # Beside the workers there are the reconciler and its timers.
        assert counts == [3, 4, 5, 5]
        task.cancel()

    run_in_virtual_time(scenario)


def test_a_worker_logs_none_of_the_fields_of_the_pass_that_added_its_key() -> None:
    fields: dict[str, dict[str, Any]] = {}

    async def reconcile(key: str) -> None:
        fields[key] = structlog.contextvars.get_contextvars()
        if key == "first":
            with structlog.contextvars.bound_contextvars(step="launch"):
                reconciler.add("second")

    reconciler: Reconciler[str] = Reconciler("test", reconcile, 4)

    async def scenario() -> None:
        with structlog.contextvars.bound_contextvars(process="p"):
            task = asyncio.create_task(reconciler.run())
        await asyncio.sleep(0)
        reconciler.add("first")
        await asyncio.sleep(1)
        task.cancel()

    run_in_virtual_time(scenario)
    assert [(seen["process"], seen["name"], seen.get("step")) for seen in fields.values()] == [
        ("p", "first", None),
        ("p", "second", None),
    ]


def test_keys_that_come_while_a_reconciler_breaks_wait_for_the_next_one() -> None:
    """``run_supervised`` starts it again. A caller that adds a key gets no error from a task group that is ending."""
    added: list[str] = []

    class Broken:
        def added(self) -> None: ...

        def postponed(self) -> None: ...

        def started(self, waited_seconds: float) -> None: ...

        def ended(self, worked_seconds: float, result: ReconcileResult) -> None:
            # After the group has begun to end, before the reconciler has noticed.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, add_two)
            raise RuntimeError("broken")

    def add_two() -> None:
        for key in ("b", "c"):
            reconciler.add(key)
            added.append(key)

    reconciler: Reconciler[str] = Reconciler("test", busy_for_a_second, 4)

    async def scenario() -> None:
        reconciler.queue.observer = Broken()
        reconciler.add("a")
        with pytest.raises(ExceptionGroup, match="unhandled errors"):
            await asyncio.wait_for(reconciler.run(), 60)

    run_in_virtual_time(scenario)
    assert added == ["b", "c"]
    assert reconciler.queue.depth == 2


def test_a_pass_that_waited_for_what_others_cancelled_failed_and_costs_no_worker() -> None:
    """OPS-371: its key comes again, and other keys are served meanwhile."""
    passes: list[str] = []

    async def reconcile(key: str) -> None:
        passes.append(key)
        if passes == ["waits"]:
            cancelled = asyncio.get_running_loop().create_future()
            cancelled.cancel()
            await cancelled

    reconciler: Reconciler[str] = Reconciler("test", reconcile, 4)

    async def scenario() -> None:
        task = asyncio.create_task(reconciler.run())
        reconciler.add("waits")
        await asyncio.sleep(0.001)
        reconciler.add("other")
        await asyncio.sleep(60)
        task.cancel()

    run_in_virtual_time(scenario)
    assert passes == ["waits", "other", "waits"]


def test_a_worker_that_is_cancelled_before_its_first_step_leaves_nothing_behind(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """A key that comes while leadership is lost; work that was never begun is a warning at the end of the process."""
    reconciler: Reconciler[str] = Reconciler("test", busy_for_a_second, 4)

    async def scenario() -> None:
        task = asyncio.create_task(reconciler.run())
        await asyncio.sleep(0.001)
        task.cancel()
        reconciler.add("late")
        with pytest.raises(asyncio.CancelledError):
            await task

    run_in_virtual_time(scenario)
    gc.collect()
    assert not recwarn.list
    assert reconciler.queue.depth == 1
