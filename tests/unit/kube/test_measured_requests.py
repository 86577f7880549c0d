"""Requests to the API server are counted and timed."""

from __future__ import annotations

from karpenter.kube.measured import MeasuredRequests
from karpenter.kube.observer import NO_ANSWER, Finished
from karpenter.telemetry import Metrics
from karpenter.telemetry.exposition import render_here
from support.scrape import Scrape


def test_requests_are_counted_by_answer_and_timed_by_what_was_asked() -> None:
    """OPS-495"""
    metrics = Metrics()
    observer = MeasuredRequests(metrics)
    status = ("karpenter.sh", "v1", "nodeclaims", "status")
    observer.finished(Finished("PATCH", "PATCH", *status, code="409", seconds=0.002))
    observer.finished(Finished("PATCH", "PATCH", *status, code="200", seconds=0.02))
    observer.finished(Finished("LIST", "GET", "", "v1", "pods", "", code=NO_ANSWER, seconds=5))
    found = Scrape(render_here(metrics.registry))
    assert found.value("client_go_request_total", method="PATCH", code="409") == 1
    assert found.value("client_go_request_total", method="GET", code="<error>") == 1
    patched = {"verb": "PATCH", "group": "karpenter.sh", "version": "v1", "kind": "nodeclaims", "subresource": "status"}
    assert found.value("client_go_request_duration_seconds_count", **patched) == 2
    buckets = found.values("client_go_request_duration_seconds_bucket", "le", **patched)
    assert len(buckets) == 21
    assert [count for limit, count in buckets.items() if float(limit) < 0.003] == [0, 0, 1]
    assert found.value("client_go_request_duration_seconds_sum", verb="LIST", kind="pods") == 5
