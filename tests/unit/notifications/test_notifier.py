"""Posts in virtual time: failures, pauses, dead receivers, secrets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import httpx2
import pytest

from karpenter.api.meta import ObjectMeta
from karpenter.metrics import Metrics
from karpenter.notifications.notification_config import Destination, parse_notification_config
from karpenter.notifications.notifier import Notifier
from karpenter.notifications.webhook_client import HttpPostSender, PostFailed
from karpenter.runtime.events import WARNING, EventRecorder, ObjectEvent, involved_claim
from support.virtual_cluster import VirtualCluster, in_virtual_time

Answer = Callable[[httpx2.Request], httpx2.Response]
CONFIG = "destinations: [{name: ops, url: 'http://receiver/x', batch: {window: 5s}%s}]\nrules: [{destinations: [ops]}]"


class Receiver:
    """Takes posts and answers in turn with these statuses, then with 200; ``headers`` come with every answer."""

    def __init__(self, *statuses: int, headers: dict[str, str] | None = None) -> None:
        self.posts: list[tuple[float, httpx2.Request]] = []
        self._statuses = list(statuses)
        self._headers = headers or {}

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.posts.append((asyncio.get_running_loop().time(), request))
        status = self._statuses.pop(0) if self._statuses else 200
        if status == 0:
            raise httpx2.ConnectError("refused")
        return httpx2.Response(status, headers=self._headers)


class Sender:
    """Implements ``PostSender`` with the answers of a receiver."""

    def __init__(self, receiver: Answer) -> None:
        self._http = httpx2.AsyncClient(transport=httpx2.MockTransport(receiver))

    async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str]]:
        try:
            response = await self._http.post(url, content=body, headers=dict(headers))
        except httpx2.ConnectError as error:
            raise PostFailed(f"no answer ({type(error).__name__})") from error
        return response.status_code, response.headers


def claim_event(name: str) -> ObjectEvent:
    return ObjectEvent(
        involved_claim(ObjectMeta(name=name, uid=name)), WARNING, "InsufficientCapacityError", "none left"
    )


def started(cluster: VirtualCluster, receiver: Answer, more: str = "") -> tuple[EventRecorder, Metrics]:
    """A recorder whose events go to the receiver."""
    metrics = Metrics()

    def sender(_destination: Destination) -> Sender:
        return Sender(receiver)

    notifier = Notifier(parse_notification_config((CONFIG % more).encode()), cluster.clock, metrics, sender)
    recorder = EventRecorder(cluster.kube, cluster.clock)
    recorder.subscribe(notifier.on_event)
    for loop in notifier.loops().values():
        cluster.also(loop())
    return recorder, metrics


def outcomes(metrics: Metrics) -> dict[str, float]:
    series = metrics.notifications_total.collect()[0].samples
    return {sample.labels["outcome"]: sample.value for sample in series if sample.name.endswith("_total")}


@in_virtual_time
async def test_events_of_one_window_are_one_post(cluster: VirtualCluster) -> None:
    receiver = Receiver()
    recorder, metrics = started(cluster, receiver)
    recorder.publish(claim_event("a"), claim_event("b"), claim_event("a"))
    await asyncio.sleep(10)
    ((_, request),) = receiver.posts
    assert [event["subject"] for event in json.loads(request.content)] == ["NodeClaim/a", "NodeClaim/b"]
    assert outcomes(metrics) == {"sent": 2.0}


@in_virtual_time
async def test_a_failed_post_is_repeated_with_growing_pauses(cluster: VirtualCluster) -> None:
    receiver = Receiver(503, 0, 429)
    recorder, metrics = started(cluster, receiver)
    recorder.publish(claim_event("a"))
    await asyncio.sleep(60)
    times = [at for at, _ in receiver.posts]
    assert [round(later - earlier) for earlier, later in pairwise(times)] == [1, 2, 4]
    assert len({request.content for _, request in receiver.posts}) == 1, "receivers can tell a repetition by its id"
    assert outcomes(metrics) == {"sent": 1.0}


@in_virtual_time
async def test_the_pause_a_receiver_asks_for_is_kept_within_bounds(cluster: VirtualCluster) -> None:
    receiver = Receiver(429, headers={"Retry-After": "86400"})
    recorder, _ = started(cluster, receiver)
    recorder.publish(claim_event("a"))
    await asyncio.sleep(1000)
    (first, _), (second, _) = receiver.posts
    assert 299 <= second - first <= 302


@in_virtual_time
async def test_a_post_that_is_refused_for_good_is_given_up_at_once(cluster: VirtualCluster) -> None:
    receiver = Receiver(404)
    recorder, metrics = started(cluster, receiver)
    recorder.publish(claim_event("a"))
    await asyncio.sleep(60)
    assert len(receiver.posts) == 1
    assert outcomes(metrics) == {"failed": 1.0}
    assert "answered with status 404" in cluster.log.getvalue()


@in_virtual_time
async def test_a_dead_receiver_delays_no_other_and_is_given_up_each_time(cluster: VirtualCluster) -> None:
    receiver = Receiver(*[0] * 1000)
    recorder, metrics = started(cluster, receiver)
    before = asyncio.get_running_loop().time()
    for number in range(3000):
        recorder.publish(claim_event(f"n{number}"))
    assert asyncio.get_running_loop().time() == before
    await asyncio.sleep(600)
    assert len(receiver.posts) <= 6 * 20
    counted = outcomes(metrics)
    assert counted["dropped"] == 2000.0
    assert counted["failed"] >= 50.0


@in_virtual_time
async def test_secrets_come_from_files_and_are_read_again(cluster: VirtualCluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("Bearer one\n")
    receiver = Receiver()
    recorder, _ = started(cluster, receiver, f", headerFiles: {{Authorization: {token}}}")
    recorder.publish(claim_event("a"))
    await asyncio.sleep(10)
    token.write_text("Bearer two\n")
    recorder.publish(claim_event("b"))
    await asyncio.sleep(10)
    assert [request.headers["Authorization"] for _, request in receiver.posts] == ["Bearer one", "Bearer two"]
    assert "Bearer" not in cluster.log.getvalue()


@in_virtual_time
async def test_a_secret_file_that_comes_later_is_waited_for(cluster: VirtualCluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    receiver = Receiver()
    recorder, _ = started(cluster, receiver, f", headerFiles: {{Authorization: {token}}}")
    recorder.publish(claim_event("a"))
    await asyncio.sleep(6)
    token.write_text("Bearer one")
    await asyncio.sleep(20)
    assert len(receiver.posts) == 1


@in_virtual_time
async def test_the_gauge_shows_what_waits(cluster: VirtualCluster) -> None:
    recorder, metrics = started(cluster, Receiver())
    recorder.publish(claim_event("a"), claim_event("b"))
    assert metrics.notifications_waiting.labels(destination="ops")._value.get() == 2
    await asyncio.sleep(10)
    assert metrics.notifications_waiting.labels(destination="ops")._value.get() == 0


@in_virtual_time
async def test_a_receiver_that_never_finishes_its_answer_is_given_up_within_a_bound(cluster: VirtualCluster) -> None:
    """Each byte resets the time limit of a read, so the whole post has one of its own."""
    begun: list[float] = []

    async def dribble(_request: httpx2.Request) -> httpx2.Response:
        begun.append(asyncio.get_running_loop().time())
        while True:
            await asyncio.sleep(5)

    recorder, metrics = started(cluster, dribble)
    recorder.publish(claim_event("a"))
    await asyncio.sleep(400)
    assert len(begun) == 6
    assert [round(later - earlier) for earlier, later in pairwise(begun)] == [21, 22, 24, 28, 36]
    assert outcomes(metrics) == {"failed": 1.0}
    assert "no answer within 20 s" in cluster.log.getvalue()


async def test_the_body_of_an_answer_is_not_read_and_no_redirection_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against a real socket: the answer promises a body that never comes, and sends the sender elsewhere."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 307 Elsewhere\r\nLocation: /other\r\nRetry-After: 7\r\nContent-Length: 1000000\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    (destination,) = parse_notification_config((CONFIG % "").encode()).destinations
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening, asyncio.timeout(30):
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        status, headers = await HttpPostSender(destination).send(f"{url}/hook?a=%2F", b"{}", {"X-Key": "k"})
    assert (status, headers["retry-after"]) == (307, "7")
    assert heads[0].startswith(b"POST /hook?a=%2F HTTP/1.1\r\n")
    assert len(heads) == 1
    with pytest.raises(PostFailed, match=r"^no answer \(ClientConnectorError\)$"):
        await HttpPostSender(destination).send(f"{url}/secret", b"{}", {})
    with pytest.raises(ValueError, match="cannot be used"):
        await HttpPostSender(destination).send("http://", b"{}", {})
    monkeypatch.setenv("HTTP_PROXY", "socks5://user:secret@proxy:1080")
    with pytest.raises(
        PostFailed, match=r"^proxy socks5://proxy:1080: only proxies of http:// and https:// can be used"
    ):
        await HttpPostSender(destination).send("http://hook.test/x", b"{}", {})
