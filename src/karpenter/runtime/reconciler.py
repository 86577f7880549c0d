"""The runtime of all controllers: a ``Reconciler`` runs ``reconcile(key)`` over the keys of one ``WorkQueue``.

``reconcile`` returns the seconds after which the key is to be reconciled again, or None to wait for events. An error requeues the
key with exponential backoff and never ends the controller (OPS-371): faults of the environment (``ExpectedError``, ``OSError``)
are logged as one line, bugs with their trace and counted as panics. Every pass has an identity; what it logs carries it together
with the names of the controller and the object (OPS-385).

A controller without keys is a singleton: a ``Reconciler`` over one constant key, a ``SingletonReconciler``. Its ``reconcile``
takes no key and returns its period.

``run_supervised`` is for what is no controller: informers, HTTP servers, recorders.
"""

from __future__ import annotations

import asyncio
import contextvars
import traceback
import uuid
from collections.abc import Awaitable, Callable, Hashable
from itertools import count
from typing import Generic, TypeVar

import structlog

from karpenter.kube.cancellation import is_being_cancelled
from karpenter.metrics import Metrics
from karpenter.metrics.controller_metrics import ControllerMetrics, QueueMetrics, SingletonMetrics, controller_scope
from karpenter.model.backoff import DEFAULT_BACKOFF
from karpenter.model.expected_error import ExpectedError
from karpenter.runtime.events import ObjectKind
from karpenter.runtime.workqueue import ReconcileResult, WorkQueue

K = TypeVar("K", bound=Hashable)

#: Seconds until the key is to be reconciled again; None: with the next event.
Requeue = float | None
#: One pass over one object.
ReconcileKey = Callable[[K], Awaitable[Requeue]]
#: Handles an error of a pass in place of the log line.
OnReconcileError = Callable[[K, Exception], None]

#: The one key of a singleton.
SINGLETON_KEY = ""
_log = structlog.get_logger()


#: Passes have UUIDs whose last block counts those of this process: a random number for each costs more than many passes.
#: Clusters in threads of one process share the count, so the next number is one call of C.
_ID_PREFIX = str(uuid.uuid4())[:24]
_pass_numbers = count()


def new_reconcile_id() -> str:
    """A UUID that no other pass has."""
    return f"{_ID_PREFIX}{next(_pass_numbers):012x}"


