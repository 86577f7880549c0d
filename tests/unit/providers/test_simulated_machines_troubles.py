"""The stand-in for machines when it may not do its work, and when it is started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from io import StringIO

import msgspec
import pytest
import structlog

from karpenter.api.core import Pod
from karpenter.api.kinds import CONFIG_MAP, NODE, POD
from karpenter.kube.errors import Forbidden, KubeError, Unauthorized
from karpenter.kube.informer import ChangeHandler, Informer
from karpenter.providers.simulated import SimulatedNodes, SimulatedTiming
from karpenter.runtime import logging
from karpenter.simulation.apiserver import MemoryKube
from support.simulated_world import QUIET, SMALL, Scene, World, play

FOR_EVER = 10_000


@pytest.fixture
def log() -> Iterator[StringIO]:
    """Log lines of severity ERROR."""
    stream = StringIO()
    logging.configure("error", stream)
    yield stream
    structlog.reset_defaults()


def said(log: StringIO) -> list[str]:
    return [msgspec.json.decode(line)["error"] for line in log.getvalue().splitlines()]


def forbidden(verb: str, resource: str, name: str = "x") -> Forbidden:
    why = f'User "jo" cannot {verb} resource "{resource}" in API group ""'
    return Forbidden(f'{resource} "{name}" is forbidden: {why} at the cluster scope', status=403, reason="Forbidden")


def play_alone(story: Scene, *, timing: SimulatedTiming = QUIET, delay: str | None = None) -> None:
    """Play a scene that starts its own machines."""

    async def alone(world: World) -> None:
        await world.stop()
        await story(world)

    play(alone, timing=timing, delay=delay)


@asynccontextmanager
async def running(machines: SimulatedNodes, pods: Informer[Pod] | None = None) -> AsyncIterator[None]:
    task = asyncio.create_task(machines.run(pods))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_a_missing_permission_is_an_error_once_however_many_instances_need_it(log: StringIO) -> None:
    async def scene(world: World) -> None:
        world.kube.server.inject_fault(forbidden("create", "nodes"), verb="create", plural="nodes", times=FOR_EVER)
        provider = await world.provider()
        for name in ("one", "two", "three"):
            await provider.create(await world.claim(name, {}, SMALL))
        await asyncio.sleep(600)

    play(scene)
    (line,) = said(log)
    assert "jo may not create nodes" in line
    assert "ClusterRole" in line


def test_each_refused_verb_and_credentials_are_told_apart(log: StringIO) -> None:
    async def scene(world: World) -> None:
        server = world.kube.server
        await (await world.provider()).create(await world.claim("one", {}, SMALL))
        server.inject_fault(Unauthorized("Unauthorized", status=401), verb="create", plural="nodes", times=2)
        server.inject_fault(forbidden("patch", "nodes"), verb="patch", plural="nodes", times=2)
        await asyncio.sleep(60)

    play(scene)
    first, second = said(log)
    assert "credentials" in first
    assert "jo may not patch nodes" in second


def test_a_permission_lost_again_later_is_said_again(log: StringIO) -> None:
    async def scene(world: World) -> None:
        for name in ("one", "two"):
            world.kube.server.inject_fault(forbidden("create", "nodes"), verb="create", plural="nodes", times=3)
            await (await world.provider()).create(await world.claim(name, {}, SMALL))
            await asyncio.sleep(3600)

    play(scene)
    assert len(said(log)) == 2


def test_heartbeats_that_are_refused_are_an_error(log: StringIO) -> None:
    async def scene(world: World) -> None:
        refusal = forbidden("patch", "leases")
        world.kube.server.inject_fault(refusal, verb="patch", plural="leases", times=FOR_EVER)
        await (await world.provider()).create(await world.claim("one", {}, SMALL))
        await asyncio.sleep(600)

    play(scene, timing=SimulatedTiming())
    (line,) = said(log)
    assert "jo may not patch leases" in line


def test_what_only_delays_is_no_error(log: StringIO) -> None:
    async def scene(world: World) -> None:
        world.kube.server.inject_fault(KubeError("slow"), verb="create", plural="nodes", times=3)
        await (await world.provider()).create(await world.claim("one", {}, SMALL))
        await world.finish_pending_work()
        assert await world.node()

    play(scene)
    assert said(log) == []


def test_watches_that_bring_no_news_are_told() -> None:
    async def scene(world: World) -> None:
        machines = SimulatedNodes(world.kube, world.clock, QUIET)
        assert machines.faults() == []
        for plural in ("configmaps", "pods"):
            world.kube.server.inject_fault(forbidden("list", plural), verb="list", plural=plural, times=3)
        async with running(machines):
            await asyncio.sleep(1)
            assert sorted(str(fault).split()[0] for fault in machines.faults()) == ["configmaps", "pods"]
            await asyncio.sleep(60)
            assert machines.faults() == []

    play_alone(scene)


def test_an_instance_removed_while_nobody_looked_is_forgotten() -> None:
    """A second run of the same stand-in must not register what the first one was going to."""

    async def scene(world: World) -> None:
        machines = SimulatedNodes(world.kube, world.clock, QUIET)
        instance = await (await world.provider()).create(await world.claim("one", {}, SMALL))
        async with running(machines):
            await asyncio.sleep(10)
        await world.kube.delete(CONFIG_MAP, instance.provider_id.removeprefix("kwok://"), "kube-system")
        async with running(machines):
            await asyncio.sleep(120)
            assert (await world.kube.list(NODE)).items == ()

    play_alone(scene, delay="30s")


class CountedInformer(Informer[Pod]):
    """An informer of pods that counts who listens."""

    def __init__(self, kube: MemoryKube) -> None:
        super().__init__(kube, POD)
        self.listeners = 0

    def subscribe(self, handler: ChangeHandler[Pod]) -> None:
        self.listeners += 1
        super().subscribe(handler)


@asynccontextmanager
async def shared_pods(world: World) -> AsyncIterator[CountedInformer]:
    pods = CountedInformer(world.kube)
    task = asyncio.create_task(pods.run())
    yield pods
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def phase(world: World, name: str) -> str:
    return (await world.kube.get(POD, name, "default")).status.phase


def test_a_shared_informer_is_listened_to_once_over_restarts() -> None:
    async def scene(world: World) -> None:
        machines = SimulatedNodes(world.kube, world.clock, QUIET)
        instance = await (await world.provider()).create(await world.claim("one", {}, SMALL))
        node = instance.provider_id.removeprefix("kwok://")
        async with shared_pods(world) as pods:
            async with running(machines, pods):
                await asyncio.sleep(10)
            await world.pod("in-between", node)
            await asyncio.sleep(1)
            async with running(machines, pods):
                await world.pod("afterwards", node)
                await asyncio.sleep(10)
            assert pods.listeners == 1
        assert await phase(world, "in-between") == "Running"
        assert await phase(world, "afterwards") == "Running"

    play_alone(scene)


def test_a_mistake_over_one_pod_does_not_end_a_shared_informer(monkeypatch: pytest.MonkeyPatch, log: StringIO) -> None:
    usual = SimulatedNodes._on_pod

    def mistaken(self: SimulatedNodes, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.metadata.name == "bad":
            raise ZeroDivisionError
        usual(self, old, new)

    async def scene(world: World) -> None:
        monkeypatch.setattr(SimulatedNodes, "_on_pod", mistaken)
        instance = await (await world.provider()).create(await world.claim("one", {}, SMALL))
        node = instance.provider_id.removeprefix("kwok://")
        async with shared_pods(world) as pods, running(SimulatedNodes(world.kube, world.clock, QUIET), pods):
            for name in ("bad", "good"):
                await world.pod(name, node)
            await asyncio.sleep(10)
        assert await phase(world, "good") == "Running"

    play_alone(scene)
    assert set(said(log)) == {"ZeroDivisionError()"}
