"""How the client speaks HTTP, against a transport inside the process and in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

import httpx2
import pytest

from karpenter.api.core import Pod
from karpenter.api.kinds import LEASE, NODE, NODE_POOL, POD
from karpenter.api.meta import ObjectMeta
from karpenter.kube import errors
from karpenter.kube.client import KubeClient
from karpenter.kube.protocol import WatchEvent, WatchEventType
from karpenter.kube.request_metrics import FinishedRequest, RequestObserver
from karpenter.model.token_bucket import TokenBucket
from karpenter.simulation import virtual_time as virtual

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
            http = httpx2.AsyncClient(base_url="https://server:6443", transport=httpx2.MockTransport(self))
            async with KubeClient(http, limit, observer) as client:
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


def watched(server: Server) -> list[WatchEvent[Pod]]:
    """The events of a watch after the one that says it is open."""
    opened, *events = server.ask(lambda client: collected(client.watch(POD, "10")))
    assert opened == WatchEvent(WatchEventType.BOOKMARK, "10")
    return events


def test_an_object_is_read_from_its_path() -> None:
    server = answered(ok(pod("a", nodeName="n")))
    stored_pod = server.ask(lambda client: client.get(POD, "a", "ns"))
    assert stored_pod.spec.node_name == "n"
    assert server.requests[0].url.path == "/api/v1/namespaces/ns/pods/a"


def test_a_list_is_read_page_by_page() -> None:
    server = answered(page(pod("a"), version="10", following="token"), page(pod("b"), version="10"))
    listing = server.ask(lambda client: client.list(POD, label_selector="app=web", field_selector="spec.nodeName=n"))
    assert [listed_pod.metadata.name for listed_pod in listing.items] == ["a", "b"]
    assert listing.resource_version == "10"
    selection = {"labelSelector": "app=web", "fieldSelector": "spec.nodeName=n", "limit": "500"}
    assert server.query(0) == selection
    assert server.query(1) == {**selection, "continue": "token"}


def test_a_list_without_items_is_empty() -> None:
    server = answered(ok({"metadata": {"resourceVersion": "3"}, "items": None}))
    listing = server.ask(lambda client: client.list(POD))
    assert (listing.items, listing.undecodable, listing.resource_version) == ((), (), "3")


def test_pages_that_expire_are_read_anew_and_nothing_comes_twice() -> None:
    server = answered(page(pod("a"), following="old"), status(410, "Expired"), page(pod("a"), pod("b"), version="20"))
    listing = server.ask(lambda client: client.list(POD))
    assert [listed_pod.metadata.name for listed_pod in listing.items] == ["a", "b"]
    assert listing.resource_version == "20"


def test_pages_that_always_expire_are_asked_for_in_one_piece() -> None:
    expiring = [page(pod("a"), following="old"), status(410, "Expired")] * 3
    server = answered(*expiring, page(pod("a")))
    assert len(server.ask(lambda client: client.list(POD)).items) == 1
    assert "limit" not in server.query(-1)


def test_an_object_that_does_not_decode_costs_only_itself() -> None:
    server = answered(page(pod("a"), pod("bad", nodeName=5), pod("b")))
    listing = server.ask(lambda client: client.list(POD))
    assert [listed_pod.metadata.name for listed_pod in listing.items] == ["a", "b"]
    (rejected,) = listing.undecodable
    assert (rejected.kind, rejected.namespace, rejected.name) == ("Pod", "ns", "bad")
    assert "$.spec.nodeName" in rejected.error


@pytest.mark.parametrize("nonsense", [5, {"metadata": 5}, {"metadata": {"name": 5}}, []])
def test_even_an_item_without_a_name_costs_only_itself(nonsense: object) -> None:
    listing = answered(page(nonsense, pod("a"))).ask(lambda client: client.list(POD))
    assert len(listing.items) == 1
    assert [rejected.name for rejected in listing.undecodable] == [""]


def test_an_answer_that_is_no_list_is_no_answer() -> None:
    server = answered(httpx2.Response(200, text="<html>welcome to the proxy</html>"))
    with pytest.raises(errors.ServerUnavailable, match="no list"):
        server.ask(lambda client: client.list(POD))


def test_a_watch_asks_for_bookmarks_and_an_end() -> None:
    server = answered(stream())
    assert watched(server) == []
    query = server.query()
    assert 300 <= int(query.pop("timeoutSeconds")) <= 600
    assert query == {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "10"}


class Silent(httpx2.AsyncByteStream):
    """A stream that says what it is given and then nothing more, without ever ending."""

    def __init__(self, *said: object, gap_seconds: float = 0.0) -> None:
        self._said = said
        self._gap_seconds = gap_seconds
        self.closed_at: float | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for line in self._said:
            await asyncio.sleep(self._gap_seconds)
            yield json.dumps(line).encode() + b"\n"
        await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed_at = asyncio.get_running_loop().time()


BOOKMARK = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "30"}}}


def test_a_watch_on_which_nothing_arrives_ends_before_its_time() -> None:
    """A server that hangs with its connections open is noticed after a minute and a half, not after ten."""
    silent = Silent()
    assert watched(answered(httpx2.Response(200, stream=silent))) == []
    assert silent.closed_at is not None
    assert 75 <= silent.closed_at <= 105


def test_a_bookmark_a_minute_keeps_a_watch_open() -> None:
    silent = Silent(*[BOOKMARK] * 5, gap_seconds=62)
    assert len(watched(answered(httpx2.Response(200, stream=silent)))) == 5
    assert silent.closed_at is not None
    assert silent.closed_at >= 5 * 62 + 75


def test_watches_opened_together_are_not_ended_together() -> None:
    streams = [Silent() for _ in range(5)]

    async def several(client: KubeClient) -> None:
        await asyncio.gather(*(collected(client.watch(POD, "10")) for _ in streams))

    answered(*(httpx2.Response(200, stream=each) for each in streams)).ask(several)
    assert len({each.closed_at for each in streams}) == len(streams)


def test_a_watch_the_server_never_accepts_is_unavailable() -> None:
    async def opening(client: KubeClient) -> float:
        with pytest.raises(errors.ServerUnavailable, match=r"GET /api/v1/pods: no answer in time"):
            await collected(client.watch(POD, "10"))
        return asyncio.get_running_loop().time()

    assert Hanging().ask(opening) == 30


@pytest.mark.parametrize("chunk", [1, 7, 1_000_000])
def test_events_are_read_whatever_pieces_they_arrive_in(chunk: int) -> None:
    separators = "\u2028 \u0085 ü"  # line separators to some, plain text in JSON
    lines = [
        {"type": "ADDED", "object": pod("a", nodeName=separators)},
        {"type": "MODIFIED", "object": pod("a")},
        {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "30"}}},
        {"type": "DELETED", "object": pod("a")},
    ]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    events = watched(answered(stream(text, chunk=chunk)))
    kinds = [WatchEventType.ADDED, WatchEventType.MODIFIED, WatchEventType.BOOKMARK, WatchEventType.DELETED]
    assert [event.type for event in events] == kinds
    assert [event.resource_version for event in events] == ["7", "7", "30", "7"]
    assert events[0].object is not None
    assert events[0].object.spec.node_name == separators
    assert events[2].object is None


def test_a_line_cut_off_at_the_end_is_dropped() -> None:
    events = watched(answered(stream({"type": "ADDED", "object": pod("a")}, '{"type":"ADDED","obj')))
    assert len(events) == 1


def test_an_event_that_does_not_decode_is_reported_and_the_watch_goes_on() -> None:
    events = watched(
        answered(stream({"type": "ADDED", "object": pod("bad", nodeName=5)}, {"type": "ADDED", "object": pod("a")}))
    )
    assert events[0].object is None
    assert events[0].undecodable is not None
    assert (events[0].undecodable.name, events[0].resource_version) == ("bad", "7")
    assert events[1].object is not None


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [(410, "Expired", errors.Gone), (410, "Gone", errors.Gone), (500, "InternalError", errors.ServerUnavailable)],
)
def test_an_error_within_a_watch_is_raised(code: int, reason: str, expected: type[Exception]) -> None:
    error = {"type": "ERROR", "object": {"kind": "Status", "code": code, "reason": reason, "message": "too old"}}
    with pytest.raises(expected, match="too old"):
        watched(answered(stream(error)))


def test_an_open_watch_says_so_before_there_is_news() -> None:
    async def first(client: KubeClient) -> WatchEvent[Pod]:
        events = client.watch(POD, "10")
        try:
            return await anext(events)
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    assert answered(httpx2.Response(200, stream=Silent())).ask(first) == WatchEvent(WatchEventType.BOOKMARK, "10")


def test_a_watch_refused_at_once_raises_the_reason() -> None:
    with pytest.raises(errors.Gone):
        watched(answered(status(410, "Expired")))


@pytest.mark.parametrize("line", ["nonsense\n", '{"type":"SURPRISE","object":{}}\n', "{}\n"])
def test_a_line_that_is_no_event_breaks_the_watch(line: str) -> None:
    with pytest.raises(errors.ServerUnavailable, match="no event"):
        watched(answered(stream(line)))


def test_a_connection_lost_during_a_watch_is_unavailable() -> None:
    async def breaking() -> AsyncIterator[bytes]:
        yield json.dumps({"type": "ADDED", "object": pod("a")}).encode() + b"\n"
        raise httpx2.ReadError("reset by peer")

    with pytest.raises(errors.ServerUnavailable, match="reset by peer"):
        watched(answered(httpx2.Response(200, content=breaking())))


def test_leaving_a_watch_closes_its_stream() -> None:
    closed: list[bool] = []

    class Endless(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield json.dumps({"type": "ADDED", "object": pod("a")}).encode() + b"\n"
            await asyncio.Event().wait()

        async def aclose(self) -> None:
            closed.append(True)

    async def first(client: KubeClient) -> None:
        events = client.watch(POD, "10")
        for _ in range(2):
            await anext(events)
        await events.aclose()  # type: ignore[attr-defined]

    answered(httpx2.Response(200, stream=Endless())).ask(first)
    assert closed


def test_creating_sends_the_object_with_its_kind_to_its_namespace() -> None:
    server = answered(httpx2.Response(201, json=pod("a")))
    created = server.ask(lambda client: client.create(POD, Pod(metadata=ObjectMeta(name="a", namespace="ns"))))
    assert created.metadata.uid == "uid-a"
    assert (server.requests[0].method, server.requests[0].url.path) == ("POST", "/api/v1/namespaces/ns/pods")
    assert server.body() == {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "ns"}}


def test_a_patch_is_a_merge_patch() -> None:
    server = answered(ok(pod("a")))
    server.ask(lambda client: client.patch(POD, "a", {"metadata": {"labels": {"x": None}}}, "ns"))
    assert server.requests[0].headers["Content-Type"] == "application/merge-patch+json"
    assert server.body() == {"metadata": {"labels": {"x": None}}}


def test_an_optimistic_patch_carries_the_version() -> None:
    server = answered(ok(pod("a")), ok(pod("a")))

    async def twice(client: KubeClient) -> None:
        await client.patch(POD, "a", {"status": {"phase": "x"}}, "ns", subresource="status", resource_version="7")
        await client.patch(POD, "a", {"metadata": {"labels": {"x": "y"}}}, "ns", resource_version="7")

    server.ask(twice)
    assert server.requests[0].url.path == "/api/v1/namespaces/ns/pods/a/status"
    assert server.body(0) == {"status": {"phase": "x"}, "metadata": {"resourceVersion": "7"}}
    assert server.body(1) == {"metadata": {"labels": {"x": "y"}, "resourceVersion": "7"}}


def test_deleting_names_its_conditions_only_when_given() -> None:
    server = answered(ok({}), ok({}))

    async def twice(client: KubeClient) -> None:
        await client.delete(NODE, "n")
        await client.delete(POD, "a", "ns", uid="u", grace_period_seconds=0)

    server.ask(twice)
    assert server.requests[0].url.path == "/api/v1/nodes/n"
    assert server.body(0) == {"apiVersion": "v1", "kind": "DeleteOptions"}
    assert server.body(1) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u"},
        "gracePeriodSeconds": 0,
    }


def test_an_eviction_goes_through_the_eviction_api() -> None:
    server = answered(httpx2.Response(201, json={}))
    server.ask(lambda client: client.evict("a", "ns", uid="u"))
    assert server.requests[0].url.path == "/api/v1/namespaces/ns/pods/a/eviction"
    assert server.body() == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "a", "namespace": "ns"},
        "deleteOptions": {"preconditions": {"uid": "u"}},
    }


def test_an_eviction_a_budget_forbids_is_not_repeated() -> None:
    server = answered(status(429, "TooManyRequests", "budget", details={"retryAfterSeconds": 10}))
    with pytest.raises(errors.TooManyRequests, match="budget") as raised:
        server.ask(lambda client: client.evict("a", "ns"))
    assert raised.value.retry_after_seconds == 10
    assert len(server.requests) == 1


def test_a_binding_names_the_node() -> None:
    server = answered(httpx2.Response(201, json={}))
    server.ask(lambda client: client.bind("a", "ns", "n"))
    assert server.requests[0].url.path == "/api/v1/namespaces/ns/pods/a/binding"
    assert server.body()["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n"}  # type: ignore[index]


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", errors.Invalid),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "AlreadyExists", errors.AlreadyExists),
        (409, "Conflict", errors.Conflict),
        (422, "Invalid", errors.Invalid),
        (500, "InternalError", errors.ServerUnavailable),
        (503, "ServiceUnavailable", errors.ServerUnavailable),
        (504, "Timeout", errors.ServerUnavailable),
    ],
)
def test_a_refused_write_raises_its_error_at_once(code: int, reason: str, expected: type[errors.KubeError]) -> None:
    server = answered(status(code, reason, "said so"))
    with pytest.raises(expected, match="said so") as raised:
        server.ask(lambda client: client.patch(POD, "a", {}, "ns"))
    assert (raised.value.status, raised.value.reason) == (code, reason)
    assert len(server.requests) == 1


def test_a_kind_that_is_not_served_is_told_apart_from_a_missing_object() -> None:
    server = answered(httpx2.Response(404, text="404 page not found\n"))
    with pytest.raises(errors.NotFound, match=r"nodepools of karpenter.sh/v1") as raised:
        server.ask(lambda client: client.get(NODE_POOL, "default"))
    assert raised.value.reason == errors.KIND_NOT_SERVED


def test_a_proxy_that_speaks_no_kubernetes_is_quoted() -> None:
    server = answered(httpx2.Response(403, text="<b>go\naway</b>"))
    with pytest.raises(errors.Forbidden, match="<b>go away</b>"):
        server.ask(lambda client: client.get(POD, "a", "ns"))


def test_a_read_is_repeated_while_the_server_is_away() -> None:
    server = answered(httpx2.ConnectError("refused"), status(503, "ServiceUnavailable"), ok(pod("a")))
    assert server.ask(lambda client: client.get(POD, "a", "ns")).metadata.name == "a"
    first, second, third = server.times
    assert 0.25 <= second - first <= 0.5
    assert 0.5 <= third - second <= 1.0


def test_a_read_is_given_up_after_a_few_tries() -> None:
    server = answered(*[httpx2.ReadTimeout("")] * 10)
    with pytest.raises(errors.ServerUnavailable, match=r"GET /api/v1/namespaces/ns/pods/a: ReadTimeout"):
        server.ask(lambda client: client.get(POD, "a", "ns"))
    assert len(server.requests) == 4


@pytest.mark.parametrize("code", [429, 503])
def test_a_read_waits_as_long_as_the_server_asks(code: int) -> None:
    busy = httpx2.Response(code, json={"kind": "Status", "code": code}, headers={"Retry-After": "7"})
    server = answered(busy, ok(pod("a")))
    server.ask(lambda client: client.get(POD, "a", "ns"))
    assert server.times == [0, 7]


def test_a_write_whose_connection_breaks_is_not_repeated() -> None:
    server = answered(httpx2.RemoteProtocolError("server disconnected"))
    with pytest.raises(errors.ServerUnavailable, match="server disconnected"):
        server.ask(lambda client: client.delete(POD, "a", "ns"))
    assert len(server.requests) == 1


Write = Callable[[KubeClient], Awaitable[object]]
WRITES: dict[str, Write] = {
    "create": lambda client: client.create(POD, Pod(metadata=ObjectMeta(name="a", namespace="ns"))),
    "patch": lambda client: client.patch(POD, "a", {}, "ns"),
    "delete": lambda client: client.delete(POD, "a", "ns"),
    "bind": lambda client: client.bind("a", "ns", "n"),
    "evict": lambda client: client.evict("a", "ns"),
}
every_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)


def too_busy(seconds: int) -> httpx2.Response:
    return httpx2.Response(429, json={"kind": "Status", "code": 429}, headers={"Retry-After": str(seconds)})


@every_write
@pytest.mark.parametrize(
    "fault",
    [httpx2.ConnectError("refused"), httpx2.ConnectTimeout(""), httpx2.PoolTimeout(""), httpx2.ProxyError("502")],
    ids=["refused", "timed-out", "no-free-connection", "proxy"],
)
def test_a_write_that_did_not_leave_is_repeated(write: Write, fault: Exception) -> None:
    server = answered(fault, fault, ok(pod("a")))
    server.ask(write)
    assert len(server.requests) == 3


@every_write
@pytest.mark.parametrize(
    "outcome",
    [
        httpx2.ReadTimeout(""),
        httpx2.WriteError("reset by peer"),
        httpx2.RemoteProtocolError("server disconnected"),
        httpx2.Response(503, json={"kind": "Status", "code": 503}, headers={"Retry-After": "1"}),
        httpx2.Response(504, text="upstream timed out"),
    ],
    ids=["silence", "reset", "disconnected", "503", "504"],
)
def test_a_write_that_may_have_been_done_is_left_to_its_caller(write: Write, outcome: Answer) -> None:
    server = answered(outcome)
    with pytest.raises(errors.ServerUnavailable) as raised:
        server.ask(write)
    assert not isinstance(raised.value, errors.RequestNotSent)
    assert len(server.requests) == 1


@pytest.mark.parametrize("name", [name for name in WRITES if name != "evict"])
def test_a_write_the_server_was_too_busy_for_is_repeated_when_it_says(name: str) -> None:
    server = answered(too_busy(3), ok(pod("a")))
    server.ask(WRITES[name])
    assert server.times == [0, 3]


def test_a_write_is_given_up_after_ten_seconds() -> None:
    """OPS-361: what decided it may be somebody else's matter by then."""
    server = answered(*[too_busy(4)] * 10)
    with pytest.raises(errors.TooManyRequests):
        server.ask(WRITES["patch"])
    assert server.times == [0, 4, 8]


