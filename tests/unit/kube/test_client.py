"""HTTP of the client, against a transport inside the process and in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx2
import pytest

from karpenter.api.core import Pod
from karpenter.api.kinds import NODE, POD
from karpenter.api.meta import ObjectMeta
from karpenter.kube import errors
from karpenter.kube.client import KubeClient
from karpenter.kube.protocol import WatchEvent, WatchEventType
from support.client_answers import Hanging, Server, answered, collected, ok, page, pod, status, stream


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


def test_an_open_watch_is_reported_before_its_first_event() -> None:
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
    assert server.body()["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n"}
