"""The write fence: which writes pass, which are refused, and a write whose permission ends (OPS-361)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from karpenter.api.core import ConfigMap, Container, Node, Pod, PodSpec
from karpenter.api.kinds import CONFIG_MAP, NODE, POD
from karpenter.api.meta import ObjectMeta
from karpenter.kube import config
from karpenter.kube.client import KubeClient
from karpenter.kube.errors import NotFound
from karpenter.kube.http_exchange import HttpAnswer, OutgoingRequest
from karpenter.kube.protocol import Kube, Listing
from karpenter.kube.write_fence import NO_EXPIRY, Fence, WriteFenced
from karpenter.model.clock import SystemClock
from karpenter.model.token_bucket import TokenBucket
from karpenter.simulation import LoopClock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.apiserver.http_front import asgi_app, kubeconfig_for, serving
from karpenter.simulation.virtual_time import run_virtual
from support.httpx_transport import HttpxTransport
from support.suspended_process import stand_still

START = datetime(2026, 1, 1, tzinfo=UTC)


class SlowTransport(httpx2.ASGITransport):
    """Answers arrive ``seconds`` after the server has done what a request asks for."""

    def __init__(self, server: MemoryServer, seconds: float) -> None:
        super().__init__(app=asgi_app(server))
        self._seconds = seconds

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        await asyncio.sleep(self._seconds)
        return response


class StandingStill(TokenBucket):
    """Gives a turn at once, but the process stands still for a minute right after it."""

    async def take(self) -> None:
        stand_still(60)


class Cluster:
    def __init__(self, clock: LoopClock) -> None:
        self.server = MemoryServer(clock)
        self.direct = MemoryKube(self.server)

    def client(self, fence: Fence, per_second: float = 1000.0, answer_seconds: float = 0.0) -> KubeClient:
        """A client behind a fence. Its requests wait for a token before they leave."""
        transport = SlowTransport(self.server, answer_seconds)
        return KubeClient(HttpxTransport(transport), TokenBucket(per_second, 1), fence=fence)

    async def names(self) -> list[str]:
        return sorted(config_map.metadata.name for config_map in (await self.direct.list(CONFIG_MAP)).items)


def in_virtual_time(test: Callable[[Cluster], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def wrapped() -> None:
        async def main(clock: LoopClock) -> None:
            await test(Cluster(clock))

        run_virtual(main, START)

    wrapped.__name__ = test.__name__
    wrapped.__doc__ = test.__doc__
    return wrapped


def thing(name: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"))


def pod(name: str) -> Pod:
    containers = (Container(name="main"),)
    return Pod(metadata=ObjectMeta(name=name, namespace="default"), spec=PodSpec(containers=containers))


def writes(kube: Kube) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: kube.create(CONFIG_MAP, thing("new")),
        lambda: kube.patch(CONFIG_MAP, "old", {"data": {"a": "b"}}, "default"),
        lambda: kube.delete(CONFIG_MAP, "old", "default"),
        lambda: kube.bind("waiting", "default", "n"),
        lambda: kube.evict("waiting", "default"),
    ]


async def furnish(cluster: Cluster) -> None:
    await cluster.direct.create(CONFIG_MAP, thing("old"))
    await cluster.direct.create(NODE, Node(metadata=ObjectMeta(name="n")))
    await cluster.direct.create(POD, pod("waiting"))


async def contents(cluster: Cluster) -> list[Listing[Any]]:
    return [await cluster.direct.list(CONFIG_MAP), await cluster.direct.list(POD)]


@in_virtual_time
async def test_without_permission_nothing_is_written_and_everything_can_be_read(cluster: Cluster) -> None:
    await furnish(cluster)
    before = await contents(cluster)
    kube = cluster.client(Fence())
    for write in writes(kube):
        with pytest.raises(WriteFenced):
            await write()
    assert await contents(cluster) == before
    assert (await kube.get(CONFIG_MAP, "old", "default")).metadata.name == "old"
    assert [config_map.metadata.name for config_map in (await kube.list(CONFIG_MAP)).items] == ["old"]


@in_virtual_time
async def test_while_the_permission_lasts_every_write_is_done(cluster: Cluster) -> None:
    await furnish(cluster)
    kube = cluster.client(Fence(NO_EXPIRY))
    for write in writes(kube):
        await write()
    assert await cluster.names() == ["new"]
    assert (await cluster.direct.get(POD, "waiting", "default")).spec.node_name == "n"


@in_virtual_time
async def test_errors_of_the_server_pass_through(cluster: Cluster) -> None:
    kube = cluster.client(Fence(NO_EXPIRY))
    with pytest.raises(NotFound):
        await kube.delete(CONFIG_MAP, "absent", "default")


@in_virtual_time
async def test_a_permission_that_has_ended_is_none(cluster: Cluster) -> None:
    kube = cluster.client(Fence(valid_until=5.0))
    await asyncio.sleep(4.9)
    await kube.create(CONFIG_MAP, thing("in-time"))
    await asyncio.sleep(0.2)
    with pytest.raises(WriteFenced):
        await kube.create(CONFIG_MAP, thing("late"))
    assert await cluster.names() == ["in-time"]


@in_virtual_time
async def test_a_write_that_still_waits_for_its_turn_when_the_permission_ends_never_leaves(cluster: Cluster) -> None:
    kube = cluster.client(Fence(valid_until=5.0), per_second=0.25)
    wanted = [kube.create(CONFIG_MAP, thing(name)) for name in ("a", "b", "c")]
    answers = await asyncio.gather(*wanted, return_exceptions=True)
    assert [type(answer) for answer in answers] == [ConfigMap, ConfigMap, WriteFenced]
    await asyncio.sleep(60)
    assert await cluster.names() == ["a", "b"]


@in_virtual_time
async def test_a_write_waits_for_its_turn_across_renewals(cluster: Cluster) -> None:
    fence = Fence(valid_until=5.0)
    kube = cluster.client(fence, per_second=0.1)

    async def renew() -> None:
        for _ in range(10):
            await asyncio.sleep(2)
            fence.extend_until(asyncio.get_running_loop().time() + 5.0)

    renewing = asyncio.create_task(renew())
    await asyncio.gather(*(kube.create(CONFIG_MAP, thing(name)) for name in ("a", "b")))
    assert await cluster.names() == ["a", "b"]
    await renewing


@in_virtual_time
async def test_a_process_that_wakes_up_too_late_sends_nothing_of_what_was_waiting(cluster: Cluster) -> None:
    """The write's turn and the end of the permission are both overdue when it wakes up, and the turn came first."""
    fence = Fence(valid_until=10.0)
    kube = cluster.client(fence, per_second=0.2)
    await kube.create(CONFIG_MAP, thing("before"))
    waiting = asyncio.create_task(kube.create(CONFIG_MAP, thing("waiting")))
    await asyncio.sleep(1)
    stand_still(60)
    with pytest.raises(WriteFenced):
        await waiting
    with pytest.raises(WriteFenced):
        await kube.create(CONFIG_MAP, thing("after"))
    assert await cluster.names() == ["before"]


