"""Kinds that older API servers serve in older versions only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from karpenter.api.kinds import KINDS, RESOURCE_CLAIM, RESOURCE_SLICE, Kind
from karpenter.api.resource_claims import ResourceSlice
from karpenter.kube.errors import KIND_NOT_SERVED, Forbidden, NotFound
from karpenter.kube.informer import Informer
from karpenter.kube.protocol import Listing
from karpenter.kube.version_fallback import VersionFallbackReader
from karpenter.model.clock import Clock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.virtual_time import run_virtual
from support.device_builders import gpus, published, slice_spec

START = datetime(2026, 1, 1, tzinfo=UTC)
OLDER = ("v1beta2", "v1beta1")


def _serving(clock: Clock, *versions: str) -> MemoryKube:
    """A server with slices in these versions alone."""
    others = [kind for kind in KINDS.values() if kind.plural != RESOURCE_SLICE.plural]
    return MemoryKube(MemoryServer(clock, kinds=[*others, *(_slices(version) for version in versions)]))


def _slices(version: str) -> Kind[ResourceSlice]:
    return replace(RESOURCE_SLICE, version=version)


class Upgraded:
    """A server that may be replaced by another, and ends its watches then. ``watched``: the versions that were asked for."""

    def __init__(self, inner: MemoryKube) -> None:
        self.inner = inner
        self.watched: list[str] = []
        self._is_over = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def upgrade(self, inner: MemoryKube) -> None:
        self.inner = inner
        self._is_over.set()
        self._is_over = asyncio.Event()

    async def watch(self, kind: Kind[Any], *args: Any, **more: Any) -> AsyncIterator[Any]:
        self.watched.append(kind.version)
        events, over = aiter(self.inner.watch(kind, *args, **more)), asyncio.create_task(self._is_over.wait())
        try:
            while True:
                upcoming = asyncio.ensure_future(anext(events))
                await asyncio.wait({over, upcoming}, return_when=asyncio.FIRST_COMPLETED)
                if over.done():
                    upcoming.cancel()
                    return
                yield upcoming.result()
        finally:
            over.cancel()


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_slices_are_followed_in_the_newest_version_that_is_served(version: str) -> None:
    async def scenario(clock: Clock) -> None:
        kube = _serving(clock, version)
        kind = _slices(version)
        await kube.create(kind, published("s", slice_spec(*gpus(2), node="n")))
        reader = VersionFallbackReader(kube, OLDER)
        informer = Informer(reader, RESOURCE_SLICE)
        task = asyncio.create_task(informer.run())
        await asyncio.sleep(1)
        await kube.create(kind, published("t", slice_spec(*gpus(1), node="m")))
        await asyncio.sleep(1)
        assert {one.metadata.name: len(one.spec.devices) for one in informer} == {"s": 2, "t": 1}
        assert (await reader.get(RESOURCE_SLICE, "t")).spec.node_name == "m"
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    run_virtual(scenario, START)


class Paged(Upgraded):
    """A server that hands lists out page by page."""

    async def pages(self, *args: Any, **more: Any) -> AsyncIterator[Listing[ResourceSlice]]:
        yield await self.inner.list(*args, **more)


def test_pages_fall_back_to_older_versions_too() -> None:
    async def scenario(clock: Clock) -> None:
        kube = _serving(clock, "v1beta1")
        await kube.create(_slices("v1beta1"), published("s", slice_spec(*gpus(1), node="n")))
        reader = VersionFallbackReader(Paged(kube), OLDER)
        pages = [page async for page in reader.pages(RESOURCE_SLICE)]
        assert [one.metadata.name for page in pages for one in page.items] == ["s"]
        nowhere = VersionFallbackReader(Paged(_serving(clock)), OLDER)
        with pytest.raises(NotFound):
            [page async for page in nowhere.pages(RESOURCE_SLICE)]

    run_virtual(scenario, START)


def test_an_upgrade_of_the_server_is_followed() -> None:
    """The older version is not served any more: its watch ends and cannot be opened again, so a list finds the newer one."""

    async def scenario(clock: Clock) -> None:
        server = Upgraded(_serving(clock, "v1beta1"))
        await server.create(_slices("v1beta1"), published("s", slice_spec(*gpus(1), node="n")))
        informer = Informer(VersionFallbackReader(server, OLDER), RESOURCE_SLICE)
        task = asyncio.create_task(informer.run())
        await asyncio.sleep(1)
        assert [one.metadata.name for one in informer] == ["s"]
        newer = _serving(clock, "v1")
        await newer.create(RESOURCE_SLICE, published("t", slice_spec(*gpus(1), node="n")))
        server.upgrade(newer)
        faults = []
        for _ in range(50):
            await asyncio.sleep(0.1)
            faults.append(informer.fault)
        assert [one.metadata.name for one in informer] == ["t"]
        assert set(faults) == {None}, "an upgrade is no fault"
        assert server.watched == ["v1beta1", "v1beta1", "v1"]
        await newer.create(RESOURCE_SLICE, published("u", slice_spec(*gpus(1), node="n")))
        await asyncio.sleep(1)
        assert {one.metadata.name for one in informer} == {"t", "u"}
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    run_virtual(scenario, START)


def test_where_no_version_is_served_the_kind_is_not_served() -> None:
    async def scenario(clock: Clock) -> None:
        reader = VersionFallbackReader(_serving(clock), OLDER)
        for ask in (reader.list(RESOURCE_SLICE), reader.get(RESOURCE_SLICE, "s")):
            with pytest.raises(NotFound) as missing:
                await ask
            assert missing.value.reason == KIND_NOT_SERVED

    run_virtual(scenario, START)


class _Refusing:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def get(self, *args: object) -> object:
        raise self._error

    list = get


@pytest.mark.parametrize("error", [Forbidden("no right"), NotFound("no such object")], ids=["forbidden", "not-found"])
async def test_every_other_error_is_raised(error: Exception) -> None:
    """A missing right or object says nothing of versions, so no other version is tried."""
    reader = VersionFallbackReader(_Refusing(error), OLDER)
    with pytest.raises(type(error)):
        await reader.get(RESOURCE_CLAIM, "c", "default")
