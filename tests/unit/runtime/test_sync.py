"""Log lines while the cluster state stays incomplete (OPS-111)."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import UTC, datetime

import structlog

from karpenter.runtime import logging
from karpenter.runtime.apiserver_faults import ClusterSyncReporter
from karpenter.runtime.reconciler import SingletonReconciler
from karpenter.simulation.virtual_time import run_virtual


def log_lines(lacking: dict[float, str], seconds: float) -> list[tuple[float, str, str]]:
    """Time, duration and subject of each log line; ``lacking`` says what is missing from which second on."""
    log = io.StringIO()
    logging.configure("debug", log)
    reports: list[tuple[float, str, str]] = []

    async def scenario(clock: object) -> None:
        now = asyncio.get_running_loop().time

        def current() -> str:
            return [text for at, text in sorted(lacking.items()) if at <= now()][-1]

        task = asyncio.create_task(SingletonReconciler("sync", ClusterSyncReporter(current).reconcile).run())
        seen = 0
        while now() < seconds:
            await asyncio.sleep(1)
            written = [json.loads(line) for line in log.getvalue().splitlines()]
            lines = [line for line in written if line["level"] != "INFO"]
            reports.extend((now(), line["duration"], line["unsynced"]) for line in lines[seen:])
            for line in lines[seen:]:
                assert (line["level"], line["error"]) == ("ERROR", "waiting on cluster sync")
                assert line["message"] == "cluster is waiting on sync for extended duration"
            seen = len(lines)
        task.cancel()

    try:
        run_virtual(scenario, datetime(2026, 1, 1, tzinfo=UTC))
    finally:
        structlog.reset_defaults()
    return reports


def test_a_picture_that_stays_incomplete_is_an_error_every_ten_seconds_after_half_a_minute() -> None:
    actual = log_lines({0: "waiting for nodes"}, 65)
    assert [duration for _, duration, _ in actual] == ["40s", "50s", "1m0s"]
    assert {lacking for _, _, lacking in actual} == {"waiting for nodes"}


def test_what_comes_back_in_time_is_not_talked_about_and_begins_anew() -> None:
    assert log_lines({0: "pods: away", 25: "", 35: "pods: away", 65: ""}, 120) == []


def test_a_complete_cluster_state_triggers_nothing() -> None:
    assert log_lines({0: ""}, 300) == []
