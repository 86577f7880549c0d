"""The fence around writes: what passes, what is refused, and what happens to a write whose permission ends (OPS-361)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest

from karpenter.api.core import ConfigMap, Container, Node, Pod, PodSpec
from karpenter.api.kinds import CONFIG_MAP, NODE, POD, Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import Kube, Listing, PagedReader
from karpenter.kube.write_fence import NO_EXPIRY, Fence, WriteFenced, fence_writes
from karpenter.model.token_bucket import TokenBucket
from karpenter.simulation import LoopClock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.virtual_time import run_virtual
from support.pausing import stand_still

START = datetime(2026, 1, 1, tzinfo=UTC)
T = TypeVar("T", bound=Wire)


class Slow(MemoryKube):
    """A client with a pace: writes wait for a token before they leave, and for ``answer_seconds`` after they arrived."""

    def __init__(self, server: MemoryServer, per_second: float = 1000.0, answer_seconds: float = 0.0) -> None:
        super().__init__(server)
        self._limit = TokenBucket(per_second, 1)
        self._answer_seconds = answer_seconds

    async def create(self, kind: Kind[T], obj: T) -> T:
        await self._limit.take()
        made = await super().create(kind, obj)
        await asyncio.sleep(self._answer_seconds)
        return made


class Cluster:
    def __init__(self, clock: LoopClock) -> None:
        self.server = MemoryServer(clock)
        self.direct = MemoryKube(self.server)

    async def names(self) -> list[str]:
        return sorted(config_map.metadata.name for config_map in (await self.direct.list(CONFIG_MAP)).items)


def story(test: Callable[[Cluster], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def in_virtual_time() -> None:
        async def main(clock: LoopClock) -> None:
            await test(Cluster(clock))

        run_virtual(main, START)

    in_virtual_time.__name__ = test.__name__
    in_virtual_time.__doc__ = test.__doc__
    return in_virtual_time


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


@story
async def test_without_permission_nothing_is_written_and_everything_can_be_read(cluster: Cluster) -> None:
    await furnish(cluster)
    before = await contents(cluster)
    kube = fence_writes(cluster.direct, Fence())
    for write in writes(kube):
        with pytest.raises(WriteFenced):
            await write()
    assert await contents(cluster) == before
    assert (await kube.get(CONFIG_MAP, "old", "default")).metadata.name == "old"
    assert [config_map.metadata.name for config_map in (await kube.list(CONFIG_MAP)).items] == ["old"]
    async for event in kube.watch(CONFIG_MAP, before[0].resource_version):
        assert event.resource_version == before[0].resource_version
        break


@story
async def test_while_the_permission_lasts_every_write_is_done(cluster: Cluster) -> None:
    await furnish(cluster)
    kube = fence_writes(cluster.direct, Fence(NO_EXPIRY))
    for write in writes(kube):
        await write()
    assert await cluster.names() == ["new"]
    assert (await cluster.direct.get(POD, "waiting", "default")).spec.node_name == "n"


@story
async def test_errors_of_the_server_pass_through(cluster: Cluster) -> None:
    kube = fence_writes(cluster.direct, Fence(NO_EXPIRY))
    with pytest.raises(NotFound):
        await kube.delete(CONFIG_MAP, "absent", "default")


@story
async def test_a_permission_that_has_ended_is_none(cluster: Cluster) -> None:
    kube = fence_writes(cluster.direct, Fence(valid_until=5.0))
    await asyncio.sleep(4.9)
    await kube.create(CONFIG_MAP, thing("in-time"))
    await asyncio.sleep(0.2)
    with pytest.raises(WriteFenced):
        await kube.create(CONFIG_MAP, thing("late"))
    assert await cluster.names() == ["in-time"]


@story
async def test_a_write_that_still_waits_for_its_turn_when_the_permission_ends_never_leaves(cluster: Cluster) -> None:
    kube = fence_writes(Slow(cluster.server, per_second=0.25), Fence(valid_until=5.0))
    wanted = [kube.create(CONFIG_MAP, thing(name)) for name in ("a", "b", "c")]
    answers = await asyncio.gather(*wanted, return_exceptions=True)
    assert [type(answer) for answer in answers] == [ConfigMap, ConfigMap, WriteFenced]
    await asyncio.sleep(60)
    assert await cluster.names() == ["a", "b"]


@story
async def test_a_write_waits_for_its_turn_across_renewals(cluster: Cluster) -> None:
    fence = Fence(valid_until=5.0)
    kube = fence_writes(Slow(cluster.server, per_second=0.1), fence)

    async def renew() -> None:
        for _ in range(10):
            await asyncio.sleep(2)
            fence.extend_until(asyncio.get_running_loop().time() + 5.0)

    renewing = asyncio.create_task(renew())
    await asyncio.gather(*(kube.create(CONFIG_MAP, thing(name)) for name in ("a", "b")))
    assert await cluster.names() == ["a", "b"]
    await renewing


@story
async def test_a_process_that_wakes_up_too_late_sends_nothing_of_what_was_waiting(cluster: Cluster) -> None:
    """The write's turn and the end of the permission are both overdue when it wakes up, and the turn came first."""
    fence = Fence(valid_until=10.0)
    kube = fence_writes(Slow(cluster.server, per_second=0.2), fence)
    await kube.create(CONFIG_MAP, thing("before"))
    waiting = asyncio.create_task(kube.create(CONFIG_MAP, thing("waiting")))
    await asyncio.sleep(1)
    stand_still(60)
    with pytest.raises(WriteFenced):
        await waiting
    with pytest.raises(WriteFenced):
        await kube.create(CONFIG_MAP, thing("after"))
    assert await cluster.names() == ["before"]


@story
async def test_what_has_begun_is_finished_when_its_caller_is_cancelled(cluster: Cluster) -> None:
    """OPS-363: loops are cancelled at shutdown, their writes are waited for."""
    fence = Fence(NO_EXPIRY)
    kube = fence_writes(Slow(cluster.server, answer_seconds=3.0), fence)
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


@story
async def test_an_error_nobody_waits_for_any_more_is_no_news(cluster: Cluster) -> None:
    fence = Fence(NO_EXPIRY)
    kube = fence_writes(cluster.direct, fence)
    caller = asyncio.create_task(kube.delete(CONFIG_MAP, "absent", "default"))
    await asyncio.sleep(0)
    caller.cancel()
    with suppress(asyncio.CancelledError):
        await caller
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    await fence.drain(30.0)
    await asyncio.sleep(1)
    assert told == []


@story
async def test_shutdown_waits_for_writes_so_long_and_then_breaks_them_off(cluster: Cluster) -> None:
    """OPS-363"""
    fence = Fence(NO_EXPIRY)
    kube = fence_writes(Slow(cluster.server, per_second=0.01), fence)
    await kube.create(CONFIG_MAP, thing("first"))
    waiting = asyncio.create_task(kube.create(CONFIG_MAP, thing("second")))
    await asyncio.sleep(1)
    fence.close()
    await fence.drain(30.0)
    assert asyncio.get_running_loop().time() == pytest.approx(31.0)
    with pytest.raises(WriteFenced):
        await waiting
    assert await cluster.names() == ["first"]


class Paging(MemoryKube):
    def pages(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncIterator[Listing[T]]:
        raise NotImplementedError


@story
async def test_a_fenced_connection_hands_out_pages_where_the_other_one_does(cluster: Cluster) -> None:
    assert isinstance(fence_writes(Paging(cluster.server), Fence()), PagedReader)
    assert isinstance(fence_writes(cluster.direct, Fence()), PagedReader) == isinstance(cluster.direct, PagedReader)
