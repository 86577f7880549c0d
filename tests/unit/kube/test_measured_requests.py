"""Requests to the API server are counted and timed."""

from __future__ import annotations

from karpenter.kube.request_metrics import NO_RESPONSE, FinishedRequest, RequestMetrics
from karpenter.metrics import Metrics
from karpenter.metrics.exposition import render_sync
from support.metrics_scrape import Scrape


def test_requests_are_counted_by_answer_and_timed_by_what_was_asked() -> None:
    """OPS-495"""
    metrics = Metrics()
    observer = RequestMetrics(metrics)
    status = ("karpenter.sh", "v1", "nodeclaims", "status")
    observer.request_finished(FinishedRequest("PATCH", "PATCH", *status, code="409", seconds=0.002))
    observer.request_finished(FinishedRequest("PATCH", "PATCH", *status, code="200", seconds=0.02))
    observer.request_finished(FinishedRequest("LIST", "GET", "", "v1", "pods", "", code=NO_RESPONSE, seconds=5))
    scraped = Scrape(render_sync(metrics.registry))
    assert scraped.value("client_go_request_total", method="PATCH", code="409") == 1
    assert scraped.value("client_go_request_total", method="GET", code="<error>") == 1
    patched = {"verb": "PATCH", "group": "karpenter.sh", "version": "v1", "kind": "nodeclaims", "subresource": "status"}
    assert scraped.value("client_go_request_duration_seconds_count", **patched) == 2
    buckets = scraped.values("client_go_request_duration_seconds_bucket", "le", **patched)
    assert len(buckets) == 21
    assert [count for limit, count in buckets.items() if float(limit) < 0.003] == [0, 0, 1]
    assert scraped.value("client_go_request_duration_seconds_sum", verb="LIST", kind="pods") == 5
