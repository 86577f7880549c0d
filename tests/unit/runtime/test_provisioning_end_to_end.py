"""Provisioning from end to end, and what nodes cost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from karpenter import manager
from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption
from karpenter.settings import Settings
from support.builders import container, pod, pods
from support.instance_types import offering, shape
from support.provisioning_cases import claims, start_with_pool
from support.virtual_cluster import VirtualCluster, in_virtual_time, until


async def running(cluster: VirtualCluster) -> bool:
    result = await cluster.all(kinds.POD)
    return bool(result) and all(element.status.phase == "Running" for element in result)


# -- from end to end ------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_deployment_comes_up_and_its_nodes_go_with_it(cluster: VirtualCluster) -> None:
    """From pending pods to initialized nodes on the simulated cloud, with one sequence of log lines per node."""
    cluster.simulated()
    cluster.scheduled()
    await start_with_pool(cluster, disruption=Disruption(consolidate_after="30s", budgets=(Budget(nodes="100%"),)))
    await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 20))
    await until(lambda: running(cluster), 60)
    assert len(await cluster.all(kinds.POD)) == 20
    nodes = len(await cluster.all(kinds.NODE))
    assert nodes == len(await claims(cluster)) == len(await cluster.all(kinds.CONFIG_MAP))
    await cluster.kube.patch(kinds.DEPLOYMENT, "web", {"spec": {"replicas": 0}}, "default")

    async def over() -> bool:
        return (
            not await claims(cluster) and not await cluster.all(kinds.NODE) and not await cluster.all(kinds.CONFIG_MAP)
        )

    await until(over, 300)
    for message in ("launched", "registered", "initialized", "deleted"):
        assert len(cluster.lines(f"{message} nodeclaim")) == nodes
    assert [line for line in cluster.lines() if line["level"] == "ERROR"] == []


def deployment(name: str, replicas: int) -> Any:
    from karpenter.api.apps import Deployment, ReplicatedSpec
    from karpenter.api.core import PodSpec, PodTemplateSpec
    from karpenter.api.meta import LabelSelector, ObjectMeta

    template = PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": name}),
        spec=PodSpec(containers=(container({"cpu": "500m", "memory": "512Mi"}),)),
    )
    selector = LabelSelector(match_labels={"app": name})
    return Deployment(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=ReplicatedSpec(replicas=replicas, selector=selector, template=template),
    )


@in_virtual_time
async def test_pods_that_still_run_on_a_terminating_node_get_no_events(cluster: VirtualCluster) -> None:
    """SCH-063: their next node is planned ahead; a pod that runs gets no event about it."""
    await cluster.node_class()
    await cluster.pool(limits={"cpu": "1"})
    await cluster.start()
    await cluster.claim("c", pool="np")
    await asyncio.sleep(0.1)
    await cluster.join("c")
    await asyncio.sleep(0.5)
    await cluster.running("held", "node-c", requests={"cpu": "3"}, meta={"finalizers": ("test/held",)})
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await cluster.waiting(pod("other", {"cpu": "64"}))
    await asyncio.sleep(5)
    assert {event.involved_object.name for event in await cluster.events("FailedScheduling")} == {"other"}
    assert [line["Pod"]["name"] for line in cluster.lines("could not schedule pod")] == ["other"]


@in_virtual_time
async def test_pods_of_a_node_that_leaves_are_looked_at_again_while_they_are_there(cluster: VirtualCluster) -> None:
    """SCH-002: every ten seconds, though nothing else happens."""
    await start_with_pool(cluster)
    await cluster.claim()
    await until(lambda: _has_launched(cluster))
    await cluster.join()
    await cluster.running("web", "node-c", meta={"finalizers": ("example.com/slow",)})
    await asyncio.sleep(5)
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(15)
    line = "computing scheduling decision for provisionable pod(s)"
    before = len(cluster.lines(line))
    await asyncio.sleep(40)
    assert len(cluster.lines(line)) >= before + 3
    assert await cluster.has(kinds.NODE, "node-c")


async def _has_launched(cluster: VirtualCluster) -> bool:
    return bool((await cluster.get_claim()).status.provider_id)


# -- what nodes cost ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fee", "nodes"), [(0.0, 2), (0.2, 1)])
@in_virtual_time
async def test_the_fee_of_a_node_is_a_setting(cluster: VirtualCluster, fee: float, nodes: int) -> None:
    """Two small nodes cost 0.2 USD, one node twice as large costs 0.3."""
    steep = tuple(
        shape(name, {"cpu": cpu, "memory": "16Gi", "pods": 9}, [offering("on-demand", "z1", price)], overhead={})
        for name, cpu, price in (("small", 2, 0.1), ("large", 4, 0.3))
    )
    cluster.simulated(steep)
    await start_with_pool(cluster, Settings(node_fee=fee))
    await cluster.waiting(*pods(2, {"cpu": "2"}))
    await asyncio.sleep(5)
    assert len(await claims(cluster)) == nodes


@in_virtual_time
async def test_the_solver_is_there_before_anything_is_decided(cluster: VirtualCluster) -> None:
    """It takes longer to load than most decisions take."""
    loaded: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager, "load_solver", lambda: loaded.append(len(cluster.connection.writes)))
        await start_with_pool(cluster)
    assert loaded == [0]


@in_virtual_time
async def test_pods_that_wait_for_any_pool_to_be_ready_share_one_line(cluster: VirtualCluster) -> None:
    await cluster.node_class(ready="False")
    await cluster.pool()
    await cluster.start()
    await cluster.waiting(*pods(5, {"cpu": "1"}))
    await asyncio.sleep(60)
    (line,) = cluster.lines("could not schedule pod")
    assert line["Pods"].count("default/") == 5
    assert len({event.involved_object.name for event in await cluster.events("FailedScheduling")}) == 5
