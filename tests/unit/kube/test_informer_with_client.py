"""Client and informer together against servers that misbehave, in virtual time: the events that handlers get in the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx2
import pytest

from karpenter.api.core import Pod
from karpenter.api.kinds import POD
from karpenter.kube import client, errors
from karpenter.kube.client import KubeClient
from karpenter.kube.informer import Informer
from karpenter.simulation import virtual_time as virtual
from support.httpx_transport import HttpxTransport

#: What a stream does: says a line, says text as it is, waits so many seconds, breaks, or falls silent for ever.
Step = dict[str, object] | str | float | Exception | None
SILENT = None


def pod(name: str, version: int, uid: str = "") -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": uid or name, "resourceVersion": str(version)}}


def event(sort: str, name: str, version: int, uid: str = "") -> dict[str, object]:
    return {"type": sort, "object": pod(name, version, uid)}


def bookmark(version: int) -> dict[str, object]:
    return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}


def error(code: int, reason: str) -> dict[str, object]:
    return {"type": "ERROR", "object": {"kind": "Status", "code": code, "reason": reason, "message": "said so"}}


class Stream(httpx2.AsyncByteStream):
    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self._steps:
            if step is SILENT:
                await asyncio.Event().wait()
            elif isinstance(step, Exception):
                raise step
            elif isinstance(step, float):
                await asyncio.sleep(step)
            else:
                yield step.encode() if isinstance(step, str) else json.dumps(step).encode() + b"\n"


@dataclass
class Server:
    """Answers lists and watches in order and notes when it was asked what. Out of watches, the last one stays silent.

    An exception or a response in place of a list or of a stream's steps is what comes instead.
    """

    lists: list[list[dict[str, object]] | httpx2.Response]
    watches: list[list[Step] | Exception | httpx2.Response] = field(default_factory=list)
    asked: list[tuple[str, float]] = field(default_factory=list)
    version: int = 10

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        query = request.url.params
        is_watch = query.get("watch") == "true"
        what = f"watch {query['resourceVersion']}" if is_watch else "list"
        self.asked.append((what, asyncio.get_running_loop().time()))
        answer = (self.watches.pop(0) if self.watches else [SILENT]) if is_watch else self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx2.Response):
            return answer
        if is_watch:
            return httpx2.Response(200, stream=Stream(answer))
        body = {"metadata": {"resourceVersion": str(self.version)}, "items": answer}
        self.version += 20
        return httpx2.Response(200, json=body)

    def followed(self, seconds: float) -> Told:
        """What an informer tells in so many virtual seconds."""
        changes = Told()

        async def main(_: object) -> Informer[Pod]:
            async with KubeClient(HttpxTransport(httpx2.MockTransport(self))) as kube:
                informer = Informer(kube, POD, jitter=lambda: 0.0)
                informer.subscribe(changes.note)
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await informer.run()
                return informer

        changes.informer = virtual.run_virtual(main, datetime(2026, 1, 1, tzinfo=UTC))
        return changes


@dataclass
class Told:
    """Differences in short: ``+`` appeared, ``~`` changed, ``-`` gone, with name and version."""

    differences: list[str] = field(default_factory=list)
    informer: Informer[Pod] | None = None

    def note(self, old: Pod | None, new: Pod | None) -> None:
        sign = "~" if old is not None and new is not None else "-" if new is None else "+"
        stored_pod = new or old
        assert stored_pod is not None
        self.differences.append(f"{sign}{stored_pod.metadata.name}{stored_pod.metadata.resource_version}")


@pytest.fixture(autouse=True)
def steady_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_WATCH_IDLE_SECONDS", (90.0, 90.0))


def test_a_silent_watch_is_reopened_from_the_last_version() -> None:
    """The connection stays open all the time. What happened meanwhile is told, and nothing twice."""
    server = Server(
        [[pod("a", 5)]],
        [[event("ADDED", "b", 11), SILENT], [event("MODIFIED", "a", 12), event("DELETED", "b", 13), SILENT]],
    )
    changes = server.followed(100)
    assert changes.differences == ["+a5", "+b11", "~a12", "-b11"]
    assert server.asked == [("list", 0), ("watch 10", 0), ("watch 11", 90)]


def test_a_server_that_takes_connections_and_answers_nothing_is_a_fault_after_half_a_minute() -> None:
    class Hanging(Server):
        async def __call__(self, request: httpx2.Request) -> httpx2.Response:
            answer = await super().__call__(request)
            if self.asked[-1] == ("watch 10", 90):
                await asyncio.Event().wait()
            return answer

    server = Hanging([[pod("a", 5)]], [[SILENT]])
    before = server.followed(119)
    assert before.informer is not None
    assert before.informer.fault is None
    server = Hanging([[pod("a", 5)]], [[SILENT]])
    after = server.followed(120.5)
    assert after.informer is not None
    assert isinstance(after.informer.fault, errors.ServerUnavailable)


REOPENED: list[Step] = [event("ADDED", "b", 12), SILENT]


@pytest.mark.parametrize(
    "end",
    [
        [],
        ['{"type":"ADDED","object":{"metadata":{"name":"b","names'],
        [httpx2.ReadError("reset by peer")],
        ['{"type":"ADDED","obj', httpx2.RemoteProtocolError("incomplete chunked read")],
        [error(500, "InternalError")],
        ["<html>the proxy is leaving</html>\n"],
    ],
    ids=["ended", "cut-in-a-line", "reset", "cut-and-reset", "error-500", "nonsense"],
)
def test_a_stream_that_ends_in_whatever_way_is_continued(end: list[Step]) -> None:
    server = Server([[pod("a", 5)]], [[event("MODIFIED", "a", 11), *end], REOPENED])
    assert server.followed(60).differences == ["+a5", "~a11", "+b12"]
    assert [what for what, _ in server.asked] == ["list", "watch 10", "watch 11"]


@pytest.mark.parametrize(
    "refusal",
    [
        [error(410, "Expired")],
        [error(410, "Gone")],
        httpx2.Response(410, json={"kind": "Status", "code": 410, "reason": "Expired"}),
    ],
    ids=["expired", "gone", "refused-at-once"],
)
def test_a_version_too_old_is_made_up_for_by_a_list(refusal: list[Step] | httpx2.Response) -> None:
    now = [pod("a", 25), pod("c", 26), pod("d", 27, uid="second")]
    server = Server([[pod("a", 5), pod("b", 6), pod("d", 7, uid="first")], now], [refusal])
    changes = server.followed(60)
    assert changes.differences == ["+a5", "+b6", "+d7", "-b6", "~a25", "+c26", "-d7", "+d27"]
    assert server.asked == [("list", 0), ("watch 10", 0), ("list", 1), ("watch 30", 1)]


def test_an_outage_costs_pauses_that_grow_to_ten_seconds_and_nothing_else() -> None:
    away = httpx2.ConnectError("connection refused")
    server = Server([[pod("a", 5)]], [[httpx2.ReadError("reset by peer")], *[away] * 6, REOPENED])
    assert server.followed(60).differences == ["+a5", "+b12"]
    assert [moment for _, moment in server.asked] == [0, 0, 1, 3, 7, 15, 25, 35, 45]


def test_a_list_that_fails_half_way_is_begun_anew_without_telling_of_its_half() -> None:
    first = {"metadata": {"resourceVersion": "10", "continue": "more"}, "items": [pod("a", 5), pod("gone", 6)]}
    expired = httpx2.Response(410, json={"kind": "Status", "code": 410, "reason": "Expired"})
    server = Server([httpx2.Response(200, json=first), expired, [pod("a", 5), pod("b", 7)]])
    assert server.followed(60).differences == ["+a5", "+b7"]
    assert [what for what, _ in server.asked][:4] == ["list", "list", "list", "watch 10"]


def test_a_throttled_request_waits_as_long_as_retry_after_says() -> None:
    busy = httpx2.Response(429, headers={"Retry-After": "7"}, json={"kind": "Status", "code": 429})
    server = Server([busy, [pod("a", 5)]])
    assert server.followed(60).differences == ["+a5"]
    assert server.asked[:2] == [("list", 0), ("list", 7)]
