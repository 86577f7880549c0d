"""The memory limit: actions and log lines near it (OPS-321)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import structlog

from karpenter.runtime import memory_guard
from karpenter.runtime.memory_guard import MemoryGuard
from karpenter.runtime.reconciler import SingletonReconciler
from karpenter.simulation.virtual_time import run_virtual

LIMIT = 1000 * 2**20


class Process:
    """Memory that grows as a test says, and what cleaning up frees of it."""

    def __init__(self) -> None:
        self.used = self.freed = 0
        self.cleanings: list[float] = []
        self.guard = MemoryGuard(LIMIT, lambda: self.used, self.clean)
        self.task = asyncio.create_task(SingletonReconciler("memory", self.guard.reconcile).run())

    def clean(self) -> None:
        self.cleanings.append(asyncio.get_running_loop().time())
        self.used -= self.freed

    def fill(self, share: float, freed: float = 0.0) -> None:
        self.used, self.freed = round(share * LIMIT), round(freed * LIMIT)


def logged_errors(scenario: Callable[[Process], Coroutine[Any, Any, None]]) -> list[str]:
    """Errors logged while a scenario runs."""

    async def main(_clock: object) -> None:
        await scenario(Process())

    with structlog.testing.capture_logs() as lines:
        run_virtual(main, datetime(2026, 1, 1, tzinfo=UTC))
    return [line["error"] for line in lines if line["log_level"] == "error"]


def test_below_the_ceiling_nothing_is_done() -> None:
    async def scenario(process: Process) -> None:
        process.fill(0.89)
        await asyncio.sleep(3600)
        assert process.cleanings == []

    assert logged_errors(scenario) == []


def test_above_it_the_process_cleans_up_and_goes_on() -> None:
    async def scenario(process: Process) -> None:
        process.fill(0.91, freed=0.2)
        await asyncio.sleep(3600)
        assert process.cleanings == [0.0]

    assert logged_errors(scenario) == []


def test_where_that_does_not_help_it_is_logged_once_with_advice() -> None:
    async def scenario(process: Process) -> None:
        process.fill(0.95)
        await asyncio.sleep(3601)
        assert len(process.cleanings) == 13, "every five minutes"

    (line,) = logged_errors(scenario)
    assert line.startswith("950 MiB of the 1000 MiB in MEMORY_LIMIT are in use: raise the container's limit")


def test_it_is_logged_again_when_it_happens_again() -> None:
    async def scenario(process: Process) -> None:
        for share in (0.95, 0.85, 0.95, 0.5, 0.95):
            process.fill(share)
            await asyncio.sleep(600)

    assert len(logged_errors(scenario)) == 2


def test_the_real_thing_measures_and_cleans() -> None:
    before = memory_guard.resident_bytes()
    assert before > 2**20
    memory_guard.release_memory()
    assert memory_guard.resident_bytes() > 2**20
