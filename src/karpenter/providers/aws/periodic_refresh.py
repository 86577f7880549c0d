"""Work at a fixed period that the process also does once at its start, long before it may lead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from karpenter.model.clock import Clock


class PeriodicRefresh:
    """The next run is due one period after the last success, not one period after the controller starts."""

    def __init__(self, work: Callable[[], Awaitable[object]], period: timedelta, clock: Clock) -> None:
        self._work = work
        self._period = period
        self._clock = clock
        self._done_at: datetime | None = None

    async def refresh(self) -> None:
        """Do the work. Raises what the work raises; a failure leaves it due."""
        await self._work()
        self._done_at = self._clock.now()

    async def reconcile(self) -> float:
        """Do the work; returns the seconds until the next run."""
        await self.refresh()
        return self._period.total_seconds()

    def due_seconds(self) -> float:
        """Seconds until the next run is due."""
        if self._done_at is None:
            return 0.0
        return max(0.0, (self._done_at + self._period - self._clock.now()).total_seconds())
