"""The write fence: open while this process leads (OPS-361). Requests to the API server and to the cloud pass the same one.

The leader knows until when no other process can hold the lease. One check before a series of writes is not enough: a process can
stop for a minute at any instruction (a node that hangs, a debugger) and then continue while another process leads. So each
write is checked three times. Before it begins; when the client has its turn, which may take many seconds, and then right before
its bytes leave, head and body together; and at the moment the permission ends: a write that is unanswered by then is cancelled.
The event loop runs its timers before anything that waited continues, so a process that wakes up too late cancels its writes
before they leave.

No client can stop a request that has left and is slow on its way. The permission therefore ends well before another process may
take the lease.

A write that has begun is finished even if its caller is cancelled. At shutdown the fence closes, the controllers are cancelled,
and ``drain`` waits for the writes in flight before the lease is released.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar

from karpenter.kube.errors import KubeError

R = TypeVar("R")

#: A moment that never comes, on the event loop's clock.
NO_EXPIRY = math.inf
_EXPIRED = -math.inf


class WriteFenced(KubeError):
    """The write was refused here, or broken off: this process does not lead, or not any more."""

    def __init__(self) -> None:
        super().__init__("not written: this process does not lead", reason="NotLeading")


class Fence:
    """Open until a moment on the event loop's clock, which the leader election moves on; closed for good at shutdown."""

    def __init__(self, valid_until: float = _EXPIRED) -> None:
        self._valid_until = valid_until
        self._is_closed = False
        self._writes_in_flight: set[asyncio.Task[object]] = set()

    @property
    def valid_until(self) -> float:
        """When the permission ends."""
        return self._valid_until

    def extend_until(self, valid_until: float) -> None:
        """The permission lasts until then, unless it is renewed. May be called from any thread."""
        self._valid_until = valid_until

    def close(self) -> None:
        """Begin no more writes. Those that have begun go on as long as the permission lasts."""
        self._is_closed = True

    @property
    def is_open(self) -> bool:
        """Whether a write may begin now."""
        return not self._is_closed and asyncio.get_running_loop().time() < self._valid_until

    async def run(self, write: Callable[[], Awaitable[R]]) -> R:
        """Do a write. Raises ``WriteFenced`` where it may not begin, or was not answered before the permission ended."""
        task = asyncio.create_task(self._run_guarded(write))
        self._writes_in_flight.add(task)
        task.add_done_callback(self._on_write_done)
        return await asyncio.shield(task)

    async def drain(self, timeout_seconds: float) -> None:
        """Wait for all writes under way, at most so long; then break off the others."""
        if self._writes_in_flight:
            await asyncio.wait(self._writes_in_flight, timeout=timeout_seconds)
        for task in self._writes_in_flight:
            task.cancel()

    async def _run_guarded(self, write: Callable[[], Awaitable[R]]) -> R:
        if not self.is_open:
            raise WriteFenced
        with _ExpiryTimer(self):
            try:
                return await write()
            except asyncio.CancelledError:
                # Only the fence holds this task, so no other code cancels it.
                raise WriteFenced from None

    def check_permitted(self) -> None:
        """Raise ``WriteFenced`` if the permission has ended. For the last moment before a write that has begun is sent."""
        if asyncio.get_running_loop().time() >= self._valid_until:
            raise WriteFenced

    def _on_write_done(self, task: asyncio.Task[R]) -> None:
        self._writes_in_flight.discard(task)
        if not task.cancelled():
            # The caller may have been cancelled; without this the error would be lost.
            task.exception()


class _ExpiryTimer:
    """Cancels the current task when the permission of a fence ends, unless that is renewed meanwhile."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._schedule()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        if math.isfinite(self._fence.valid_until):
            self._timer = asyncio.get_running_loop().call_at(self._fence.valid_until, self._on_timer)

    def _on_timer(self) -> None:
        if asyncio.get_running_loop().time() < self._fence.valid_until:
            self._schedule()
        elif self._task is not None:
            self._task.cancel()
