"""Instances that take long to join (bare metal, Windows, GPU drivers): a drift command waits for them and wastes none."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from karpenter.api import kinds
from karpenter.settings import Settings
from support.drift_cases import ONE_BY_ONE, all_running, drift, errors, is_renewed, launches, start_pool, workload
from support.examples import series
from support.virtual_cluster import VirtualCluster, in_virtual_time, startup, until

DRIVERS = startup("drivers")


@pytest.mark.parametrize("delay", series(["11m", "14m"], "11m"))
@in_virtual_time
async def test_nodes_that_join_after_more_than_ten_minutes_are_replaced_without_waste(
    cluster: VirtualCluster, delay: str
) -> None:
    """DIS-030 Beyond: a command waits as long as a replacement may take to register, so each drifted node costs one launch."""
    nodes = await start_pool(cluster, delay)
    await drift(cluster)
    await until(lambda: is_renewed(cluster), 6 * 3600, 30)
    assert launches(cluster) == 2 * nodes
    assert await all_running(cluster)
    assert errors(cluster) == []


@pytest.mark.parametrize(("waits", "failed"), [(True, []), (False, ["command reached its timeout"])])
@in_virtual_time
async def test_a_command_ends_after_ten_minutes_where_slow_replacements_are_not_waited_for(
    cluster: VirtualCluster, waits: bool, failed: list[str]
) -> None:
    """DIS-030: Karpenter's time, which the profile `karpenter` takes; its suite expects the taint to be gone by then."""
    await start_pool(cluster, "11m", Settings(wait_for_slow_replacements=waits), pods=1)
    await drift(cluster)
    await asyncio.sleep(10 * 60 + 55)
    assert errors(cluster) == failed


@in_virtual_time
async def test_a_command_waits_as_long_as_the_nodes_of_its_pool_usually_take(cluster: VirtualCluster) -> None:
    """DIS-030 Beyond: nodes of the pool became ready after half an hour, so the next one gets that time, too."""
    await start_one_node(cluster, minutes=30)
    await until(lambda: is_renewed(cluster), 3600, 10)
    assert launches(cluster) == 2
    assert errors(cluster) == []


@in_virtual_time
async def test_a_replacement_that_outlasts_its_command_is_kept_and_used(cluster: VirtualCluster) -> None:
    """DIS-314 Beyond: the pool's nodes were fast and the new one is slow; it is kept and takes the pods when it is ready."""
    agent = await start_one_node(cluster, minutes=1)
    agent.minutes = 35
    await until(lambda: is_renewed(cluster), 3600, 10)
    assert launches(cluster) == 2
    assert errors(cluster) == ["command reached its timeout"]


@in_virtual_time
async def test_a_replacement_that_never_becomes_ready_is_deleted_after_an_hour(cluster: VirtualCluster) -> None:
    """DIS-314 Beyond: a kept replacement without pods costs money no longer than the longest command lasts."""
    agent = await start_one_node(cluster, minutes=1)
    agent.minutes = 10_000
    await asyncio.sleep(50 * 60)
    assert len(await cluster.all(kinds.NODE_CLAIM)) == 2
    before = {claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM)}
    await asyncio.sleep(20 * 60)
    assert len(before & {claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM)}) == 1
    assert await all_running(cluster, 1)


class Agent:
    """Removes the startup taint of each node when it is ``minutes`` old, as an installer of drivers does."""

    def __init__(self, cluster: VirtualCluster, minutes: int) -> None:
        self.cluster, self.minutes = cluster, minutes

    async def run(self) -> None:
        while True:
            await asyncio.sleep(5)
            for node in await self.cluster.all(kinds.NODE):
                age = self.cluster.clock.now() - node.metadata.creation_timestamp
                kept = [taint for taint in node.spec.taints if taint.key != DRIVERS.key]
                if len(kept) < len(node.spec.taints) and age >= timedelta(minutes=self.minutes):
                    await self.cluster.set_taints(node.metadata.name, kept)


async def start_one_node(cluster: VirtualCluster, minutes: int) -> Agent:
    """A pod runs on a node that was ready after so many minutes and drifts as of now."""
    cluster.simulated()
    cluster.scheduled()
    agent = Agent(cluster, minutes)
    cluster.also(agent.run())
    await cluster.node_class()
    await cluster.pool(disruption=ONE_BY_ONE, template={"startup_taints": (DRIVERS,)})
    await workload(cluster, 1)
    await cluster.start()
    await until(lambda: all_running(cluster, 1), 3600, 5)
    await asyncio.sleep(60)
    await drift(cluster)
    return agent
