"""Which requests a client repeats, how long it waits, and what it reports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx2
import pytest

from karpenter.api.core import Pod
from karpenter.api.kinds import LEASE, NODE_POOL, POD
from karpenter.api.meta import ObjectMeta
from karpenter.kube import errors
from karpenter.kube.client import KubeClient
from karpenter.kube.request_metrics import FinishedRequest
from karpenter.model.token_bucket import TokenBucket
from support.client_answers import Answer, Hanging, answered, collected, ok, page, pod, status, stream


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


def test_a_kind_that_is_not_served_is_distinguished_from_a_missing_object() -> None:
    server = answered(httpx2.Response(404, text="404 page not found\n"))
    with pytest.raises(errors.NotFound, match=r"nodepools of karpenter.sh/v1") as raised:
        server.ask(lambda client: client.get(NODE_POOL, "default"))
    assert raised.value.reason == errors.KIND_NOT_SERVED


def test_a_version_that_is_not_served_in_a_group_that_is_counts_as_a_kind_that_is_not_served() -> None:
    """A server answers so for alpha kinds of its own groups, such as PodGroups of the scheduler."""
    server = answered(status(404, "NotFound", "the server could not find the requested resource"))
    with pytest.raises(errors.NotFound, match=r"nodepools of karpenter.sh/v1") as raised:
        server.ask(lambda client: client.list(NODE_POOL))
    assert raised.value.reason == errors.KIND_NOT_SERVED


def test_an_answer_of_a_proxy_that_is_no_status_is_quoted() -> None:
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
    """OPS-361: another process may lead by then."""
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
def test_every_request_is_passed_to_the_observer(use: Write, verb: str, method: str, subresource: str) -> None:
    """OPS-495."""
    notes = Notes()
    answered(page() if verb == "LIST" else ok(pod("a"))).ask(use, observer=notes)
    assert notes.finished_requests == [FinishedRequest(verb, method, "", "v1", "pods", subresource, "200", 0.0)]


def test_the_observer_gets_the_group_each_attempt_and_requests_without_an_answer() -> None:
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
