"""Things to look at, each at its own time, by a bounded number of workers.

A key is waiting (for a moment), ready, or being looked at, never two of these at once; being asked for while it is looked at
means once more afterwards. A look that fails on the API server is repeated with growing pauses. Cost: one timer per waiting
key, nothing for all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from karpenter.kube.errors import KubeError
from karpenter.providers.contract import ProviderError

K = TypeVar("K", bound=Hashable)

#: Looks at what a key stands for; answers in how many seconds to look again, None for not before something changes.
Look = Callable[[K], Awaitable[float | None]]

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0


class Agenda(Generic[K]):
    """Runs ``look`` for every key that is due, ``workers`` at a time."""

    def __init__(self, look: Look[K], workers: int) -> None:
        self._look = look
        self._workers = workers
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._queued: set[K] = set()
        self._busy: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._pauses: dict[K, float] = {}

    def add(self, key: K, seconds: float = 0.0) -> None:
        """Look at the key so many seconds from now, or earlier if it is due earlier."""
        if seconds > 0:
            self._wait(key, seconds)
            return
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._busy:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.put_nowait(key)

    def _wait(self, key: K, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self.add, key)

    def drop(self, key: K) -> None:
        """Forget a key that no longer exists."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._pauses.pop(key, None)

    async def run(self) -> None:
        """Work until cancelled. A look that raises anything but an API fault is a bug and ends it."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._work())
        finally:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self._queued.discard(key)
            self._busy.add(key)
            try:
                seconds = await self._attempt(key)
            finally:
                self._busy.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            elif seconds is not None:
                self.add(key, max(seconds, 0.001))

    async def _attempt(self, key: K) -> float | None:
        try:
            seconds = await self._look(key)
        except (KubeError, ProviderError):
            pause = self._pauses.get(key, _FIRST_PAUSE_SECONDS)
            self._pauses[key] = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            return pause
        self._pauses.pop(key, None)
        return seconds
