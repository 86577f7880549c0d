"""A time limit for a call that does not count how long the call waits for its turn.

A call to a cloud may wait behind hundreds of others for a token of a rate limit or for a free connection. The limit is there to
end calls that hang, so the clock stands while the call waits. Where a call waits in a queue of this process, the queue says so
with ``not_counted``; it needs to know nothing of the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar


class CallDeadline:
    """The limit of one call. Parts of a call may wait at the same time: the clock stands while any of them does."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._waiting = 0
        self._left = 0.0

    @property
    def expired(self) -> bool:
        """Whether the call was ended."""
        return self._timeout.expired()

    def suspend(self) -> None:
        """A part of the call begins to wait."""
        self._waiting += 1
        when = self._timeout.when()
        if self._waiting == 1 and when is not None and not self.expired:
            self._left = when - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def resume(self) -> None:
        """A part of the call goes on."""
        self._waiting -= 1
        if self._waiting == 0 and self._timeout.when() is None and not self.expired:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left)


_current: ContextVar[CallDeadline | None] = ContextVar("call_deadline", default=None)


@asynccontextmanager
async def call_deadline(seconds: float) -> AsyncIterator[CallDeadline]:
    """End what is inside after so many seconds. Raises ``TimeoutError``."""
    async with asyncio.timeout(seconds) as timeout:
        deadline = CallDeadline(timeout)
        token = _current.set(deadline)
        try:
            yield deadline
        finally:
            _current.reset(token)


@contextmanager
def not_counted() -> Iterator[None]:
    """Waiting for a turn: the deadline of the call, if there is one, stands still inside."""
    deadline = _current.get()
    if deadline is None:
        yield
        return
    deadline.suspend()
    try:
        yield
    finally:
        deadline.resume()
