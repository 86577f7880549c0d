"""Requests to the API server as series (OPS-495)."""

from __future__ import annotations

from karpenter.kube.observer import Finished
from karpenter.telemetry import Metrics


class MeasuredRequests:
    """Counts and times requests, as an observer of a client."""

    def __init__(self, metrics: Metrics) -> None:
        self._seconds = metrics.client_go_request_duration_seconds
        self._total = metrics.client_go_request_total

    def finished(self, request: Finished) -> None:
        """A request was answered, or will not be."""
        self._total.labels(code=request.code, method=request.method).inc()
        self._seconds.labels(
            verb=request.verb,
            group=request.group,
            version=request.version,
            kind=request.kind,
            subresource=request.subresource,
        ).observe(request.seconds)
