"""Writing only while this process may: every write passes a fence, which is open while the process leads (OPS-361).

Whoever holds the lease knows until when nobody else can have it. A check before a whole series of writes would not do: a process
may be stopped for a minute (by its node, by a debugger, by a machine that hangs) at any instruction, and then goes on where it
was, with another leader at work. So each write is judged twice. Before it begins; and, since it may wait for its turn in the
client for many seconds, again at the moment the permission ends: what has not been answered by then is broken off. The event loop
looks at its timers before anything that waited goes on, so a process that wakes up too late finds its writes broken off before
they leave.

What no client can help is a request that has left and is slow on its way. The permission therefore ends well before anybody else
may take the lease.

A write that has begun is finished also when the one who asked for it is cancelled, as at shutdown: the fence is shut, loops are
cancelled, and ``settled`` waits for what is on its way, before the lease is given up.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol, TypeVar

from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.kube.errors import KubeError
from karpenter.kube.protocol import JsonObject, Kube, Listing, PagedReader, WatchEvent

T = TypeVar("T", bound=Wire)
R = TypeVar("R")

#: A moment that never comes, on the event loop's clock.
NO_EXPIRY = math.inf
_EXPIRED = -math.inf


class WriteFenced(KubeError):
    """The write was refused here, or broken off: this process does not lead, or not any more."""

    def __init__(self) -> None:
        super().__init__("not written: this process does not lead", reason="NotLeading")


class Fence:
    """Open until a moment on the event loop's clock, which whoever holds the lease moves on; shut for good at the end."""

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
        """Do a write. Raises ``NotLeading`` where it may not begin, or was not answered before the permission ended."""
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
        set_send_check(self._check_still_open)
        with _ExpiryTimer(self):
            try:
                return await write()
            except asyncio.CancelledError:
                # Nobody but the fence knows this task, so nobody else cancels it.
                raise WriteFenced from None

    def _check_still_open(self) -> None:
        if asyncio.get_running_loop().time() >= self._valid_until:
            raise WriteFenced

    def _on_write_done(self, task: asyncio.Task[R]) -> None:
        self._writes_in_flight.discard(task)
        if not task.cancelled():
            # Whoever asked may have been cancelled: nobody else would ever look at the error.
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


def fence_writes(kube: Kube, fence: Fence) -> Kube:
    """The connection with its writes behind the fence. It hands out lists as they arrive if the other one does."""
    return _FencedPagingKube(kube, fence) if isinstance(kube, PagedReader) else FencedKube(kube, fence)


class FencedKube:
    """A connection whose writes pass a fence; reads do not. Implements ``protocol.Kube``."""

    def __init__(self, kube: Kube, fence: Fence) -> None:
        self._kube = kube
        self._fence = fence

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """See ``Reader.get``."""
        return await self._kube.get(kind, name, namespace)

    async def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Listing[T]:
        """See ``Reader.list``."""
        return await self._kube.list(kind, namespace, label_selector=label_selector, field_selector=field_selector)

    def watch(
        self,
        kind: Kind[T],
        resource_version: str,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent[T]]:
        """See ``Reader.watch``."""
        return self._kube.watch(
            kind, resource_version, namespace, label_selector=label_selector, field_selector=field_selector
        )

    async def create(self, kind: Kind[T], obj: T) -> T:
        """See ``Writer.create``."""
        return await self._fence.run(lambda: self._kube.create(kind, obj))

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        patch: JsonObject,
        namespace: str = "",
        *,
        subresource: str = "",
        resource_version: str = "",
    ) -> T:
        """See ``Writer.patch``."""
        return await self._fence.run(
            lambda: self._kube.patch(
                kind, name, patch, namespace, subresource=subresource, resource_version=resource_version
            )
        )

    async def delete(
        self,
        kind: Kind[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        grace_period_seconds: int | None = None,
    ) -> None:
        """See ``Writer.delete``."""
        await self._fence.run(
            lambda: self._kube.delete(kind, name, namespace, uid=uid, grace_period_seconds=grace_period_seconds)
        )

    async def evict(self, name: str, namespace: str, *, uid: str = "") -> None:
        """See ``Subresources.evict``."""
        await self._fence.run(lambda: self._kube.evict(name, namespace, uid=uid))

    async def bind(self, name: str, namespace: str, node: str) -> None:
        """See ``Subresources.bind``."""
        await self._fence.run(lambda: self._kube.bind(name, namespace, node))


class _PagingKube(Kube, PagedReader, Protocol):
    """A connection that can hand out lists as they arrive."""


class _FencedPagingKube(FencedKube):
    """The same for such a connection, and one itself."""

    def __init__(self, kube: _PagingKube, fence: Fence) -> None:
        super().__init__(kube, fence)
        self.pages = kube.pages


_send_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


def set_send_check(check: Callable[[], None]) -> None:
    """Have requests of this task pass a check, which raises what the caller is to get."""
    _send_check.set(check)


def check_send_allowed() -> None:
    """Pass the check of this task, if it has one."""
    check = _send_check.get()
    if check is not None:
        check()
