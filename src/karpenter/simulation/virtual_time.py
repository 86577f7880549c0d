"""Virtual time: event loops whose clock advances only when no task can run.

The idea. A controller mostly waits: ten seconds for a batch, a minute for a node, an hour for an expiry. All of those waits
are timers of one event loop. When nothing is ready to run, this loop sets its clock to the next timer instead of sleeping,
so a month of controller time takes as long as the work in it. Controllers need no change: ``asyncio.sleep``, ``wait_for``
and ``timeout`` read the loop's clock, and the time of day comes from a ``Clock`` (``LoopClock`` here) that is the same clock
plus a start date.

Determinism. There is one thread and no I/O. Ready callbacks run in the order they became ready, timers in the order of their
time, and computing takes no time. Work sent to an executor runs at once. ``run_virtual`` seeds the numbers of the ``random``
module: the jitter of a retry moves a timer, and which of two timers due at the same instant comes first depends on all
others. The program must not let a decision depend on the iteration order of a set.

Two mistakes would hang such a loop, so both are errors:

* ``Deadlock``: nothing is ready and there is no timer, so every task waits for another. A real loop would wait for I/O, but
  there is none.
* ``Spinning``: the loop turned very often without time passing, typically a retry without a delay.

``PacedLoop`` does the same for people: virtual time stands still while the program computes, and a jump of ``d`` seconds
takes ``d / speed`` real seconds, during which real I/O (a web server, a terminal) is served. Computing counts: what it took
is taken off the next waits, so a run takes as long as its pace says unless it computes for longer. Time-outs of that I/O are
virtual too: at speed 20 a keep-alive of 5 s lasts a quarter of a second.
"""

from __future__ import annotations

import asyncio
import gc
import random
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Turns of the loop at one instant after which it is taken to be spinning.
MAX_TURNS_PER_INSTANT = 1_000_000

# What is due within this many seconds of now runs now. Fixed, because the default depends on the platform.
_RESOLUTION_SECONDS = 1e-9
_SHOWN_TASKS = 10
_RANDOM_SEED = 0
#: So many new objects more than freed ones start a search for cycles; Python's default is 700.
_ALLOCATIONS_PER_COLLECTION = 50_000
#: So far a paced loop may fall behind by computing and still catch up.
_MAX_BACKLOG_SECONDS = 10.0


class VirtualTimeError(RuntimeError):
    """The program cannot continue in virtual time: it has a defect."""


class Deadlock(VirtualTimeError):
    """Nothing is ready and no timer is set: every task waits for another."""


class Spinning(VirtualTimeError):
    """The loop turned again and again without time passing."""