def test_a_write_the_server_does_not_want_for_long_is_given_up_at_once() -> None:
    server = answered(too_busy(60))
    with pytest.raises(errors.TooManyRequests) as raised:
        server.ask(WRITES["create"])
    assert (server.times, raised.value.retry_after_seconds) == ([0], 60)


def test_a_repeated_write_takes_its_turn_again() -> None:
    server = answered(too_busy(1), ok(pod("a")))
    server.ask(WRITES["patch"], TokenBucket(0.2, 1))
    assert server.times == [0, 5]


def test_a_read_waits_a_minute_and_a_half_in_all() -> None:
    server = answered(too_busy(60), too_busy(40))
    with pytest.raises(errors.TooManyRequests):
        server.ask(lambda client: client.get(POD, "a", "ns"))
    assert server.times == [0, 60]


def test_a_request_without_an_answer_is_ended() -> None:
    """kube-apiserver ends what takes longer than a minute; so what takes longer was never going to be answered."""

    async def hanging(client: KubeClient) -> float:
        with pytest.raises(errors.ServerUnavailable, match="no answer in time"):
            await client.delete(POD, "a", "ns")
        return asyncio.get_running_loop().time()

    assert Hanging().ask(hanging) == 65


def test_requests_that_hang_do_not_keep_others_waiting_for_ever() -> None:
    async def many(client: KubeClient) -> float:
        hanging = [asyncio.create_task(client.delete(POD, "a", "ns")) for _ in range(100)]
        await asyncio.sleep(0)
        await client.get(POD, "well", "ns")
        done = asyncio.get_running_loop().time()
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        return done

    assert Hanging(answering="well").ask(many) <= 4 * 65


