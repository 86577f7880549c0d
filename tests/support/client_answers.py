"""Scripted answers of an API server, for tests of the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

import httpx2

from karpenter.api.core import Pod
from karpenter.kube.client import KubeClient
from karpenter.kube.protocol import WatchEvent
from karpenter.kube.request_metrics import RequestObserver
from karpenter.model.token_bucket import TokenBucket
from karpenter.simulation import virtual_time as virtual
from support.httpx_transport import HttpxTransport

R = TypeVar("R")
Answer = httpx2.Response | Exception | Callable[[httpx2.Request], Awaitable[httpx2.Response]]


@dataclass
class Server:
    """Gives prepared answers in order and keeps the requests, with the virtual second each arrived at."""

    answers: list[Answer]
    requests: list[httpx2.Request] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        self.times.append(asyncio.get_running_loop().time())
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return await answer(request) if callable(answer) else answer

    def body(self, index: int = 0) -> object:
        return json.loads(self.requests[index].content)

    def query(self, index: int = 0) -> dict[str, str]:
        return dict(self.requests[index].url.params)

    def ask(
        self,
        use: Callable[[KubeClient], Awaitable[R]],
        limit: TokenBucket | None = None,
        observer: RequestObserver | None = None,
    ) -> R:
        """The outcome of using a client of this server, in virtual time."""

        async def main(_: object) -> R:
            async with KubeClient(HttpxTransport(httpx2.MockTransport(self)), limit, observer) as client:
                return await use(client)

        return virtual.run_virtual(main, datetime(2026, 1, 1, tzinfo=UTC))


class Hanging(Server):
    """Takes requests and answers none, except every one about ``answering``."""

    def __init__(self, answering: str = "") -> None:
        super().__init__([])
        self._answering = answering

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if self._answering and request.url.path.endswith(self._answering):
            return ok(pod(self._answering))
        await asyncio.Event().wait()
        raise AssertionError


def answered(*answers: Answer) -> Server:
    return Server(list(answers))


def pod(name: str, **spec: object) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": "7"}, "spec": spec}


def ok(body: object) -> httpx2.Response:
    return httpx2.Response(200, json=body)


def page(*objects: object, version: str = "10", following: str = "") -> httpx2.Response:
    return ok({"kind": "List", "metadata": {"resourceVersion": version, "continue": following}, "items": list(objects)})


def status(code: int, reason: str, message: str = "said so", **more: object) -> httpx2.Response:
    return httpx2.Response(code, json={"kind": "Status", "code": code, "reason": reason, "message": message, **more})


def stream(*lines: object, chunk: int = 1_000_000) -> httpx2.Response:
    """A watch that sends the lines (JSON of what is no text) in pieces of ``chunk`` bytes and ends."""
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    data = text.encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), chunk):
            yield data[start : start + chunk]

    return httpx2.Response(200, content=pieces())


async def collected(events: AsyncIterator[WatchEvent[Pod]]) -> list[WatchEvent[Pod]]:
    return [event async for event in events]
