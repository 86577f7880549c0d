"""A queue of keys to look at: each at most once at a time, again after a delay, with growing back-off on faults.

A look is a coroutine from a key to "seconds until the next look" or None. Adding a key that waits already changes nothing;
adding one that is being looked at right now has it looked at once more afterwards, so no event is lost. News about a key whose
last look failed may bring its next look forward, but not to less than a second after the fault: the news may be what the failed
look itself wrote, and a look that fails and writes each time would run without pause.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from enum import StrEnum
from itertools import count
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)

_FIRST_BACKOFF_SECONDS = 1.0
_MAX_BACKOFF_SECONDS = 60.0
#: What is due this soon is due now: the loop ends so short a wait at once, and waiting again would go on for ever.
_TIMER_SLACK_SECONDS = 1e-6

#: Looks at one object; seconds until it wants to be looked at again, None to wait for events.
ReconcileKey = Callable[[K], Awaitable[float | None]]
#: Told about a look that failed.
OnReconcileError = Callable[[K, Exception], None]


class ReconcileResult(StrEnum):
    """How a look ended: with a fault, with the wish for another one later or at once, or with nothing left to do."""

    ERROR = "error"
    REQUEUE_AFTER = "requeue_after"
    REQUEUE = "requeue"
    SUCCESS = "success"


class QueueObserver(Protocol):
    """Told what a queue does, for figures. It is told of every key, so each answer must be quick."""

    def added(self) -> None:
        """A key waits for a worker now, which did not before."""

    def postponed(self) -> None:
        """A key got an appointment for later."""

    def started(self, waited_seconds: float) -> None:
        """A worker took a key that had waited this long."""

    def ended(self, worked_seconds: float, result: ReconcileResult) -> None:
        """The worker is done with it."""


class _NoQueueObserver:
    """Looks away."""

    def added(self) -> None: ...

    def postponed(self) -> None: ...

    def started(self, waited_seconds: float) -> None: ...

    def ended(self, worked_seconds: float, result: ReconcileResult) -> None: ...


_NO_OBSERVER = _NoQueueObserver()


class KeyedWorkQueue(Generic[K]):
    """Runs a look over the keys added to it, ``workers`` at a time. Costs one timer per key that waits, nothing for others."""

    def __init__(
        self,
        reconcile: ReconcileKey[K],
        workers: int,
        on_error: OnReconcileError[K],
        observer: QueueObserver = _NO_OBSERVER,
    ) -> None:
        self._reconcile = reconcile
        self._workers = workers
        self._on_error = on_error
        self._observer = observer
        self._now: Callable[[], float] = time.monotonic
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._queued_at: dict[K, float] = {}
        self._processing: dict[K, float] = {}
        self._dirty: set[K] = set()
        self._failures: dict[K, int] = {}
        self._not_before: dict[K, float] = {}
        self._due: dict[K, float] = {}
        self._timers: list[tuple[float, int, K]] = []
        self._sequence = count()
        self._timer_changed = asyncio.Event()

    def add(self, key: K) -> None:
        """Look at it as soon as a worker is free; after a fault, a second later at the soonest."""
        pause = self._not_before.get(key, 0.0) - asyncio.get_running_loop().time()
        if pause > 0:
            self.add_after(key, pause)
        else:
            self._enqueue(key)

    def _enqueue(self, key: K) -> None:
        if key in self._processing:
            self._dirty.add(key)
        elif key not in self._queued_at:
            self._queued_at[key] = asyncio.get_running_loop().time()
            self._ready.put_nowait(key)
            self._observer.added()

    def add_after(self, key: K, seconds: float) -> None:
        """Look at it after a while; an earlier appointment stays."""
        due = asyncio.get_running_loop().time() + seconds
        if self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._timers, (due, next(self._sequence), key))
        self._timer_changed.set()
        self._observer.postponed()

    def forget(self, key: K) -> None:
        """Forget a key that no longer exists."""
        for memory in (self._due, self._failures, self._not_before):
            memory.pop(key, None)

    @property
    def depth(self) -> int:
        """How many keys wait for a worker."""
        return len(self._queued_at)

    def running_seconds(self) -> list[float]:
        """How long the looks that are going on have lasted. May be asked from any thread."""
        return [self._now() - began for began in tuple(self._processing.values())]

    async def run(self) -> None:
        """Work until cancelled."""
        self._now = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run_timers())
            for _ in range(self._workers):
                tasks.create_task(self._work())

    async def _run_timers(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._timer_changed.clear()
            while self._timers and self._timers[0][0] <= loop.time() + _TIMER_SLACK_SECONDS:
                due, _, key = heapq.heappop(self._timers)
                if self._due.get(key) == due:
                    del self._due[key]
                    self._enqueue(key)
            # Not ``wait_for``, which forgets that it was cancelled when a timer is changed at the same moment.
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._timers[0][0] if self._timers else None):
                    await self._timer_changed.wait()

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            began = self._processing[key] = self._now()
            self._observer.started(began - self._queued_at.pop(key))
            try:
                outcome = await self._reconcile_key(key)
                self._observer.ended(self._now() - began, outcome)
            finally:
                del self._processing[key]
                if key in self._dirty:
                    self._dirty.discard(key)
                    self.add(key)

    async def _reconcile_key(self, key: K) -> ReconcileResult:
        try:
            again = await self._reconcile(key)
        except Exception as error:
            # One look's trouble, even a bug, must not end the others (OPS-371): it is told and tried again.
            self._on_error(key, error)
            self._back_off(key)
            return ReconcileResult.ERROR
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        if again is None:
            return ReconcileResult.SUCCESS
        self.add_after(key, again)
        return ReconcileResult.REQUEUE_AFTER if again > 0 else ReconcileResult.REQUEUE

    def _back_off(self, key: K) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self._not_before[key] = asyncio.get_running_loop().time() + _FIRST_BACKOFF_SECONDS
        self.add_after(key, min(_MAX_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2 ** min(failures, 10)))