class Notes:
    def __init__(self) -> None:
        self.finished_requests: list[FinishedRequest] = []

    def request_finished(self, request: FinishedRequest) -> None:
        self.finished_requests.append(request)


@pytest.mark.parametrize(
    ("use", "verb", "method", "subresource"),
    [
        (lambda client: client.get(POD, "a", "ns"), "GET", "GET", ""),
        (lambda client: client.list(POD), "LIST", "GET", ""),
        (lambda client: collected(client.watch(POD, "1")), "WATCH", "GET", ""),
        (WRITES["create"], "CREATE", "POST", ""),
        (WRITES["patch"], "PATCH", "PATCH", ""),
        (lambda client: client.patch(POD, "a", {}, "ns", subresource="status"), "PATCH", "PATCH", "status"),
        (WRITES["delete"], "DELETE", "DELETE", ""),
        (WRITES["evict"], "CREATE", "POST", "eviction"),
        (WRITES["bind"], "CREATE", "POST", "binding"),
    ],
    ids=["get", "list", "watch", "create", "patch", "patch-status", "delete", "evict", "bind"],
)
def test_every_request_is_told_to_the_observer(use: Write, verb: str, method: str, subresource: str) -> None:
    """OPS-495."""
    notes = Notes()
    answered(page() if verb == "LIST" else ok(pod("a"))).ask(use, observer=notes)
    assert notes.finished_requests == [FinishedRequest(verb, method, "", "v1", "pods", subresource, "200", 0.0)]


