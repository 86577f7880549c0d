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

import msgspec

from karpenter.metrics.exposition import MetricsRegistry, render
from karpenter.runtime.http_server import HttpRequest, HttpResponse, PageHandler, text_response
from karpenter.runtime.memory_guard import resident_bytes

PPROF_ROOT = "/debug/pprof/"
_SAMPLES_PER_SECOND = 100
_DEFAULT_PROFILE_SECONDS = 30.0
_MAX_PROFILE_SECONDS = 300.0
_ENTRIES_SHOWN = 50
_UNSUPPORTED = ("symbol", "trace", "block")


def pprof_pages() -> dict[str, PageHandler]:
    """All pages by path."""
    made: dict[str, Callable[[HttpRequest], Awaitable[HttpResponse]]] = {
        "cmdline": _cmdline,
        "profile": _profile,
        "heap": _heap,
        "allocs": _heap,
        "goroutine": _tasks,
        "threadcreate": _threads,
        **dict.fromkeys(_UNSUPPORTED, _unsupported),
    }

    async def index(_request: HttpRequest) -> HttpResponse:
        return text_response("\n".join(name for name in made if name not in _UNSUPPORTED))

    return {
        PPROF_ROOT: index,
        PPROF_ROOT.rstrip("/"): index,
        **{PPROF_ROOT + name: page for name, page in made.items()},
    }


async def _unsupported(request: HttpRequest) -> HttpResponse:
    return text_response(f"{request.path} has no equivalent in Python", HTTPStatus.NOT_FOUND)


async def _cmdline(_request: HttpRequest) -> HttpResponse:
    return text_response("\0".join(sys.argv))


async def _profile(request: HttpRequest) -> HttpResponse:
    try:
        seconds = float(request.query.get("seconds", _DEFAULT_PROFILE_SECONDS))
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= _MAX_PROFILE_SECONDS:
        return text_response(f"seconds must be a number up to {_MAX_PROFILE_SECONDS:g}", HTTPStatus.BAD_REQUEST)
    stacks = await asyncio.to_thread(_sample_stacks, seconds)
    return text_response("\n".join(f"{stack} {count}" for stack, count in stacks.most_common()))


def _sample_stacks(seconds: float) -> Counter[str]:
    """How often each stack was met, in a thread of its own, which is left out."""
    own = threading.get_ident()
    sample_stacks: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != own:
                sample_stacks[_folded_stack(names.get(ident, "?"), frame)] += 1
        time.sleep(1 / _SAMPLES_PER_SECOND)
    return sample_stacks


def _folded_stack(thread: str, frame: FrameType | None) -> str:
    names: list[str] = []
    while frame is not None:
        names.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return ";".join([thread, *reversed(names)])


async def _heap(_request: HttpRequest) -> HttpResponse:
    return await asyncio.to_thread(_heap_summary)


def _heap_summary() -> HttpResponse:
    counts = Counter(
        f"{type(get_object).__module__}.{type(get_object).__qualname__}" for get_object in gc.get_objects()
    )
    lines = [f"resident memory: {resident_bytes() // 2**20} MiB", f"objects that may hold others: {counts.total()}"]
    lines += [f"{count:>10} {name}" for name, count in counts.most_common(_ENTRIES_SHOWN)]
    if tracemalloc.is_tracing():
        top = tracemalloc.take_snapshot().statistics("lineno")[:_ENTRIES_SHOWN]
        lines += ["", "memory by the line that asked for it:", *map(str, top)]
    else:
        lines += ["", "start the process with PYTHONTRACEMALLOC=1 to see where memory was asked for"]
    return text_response("\n".join(lines))


async def _tasks(_request: HttpRequest) -> HttpResponse:
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    out = io.StringIO()
    print(f"{len(tasks)} tasks", file=out)
    for task in tasks:
        print(f"\ntask {task.get_name()}:", file=out)
        task.print_stack(file=out)
    return text_response(f"{out.getvalue()}\n{_thread_stacks()}")


async def _threads(_request: HttpRequest) -> HttpResponse:
    return text_response(_thread_stacks())


def _thread_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    return "\n".join(
        f"thread {names.get(ident, '?')}:\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames
    )


_PROMETHEUS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_pages(registry: MetricsRegistry) -> dict[str, PageHandler]:
    """``/metrics`` (OPS-365)."""

    async def page(_request: HttpRequest) -> HttpResponse:
        return HttpResponse(await render(registry), content_type=_PROMETHEUS_CONTENT_TYPE)

    return {"/metrics": page}


def debug_pages(debug_state: Callable[[], object]) -> dict[str, PageHandler]:
    """``/debug/pprof/`` and ``/debug/state`` (OPS-366, OPS-372). ``debug_state`` gives what the latter shows, as JSON values."""

    async def state(_request: HttpRequest) -> HttpResponse:
        encoded = msgspec.json.format(msgspec.json.encode(debug_state()), indent=2)
        return HttpResponse(encoded + b"\n", content_type="application/json")

    return {**pprof_pages(), "/debug/state": state}
