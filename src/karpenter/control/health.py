"""``/healthz`` and ``/readyz`` (OPS-364): alive while the process runs, ready when nothing keeps it from doing its part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TypeVar

from karpenter.api.kinds import NODE_CLAIM, NODE_POOL, Kind
from karpenter.api.meta import Wire
from karpenter.control.http import Answer, Page, Request, text
from karpenter.kube.errors import KIND_NOT_SERVED, KubeError, NotFound
from karpenter.kube.protocol import Reader

T = TypeVar("T", bound=Wire)

#: A check by name: empty text when all is well, else what is wrong.
Checks = Mapping[str, Callable[[], str]]

#: How often the API server is asked whether it knows our kinds: until it does, and from then on.
_EAGER_SECONDS = 2.0
_CALM_SECONDS = 60.0
#: No object is called so: asking for it tells whether its kind is served.
_NOBODY = "karpenter-asks-whether-this-kind-is-served"


def pages(checks: Checks) -> dict[str, Page]:
    """The two pages. ``checks`` decide readiness; a failing one gives 500 and its text.

    ``?verbose`` lists the checks where all is well, too.
    """

    async def alive(_request: Request) -> Answer:
        return text("ok")

    async def ready(request: Request) -> Answer:
        found = {name: check() for name, check in checks.items()}
        failed = any(found.values())
        if not failed and "verbose" not in request.query:
            return text("ok")
        lines = [f"[-]{name} failed: {why}" if why else f"[+]{name} ok" for name, why in found.items()]
        lines.append(f"readyz check {'failed' if failed else 'passed'}")
        return text("\n".join(lines), HTTPStatus.INTERNAL_SERVER_ERROR if failed else HTTPStatus.OK)

    return {"/healthz": alive, "/readyz": ready}


class KnownKinds:
    """Whether the API knows NodePool and NodeClaim. What it knew once counts until it says something else."""

    def __init__(self, kube: Reader) -> None:
        self._kube = kube
        self._missing = "the API server has not been asked yet"

    def unready(self) -> str:
        """What is missing; empty when nothing is."""
        return self._missing

    async def run(self) -> None:
        """Keep asking, until cancelled."""
        while True:
            try:
                missing = (await self._lacks(NODE_POOL), await self._lacks(NODE_CLAIM))
                self._missing = "; ".join(filter(None, missing))
            except KubeError as fault:
                if self._missing:
                    self._missing = str(fault)
            await asyncio.sleep(_EAGER_SECONDS if self._missing else _CALM_SECONDS)

    async def _lacks(self, kind: Kind[T]) -> str:
        try:
            await self._kube.get(kind, _NOBODY)
        except NotFound as answer:
            return str(answer) if answer.reason == KIND_NOT_SERVED else ""
        return ""
