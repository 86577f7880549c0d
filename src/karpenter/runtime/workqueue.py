"""The queue of every controller: keys that wait for a worker, each at most once and never processed twice at a time.

The queue holds keys only and does not know what reconciles them, so watch handlers can be wired to it before the reconciler
exists. Adding a key that waits already changes nothing. Adding one that is being processed has it processed once more afterwards,
so no event is lost. After a failure a key comes back with exponential backoff. An event may bring that forward, but not to less
than a second after the failure: the event may be what the failed pass itself wrote, and a pass that fails and writes each time
would run without pause.

Cost: a key that waits for a time is one heap entry; nothing is kept for keys that succeeded.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from itertools import count
from typing import Generic, Protocol, TypeVar

from karpenter.model.backoff import DEFAULT_BACKOFF, Backoff

K = TypeVar("K", bound=Hashable)

#: What is due this soon is due now: the event loop ends so short a wait at once, and waiting again would never end.
_TIMER_SLACK_SECONDS = 1e-6
#: Waits are no shorter. By a clock of whole microseconds a key that comes after less may be too early, and where no time passes
#: meanwhile, as in virtual time, it would come again without end.
_SHORTEST_WAIT_SECONDS = 2 * _TIMER_SLACK_SECONDS


class ReconcileResult(StrEnum):
    """How a pass ended: with an error, with a requeue later or at once, or with nothing left to do."""

    ERROR = "error"
    REQUEUE_AFTER = "requeue_after"
    REQUEUE = "requeue"
    SUCCESS = "success"


class QueueObserver(Protocol):
    """Measures a queue. It is called for every key, so each call must be quick."""

    def added(self) -> None:
        """A key began to wait for a worker."""

    def postponed(self) -> None:
        """A key was scheduled for later."""

    def started(self, waited_seconds: float) -> None:
        """A worker took a key that had waited this long."""

    def ended(self, worked_seconds: float, result: ReconcileResult) -> None:
        """The worker is done with the key."""


class _NoQueueObserver:
    """Measures nothing."""

    def added(self) -> None: ...

    def postponed(self) -> None: ...

    def started(self, waited_seconds: float) -> None: ...

    def ended(self, worked_seconds: float, result: ReconcileResult) -> None: ...


class WorkQueue(Generic[K]):
    """Keys to be reconciled. Event handlers call ``add``; only a ``Reconciler`` calls ``get``, ``finish``, ``release``
    and ``run_timers``."""

    def __init__(self, backoff: Backoff = DEFAULT_BACKOFF) -> None:
        self._backoff = backoff
        self.observer: QueueObserver = _NoQueueObserver()
        self._on_ready: Callable[[], None] = _start_nothing
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
        """Reconcile the key as soon as a worker is free; after a failure, a second later at the soonest."""
        pause = self._not_before.get(key, 0.0) - _loop_time() if self._not_before else 0.0
        if pause > 0:
            self.add_after(key, pause)
        else:
            self._enqueue(key)

    def _enqueue(self, key: K) -> None:
        if key in self._processing:
            self._dirty.add(key)
        elif key not in self._queued_at:
            self._queued_at[key] = _loop_time()
            self._ready.put_nowait(key)
            self._on_ready()
            self.observer.added()

    def add_after(self, key: K, seconds: float) -> None:
        """Reconcile the key after a while, or earlier where that is scheduled already."""
        due = _loop_time() + (max(seconds, _SHORTEST_WAIT_SECONDS) if seconds > 0 else seconds)
        if self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._timers, (due, next(self._sequence), key))
        self._timer_changed.set()
        self.observer.postponed()

    def forget(self, key: K) -> None:
        """Drop what is scheduled and counted for a key that no longer exists."""
        for memory in (self._due, self._failures, self._not_before):
            memory.pop(key, None)

    @property
    def depth(self) -> int:
        """How many keys wait for a worker."""
        return len(self._queued_at)

    def running_seconds(self) -> list[float]:
        """How long each pass under way has lasted. May be called from any thread."""
        return [self._now() - began for began in tuple(self._processing.values())]

    # -- for the reconciler -----------------------------------------------------------------------------------------------

    @contextmanager
    def workers(self, start: Callable[[], object], most: int) -> Iterator[None]:
        """Meanwhile ``start`` is called when a key waits and all workers so far have one, ``most`` times at most.

        A worker of its own for each key would cost tasks that never do anything: controllers may have hundreds of workers.
        """
        started = 0

        def start_if_needed() -> None:
            nonlocal started
            if started < min(most, len(self._queued_at) + len(self._processing)):
                started += 1
                start()

        self._on_ready = start_if_needed
        try:
            for _ in range(min(most, self.depth)):
                start_if_needed()
            yield
        finally:
            self.start_no_workers()

    def start_no_workers(self) -> None:
        """From now on keys wait for the workers there are."""
        self._on_ready = _start_nothing

    async def get(self) -> K:
        """The next key, which is being processed until ``release``."""
        key = await self._ready.get()
        self._now = asyncio.get_running_loop().time
        began = self._processing[key] = self._now()
        self.observer.started(began - self._queued_at.pop(key))
        return key

    def finish(self, key: K, result: ReconcileResult, requeue_after_seconds: float = 0.0) -> None:
        """The pass over the key is over: schedule the next one as its result demands."""
        if result is ReconcileResult.ERROR:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            self._not_before[key] = _loop_time() + self._backoff.base_seconds
            self.add_after(key, self._backoff.delay(failures))
        else:
            self._failures.pop(key, None)
            self._not_before.pop(key, None)
            if result is not ReconcileResult.SUCCESS:
                self.add_after(key, requeue_after_seconds)
        self.observer.ended(self._now() - self._processing[key], result)

    def release(self, key: K) -> None:
        """The worker let the key go: events that came meanwhile have it processed once more."""
        del self._processing[key]
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    async def run_timers(self) -> None:
        """Enqueue keys when they are due, until cancelled."""
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


def _start_nothing() -> None:
    """Placeholder for a queue that is not served yet, or no longer."""


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
