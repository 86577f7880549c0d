"""Metrics of each controller: reconciles by result, and its work queue (OPS-490 to OPS-493).

The series of a controller are looked up once and kept, because reconciles are frequent. All of them exist from the start, at 0,
as in controller-runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from karpenter.metrics.registry import Metrics

_ERROR = "error"
_SUCCESS = "success"
_RESULTS = (_ERROR, "requeue_after", "requeue", _SUCCESS)
#: The priority of every key; there is only one.
_PRIORITY = "0"

_current: ContextVar[str] = ContextVar("controller", default="")


def current_controller() -> str:
    """The name of the controller that reconciles now; empty outside of reconciles."""
    return _current.get()


@contextmanager
def controller_scope(controller: str) -> Iterator[None]:
    """Within, and in tasks begun within, ``current_controller`` is this one."""
    token = _current.set(controller)
    try:
        yield
    finally:
        _current.reset(token)


class ControllerMetrics:
    """The reconciles of one controller, of which ``workers`` may go on at once."""

    def __init__(self, metrics: Metrics, controller: str, workers: int) -> None:
        self._results = {
            result: metrics.controller_runtime_reconcile_total.labels(controller=controller, result=result)
            for result in _RESULTS
        }
        self._errors = metrics.controller_runtime_reconcile_errors_total.labels(controller=controller)
        self._panics = metrics.controller_runtime_reconcile_panics_total.labels(controller=controller)
        self._seconds = metrics.controller_runtime_reconcile_time_seconds.labels(controller=controller)
        self.active = metrics.controller_runtime_active_workers.labels(controller=controller)
        metrics.controller_runtime_max_concurrent_reconciles.labels(controller=controller).set(workers)
        metrics.controller_runtime_terminal_reconcile_errors_total.labels(controller=controller)
        metrics.controller_runtime_reconcile_timeouts_total.labels(controller=controller)

    def added(self) -> None:
        """A key began to wait; counted for controllers with a queue of objects."""

    def postponed(self) -> None:
        """A key was scheduled for later."""

    def started(self, waited_seconds: float) -> None:
        """A pass began."""

    def ended(self, seconds: float, result: str) -> None:
        """A reconcile is over: how long it took and how it ended (``error``, ``requeue_after``, ``requeue``, ``success``)."""
        self._results[result].inc()
        self._seconds.observe(seconds)
        if result == _ERROR:
            self._errors.inc()

    def panicked(self) -> None:
        """A reconcile ended in a bug of ours, not in a fault of the world (OPS-371); counted beside its result."""
        self._panics.inc()


class SingletonMetrics(ControllerMetrics):
    """A controller without keys: passes under way are read from it, and every pass without an error counts as a success."""

    def __init__(self, metrics: Metrics, controller: str, running_seconds: Callable[[], list[float]]) -> None:
        super().__init__(metrics, controller, 1)
        self.active.set_function(lambda: len(running_seconds()))

    def ended(self, seconds: float, result: str) -> None:
        """The pass is over."""
        super().ended(seconds, result if result == _ERROR else _SUCCESS)


class QueueMetrics(ControllerMetrics):
    """A controller with a queue, as that queue's observer."""

    def __init__(self, metrics: Metrics, controller: str, workers: int) -> None:
        super().__init__(metrics, controller, workers)
        own = {"name": controller, "controller": controller}
        self._adds = metrics.workqueue_adds_total.labels(**own)
        self._retries = metrics.workqueue_retries_total.labels(**own)
        self._waited = metrics.workqueue_queue_duration_seconds.labels(**own)
        self._worked = metrics.workqueue_work_duration_seconds.labels(**own)
        self._depth = metrics.workqueue_depth.labels(**own, priority=_PRIORITY)
        self._unfinished = metrics.workqueue_unfinished_work_seconds.labels(**own)
        self._longest = metrics.workqueue_longest_running_processor_seconds.labels(**own)

    def read_from(self, depth: Callable[[], int], running_seconds: Callable[[], list[float]]) -> None:
        """The functions that a scrape calls for the figures; from any thread."""
        self._depth.set_function(depth)
        self.active.set_function(lambda: len(running_seconds()))
        self._unfinished.set_function(lambda: sum(running_seconds()))
        self._longest.set_function(lambda: max(running_seconds(), default=0.0))

    def added(self) -> None:
        """A key waits for a worker now, which did not before."""
        self._adds.inc()

    def postponed(self) -> None:
        """A key got an appointment for later."""
        self._retries.inc()

    def started(self, waited_seconds: float) -> None:
        """A worker took a key that had waited this long."""
        self._waited.observe(waited_seconds)

    def ended(self, seconds: float, result: str) -> None:
        """The worker is done with it."""
        super().ended(seconds, result)
        self._worked.observe(seconds)
