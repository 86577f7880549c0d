"""``/healthz`` and ``/readyz`` (OPS-364): alive while the process runs, ready when nothing keeps it from doing its part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TypeVar

from karpenter.api.kinds import NODE_CLAIM, NODE_POOL, Kind
from karpenter.api.meta import Wire
from karpenter.kube.errors import KIND_NOT_SERVED, KubeError, NotFound
from karpenter.kube.protocol import Reader
from karpenter.runtime.http_server import HttpRequest, HttpResponse, PageHandler, text_response

T = TypeVar("T", bound=Wire)

#: A check by name: empty text when all is well, else what is wrong.
ReadinessChecks = Mapping[str, Callable[[], str]]

#: Pauses between checks of whether the API server serves our kinds: before it does, and after.
_UNSERVED_CHECK_SECONDS = 2.0
_SERVED_CHECK_SECONDS = 60.0
#: No object has this name: a request for it shows whether its kind is served.
_PROBE_NAME = "karpenter-asks-whether-this-kind-is-served"


def health_pages(checks: ReadinessChecks) -> dict[str, PageHandler]:
    """The two pages. ``checks`` decide readiness; a failing one gives 500 and its text.

    ``?verbose`` lists the checks where all is well, too.
    """

    async def alive(_request: HttpRequest) -> HttpResponse:
        return text_response("ok")

    async def ready(request: HttpRequest) -> HttpResponse:
        reasons = {name: check() for name, check in checks.items()}
        failed = any(reasons.values())
        if not failed and "verbose" not in request.query:
            return text_response("ok")
        lines = [f"[-]{name} failed: {why}" if why else f"[+]{name} ok" for name, why in reasons.items()]
        lines.append(f"readyz check {'failed' if failed else 'passed'}")
        return text_response("\n".join(lines), HTTPStatus.INTERNAL_SERVER_ERROR if failed else HTTPStatus.OK)

    return {"/healthz": alive, "/readyz": ready}


class CrdReadiness:
    """Whether the API server serves NodePool and NodeClaim. The last known answer counts until there is another."""

    def __init__(self, kube: Reader) -> None:
        self._kube = kube
        self._unserved = "the API server has not been asked yet"

    def unready(self) -> str:
        """What is missing; empty when nothing is."""
        return self._unserved

    async def reconcile(self) -> float:
        """Ask the API server; returns the seconds until it is to be asked again."""
        try:
            missing = (await self._why_unserved(NODE_POOL), await self._why_unserved(NODE_CLAIM))
            self._unserved = "; ".join(filter(None, missing))
        except KubeError as fault:
            if self._unserved:
                self._unserved = str(fault)
        return _UNSERVED_CHECK_SECONDS if self._unserved else _SERVED_CHECK_SECONDS

    async def _why_unserved(self, kind: Kind[T]) -> str:
        try:
            await self._kube.get(kind, _PROBE_NAME)
        except NotFound as answer:
            return str(answer) if answer.reason == KIND_NOT_SERVED else ""
        return ""
