"""A token bucket: so many requests per second on average, so many at once."""

from __future__ import annotations

import asyncio


class TokenBucket:
    """Lets ``burst`` callers through at once and ``per_second`` after that, in the order they came.

    A caller takes its token at once, into debt if need be, and sleeps until the debt is paid: no queue to keep, and the
    loop's clock is the only one asked. A caller cancelled while it waits gives its token back.
    """

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)
        self._refilled_at: float | None = None

    async def take(self) -> None:
        """Take one token, waiting for it where necessary."""
        self._refill(asyncio.get_running_loop().time())
        self._tokens -= 1.0
        if self._tokens >= 0.0:
            return
        try:
            await asyncio.sleep(-self._tokens / self._per_second)
        except asyncio.CancelledError:
            self._tokens += 1.0
            raise

    def _refill(self, now: float) -> None:
        if self._refilled_at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._refilled_at) * self._per_second)
        self._refilled_at = now
