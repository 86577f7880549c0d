"""Instances that take long to join (bare metal, Windows, GPU drivers): a drift command waits for them and wastes none."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from karpenter.api import kinds
from karpenter.api.apps import Deployment, ReplicatedSpec
from karpenter.api.core import PodSpec, PodTemplateSpec
from karpenter.api.karpenter import Budget, Disruption
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.model import conditions
from support.builders import container
from support.world import World, startup, story, until

PODS = 6
GOLD = {"spec": {"template": {"metadata": {"labels": {"tier": "gold"}}}}}
DRIVERS = startup("drivers")
ONE_BY_ONE = Disruption(consolidate_after="30s", budgets=(Budget(nodes="1"),))


async def workload(world: World, replicas: int) -> None:
    """A Deployment of large pods, two on a node."""
    spec = PodSpec(containers=(container({"cpu": "3", "memory": "512Mi"}),))
    template = PodTemplateSpec(metadata=ObjectMeta(labels={"app": "web"}), spec=spec)
    await world.kube.create(
        kinds.DEPLOYMENT,
        Deployment(
            metadata=ObjectMeta(name="web", namespace="default"),
            spec=ReplicatedSpec(
                replicas=replicas, selector=LabelSelector(match_labels={"app": "web"}), template=template
            ),
        ),
    )


async def all_running(world: World, count: int = PODS) -> bool:
    return sum(pod.status.phase == "Running" for pod in await world.all(kinds.POD)) == count


async def start(world: World, delay: str) -> int:
    """Pods run on nodes of a slow pool that drifts as of now; the number of its nodes."""
    world.simulated()
    world.scheduled()
    await world.node_class(node_registration_delay=delay)
    await world.pool(disruption=ONE_BY_ONE)
    await workload(world, PODS)
    await world.start()
    await until(lambda: all_running(world), 3600, 5)
    await asyncio.sleep(60)
    await world.kube.patch(kinds.NODE_POOL, "np", GOLD)
    return len(await world.all(kinds.NODE_CLAIM))


async def is_renewed(world: World) -> bool:
    """Whether every node is of the new template and nothing is on its way."""
    claims = await world.all(kinds.NODE_CLAIM)
    return all(
        claim.metadata.labels.get("tier") == "gold"
        and claim.metadata.deletion_timestamp is None
        and conditions.is_true(claim.status.conditions, "Initialized")
        for claim in claims
    )


def launches(world: World) -> int:
    return sum(write.verb == "create" and write.kind == "NodeClaim" for write in world.wire.writes)


@pytest.mark.parametrize("delay", ["11m", "14m"])
@story
async def test_nodes_that_join_after_more_than_ten_minutes_are_replaced_without_waste(world: World, delay: str) -> None:
    """DIS-030 Beyond: a command waits as long as a replacement may take to register, so each drifted node costs one launch."""
    nodes = await start(world, delay)
    await until(lambda: is_renewed(world), 6 * 3600, 30)
    assert launches(world) == 2 * nodes
    assert await all_running(world)
    assert errors(world) == []


@story
async def test_a_command_waits_as_long_as_the_nodes_of_its_pool_usually_take(world: World) -> None:
    """DIS-030 Beyond: nodes of the pool became ready after half an hour, so the next one gets that time, too."""
    await start_one_node(world, minutes=30)
    await until(lambda: is_renewed(world), 3600, 10)
    assert launches(world) == 2
    assert errors(world) == []


@story
async def test_a_replacement_that_outlasts_its_command_is_kept_and_used(world: World) -> None:
    """DIS-314 Beyond: the pool's nodes were fast and the new one is slow; it is kept and takes the pods when it is ready."""
    agent = await start_one_node(world, minutes=1)
    agent.minutes = 35
    await until(lambda: is_renewed(world), 3600, 10)
    assert launches(world) == 2
    assert errors(world) == ["command reached its timeout"]


@story
async def test_a_replacement_that_never_becomes_ready_is_given_back_after_an_hour(world: World) -> None:
    """DIS-314 Beyond: a kept replacement that nobody uses costs no longer than the longest command."""
    agent = await start_one_node(world, minutes=1)
    agent.minutes = 10_000
    await asyncio.sleep(50 * 60)
    assert len(await world.all(kinds.NODE_CLAIM)) == 2
    before = {claim.metadata.name for claim in await world.all(kinds.NODE_CLAIM)}
    await asyncio.sleep(20 * 60)
    assert len(before & {claim.metadata.name for claim in await world.all(kinds.NODE_CLAIM)}) == 1
    assert await all_running(world, 1)


class Agent:
    """Removes the startup taint of each node when it is ``minutes`` old, as an installer of drivers does."""

    def __init__(self, world: World, minutes: int) -> None:
        self.world, self.minutes = world, minutes

    async def run(self) -> None:
        while True:
            await asyncio.sleep(5)
            for node in await self.world.all(kinds.NODE):
                age = self.world.clock.now() - node.metadata.creation_timestamp
                kept = [taint for taint in node.spec.taints if taint.key != DRIVERS.key]
                if len(kept) < len(node.spec.taints) and age >= timedelta(minutes=self.minutes):
                    await self.world.set_taints(node.metadata.name, kept)


async def start_one_node(world: World, minutes: int) -> Agent:
    """A pod runs on a node that was ready after so many minutes and drifts as of now."""
    world.simulated()
    world.scheduled()
    agent = Agent(world, minutes)
    world.also(agent.run())
    await world.node_class()
    await world.pool(disruption=ONE_BY_ONE, template={"startup_taints": (DRIVERS,)})
    await workload(world, 1)
    await world.start()
    await until(lambda: all_running(world, 1), 3600, 5)
    await asyncio.sleep(60)
    await world.kube.patch(kinds.NODE_POOL, "np", GOLD)
    return agent


def errors(world: World) -> list[str]:
    """Why commands failed."""
    return [line["error"] for line in world.lines("failed terminating nodes while executing a disruption command")]
