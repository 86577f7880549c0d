"""Observers of requests to the API server, and the one that counts them in metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from karpenter.metrics import Metrics

#: ``FinishedRequest.code`` of a request that got no answer: what `client_go_request_total` calls it.
NO_RESPONSE = "<error>"


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """One request that came to an end; a repeated one counts each time.

    ``verb`` is what was done (GET, LIST, WATCH, CREATE, PATCH, DELETE), ``method`` how HTTP says it. ``kind`` is the plural, as
    in the path and in dashboards (OPS-495). ``code`` is the HTTP status or ``NO_RESPONSE``. ``seconds`` run from sending to
    the end of the answer, to its beginning for a watch; waiting for our own rate limit is not among them.
    """

    verb: str
    method: str
    group: str
    version: str
    kind: str
    subresource: str
    code: str
    seconds: float


class RequestObserver(Protocol):
    """Called for every request, on the event loop: it must be quick and must not raise."""

    def request_finished(self, request: FinishedRequest) -> None:
        """A request was answered, or will not be."""


class NoRequestObserver:
    """Records nothing."""

    def request_finished(self, request: FinishedRequest) -> None:
        """Nothing."""


class RequestMetrics:
    """Counts and times requests, as an observer of a client."""

    def __init__(self, metrics: Metrics) -> None:
        self._seconds = metrics.client_go_request_duration_seconds
        self._total = metrics.client_go_request_total

    def request_finished(self, request: FinishedRequest) -> None:
        """A request was answered, or will not be."""
        self._total.labels(code=request.code, method=request.method).inc()
        self._seconds.labels(
            verb=request.verb,
            group=request.group,
            version=request.version,
            kind=request.kind,
            subresource=request.subresource,
        ).observe(request.seconds)
