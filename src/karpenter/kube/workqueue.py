"""A queue of keys to look at: each at most once at a time, again after a delay, with growing back-off on faults.

A look is a coroutine from a key to "seconds until the next look" or None. Adding a key that waits already changes nothing;
adding one that is being looked at right now has it looked at once more afterwards, so no event is lost. News about a key whose
last look failed may bring its next look forward, but not to less than a second after the fault: the news may be what the failed
look itself wrote, and a look that fails and writes each time would run without pause.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Hashable
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_FIRST_BACKOFF_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 60.0
#: What is due this soon is due now: the loop ends so short a wait at once, and waiting again would go on for ever.
_SLACK_SECONDS = 1e-6

#: Looks at one object; seconds until it wants to be looked at again, None to wait for events.
Look = Callable[[K], Awaitable[float | None]]
#: Told about a look that failed.
OnFault = Callable[[K, Exception], None]


class Queue(Generic[K]):
    """Runs a look over the keys added to it, ``workers`` at a time. Costs one timer per key that waits, nothing for others."""

    def __init__(self, look: Look[K], workers: int, on_fault: OnFault[K]) -> None:
        self._look = look
        self._workers = workers
        self._on_fault = on_fault
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()
        self._working: set[K] = set()
        self._again: set[K] = set()
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
            self._take(key)

    def _take(self, key: K) -> None:
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Look at it after a while; an earlier appointment stays."""
        due = asyncio.get_running_loop().time() + seconds
        if self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        heapq.heappush(self._timers, (due, next(self._sequence), key))
        self._timer_changed.set()

    def drop(self, key: K) -> None:
        """Forget a key that no longer exists."""
        for memory in (self._due, self._failures, self._not_before):
            memory.pop(key, None)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_time())
            for _ in range(self._workers):
                tasks.create_task(self._work())

    async def _keep_time(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._timer_changed.clear()
            while self._timers and self._timers[0][0] <= loop.time() + _SLACK_SECONDS:
                due, _, key = heapq.heappop(self._timers)
                if self._due.get(key) == due:
                    del self._due[key]
                    self._take(key)
            wait = self._timers[0][0] - loop.time() if self._timers else None
            try:
                await asyncio.wait_for(self._timer_changed.wait(), wait)
            except TimeoutError:
                continue

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._working.add(key)
            try:
                await self._look_at(key)
            finally:
                self._working.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)

    async def _look_at(self, key: K) -> None:
        try:
            again = await self._look(key)
        except Exception as error:
            # One look's trouble, even a bug, must not end the others (OPS-371): it is told and tried again.
            self._on_fault(key, error)
            self._back_off(key)
        else:
            self._failures.pop(key, None)
            self._not_before.pop(key, None)
            if again is not None:
                self.add_after(key, again)

    def _back_off(self, key: K) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self._not_before[key] = asyncio.get_running_loop().time() + _FIRST_BACKOFF_SECONDS
        self.add_after(key, min(_LONGEST_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2 ** min(failures, 10)))
