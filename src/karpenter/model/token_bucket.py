"""A token bucket: so many actions per second on average, so many at once. All rate limits of the program are this one."""

from __future__ import annotations

import asyncio

from karpenter.model.call_deadline import not_counted


class TokenBucket:
    """Lets ``burst`` callers through at once and ``per_second`` after that, in the order they came.

    ``take`` takes its token at once, into debt if need be, and sleeps until the debt is paid: no queue to keep. ``try_take``
    never goes into debt. Times are seconds of one clock for each bucket: ``take`` reads the event loop's.
    """

    def __init__(self, per_second: float, burst: float) -> None:
        self.per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)
        self._refilled_at: float | None = None

    async def take(self) -> None:
        """Take one token, waiting for it where necessary. A caller cancelled while it waits gives its token back."""
        self._refill(_loop_time())
        self._tokens -= 1.0
        if self._tokens >= 0.0:
            return
        try:
            with not_counted():
                await asyncio.sleep(-self._tokens / self.per_second)
        except asyncio.CancelledError:
            self._tokens += 1.0
            raise

    def try_take(self, now: float) -> bool:
        """Take one token if there is one."""
        self._refill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def set_rate(self, per_second: float) -> None:
        """From now on so many per second."""
        self._refill(_loop_time())
        self.per_second = per_second

    def spend_saved(self) -> None:
        """Drop the tokens that were saved up."""
        self._refill(_loop_time())
        self._tokens = min(self._tokens, 0.0)

    def _refill(self, now: float) -> None:
        if self._refilled_at is not None:
            # A wall clock may be set back; that refills nothing.
            elapsed_seconds = max(0.0, now - self._refilled_at)
            self._tokens = min(self._burst, self._tokens + elapsed_seconds * self.per_second)
        self._refilled_at = now


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