class Reconciler(Generic[K]):
    """Reconciles the keys of a queue, ``workers`` at a time. ``name`` is the controller's name in logs and metrics.

    ``queue`` may exist before, with event handlers attached to it. Keys of namespaced objects are ``namespace/name`` or a tuple
    of both. ``kind`` is the kind of the keys' objects. ``on_error`` replaces the log line of a failed pass.
    """

    def __init__(
        self,
        name: str,
        reconcile: ReconcileKey[K],
        workers: int = 1,
        kind: ObjectKind | None = None,
        metrics: Metrics | None = None,
        *,
        queue: WorkQueue[K] | None = None,
        on_error: OnReconcileError[K] | None = None,
    ) -> None:
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue() if queue is None else queue
        self._reconcile = reconcile
        self._workers = workers
        self._kind = kind
        self._on_error = on_error
        self._log_fields = _controller_fields(name, kind)
        self._metrics = self._new_metrics(metrics or Metrics())
        self.queue.observer = self._metrics

    def _new_metrics(self, metrics: Metrics) -> ControllerMetrics:
        series = QueueMetrics(metrics, self.name, self._workers)
        series.read_from(lambda: self.queue.depth, self.queue.running_seconds)
        return series

    def add(self, key: K) -> None:
        """Reconcile the key as soon as a worker is free."""
        self.queue.add(key)

    async def run(self) -> None:
        """Work until cancelled."""
        _log_controller_start(self.name, self._workers, self._kind)
        # The task that adds a key starts the worker. The worker must not log with the fields of that task.
        context = contextvars.copy_context()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._supply(self.queue.run_timers))
            with self.queue.workers(
                lambda: tasks.create_task(self._supply(self._work), context=context.copy()), self._workers
            ):
                await asyncio.get_running_loop().create_future()

    async def _supply(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do a part of the work; when it fails, no more workers are started: a group that ends refuses them."""
        try:
            await work()
        finally:
            self.queue.start_no_workers()

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                result, seconds = await self._reconcile_key(key)
                self.queue.finish(key, result, seconds)
            finally:
                self.queue.release(key)

    async def _reconcile_key(self, key: K) -> tuple[ReconcileResult, float]:
        own = {**self._log_fields, **_object_fields(self._kind, key), "reconcileID": new_reconcile_id()}
        with controller_scope(self.name), structlog.contextvars.bound_contextvars(**own):
            try:
                requeue = await self._reconcile(key)
            except asyncio.CancelledError as error:
                if is_being_cancelled():
                    raise
                # What it waited for was cancelled. The pass failed; the worker must not end of it.
                broken_off = RuntimeError("what the pass waited for was cancelled")
                broken_off.__cause__ = error
                self._report(key, broken_off)
                return ReconcileResult.ERROR, 0.0
            except Exception as error:
                self._report(key, error)
                return ReconcileResult.ERROR, 0.0
        if requeue is None:
            return ReconcileResult.SUCCESS, 0.0
        return (ReconcileResult.REQUEUE_AFTER if requeue > 0 else ReconcileResult.REQUEUE), requeue

    def _report(self, key: K, error: Exception) -> None:
        if self._on_error is None:
            _log_reconciler_error(error)
        else:
            self._on_error(key, error)
        if is_programming_error(error):
            self._metrics.panicked()


class SingletonReconciler(Reconciler[str]):
    """A controller over one constant key. It first runs ``initial_delay()`` seconds after its start, then as it returns.

    A singleton that is given its ``queue`` waits until the caller adds the key to it.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[], Awaitable[Requeue]],
        metrics: Metrics | None = None,
        *,
        initial_delay: Callable[[], float] = float,
        queue: WorkQueue[str] | None = None,
    ) -> None:
        super().__init__(name, lambda _key: reconcile(), 1, None, metrics, queue=queue)
        self._starts_at_once = queue is None
        self._initial_delay = initial_delay

    def _new_metrics(self, metrics: Metrics) -> ControllerMetrics:
        """Singletons have no series of their queue."""
        return SingletonMetrics(metrics, self.name, self.queue.running_seconds)

    async def run(self) -> None:
        """Work until cancelled."""
        if self._starts_at_once:
            delay = self._initial_delay()
            if delay > 0:
                self.queue.add_after(SINGLETON_KEY, delay)
            else:
                self.queue.add(SINGLETON_KEY)
        await super().run()


def _log_controller_start(name: str, workers: int, kind: ObjectKind | None) -> None:
    """Log that a controller starts, in the lines users know (OPS-386)."""
    log = _log.bind(**_controller_fields(name, kind))
    if kind is not None:
        log.info("Starting EventSource", source=f"kind source: {kind.name}")
    log.info("Starting Controller")
    log.info("Starting workers", **{"worker count": workers})


def _controller_fields(name: str, kind: ObjectKind | None) -> dict[str, object]:
    """How log lines name a controller (OPS-385)."""
    kind_fields = {"controllerGroup": kind.group, "controllerKind": kind.name} if kind is not None else {}
    return {"controller": name, **kind_fields}


def _object_fields(kind: ObjectKind | None, key: Hashable) -> dict[str, object]:
    """How log lines name the object of a pass (OPS-383, OPS-385)."""
    namespace, _, name = ("/".join(key) if isinstance(key, tuple) else str(key)).rpartition("/")
    reference = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {**({kind.name: reference} if kind is not None else {}), "namespace": namespace, "name": name}


def is_programming_error(error: Exception) -> bool:
    """Whether the error is a bug of this program, not a fault of the environment."""
    return not isinstance(error, ExpectedError | OSError)


def _log_reconciler_error(error: Exception, **context: str) -> None:
    """Faults of the environment as one line, bugs with their trace."""
    if is_programming_error(error):
        trace = "".join(traceback.format_exception(error))
        _log.error("Reconciler error", **context, error=repr(error), stacktrace=trace)
    else:
        _log.error("Reconciler error", **context, error=str(error))


async def run_supervised(name: str, loop: Callable[[], Awaitable[None]]) -> None:
    """Run a loop for ever: one that fails is logged and restarted with exponential backoff (OPS-371)."""
    failures = 0
    while True:
        started = asyncio.get_running_loop().time()
        try:
            await loop()
        except Exception as error:
            _log_reconciler_error(error, controller=name)
        else:
            return
        ran_long = asyncio.get_running_loop().time() - started > DEFAULT_BACKOFF.max_seconds
        failures = 1 if ran_long else failures + 1
        await asyncio.sleep(DEFAULT_BACKOFF.delay(failures))
