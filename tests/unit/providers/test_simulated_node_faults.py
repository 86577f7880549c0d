"""Simulated nodes without permissions, with API faults, and after restarts."""

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
from support.simulated_provider_cluster import QUIET, SMALL, ClusterTest, ProviderCluster, run_in_virtual_time

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


def run_alone(scenario: ClusterTest, *, timing: SimulatedTiming = QUIET, delay: str | None = None) -> None:
    """Run a scenario that starts its own simulated nodes."""

    async def alone(cluster: ProviderCluster) -> None:
        await cluster.stop()
        await scenario(cluster)

    run_in_virtual_time(alone, timing=timing, delay=delay)


@asynccontextmanager
async def running(simulated_nodes: SimulatedNodes, pods: Informer[Pod] | None = None) -> AsyncIterator[None]:
    task = asyncio.create_task(simulated_nodes.run(pods))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_a_missing_permission_is_logged_once_for_any_number_of_instances(log: StringIO) -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        cluster.kube.server.inject_fault(forbidden("create", "nodes"), verb="create", plural="nodes", times=FOR_EVER)
        provider = await cluster.provider()
        for name in ("one", "two", "three"):
            await provider.create(await cluster.claim(name, {}, SMALL))
        await asyncio.sleep(600)

    run_in_virtual_time(scenario)
    (line,) = said(log)
    assert "jo may not create nodes" in line
    assert "ClusterRole" in line


def test_refused_verbs_and_invalid_credentials_are_logged_separately(log: StringIO) -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        server = cluster.kube.server
        await (await cluster.provider()).create(await cluster.claim("one", {}, SMALL))
        server.inject_fault(Unauthorized("Unauthorized", status=401), verb="create", plural="nodes", times=2)
        server.inject_fault(forbidden("patch", "nodes"), verb="patch", plural="nodes", times=2)
        await asyncio.sleep(60)

    run_in_virtual_time(scenario)
    first, second = said(log)
    assert "credentials" in first
    assert "jo may not patch nodes" in second


def test_a_permission_lost_again_later_is_logged_again(log: StringIO) -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        for name in ("one", "two"):
            cluster.kube.server.inject_fault(forbidden("create", "nodes"), verb="create", plural="nodes", times=3)
            await (await cluster.provider()).create(await cluster.claim(name, {}, SMALL))
            await asyncio.sleep(3600)

    run_in_virtual_time(scenario)
    assert len(said(log)) == 2


def test_refused_heartbeats_are_logged_as_an_error(log: StringIO) -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        refusal = forbidden("patch", "leases")
        cluster.kube.server.inject_fault(refusal, verb="patch", plural="leases", times=FOR_EVER)
        await (await cluster.provider()).create(await cluster.claim("one", {}, SMALL))
        await asyncio.sleep(600)

    run_in_virtual_time(scenario, timing=SimulatedTiming())
    (line,) = said(log)
    assert "jo may not patch leases" in line


def test_temporary_faults_are_not_logged_as_errors(log: StringIO) -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        cluster.kube.server.inject_fault(KubeError("slow"), verb="create", plural="nodes", times=3)
        await (await cluster.provider()).create(await cluster.claim("one", {}, SMALL))
        await cluster.finish_pending_work()
        assert await cluster.node()

    run_in_virtual_time(scenario)
    assert said(log) == []


def test_watches_without_events_are_reported() -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        simulated_nodes = SimulatedNodes(cluster.kube, cluster.clock, QUIET)
        assert simulated_nodes.faults() == []
        for plural in ("configmaps", "pods"):
            cluster.kube.server.inject_fault(forbidden("list", plural), verb="list", plural=plural, times=3)
        async with running(simulated_nodes):
            await asyncio.sleep(1)
            assert sorted(str(fault).split()[0] for fault in simulated_nodes.faults()) == ["configmaps", "pods"]
            await asyncio.sleep(60)
            assert simulated_nodes.faults() == []

    run_alone(scenario)


def test_an_instance_removed_between_two_runs_is_not_registered() -> None:
    """A second run of the same simulator must not register an instance of the first run."""

    async def scenario(cluster: ProviderCluster) -> None:
        simulated_nodes = SimulatedNodes(cluster.kube, cluster.clock, QUIET)
        instance = await (await cluster.provider()).create(await cluster.claim("one", {}, SMALL))
        async with running(simulated_nodes):
            await asyncio.sleep(10)
        await cluster.kube.delete(CONFIG_MAP, instance.provider_id.removeprefix("kwok://"), "kube-system")
        async with running(simulated_nodes):
            await asyncio.sleep(120)
            assert (await cluster.kube.list(NODE)).items == ()

    run_alone(scenario, delay="30s")


class CountedInformer(Informer[Pod]):
    """An informer of pods that counts its handlers."""

    def __init__(self, kube: MemoryKube) -> None:
        super().__init__(kube, POD)
        self.listeners = 0

    def subscribe(self, handler: ChangeHandler[Pod]) -> None:
        self.listeners += 1
        super().subscribe(handler)


@asynccontextmanager
async def shared_pods(cluster: ProviderCluster) -> AsyncIterator[CountedInformer]:
    pods = CountedInformer(cluster.kube)
    task = asyncio.create_task(pods.run())
    yield pods
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def phase(cluster: ProviderCluster, name: str) -> str:
    return (await cluster.kube.get(POD, name, "default")).status.phase


def test_a_shared_informer_has_one_handler_after_restarts() -> None:
    async def scenario(cluster: ProviderCluster) -> None:
        simulated_nodes = SimulatedNodes(cluster.kube, cluster.clock, QUIET)
        instance = await (await cluster.provider()).create(await cluster.claim("one", {}, SMALL))
        node = instance.provider_id.removeprefix("kwok://")
        async with shared_pods(cluster) as pods:
            async with running(simulated_nodes, pods):
                await asyncio.sleep(10)
            await cluster.pod("in-between", node)
            await asyncio.sleep(1)
            async with running(simulated_nodes, pods):
                await cluster.pod("afterwards", node)
                await asyncio.sleep(10)
            assert pods.listeners == 1
        assert await phase(cluster, "in-between") == "Running"
        assert await phase(cluster, "afterwards") == "Running"

    run_alone(scenario)


def test_an_error_for_one_pod_does_not_stop_a_shared_informer(monkeypatch: pytest.MonkeyPatch, log: StringIO) -> None:
    usual = SimulatedNodes._on_pod

    def mistaken(self: SimulatedNodes, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.metadata.name == "bad":
            raise ZeroDivisionError
        usual(self, old, new)

    async def scenario(cluster: ProviderCluster) -> None:
        monkeypatch.setattr(SimulatedNodes, "_on_pod", mistaken)
        instance = await (await cluster.provider()).create(await cluster.claim("one", {}, SMALL))
        node = instance.provider_id.removeprefix("kwok://")
        async with (
            shared_pods(cluster) as pods,
            running(SimulatedNodes(cluster.kube, cluster.clock, QUIET), pods),
        ):
            for name in ("bad", "good"):
                await cluster.pod(name, node)
            await asyncio.sleep(10)
        assert await phase(cluster, "good") == "Running"

    run_alone(scenario)
    assert set(said(log)) == {"ZeroDivisionError()"}
