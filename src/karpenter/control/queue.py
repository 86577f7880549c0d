"""Queues and loops as controllers use them: named in every log line, and never ended by a fault of theirs (OPS-371)."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable

import structlog

from karpenter.kube.errors import KubeError
from karpenter.kube.workqueue import Look, Queue
from karpenter.providers.contract import ProviderError

_FIRST_BACKOFF_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 60.0
_log = structlog.get_logger()


class WorkQueue(Queue[str]):
    """A queue of object names. ``name`` is what logs call the controller."""

    def __init__(self, name: str, look: Look[str], workers: int) -> None:
        async def named(key: str) -> float | None:
            with structlog.contextvars.bound_contextvars(controller=name, name=key):
                return await look(key)

        super().__init__(named, workers, lambda key, error: _report(error, controller=name, name=key))


def _report(error: Exception, **context: str) -> None:
    """Faults of the world as one line, bugs with their trace."""
    if isinstance(error, KubeError | ProviderError | OSError):
        _log.error("Reconciler error", **context, error=str(error))
    else:
        trace = "".join(traceback.format_exception(error))
        _log.error("Reconciler error", **context, error=repr(error), stacktrace=trace)


async def supervised(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run a loop for ever: one that fails is logged and started again with growing delay (OPS-371)."""
    delay = _FIRST_BACKOFF_SECONDS
    while True:
        started = asyncio.get_running_loop().time()
        try:
            await work()
        except Exception as error:
            _report(error, controller=name)
        else:
            return
        if asyncio.get_running_loop().time() - started > _LONGEST_BACKOFF_SECONDS:
            delay = _FIRST_BACKOFF_SECONDS
        await asyncio.sleep(delay)
        delay = min(_LONGEST_BACKOFF_SECONDS, delay * 2)
