"""Controllers that look again and again: each look says when the next one is due; a fault is told and tried again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from karpenter.model.clock import Clock
from karpenter.runtime.reconciler import SingletonReconciler

#: One round; seconds until the next. Raises ``ProviderError``, ``AwsError`` and ``KubeError``.
SingletonReconcile = Callable[[], Awaitable[float]]


class PeriodicRefresh:
    """Work that is done once at the start and then in even distances, perhaps by whoever begins to lead much later.

    So the next time follows from the last success, not from when the rounds begin.
    """

    def __init__(self, work: Callable[[], Awaitable[object]], period: timedelta, clock: Clock) -> None:
        self._work = work
        self._period = period
        self._clock = clock
        self._done_at: datetime | None = None

    async def refresh(self) -> None:
        """Do it. Raises what the work raises, and then it counts as not done."""
        await self._work()
        self._done_at = self._clock.now()

    async def reconcile(self) -> float:
        """See ``Look``."""
        await self.refresh()
        return self._period.total_seconds()

    def due_seconds(self) -> float:
        """How long it may wait still."""
        if self._done_at is None:
            return 0.0
        return max(0.0, (self._done_at + self._period - self._clock.now()).total_seconds())


async def run_singleton(name: str, reconcile: SingletonReconcile, due_seconds: Callable[[], float] = float) -> None:
    """Reconcile until cancelled, first when ``due_seconds`` says."""
    await SingletonReconciler(name, reconcile, initial_delay=due_seconds).run()


def requeue_every(seconds: float, work: Callable[[], Awaitable[object]]) -> SingletonReconcile:
    """A look that does some work in even distances."""

    async def look() -> float:
        await work()
        return seconds

    return look
