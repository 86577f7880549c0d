"""Controllers without keys: each reconcile returns the seconds until the next; failures are logged and retried with backoff."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from karpenter.model.clock import Clock
from karpenter.runtime.reconciler import SingletonReconciler

#: One reconcile; returns the seconds until the next. Raises ``ProviderError``, ``AwsError`` and ``KubeError``.
SingletonReconcile = Callable[[], Awaitable[float]]


class PeriodicRefresh:
    """Work done once at the start and then at a fixed period, perhaps by a process that becomes leader much later.

    So the next run is due one period after the last success, not after the loop begins.
    """

    def __init__(self, work: Callable[[], Awaitable[object]], period: timedelta, clock: Clock) -> None:
        self._work = work
        self._period = period
        self._clock = clock
        self._done_at: datetime | None = None

    async def refresh(self) -> None:
        """Do the work. Raises what it raises; a failure leaves it due."""
        await self._work()
        self._done_at = self._clock.now()

    async def reconcile(self) -> float:
        """See ``SingletonReconcile``."""
        await self.refresh()
        return self._period.total_seconds()

    def due_seconds(self) -> float:
        """Seconds until the next run is due."""
        if self._done_at is None:
            return 0.0
        return max(0.0, (self._done_at + self._period - self._clock.now()).total_seconds())


async def run_singleton(name: str, reconcile: SingletonReconcile, due_seconds: Callable[[], float] = float) -> None:
    """Reconcile until cancelled, first after ``due_seconds``."""
    await SingletonReconciler(name, reconcile, initial_delay=due_seconds).run()


def requeue_every(seconds: float, work: Callable[[], Awaitable[object]]) -> SingletonReconcile:
    """A reconcile that does some work at a fixed period."""

    async def reconcile() -> float:
        await work()
        return seconds

    return reconcile