class _VirtualSelector(selectors.BaseSelector):
    """A selector that never waits: asked to wait ``timeout`` seconds, it moves its own clock by that much."""

    def __init__(self, max_turns: int) -> None:
        self.now = 0.0
        self.is_sealed = False
        self._max_turns = max_turns
        self._turns = 0
        self._keys: dict[object, selectors.SelectorKey] = {}

    def register(self, fileobj: object, events: int, data: object = None) -> selectors.SelectorKey:
        # The loop's own wake-up pipe is registered while the loop is made; callbacks from signals reach us without it.
        if self.is_sealed:
            raise VirtualTimeError("there is no I/O in virtual time: run what needs sockets or files on a PacedLoop")
        key = selectors.SelectorKey(fileobj, 0, events, data)  # type: ignore[arg-type]
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: object) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[object, selectors.SelectorKey]:  # type: ignore[override]
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("nothing is ready and no timer is set")
        before = self.now
        self.now = before + max(0.0, timeout)
        self._turns = self._turns + 1 if self.now == before else 0
        if self._turns > self._max_turns:
            self._turns = 0
            raise Spinning(f"the loop turned {self._max_turns} times at {before} s without time passing")
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, starting at 0 s. It has no I/O; executors run their work on the spot."""

    def __init__(self, max_turns: int = MAX_TURNS_PER_INSTANT) -> None:
        self._selector = _VirtualSelector(max_turns)
        super().__init__(self._selector)
        self._clock_resolution = _RESOLUTION_SECONDS
        self._selector.is_sealed = True

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._selector.now

    def run_forever(self) -> None:
        """Run until stopped. Raises ``Deadlock`` or ``Spinning``, naming the tasks involved."""
        try:
            super().run_forever()
        except VirtualTimeError as error:
            raise type(error)(f"{error}; {_unfinished_tasks(self)}") from None

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run ``func`` now, in this thread: a thread would make the order of events random."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def _unfinished_tasks(loop: asyncio.AbstractEventLoop) -> str:
    names = sorted(f"{task.get_name()} ({_task_position(task)})" for task in asyncio.all_tasks(loop))
    shown = ", ".join(names[:_SHOWN_TASKS]) + (
        f" and {len(names) - _SHOWN_TASKS} others" if len(names) > _SHOWN_TASKS else ""
    )
    return f"unfinished tasks: {shown or 'none'}"


def _task_position(task: asyncio.Task[object]) -> str:
    stack = task.get_stack(limit=1)
    return f"{stack[0].f_code.co_qualname}:{stack[0].f_lineno}" if stack else "not started"


class _PacedSelector(selectors.DefaultSelector):
    """A real selector that waits ``1 / speed`` of the requested time and keeps the virtual clock."""

    def __init__(self, speed: float) -> None:
        super().__init__()
        self.now = 0.0
        self.speed = speed
        #: The real time at which it should be ``now``; computing leaves it behind, and shorter waits catch up.
        self._due = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        # After a stop, such as that of a laptop that slept, the pace is kept again instead of rushing through what was missed.
        self._due = max(self._due, time.monotonic() - _MAX_BACKLOG_SECONDS)
        until = None if timeout is None else self._due + timeout / self.speed
        events = super().select(None if until is None else max(0.0, until - time.monotonic()))
        elapsed = (time.monotonic() - self._due) * self.speed
        passed = elapsed if timeout is None else timeout if not events else min(timeout, elapsed)
        self.now += passed
        self._due += passed / self.speed
        return events

    def set_speed(self, speed: float) -> None:
        self.speed = speed
        self._due = time.monotonic()


class PacedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock runs ``speed`` times as fast as the real one and stands still while computing.

    It serves real I/O and real threads, so two runs are alike but not identical.
    """

    def __init__(self, speed: float) -> None:
        self._selector = _PacedSelector(speed)
        super().__init__(self._selector)
        try:
            self.set_speed(speed)
        except ValueError:
            self.close()
            raise

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._selector.now

    def set_speed(self, speed: float) -> None:
        """Go on at another speed, from the next wait on."""
        if speed <= 0:
            raise ValueError(f"speed must be greater than 0, not {speed}")
        self._selector.set_speed(speed)


class LoopTime(Protocol):
    """Anything with the clock of an event loop."""

    def time(self) -> float:
        """Seconds on the loop's clock."""


class LoopClock:
    """The time of day that goes with a loop's clock; implements ``model.clock.Clock``."""

    def __init__(self, loop: LoopTime, start: datetime) -> None:
        """``start`` is the time of day at second 0 of the loop; it must carry a time zone (``ValueError``)."""
        if start.tzinfo is None:
            raise ValueError(f"the start time {start.isoformat()} needs a time zone")
        self._loop = loop
        self._start = start

    def now(self) -> datetime:
        """The current virtual time, to the microsecond."""
        return self._start + timedelta(seconds=self._loop.time())


Main = Callable[[LoopClock], Coroutine[object, object, T]]


def run_virtual(main: Main[T], start: datetime) -> T:
    """Run ``main(clock)`` in virtual time beginning at ``start`` and return its result.

    Inside, the ``random`` module gives the same numbers in every run; afterwards it goes on where it was. Raises what
    ``main`` raises, ``Deadlock`` and ``Spinning``. Tasks still running at the end are cancelled.
    """
    state = random.getstate()
    random.seed(_RANDOM_SEED)
    try:
        with _rare_garbage_collection():
            return _run(main, start, VirtualLoop())
    finally:
        random.setstate(state)


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Reference counts free nearly all objects of a run, and each search for cycles traverses the whole cluster."""
    thresholds = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS_PER_COLLECTION, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def run_paced(main: Main[T], start: datetime, speed: float) -> T:
    """Like ``run_virtual``, for people to watch: ``speed`` virtual seconds pass in each real one (20: ten minutes in 30 s)."""
    return _run(main, start, PacedLoop(speed))


def _run(main: Main[T], start: datetime, loop: VirtualLoop | PacedLoop) -> T:
    clock = LoopClock(loop, start)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(clock))