@in_virtual_time
async def test_what_has_begun_is_finished_when_its_caller_is_cancelled(cluster: Cluster) -> None:
    """OPS-363: loops are cancelled at shutdown, their writes are waited for."""
    fence = Fence(NO_EXPIRY)
    kube = cluster.client(fence, answer_seconds=3.0)
    caller = asyncio.create_task(kube.create(CONFIG_MAP, thing("begun")))
    await asyncio.sleep(1)
    fence.close()
    caller.cancel()
    with suppress(asyncio.CancelledError):
        await caller
    with pytest.raises(WriteFenced):
        await kube.create(CONFIG_MAP, thing("new"))
    began = asyncio.get_running_loop().time()
    await fence.drain(30.0)
    assert asyncio.get_running_loop().time() - began == pytest.approx(2.0)
    assert await cluster.names() == ["begun"]


@in_virtual_time
async def test_an_error_that_no_caller_waits_for_is_not_reported(cluster: Cluster) -> None:
    fence = Fence(NO_EXPIRY)
    kube = cluster.client(fence)
    caller = asyncio.create_task(kube.delete(CONFIG_MAP, "absent", "default"))
    await asyncio.sleep(0)
    caller.cancel()
    with suppress(asyncio.CancelledError):
        await caller
    reports: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reports.append(context))
    await fence.drain(30.0)
    await asyncio.sleep(1)
    assert reports == []


