"""Logs and metrics of queues and singletons: the context of every log line, and the metrics of controller-runtime."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from karpenter.api.kinds import NODE_CLAIM, POD, Kind
from karpenter.kube.errors import ServerUnavailable
from karpenter.metrics import Metrics
from karpenter.metrics.controller_metrics import current_controller
from karpenter.providers.contract import ProviderError
from karpenter.runtime.reconciler import Reconciler, SingletonReconciler, new_reconcile_id
from karpenter.simulation.virtual_time import run_virtual

_log = structlog.get_logger()
Lines = list[Mapping[str, Any]]


def run_in_virtual_time(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Lines:
    """Run a scenario in virtual time; its log lines with their context."""
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        run_virtual(lambda clock: scenario(), datetime(2026, 1, 1, tzinfo=UTC))
    return lines


async def reconciled(reconcile: Any, *keys: str, kind: Kind[Any] | None = NODE_CLAIM, lasting: float = 0.5) -> Metrics:
    """Have a queue reconcile keys for a while; its figures."""
    metrics = Metrics()
    queue: Reconciler[str] = Reconciler("nodeclaim.lifecycle", reconcile, 3, kind, metrics)
    task = asyncio.create_task(queue.run())
    for key in keys:
        queue.add(key)
    await asyncio.sleep(lasting)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return metrics


def value(metrics: Metrics, series: str, **labels: str) -> float | None:
    own = {"controller": "nodeclaim.lifecycle"}
    if series.startswith("workqueue"):
        own["name"] = "nodeclaim.lifecycle"
    return metrics.registry.get_sample_value(series, {**own, **labels})


def test_every_line_of_a_reconcile_says_of_which_controller_object_and_pass_it_is() -> None:
    """OPS-385"""

    async def reconcile(name: str) -> None:
        _log.info("looking")

    lines = [
        line for line in run_in_virtual_time(lambda: reconciled(reconcile, "a", "b")) if line["event"] == "looking"
    ]
    for line, name in zip(lines, "ab", strict=True):
        assert {key: line[key] for key in line if key not in ("event", "log_level", "reconcileID")} == {
            "controller": "nodeclaim.lifecycle",
            "controllerGroup": "karpenter.sh",
            "controllerKind": "NodeClaim",
            "NodeClaim": {"name": name},
            "namespace": "",
            "name": name,
        }
        uuid.UUID(line["reconcileID"])
    assert lines[0]["reconcileID"] != lines[1]["reconcileID"]


def test_a_key_with_a_namespace_is_logged_in_its_parts() -> None:
    """OPS-383, OPS-385"""

    async def reconcile(name: str) -> None:
        _log.info("looking")

    (line,) = [
        actual
        for actual in run_in_virtual_time(lambda: reconciled(reconcile, "web/p-1", kind=POD))
        if actual["event"] == "looking"
    ]
    assert line["Pod"] == {"name": "p-1", "namespace": "web"}
    assert (line["namespace"], line["name"]) == ("web", "p-1")
    assert line["controllerGroup"] == ""


def test_a_failed_reconcile_is_logged_with_its_reconcile_id() -> None:
    """OPS-386"""

    async def reconcile(name: str) -> None:
        _log.info("looking")
        raise ServerUnavailable("gone fishing")

    looking, failed = [
        line
        for line in run_in_virtual_time(lambda: reconciled(reconcile, "a"))
        if line["event"] in ("looking", "Reconciler error")
    ]
    assert failed["error"] == "gone fishing"
    assert failed["log_level"] == "error"
    assert failed["reconcileID"] == looking["reconcileID"]
    assert failed["NodeClaim"] == {"name": "a"}
    assert "stacktrace" not in failed


def test_controllers_announce_themselves_in_the_lines_users_know() -> None:
    """OPS-386"""

    async def reconcile(name: str) -> None: ...

    lines = run_in_virtual_time(lambda: reconciled(reconcile))
    assert [line["event"] for line in lines] == ["Starting EventSource", "Starting Controller", "Starting workers"]
    assert lines[0]["source"] == "kind source: NodeClaim"
    assert lines[2]["worker count"] == 3
    assert all(line["controller"] == "nodeclaim.lifecycle" for line in lines)
    assert all(line["controllerKind"] == "NodeClaim" for line in lines)


def test_a_singleton_announces_itself_once_and_has_no_source_of_events() -> None:
    async def scenario() -> None:
        async def reconcile() -> float:
            return 1.0

        task = asyncio.create_task(SingletonReconciler("disruption", reconcile, Metrics()).run())
        await asyncio.sleep(3.5)
        task.cancel()

    lines = run_in_virtual_time(scenario)
    assert [(line["event"], line["controller"]) for line in lines] == [
        ("Starting Controller", "disruption"),
        ("Starting workers", "disruption"),
    ]


@pytest.mark.parametrize(
    ("answer", "result"),
    [(None, "success"), (100.0, "requeue_after"), (ServerUnavailable("x"), "error"), (ProviderError("x"), "error")],
)
def test_looks_are_counted_by_how_they_end(answer: float | Exception | None, result: str) -> None:
    """OPS-490, OPS-491, OPS-492"""
    metricses: list[Metrics] = []

    async def reconcile(name: str) -> float | None:
        await asyncio.sleep(0.2)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def scenario() -> None:
        metricses.append(await reconciled(reconcile, "a"))

    run_in_virtual_time(scenario)
    (metrics,) = metricses
    for name in ("error", "requeue_after", "requeue", "success"):
        assert value(metrics, "controller_runtime_reconcile_total", result=name) == (name == result)
    assert value(metrics, "controller_runtime_reconcile_errors_total") == (result == "error")
    assert value(metrics, "controller_runtime_reconcile_panics_total") == 0
    assert value(metrics, "controller_runtime_reconcile_timeouts_total") == 0
    assert value(metrics, "controller_runtime_terminal_reconcile_errors_total") == 0
    assert value(metrics, "controller_runtime_max_concurrent_reconciles") == 3
    assert value(metrics, "controller_runtime_reconcile_time_seconds_count") == 1
    assert value(metrics, "controller_runtime_reconcile_time_seconds_sum") == pytest.approx(0.2)
    assert value(metrics, "workqueue_work_duration_seconds_sum") == pytest.approx(0.2)
    assert value(metrics, "workqueue_retries_total") == (result != "success")


def test_a_reconcile_that_asks_for_another_at_once_is_a_requeue() -> None:
    """OPS-490"""
    metricses: list[Metrics] = []
    answers = [0.0]

    async def reconcile(name: str) -> float | None:
        return answers.pop() if answers else None

    async def scenario() -> None:
        metricses.append(await reconciled(reconcile, "a"))

    run_in_virtual_time(scenario)
    assert value(metricses[0], "controller_runtime_reconcile_total", result="requeue") == 1
    assert value(metricses[0], "controller_runtime_reconcile_total", result="success") == 1
    assert value(metricses[0], "workqueue_adds_total") == 2


def test_a_bug_in_a_reconcile_counts_as_a_panic_and_is_logged_with_its_trace() -> None:
    """OPS-371, OPS-491"""
    metricses: list[Metrics] = []

    async def reconcile(name: str) -> None:
        raise ZeroDivisionError("a bug")

    async def scenario() -> None:
        metricses.append(await reconciled(reconcile, "a"))

    errors = [line for line in run_in_virtual_time(scenario) if line["event"] == "Reconciler error"]
    assert "ZeroDivisionError" in errors[0]["stacktrace"]
    assert value(metricses[0], "controller_runtime_reconcile_panics_total") == 1
    assert value(metricses[0], "controller_runtime_reconcile_errors_total") == 1


def test_a_queue_can_be_asked_how_much_waits_and_how_long_work_has_lasted() -> None:
    """OPS-493"""

    async def reconcile(name: str) -> None:
        await asyncio.sleep(10)

    async def scenario() -> None:
        metrics = Metrics()
        queue: Reconciler[str] = Reconciler("nodeclaim.lifecycle", reconcile, 2, NODE_CLAIM, metrics)
        task = asyncio.create_task(queue.run())
        queue.add("a")
        await asyncio.sleep(3)
        for key in "bcd":
            queue.add(key)
        await asyncio.sleep(1)
        assert value(metrics, "workqueue_depth", priority="0") == 2
        assert value(metrics, "controller_runtime_active_workers") == 2
        assert value(metrics, "workqueue_longest_running_processor_seconds") == pytest.approx(4)
        assert value(metrics, "workqueue_unfinished_work_seconds") == pytest.approx(5)
        await asyncio.sleep(30)
        assert value(metrics, "workqueue_depth", priority="0") == 0
        assert value(metrics, "controller_runtime_active_workers") == 0
        assert value(metrics, "workqueue_longest_running_processor_seconds") == 0
        assert value(metrics, "workqueue_adds_total") == 4
        assert value(metrics, "workqueue_queue_duration_seconds_count") == 4
        assert value(metrics, "workqueue_queue_duration_seconds_sum") == pytest.approx(7 + 10)
        task.cancel()

    run_in_virtual_time(scenario)


def test_code_within_a_reconcile_can_read_its_controller() -> None:
    """OPS-470: calls to a cloud are counted by controller."""
    seen: list[str] = []

    async def helping() -> None:
        seen.append(current_controller())

    async def reconcile(name: str) -> None:
        await asyncio.gather(helping())

    run_in_virtual_time(lambda: reconciled(reconcile, "a"))
    assert seen == ["nodeclaim.lifecycle"]
    assert current_controller() == ""


def test_the_passes_of_a_singleton_have_ids_and_are_counted() -> None:
    """OPS-385, OPS-490"""
    metrics = Metrics()

    async def reconcile() -> float:
        _log.info("passing")
        await asyncio.sleep(2)
        return 1.0

    async def scenario() -> None:
        task = asyncio.create_task(SingletonReconciler("disruption", reconcile, metrics).run())
        await asyncio.sleep(5.5)
        _log.info("between")
        task.cancel()

    first, second, between = (
        line for line in run_in_virtual_time(scenario) if not line["event"].startswith("Starting")
    )
    assert first["controller"] == second["controller"] == "disruption"
    assert first["namespace"] == first["name"] == ""
    assert first["reconcileID"] != second["reconcileID"]
    assert "reconcileID" not in between
    own = {"controller": "disruption"}
    sample = metrics.registry.get_sample_value
    assert sample("controller_runtime_reconcile_total", {**own, "result": "success"}) == 2
    assert sample("controller_runtime_reconcile_time_seconds_sum", own) == pytest.approx(4)
    assert sample("controller_runtime_active_workers", own) == 0


@pytest.mark.parametrize(("error", "panics"), [(ServerUnavailable("x"), 0), (KeyError("x"), 1)])
def test_a_failed_pass_of_a_singleton_is_logged_with_its_id_and_counted(error: Exception, panics: int) -> None:
    """OPS-371, OPS-386"""
    metrics = Metrics()
    answers: list[Exception] = [error]

    async def reconcile() -> None:
        _log.info("passing")
        if answers:
            raise answers.pop()

    async def scenario() -> None:
        task = asyncio.create_task(SingletonReconciler("disruption", reconcile, metrics).run())
        await asyncio.sleep(5)
        task.cancel()

    lines = run_in_virtual_time(scenario)
    passing, failed, again = (line for line in lines if not line["event"].startswith("Starting"))
    assert failed["event"] == "Reconciler error"
    assert failed["reconcileID"] == passing["reconcileID"] != again["reconcileID"]
    own = {"controller": "disruption"}
    sample = metrics.registry.get_sample_value
    assert sample("controller_runtime_reconcile_total", {**own, "result": "error"}) == 1
    assert sample("controller_runtime_reconcile_errors_total", own) == 1
    assert sample("controller_runtime_reconcile_panics_total", own) == panics
    assert sample("controller_runtime_reconcile_total", {**own, "result": "success"}) == 1


def test_passes_of_clusters_in_threads_of_one_process_have_ids_of_their_own() -> None:
    """A worker of Dask runs several studies at once."""

    def some(_: int) -> list[str]:
        return [new_reconcile_id() for _ in range(20_000)]

    with ThreadPoolExecutor(4) as threads:
        made = [one for many in threads.map(some, range(4)) for one in many]
    assert len(set(made)) == len(made) == 80_000
