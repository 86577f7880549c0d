"""A queue of names to look at: each at most once at a time, again after a delay, with growing back-off on faults.

A look is a coroutine from a name to "seconds until the next look" or None. Adding a name that waits already changes nothing;
adding one that is being looked at right now has it looked at once more afterwards, so no event is lost. News about a name whose
last look failed may bring its next look forward, but not to less than a second after the fault: the news may be what the failed
look itself wrote, and a look that fails and writes each time would run without pause.
"""

from __future__ import annotations

import asyncio
import heapq
import traceback
from collections.abc import Awaitable, Callable

import structlog

from karpenter.kube.errors import KubeError
from karpenter.providers.contract import ProviderError

_FIRST_BACKOFF_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 60.0
#: What is due this soon is due now: the loop ends so short a wait at once, and waiting again would go on for ever.
_SLACK_SECONDS = 1e-6
_log = structlog.get_logger()

#: Looks at one object; seconds until it wants to be looked at again, None to wait for events.
Look = Callable[[str], Awaitable[float | None]]


class WorkQueue:
    """Runs a look over the names added to it. ``name`` is what logs call the controller."""

    def __init__(self, name: str, look: Look, workers: int) -> None:
        self._name = name
        self._look = look
        self._workers = workers
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._waiting: set[str] = set()
        self._working: set[str] = set()
        self._again: set[str] = set()
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._timers: list[tuple[float, str]] = []
        self._timer_changed = asyncio.Event()

    def add(self, name: str) -> None:
        """Look at it as soon as a worker is free; after a fault, a second later at the soonest."""
        pause = self._not_before.get(name, 0.0) - asyncio.get_running_loop().time()
        if pause > 0:
            self.add_after(name, pause)
        else:
            self._take(name)

    def _take(self, name: str) -> None:
        if name in self._working:
            self._again.add(name)
        elif name not in self._waiting:
            self._waiting.add(name)
            self._ready.put_nowait(name)

    def add_after(self, name: str, seconds: float) -> None:
        """Look at it after a while; an earlier appointment stays."""
        due = asyncio.get_running_loop().time() + seconds
        if self._due.get(name, due + 1) <= due:
            return
        self._due[name] = due
        heapq.heappush(self._timers, (due, name))
        self._timer_changed.set()

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
                due, name = heapq.heappop(self._timers)
                if self._due.get(name) == due:
                    del self._due[name]
                    self._take(name)
            wait = self._timers[0][0] - loop.time() if self._timers else None
            try:
                await asyncio.wait_for(self._timer_changed.wait(), wait)
            except TimeoutError:
                continue

    async def _work(self) -> None:
        while True:
            name = await self._ready.get()
            self._waiting.discard(name)
            self._working.add(name)
            try:
                await self._look_at(name)
            finally:
                self._working.discard(name)
                if name in self._again:
                    self._again.discard(name)
                    self.add(name)

    async def _look_at(self, name: str) -> None:
        with structlog.contextvars.bound_contextvars(controller=self._name, name=name):
            try:
                again = await self._look(name)
            except (KubeError, ProviderError) as error:
                _log.error("Reconciler error", error=str(error))
                self._back_off(name)
            except Exception as error:
                # A bug in one look must not end the others (OPS-371); it is logged with its trace and tried again.
                _log.error("Reconciler error", error=repr(error), stacktrace=traceback.format_exc())
                self._back_off(name)
            else:
                self._failures.pop(name, None)
                self._not_before.pop(name, None)
                if again is not None:
                    self.add_after(name, again)

    def _back_off(self, name: str) -> None:
        count = self._failures.get(name, 0)
        self._failures[name] = count + 1
        self._not_before[name] = asyncio.get_running_loop().time() + _FIRST_BACKOFF_SECONDS
        self.add_after(name, min(_LONGEST_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2 ** min(count, 10)))


async def supervised(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run a loop for ever: one that fails is logged and started again with growing delay (OPS-371)."""
    delay = _FIRST_BACKOFF_SECONDS
    while True:
        started = asyncio.get_running_loop().time()
        try:
            await work()
        except (KubeError, ProviderError, OSError) as error:
            _log.error("Reconciler error", controller=name, error=str(error))
        except Exception as error:
            _log.error("Reconciler error", controller=name, error=repr(error), stacktrace=traceback.format_exc())
        else:
            return
        if asyncio.get_running_loop().time() - started > _LONGEST_BACKOFF_SECONDS:
            delay = _FIRST_BACKOFF_SECONDS
        await asyncio.sleep(delay)
        delay = min(_LONGEST_BACKOFF_SECONDS, delay * 2)