@in_virtual_time
async def test_shutdown_waits_for_writes_so_long_and_then_breaks_them_off(cluster: Cluster) -> None:
    """OPS-363"""
    fence = Fence(NO_EXPIRY)
    kube = cluster.client(fence, per_second=0.01)
    await kube.create(CONFIG_MAP, thing("first"))
    waiting = asyncio.create_task(kube.create(CONFIG_MAP, thing("second")))
    await asyncio.sleep(1)
    fence.close()
    await fence.drain(30.0)
    assert asyncio.get_running_loop().time() == pytest.approx(31.0)
    with pytest.raises(WriteFenced):
        await waiting
    assert await cluster.names() == ["first"]


@in_virtual_time
async def test_a_request_that_got_its_turn_after_the_permission_ended_is_not_sent(cluster: Cluster) -> None:
    """The check right before sending: the process stood still between its turn and the request."""
    transport = HttpxTransport(SlowTransport(cluster.server, 0.0))
    kube = KubeClient(transport, StandingStill(1.0, 1), fence=Fence(valid_until=10.0))
    with pytest.raises(WriteFenced):
        await kube.create(CONFIG_MAP, thing("late"))
    assert await cluster.names() == []


@in_virtual_time
async def test_a_client_without_a_fence_writes_and_its_cancelled_writes_end(cluster: Cluster) -> None:
    """The client of the election: a renewal that was given up must not be sent later."""
    transport = HttpxTransport(SlowTransport(cluster.server, 0.0))
    kube = KubeClient(transport, TokenBucket(0.01, 1))
    await kube.create(CONFIG_MAP, thing("first"))
    waiting = asyncio.create_task(kube.create(CONFIG_MAP, thing("second")))
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.sleep(200)
    assert await cluster.names() == ["first"]


async def test_a_request_that_waits_for_its_connection_when_the_permission_ends_is_not_written(tmp_path: Path) -> None:
    """OPS-361: a process may be stopped after the last check and before the first byte, and resume too late."""
    server = MemoryServer(SystemClock())
    async with serving(server) as url:
        path = tmp_path / "kubeconfig"
        path.write_text(kubeconfig_for(url))
        fence = Fence()
        fence.extend_until(NO_EXPIRY)
        async with config.connect(config.load(str(path)), fence=fence) as client:
            await client.create(CONFIG_MAP, thing("in-time"))
            exchange = client._transport.exchange

            async def exchange_late(request: OutgoingRequest) -> HttpAnswer:
                fence.extend_until(-math.inf)
                return await exchange(request)

            client._transport.exchange = exchange_late
            with pytest.raises(WriteFenced):
                await client.create(CONFIG_MAP, thing("too-late"))
            names = [found.metadata.name for found in (await client.list(CONFIG_MAP)).items]
    assert "in-time" in names
    assert "too-late" not in names


class ExpiringFence(Fence):
    """Expires right after a number of its checks have passed: the process was stopped there and resumes too late."""

    def __init__(self) -> None:
        super().__init__(NO_EXPIRY)
        self.checks_left = -1

    def check_permitted(self) -> None:
        super().check_permitted()
        self.checks_left -= 1
        if self.checks_left == 0:
            self.extend_until(-math.inf)


async def test_a_request_is_not_written_that_lost_its_permission_between_its_turn_and_its_first_byte(
    tmp_path: Path,
) -> None:
    """OPS-361: the check before head and body leave."""
    server = MemoryServer(SystemClock())
    async with serving(server) as url:
        path = tmp_path / "kubeconfig"
        path.write_text(kubeconfig_for(url))
        fence = ExpiringFence()
        async with config.connect(config.load(str(path)), fence=fence) as client:
            await client.create(CONFIG_MAP, thing("in-time"))
            fence.checks_left = 1
            with pytest.raises(WriteFenced):
                await client.create(CONFIG_MAP, thing("too-late"))
            # Nothing of the refused request is left on a connection that later ones use.
            await client.list(CONFIG_MAP)
            fence.extend_until(NO_EXPIRY)
            await client.create(CONFIG_MAP, thing("renewed"))
    names = [found.metadata.name for found in (await MemoryKube(server).list(CONFIG_MAP)).items]
    assert {"in-time", "renewed"} <= set(names)
    assert "too-late" not in names
