"""Pages about the running process under ``/debug/pprof/``: what it does, what its memory holds, where its time goes (OPS-366).

The paths are those of the reference, whose runtime has such pages built in. What they show is what Python can tell, as text:

* ``profile?seconds=N``: the stacks of all threads, looked at a hundred times a second for N seconds (30), each with how often it
  was met, in the folded form that flame graph tools read;
* ``heap`` and ``allocs``: objects by type; with ``PYTHONTRACEMALLOC`` set, also the places that hold most memory;
* ``goroutine`` and ``threadcreate``: what every task waits for, and what every thread does;
* ``cmdline``: the command line.

``symbol``, ``trace`` and ``block`` have no equivalent.
"""

from __future__ import annotations

import asyncio
import gc
import io
import sys
import threading
import time
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from types import FrameType

from karpenter.control.http import Answer, Page, Request, text
from karpenter.control.memory import resident_bytes

ROOT = "/debug/pprof/"
_SAMPLES_PER_SECOND = 100
_DEFAULT_SECONDS = 30.0
_LONGEST_SECONDS = 300.0
_SHOWN = 50
_NONE = ("symbol", "trace", "block")


def pages() -> dict[str, Page]:
    """All pages by path."""
    made: dict[str, Callable[[Request], Awaitable[Answer]]] = {
        "cmdline": _cmdline,
        "profile": _profile,
        "heap": _heap,
        "allocs": _heap,
        "goroutine": _tasks,
        "threadcreate": _threads,
        **dict.fromkeys(_NONE, _absent),
    }

    async def index(_request: Request) -> Answer:
        return text("\n".join(name for name in made if name not in _NONE))

    return {ROOT: index, ROOT.rstrip("/"): index, **{ROOT + name: page for name, page in made.items()}}


async def _absent(request: Request) -> Answer:
    return text(f"{request.path} has no equivalent in Python", HTTPStatus.NOT_FOUND)


async def _cmdline(_request: Request) -> Answer:
    return text("\0".join(sys.argv))


async def _profile(request: Request) -> Answer:
    try:
        seconds = float(request.query.get("seconds", _DEFAULT_SECONDS))
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= _LONGEST_SECONDS:
        return text(f"seconds must be a number up to {_LONGEST_SECONDS:g}", HTTPStatus.BAD_REQUEST)
    found = await asyncio.to_thread(_sampled, seconds)
    return text("\n".join(f"{stack} {count}" for stack, count in found.most_common()))


def _sampled(seconds: float) -> Counter[str]:
    """How often each stack was met, in a thread of its own, which is left out."""
    own = threading.get_ident()
    found: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != own:
                found[_folded(names.get(ident, "?"), frame)] += 1
        time.sleep(1 / _SAMPLES_PER_SECOND)
    return found


def _folded(thread: str, frame: FrameType | None) -> str:
    names: list[str] = []
    while frame is not None:
        names.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return ";".join([thread, *reversed(names)])


async def _heap(_request: Request) -> Answer:
    return await asyncio.to_thread(_heap_summary)


def _heap_summary() -> Answer:
    counts = Counter(f"{type(item).__module__}.{type(item).__qualname__}" for item in gc.get_objects())
    lines = [f"resident memory: {resident_bytes() // 2**20} MiB", f"objects that may hold others: {counts.total()}"]
    lines += [f"{count:>10} {name}" for name, count in counts.most_common(_SHOWN)]
    if tracemalloc.is_tracing():
        top = tracemalloc.take_snapshot().statistics("lineno")[:_SHOWN]
        lines += ["", "memory by the line that asked for it:", *map(str, top)]
    else:
        lines += ["", "start the process with PYTHONTRACEMALLOC=1 to see where memory was asked for"]
    return text("\n".join(lines))


async def _tasks(_request: Request) -> Answer:
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    out = io.StringIO()
    print(f"{len(tasks)} tasks", file=out)
    for task in tasks:
        print(f"\ntask {task.get_name()}:", file=out)
        task.print_stack(file=out)
    return text(f"{out.getvalue()}\n{_thread_stacks()}")


async def _threads(_request: Request) -> Answer:
    return text(_thread_stacks())


def _thread_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    return "\n".join(
        f"thread {names.get(ident, '?')}:\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames
    )
