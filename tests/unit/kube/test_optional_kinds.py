"""Kinds that a cluster may do without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from karpenter.api.core import Pod
from karpenter.api.kinds import CSI_NODE, KINDS, POD
from karpenter.api.storage import CSINode
from karpenter.kube.errors import Forbidden, NotFound
from karpenter.kube.informer import Informer
from karpenter.kube.optional_kinds import OptionalKindsReader
from karpenter.kube.protocol import PagedReader, Reader, WatchEvent
from karpenter.model.clock import Clock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.virtual_time import run_virtual
from support.volume_builders import csi_node

START = datetime(2026, 1, 1, tzinfo=UTC)
BARE = tuple(kind for kind in KINDS.values() if kind.group != "storage.k8s.io")


class Swapped:
    """A reader whose server can be replaced by another, as in an upgrade."""

    def __init__(self, inner: MemoryKube) -> None:
        self.inner = inner
        self.lists = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def list(self, *args: object, **more: object) -> object:
        self.lists += 1
        return await self.inner.list(*args, **more)

    def watch(self, *args: object, **more: object) -> AsyncIterator[WatchEvent[CSINode]]:
        return self.inner.watch(*args, **more)


def bare(clock: Clock) -> MemoryKube:
    return MemoryKube(MemoryServer(clock, kinds=BARE))


async def running(informer: Informer[CSINode]) -> asyncio.Task[None]:
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(1)
    return task


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_a_kind_that_is_not_served_counts_as_empty_until_it_is() -> None:
    """An informer is in step at once, has no fault to show and does not ask all the time."""

    async def scenario(clock: Clock) -> None:
        server = Swapped(bare(clock))
        informer = Informer(OptionalKindsReader(server), CSI_NODE)
        task = await running(informer)
        assert (informer.synced, informer.fault, len(informer)) == (True, None, 0)
        await asyncio.sleep(600)
        assert (informer.fault, server.lists <= 12) == (None, True)
        server.inner = MemoryKube(MemoryServer(clock))
        await server.inner.create(CSI_NODE, csi_node("n", ebs=3))
        await asyncio.sleep(120)
        assert [csi_node.metadata.name for csi_node in informer] == ["n"]
        await server.inner.create(CSI_NODE, csi_node("m", ebs=3))
        await asyncio.sleep(1)
        assert len(informer) == 2
        await ended(task)

    run_virtual(scenario, START)


def test_a_kind_that_is_served_is_followed_as_ever() -> None:
    async def scenario(clock: Clock) -> None:
        kube = MemoryKube(MemoryServer(clock))
        await kube.create(CSI_NODE, csi_node("n"))
        reader = OptionalKindsReader(kube)
        task = await running(informer := Informer(reader, CSI_NODE))
        await kube.create(CSI_NODE, csi_node("m"))
        await kube.delete(CSI_NODE, "n")
        await asyncio.sleep(1)
        assert [csi_node.metadata.name for csi_node in informer] == ["m"]
        assert (await reader.get(CSI_NODE, "m")).metadata.name == "m"
        assert len((await reader.list(CSI_NODE)).items) == 1
        await ended(task)

    run_virtual(scenario, START)


class Refusing:
    """A reader that is refused everything."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def get(self, *args: object, **more: object) -> Pod:
        raise self._error

    async def list(self, *args: object, **more: object) -> object:
        raise self._error

    async def watch(self, *args: object, **more: object) -> AsyncIterator[WatchEvent[Pod]]:
        raise self._error
        yield


class RefusingPager(Refusing):
    async def pages(self, *args: object, **more: object) -> AsyncIterator[object]:
        raise self._error
        yield


@pytest.mark.parametrize(
    "error", [Forbidden("no right"), NotFound("no such namespace")], ids=["forbidden", "not-found"]
)
@pytest.mark.parametrize("inner", [Refusing, RefusingPager])
async def test_every_other_fault_is_raised(error: Exception, inner: type[Refusing]) -> None:
    """A right that is missing is the operator's to mend; silence would hide it."""
    reader: Reader = OptionalKindsReader(inner(error))
    assert isinstance(reader, PagedReader)
    with pytest.raises(type(error)):
        await reader.list(POD)
    with pytest.raises(type(error)):
        [page async for page in reader.pages(POD)]
    with pytest.raises(type(error)):
        [event async for event in reader.watch(POD, "1")]
