"""The threads AWS's blocking client runs on: so many at most, and none that keeps the process alive.

The standard pool waits for its threads when the interpreter ends, and a long poll of the interruption queue lasts twenty seconds:
a process told to stop would linger that long for an answer nobody wants. These threads are daemons instead.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar, cast

R = TypeVar("R")

_Job = tuple[Callable[[], object], "Future[object]"]


class Threads:
    """Runs blocking functions, ``most`` at a time, in the order they came. Threads are made when first needed, and kept."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        #: Work taken and not done yet. Counted down before its caller hears of the end, whose next work then finds a thread.
        self._open = 0
        self._closed = False

    async def run(self, work: Callable[[], R]) -> R:
        """What ``work`` returns or raises. When the caller is cancelled, work already begun goes on and its end is dropped."""
        future: Future[object] = Future()
        self._submit((work, future))
        return cast(R, await asyncio.wrap_future(future))

    def close(self) -> None:
        """Take no more work. What runs is left to itself."""
        with self._lock:
            self._closed = True
            for _ in range(self._started):
                self._jobs.put(None)

    def _submit(self, job: _Job) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("the connection to AWS is closed")
            self._open += 1
            self._jobs.put(job)
            if self._open <= self._started or self._started == self._most:
                return
            self._started += 1
            name = f"{self._name}-{self._started}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._do(*job)
            # Nothing may be held while waiting: answers are large.
            del job

    def _do(self, work: Callable[[], object], future: Future[object]) -> None:
        if not future.set_running_or_notify_cancel():
            self._done()
            return
        try:
            result = work()
        except BaseException as error:
            self._done()
            future.set_exception(error)
        else:
            self._done()
            future.set_result(result)

    def _done(self) -> None:
        with self._lock:
            self._open -= 1
