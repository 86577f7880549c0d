"""Timers of a work queue under a clock that jumps."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from karpenter.runtime.reconciler import Reconciler
from karpenter.simulation import LoopClock, run_virtual


def test_a_look_that_is_due_within_the_resolution_of_the_clock_happens_and_does_not_spin() -> None:
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