def test_the_observer_hears_the_group_each_attempt_and_what_got_no_answer() -> None:
    """OPS-495."""
    notes = Notes()

    async def slow(request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(0.25)
        return ok({"metadata": {"name": "a"}})

    server = answered(httpx2.ConnectError("refused"), too_busy(1), slow)
    server.ask(lambda client: client.patch(LEASE, "a", {}, "ns"), observer=notes)
    seen_requests = [(each.group, each.kind, each.code, each.seconds) for each in notes.finished_requests]
    group, kind = "coordination.k8s.io", "leases"
    assert seen_requests == [(group, kind, "<error>", 0), (group, kind, "429", 0), (group, kind, "200", 0.25)]


def test_an_answer_that_does_not_decode_names_the_object() -> None:
    server = answered(ok(pod("a", nodeName=5)))
    with pytest.raises(errors.Invalid, match=r"Pod a .*nodeName"):
        server.ask(lambda client: client.get(POD, "a", "ns"))


def test_requests_keep_to_the_rate_and_watches_do_not_wait() -> None:
    """OPS-313, OPS-314: two at once, then one per second."""
    answers = [ok(pod("a")) for _ in range(4)]
    server = answered(*answers, stream())

    async def busy(client: KubeClient) -> None:
        requests = [client.get(POD, "a", "ns") for _ in range(4)]
        await asyncio.gather(*requests)

    server.ask(busy, TokenBucket(1.0, 2))
    assert server.times == [0, 0, 1, 2]

    server = answered(ok(pod("a")), stream())

    async def exhausted(client: KubeClient) -> None:
        await client.get(POD, "a", "ns")
        await collected(client.watch(POD, "10"))

    server.ask(exhausted, TokenBucket(0.1, 1))
    assert server.times == [0, 0]


def test_a_request_given_up_while_waiting_leaves_its_turn_to_others() -> None:
    server = answered(ok(pod("a")), ok(pod("a")))

    async def impatient(client: KubeClient) -> None:
        await client.get(POD, "a", "ns")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.get(POD, "a", "ns"), 1)
        await client.get(POD, "a", "ns")

    server.ask(impatient, TokenBucket(0.1, 1))
    assert server.times == [0, 10]
