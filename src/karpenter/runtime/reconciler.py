"""Queues and loops as controllers use them: named in every log line, counted, and never ended by a fault of theirs (OPS-371).

Every pass over a key has an identity of its own; what it logs carries it together with the controller's and the object's name
(OPS-385), so that one pass can be followed through the log. Controllers without keys (the provisioner, disruption, collectors)
are ``Singleton``s: their passes are told apart and counted likewise.
"""

from __future__ import annotations

import asyncio
import traceback
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog

from karpenter.kube.errors import KubeError
from karpenter.kube.workqueue import KeyedWorkQueue, ReconcileKey, ReconcileResult
from karpenter.metrics import Metrics
from karpenter.metrics.controller_metrics import ControllerMetrics, QueueMetrics, controller_scope
from karpenter.providers.contract import ProviderError
from karpenter.runtime.events import ObjectKind

_BASE_DELAY_SECONDS = 1.0
_MAX_DELAY_SECONDS = 60.0
_log = structlog.get_logger()


class ReconcilerQueue(KeyedWorkQueue[str]):
    """A queue of objects of one kind, by name or ``namespace/name``. ``name`` is what logs and figures call the controller."""

    def __init__(
        self,
        name: str,
        reconcile: ReconcileKey[str],
        workers: int,
        kind: ObjectKind | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.name = name
        self._kind = kind
        self._max_concurrent_reconciles = workers
        constant = _controller_fields(name, kind)
        series = QueueMetrics(metrics or Metrics(), name, workers)

        async def named(key: str) -> float | None:
            own = {**constant, **_object_fields(kind, key), "reconcileID": str(uuid.uuid4())}
            with controller_scope(name), structlog.contextvars.bound_contextvars(**own):
                try:
                    return await reconcile(key)
                except Exception as error:
                    # Told here, where the pass is still known; what is to be done about it is the queue's business.
                    _log_reconciler_error(error)
                    if is_programming_error(error):
                        series.panicked()
                    raise

        super().__init__(named, workers, lambda _key, _error: None, series)
        series.read_from(lambda: self.depth, self.running_seconds)

    async def run(self) -> None:
        """Work until cancelled."""
        log_controller_start(self.name, self._max_concurrent_reconciles, self._kind)
        await super().run()


def log_controller_start(name: str, workers: int = 1, kind: ObjectKind | None = None) -> None:
    """Say that a controller starts, in the lines users know (OPS-386). ``kind`` is what it looks at, if it has keys."""
    log = _log.bind(**_controller_fields(name, kind))
    if kind is not None:
        log.info("Starting EventSource", source=f"kind source: {kind.name}")
    log.info("Starting Controller")
    log.info("Starting workers", **{"worker count": workers})


def _controller_fields(name: str, kind: ObjectKind | None) -> dict[str, object]:
    """How log lines name a controller (OPS-385)."""
    of_kind = {"controllerGroup": kind.group, "controllerKind": kind.name} if kind is not None else {}
    return {"controller": name, **of_kind}


def _object_fields(kind: ObjectKind | None, key: str) -> dict[str, object]:
    """How log lines name what a pass looks at (OPS-383, OPS-385); keys of namespaced objects are ``namespace/name``."""
    namespace, _, name = key.rpartition("/")
    reference = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {**({kind.name: reference} if kind is not None else {}), "namespace": namespace, "name": name}


class SingletonReconciler:
    """A controller without keys. Whoever runs it says where a pass begins and ends; with the first one it announces itself."""

    def __init__(self, name: str, metrics: Metrics) -> None:
        self.name = name
        self._metrics = ControllerMetrics(metrics, name, 1)
        self._has_logged_start = False

    @contextmanager
    def reconciling(self) -> Iterator[None]:
        """A pass: what is logged within carries its identity, and how long it took is counted.

        After a pass that failed the log's context stays as it is, so that whoever tells the fault (``supervised``) says of which
        pass it is. The next pass takes its place.
        """
        if not self._has_logged_start:
            log_controller_start(self.name)
            self._has_logged_start = True
        structlog.contextvars.bind_contextvars(
            controller=self.name, namespace="", name="", reconcileID=str(uuid.uuid4())
        )
        now = asyncio.get_running_loop().time
        began = now()
        with self._metrics.active.track_inprogress(), controller_scope(self.name):
            try:
                yield
            except Exception:
                self._metrics.ended(now() - began, ReconcileResult.ERROR)
                raise
        self._metrics.ended(now() - began, ReconcileResult.SUCCESS)
        structlog.contextvars.unbind_contextvars("controller", "namespace", "name", "reconcileID")


def is_programming_error(error: Exception) -> bool:
    """Whether it is a mistake of ours, not a fault of the world."""
    return not isinstance(error, KubeError | ProviderError | OSError)


def _log_reconciler_error(error: Exception, **context: str) -> None:
    """Faults of the world as one line, bugs with their trace."""
    if is_programming_error(error):
        trace = "".join(traceback.format_exception(error))
        _log.error("Reconciler error", **context, error=repr(error), stacktrace=trace)
    else:
        _log.error("Reconciler error", **context, error=str(error))


async def run_supervised(name: str, loop: Callable[[], Awaitable[None]], metrics: Metrics | None = None) -> None:
    """Run a loop for ever: one that fails is logged and started again with growing delay; bugs are counted (OPS-371)."""
    delay = _BASE_DELAY_SECONDS
    while True:
        started = asyncio.get_running_loop().time()
        try:
            await loop()
        except Exception as error:
            _log_reconciler_error(error, controller=name)
            if metrics is not None and is_programming_error(error):
                metrics.controller_runtime_reconcile_panics_total.labels(controller=name).inc()
        else:
            return
        if asyncio.get_running_loop().time() - started > _MAX_DELAY_SECONDS:
            delay = _BASE_DELAY_SECONDS
        await asyncio.sleep(delay)
        delay = min(_MAX_DELAY_SECONDS, delay * 2)
