"""Batches requests: those made within a short window become one API call (AWS-750 to AWS-753).

Requests of one bucket share a window. It closes when no request arrived for the idle time, at its maximum age, or when it is
full, whichever comes first. Both times are short, and a process with much to do brings requests that belong together further
apart. So where it is known that more requests will come, a window stays open while they do: until a second passes without any
request, of whatever bucket, or ten seconds since it was opened. The first request of a window may therefore wait ten seconds.

A limited number of closed windows execute at once. The execution belongs to the window: a caller that is cancelled does not
cancel the requests of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

from karpenter.providers.contract import ProviderError
from karpenter.runtime.batch_window import BatchWindow, WindowTimer

B = TypeVar("B", bound=Hashable)
Q = TypeVar("Q")
A = TypeVar("A")

#: How many closed windows execute at once (AWS-753).
MAX_CONCURRENT_BATCHES = 100


@dataclass(frozen=True)
class RequestBatchWindow:
    """When a window closes: after this long without a new request, after this long in total, at this many requests."""

    idle_seconds: float
    maximum_seconds: float = 1.0
    maximum_requests: int = 500
    #: While more requests are known to come: after so long without any, and after so long at all.
    stall_seconds: float = 1.0
    expecting_seconds: float = 10.0


class BatchObserver(Protocol):
    """Counts closed windows (AWS-785)."""

    def window_closed(self, size: int, open_seconds: float) -> None:
        """How many requests it had, and how long it was open."""


class BatchRequestUnanswered(ProviderError):
    """The execution of a window gave no answer for this request (AWS-753)."""


@dataclass
class _OpenBatch(Generic[Q, A]):
    since: float
    timer: WindowTimer
    requests: list[Q] = field(default_factory=list)
    answers: list[asyncio.Future[A]] = field(default_factory=list)


class RequestBatcher(Generic[B, Q, A]):
    """Collects requests; ``execute`` returns an answer or an error for each, in their order.

    ``more_expected`` says whether requests will come that are not here yet. While one is expected that never comes, each
    window is open for the stall time.
    """

    def __init__(
        self,
        window: RequestBatchWindow,
        execute: Callable[[B, Sequence[Q]], Awaitable[Sequence[A | Exception]]],
        observer: BatchObserver,
        max_concurrent: int = MAX_CONCURRENT_BATCHES,
        more_expected: Callable[[], bool] = lambda: False,
    ) -> None:
        self._window = window
        self._execute = execute
        self._observer = observer
        self._slots = asyncio.Semaphore(max_concurrent)
        self._open_batches: dict[B, _OpenBatch[Q, A]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._more_expected = more_expected
        self._submitted_at = 0.0

    async def submit(self, bucket: B, request: Q) -> A:
        """The answer to a request. Raises the error of ``execute``, or ``BatchRequestUnanswered`` without an answer."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[A] = loop.create_future()
        # An error counts as retrieved even where its caller stopped waiting.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._submitted_at = loop.time()
        batch = self._open_batches.get(bucket) or self._open(bucket)
        batch.requests.append(request)
        batch.answers.append(answer)
        batch.timer.extend()
        if len(batch.requests) >= self._window.maximum_requests:
            batch.timer.close()
        return await answer

    def _open(self, bucket: B) -> _OpenBatch[Q, A]:
        window = BatchWindow(self._window.idle_seconds, self._window.maximum_seconds)
        batch: _OpenBatch[Q, A] = _OpenBatch(
            asyncio.get_running_loop().time(), WindowTimer(window, partial(self._on_window_end, bucket))
        )
        self._open_batches[bucket] = batch
        return batch

    def _on_window_end(self, bucket: B) -> None:
        batch = self._open_batches[bucket]
        if self._awaits_more(batch):
            batch.timer.extend()
        else:
            self._close(bucket)

    def _awaits_more(self, batch: _OpenBatch[Q, A]) -> bool:
        window, now = self._window, asyncio.get_running_loop().time()
        return (
            len(batch.requests) < window.maximum_requests
            and now - batch.since < window.expecting_seconds
            and now - self._submitted_at < window.stall_seconds
            and self._more_expected()
        )

    def _close(self, bucket: B) -> None:
        batch = self._open_batches.pop(bucket)
        self._observer.window_closed(len(batch.requests), asyncio.get_running_loop().time() - batch.since)
        task = asyncio.get_running_loop().create_task(self._execute_batch(bucket, batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _execute_batch(self, bucket: B, batch: _OpenBatch[Q, A]) -> None:
        async with self._slots:
            try:
                answers = await self._execute(bucket, tuple(batch.requests))
            except Exception as error:
                answers = [error] * len(batch.requests)
            except asyncio.CancelledError:
                for waiting in batch.answers:
                    waiting.cancel()
                raise
        for index, waiting in enumerate(batch.answers):
            result = answers[index] if index < len(answers) else BatchRequestUnanswered("error making call")
            if waiting.done():
                continue
            if isinstance(result, Exception):
                waiting.set_exception(result)
            else:
                waiting.set_result(result)
