"""A pod that comes while another of its size is being deleted takes its place, and no node is launched for it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from karpenter.api import kinds
from karpenter.api.core import Pod
from karpenter.api.karpenter import Disruption
from karpenter.settings import Settings
from support.consolidation_cases import deployment
from support.virtual_cluster import VirtualCluster, in_virtual_time


async def pods_of(cluster: VirtualCluster) -> list[Pod]:
    return list((await cluster.kube.list(kinds.POD)).items)


async def restarted(cluster: VirtualCluster, window: timedelta, grace_seconds: int, times: int = 1) -> int:
    """How many NodeClaims there are after the only pod of a node was deleted, and its kubelet took some time to end it."""
    await cluster.node_class()
    await cluster.pool(disruption=Disruption(consolidate_after="Never"))
    cluster.simulated()
    cluster.scheduled()
    await cluster.start(Settings(terminating_pods_window=window))
    await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 1, cpu="1500m"))
    await asyncio.sleep(120)
    for _ in range(times):
        (running,) = await pods_of(cluster)
        await cluster.kube.delete(kinds.POD, running.metadata.name, "default", grace_period_seconds=grace_seconds)
        await asyncio.sleep(90)
        assert [pod.spec.node_name for pod in await pods_of(cluster)] != [""]
    return len((await cluster.kube.list(kinds.NODE_CLAIM)).items)


@pytest.mark.parametrize(("window", "claims"), [(30, 1), (0, 2)], ids=["default", "as Karpenter"])
@in_virtual_time
async def test_a_pod_that_replaces_one_that_is_being_deleted_gets_no_node_of_its_own(
    cluster: VirtualCluster, window: int, claims: int
) -> None:
    """SCH-089 Beyond: kube-scheduler finds no place for it until the other one has ended."""
    assert await restarted(cluster, timedelta(seconds=window), 20) == claims


@in_virtual_time
async def test_pods_that_found_their_room_long_ago_launch_no_node_for_those_of_the_next_roll_out(
    cluster: VirtualCluster,
) -> None:
    """No decision follows after the last pod was bound, so none reports that it no longer waits."""
    assert await restarted(cluster, timedelta(seconds=30), 20, times=2) == 1


@in_virtual_time
async def test_the_event_of_a_pod_that_awaits_the_end_of_another_says_so(cluster: VirtualCluster) -> None:
    """SCH-684, SCH-089 Beyond: the first pod got a new node and waits for no other pod."""
    await restarted(cluster, timedelta(seconds=30), 20)
    first, second = (event.message for event in await cluster.events("Nominated"))
    assert first.startswith("Pod should schedule on: nodeclaim/")
    assert second.startswith(f"{first}, node/")
    assert second.endswith(" once pods that are being deleted there have ended")
