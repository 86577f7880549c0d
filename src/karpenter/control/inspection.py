"""Pages on the metrics port: figures for Prometheus, and for people what goes on inside."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from karpenter.control import profiling
from karpenter.control.http import Answer, Page, Request
from karpenter.telemetry.exposition import Registry, render

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def metrics(registry: Registry) -> dict[str, Page]:
    """``/metrics`` (OPS-365)."""

    async def page(_request: Request) -> Answer:
        return Answer(await render(registry), content=_PROMETHEUS)

    return {"/metrics": page}


def inner(picture: Callable[[], object]) -> dict[str, Page]:
    """``/debug/pprof/`` and ``/debug/state`` (OPS-366, OPS-372). ``picture`` gives what the latter shows, as JSON values."""

    async def state(_request: Request) -> Answer:
        encoded = msgspec.json.format(msgspec.json.encode(picture()), indent=2)
        return Answer(encoded + b"\n", content="application/json")

    return {**profiling.pages(), "/debug/state": state}
