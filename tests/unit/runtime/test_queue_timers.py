"""Timers of a work queue under a clock that jumps."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from karpenter.runtime.reconciler import Reconciler
from karpenter.simulation import LoopClock, run_virtual


def test_a_reconcile_that_is_due_within_the_resolution_of_the_clock_happens_and_does_not_spin() -> None:
    seen: list[str] = []

    async def reconcile(name: str) -> None:
        seen.append(name)

    async def main(_clock: LoopClock) -> None:
        reconciler: Reconciler[str] = Reconciler("test", reconcile)
        queue = reconciler.queue
        working = asyncio.create_task(reconciler.run())
        await asyncio.sleep(1)
        queue.add_after("soon", 1e-10)
        await asyncio.sleep(1)
        working.cancel()

    run_virtual(main, datetime(2026, 1, 1, tzinfo=UTC))
    assert seen == ["soon"]


@pytest.mark.parametrize("microseconds", [1, 2, 3])
def test_what_is_due_in_a_microsecond_is_waited_for(microseconds: int) -> None:
    """A pass that is too early asks for the rest of the time; without a wait none would pass, and it would ask again."""
    passes: list[datetime] = []

    async def main(clock: LoopClock) -> None:
        due = clock.now() + timedelta(seconds=1, microseconds=microseconds)

        async def reconcile(_: str) -> float | None:
            passes.append(clock.now())
            left = (due - clock.now()).total_seconds()
            return left if left > 0 and len(passes) < 100 else None

        reconciler: Reconciler[str] = Reconciler("test", reconcile)
        working = asyncio.create_task(reconciler.run())
        await asyncio.sleep(1)
        reconciler.queue.add("step")
        await asyncio.sleep(1)
        working.cancel()
        assert due <= passes[-1] <= due + timedelta(microseconds=2)

    run_virtual(main, datetime(2026, 1, 1, tzinfo=UTC))
    assert len(passes) == 2
