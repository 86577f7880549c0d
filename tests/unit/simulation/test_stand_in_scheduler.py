"""The scheduler at work: binding, conditions, gates, back-off, nomination, the same every time."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.core import PodSchedulingGate, PodSpec
from karpenter.api.meta import Condition
from karpenter.kube.errors import ServerUnavailable
from karpenter.simulation import workload_traces
from karpenter.simulation.scheduler_cache import PodPlaced, SchedulerCache
from karpenter.simulation.scheduler_node_info import to_pod_info
from support.stand_in_cluster import StandInCluster, deployment, node, pod, run_with_stand_ins


async def _scheduled_condition(cluster: StandInCluster, name: str) -> Condition | None:
    stored_pod = await cluster.kube.get(kinds.POD, name, "default")
    return next((each for each in stored_pod.status.conditions if each.type == "PodScheduled"), None)


def test_a_pod_that_fits_is_bound() -> None:
    async def scenario(cluster: StandInCluster) -> dict[str, str]:
        await cluster.add_node(node("n1"))
        await cluster.kube.create(kinds.POD, pod("web"))
        await asyncio.sleep(1)
        return await cluster.bound()

    assert run_with_stand_ins(scenario) == {"web": "n1"}


def test_a_pod_that_fits_nowhere_is_marked_unschedulable_once_and_bound_when_a_node_comes() -> None:
    async def scenario(cluster: StandInCluster) -> tuple[Condition | None, str, str, dict[str, str]]:
        await cluster.add_node(node("small", "500m"))
        await cluster.kube.create(kinds.POD, pod("web"))
        await asyncio.sleep(5)
        scheduled_condition = await _scheduled_condition(cluster, "web")
        version = (await cluster.kube.get(kinds.POD, "web", "default")).metadata.resource_version
        await cluster.add_node(node("small-too", "500m"))
        await asyncio.sleep(60)
        later = (await cluster.kube.get(kinds.POD, "web", "default")).metadata.resource_version
        await cluster.add_node(node("large"))
        await asyncio.sleep(11)
        return scheduled_condition, version, later, await cluster.bound()

    condition, version, later, bound = run_with_stand_ins(scenario)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "Unschedulable")
    assert condition.message == "0/1 nodes are available: 1 had too few free resources."
    assert version == later
    assert bound == {"web": "large"}


def test_a_pod_with_gates_waits_until_they_are_gone() -> None:
    async def scenario(cluster: StandInCluster) -> tuple[Condition | None, dict[str, str], dict[str, str]]:
        await cluster.add_node(node("n1"))
        gated = pod("web", spec=PodSpec(scheduling_gates=(PodSchedulingGate(name="hold"),)))
        await cluster.kube.create(kinds.POD, gated)
        await asyncio.sleep(5)
        stored_condition, before = await _scheduled_condition(cluster, "web"), await cluster.bound()
        await cluster.kube.patch(kinds.POD, "web", {"spec": {"schedulingGates": None}}, "default")
        await asyncio.sleep(1)
        return stored_condition, before, await cluster.bound()

    condition, before, after = run_with_stand_ins(scenario)
    assert condition is not None
    assert condition.reason == "SchedulingGated"
    assert before == {}
    assert after == {"web": "n1"}


def test_a_pod_of_another_scheduler_is_left_alone() -> None:
    async def scenario(cluster: StandInCluster) -> tuple[Condition | None, dict[str, str]]:
        await cluster.add_node(node("n1"))
        await cluster.kube.create(kinds.POD, pod("web", spec=PodSpec(scheduler_name="other")))
        await asyncio.sleep(5)
        return await _scheduled_condition(cluster, "web"), await cluster.bound()

    assert run_with_stand_ins(scenario) == (None, {})


def test_room_freed_by_a_pod_goes_to_the_one_that_waits() -> None:
    async def scenario(cluster: StandInCluster) -> dict[str, str]:
        await cluster.add_node(node("n1", "1"))
        await cluster.kube.create(kinds.POD, pod("first"))
        await asyncio.sleep(1)
        await cluster.kube.create(kinds.POD, pod("second"))
        await asyncio.sleep(1)
        await cluster.kube.delete(kinds.POD, "first", "default", grace_period_seconds=0)
        await asyncio.sleep(11)
        return await cluster.bound()

    assert run_with_stand_ins(scenario) == {"second": "n1"}


def test_the_pod_of_higher_priority_gets_the_room() -> None:
    async def scenario(cluster: StandInCluster) -> dict[str, str]:
        await cluster.kube.create(kinds.POD, pod("a-low", priority=1))
        await cluster.kube.create(kinds.POD, pod("b-high", priority=9))
        await asyncio.sleep(30)
        await cluster.add_node(node("n1", "1"))
        await asyncio.sleep(30)
        return await cluster.bound()

    assert run_with_stand_ins(scenario) == {"b-high": "n1"}


def test_a_nomination_decides_where_a_waiting_pod_goes() -> None:
    """Design: nomination before the taint goes makes plans come true."""

    async def scenario(cluster: StandInCluster) -> dict[str, str]:
        for name in ("web-1", "web-2"):
            await cluster.kube.create(kinds.POD, pod(name))
        await asyncio.sleep(5)
        patch = {"status": {"nominatedNodeName": "z-busy"}}
        await cluster.kube.patch(kinds.POD, "web-1", patch, "default", subresource="status")
        await cluster.add_node(node("z-busy", "2", memory="2Gi"))
        await cluster.add_node(node("a-empty", "64", memory="256Gi"))
        await asyncio.sleep(30)
        return await cluster.bound()

    assert run_with_stand_ins(scenario) == {"web-1": "z-busy", "web-2": "a-empty"}


def test_a_failed_bind_is_tried_again() -> None:
    async def scenario(cluster: StandInCluster) -> dict[str, str]:
        await cluster.add_node(node("n1", "1"))
        await asyncio.sleep(1)
        cluster.server.inject_fault(ServerUnavailable("no answer"), plural="pods", verb="bind")
        await cluster.kube.create(kinds.POD, pod("web"))
        await asyncio.sleep(0.5)
        assert await cluster.bound() == {}
        await asyncio.sleep(30)
        return await cluster.bound()

    assert run_with_stand_ins(scenario) == {"web": "n1"}


def test_two_runs_of_the_same_test_leave_the_same_log() -> None:
    async def scenario(cluster: StandInCluster) -> list[tuple[str, str, str, str]]:
        log: list[tuple[str, str, str, str]] = []

        async def watch() -> None:
            async for event in cluster.kube.watch(kinds.POD, "0"):
                if event.object is not None:
                    listed_pod = event.object
                    log.append(
                        (
                            cluster.clock.now().isoformat(),
                            event.type,
                            listed_pod.metadata.name,
                            listed_pod.spec.node_name,
                        )
                    )

        watcher = asyncio.create_task(watch())
        for daemon_set in workload_traces.daemon_sets():
            await cluster.kube.create(kinds.DAEMON_SET, daemon_set)
        for service in workload_traces.microservices(3, 60):
            await cluster.kube.create(kinds.DEPLOYMENT, service)
        for number in range(6):
            await asyncio.sleep(15)
            await cluster.add_node(node(f"n{number}", "8", memory="32Gi", zone="abc"[number % 3]))
        await cluster.settle(3)
        watcher.cancel()
        return log

    first = run_with_stand_ins(scenario)
    assert len(first) > 100
    assert first == run_with_stand_ins(scenario)


@pytest.mark.speed
def test_two_thousand_pods_on_two_hundred_nodes_are_placed_quickly() -> None:
    board = SchedulerCache()
    for number in range(200):
        board.set_node(f"n{number:03}", node(f"n{number:03}", "64", memory="256Gi", zone="abc"[number % 3]))
    services = workload_traces.microservices(1, 2000)
    began = time.monotonic()
    placed = 0
    for service in services:
        for number in range(service.spec.replicas or 0):
            metadata = msgspec.structs.replace(
                service.spec.template.metadata, name=f"{service.metadata.name}-{number}", namespace="default"
            )
            template = msgspec.structs.replace(service.spec.template.spec, node_selector={})
            pod_info = to_pod_info(msgspec.structs.replace(pod("x"), metadata=metadata, spec=template))
            where = board.schedule(pod_info)
            if isinstance(where, PodPlaced):
                board.add_pod(pod_info, where.node)
                placed += 1
    assert placed == 2000
    assert time.monotonic() - began < 30


def test_a_deployment_is_spread_by_free_room() -> None:
    async def scenario(cluster: StandInCluster) -> list[str]:
        for name in ("n1", "n2", "n3"):
            await cluster.add_node(node(name))
        await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 6))
        await asyncio.sleep(5)
        return sorted((await cluster.bound()).values())

    assert run_with_stand_ins(scenario) == ["n1", "n1", "n2", "n2", "n3", "n3"]
