"""An operations write-up of releases 0.2x to 0.34: one Provisioner for everything, and the troubles it had (DIS §23.2)."""

from __future__ import annotations

import asyncio

from karpenter.api import kinds
from karpenter.api.apps import DaemonSet, DaemonSetSpec
from karpenter.api.core import Container, PodSpec, PodTemplateSpec, ResourceRequirements
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import ObjectMeta
from karpenter.model import labels
from support.consolidation_cases import scale
from support.report_pools import begin, converted_pool, is_running, nodes_of, pinned, types_named
from support.world import World, story, until

_NAME = "karpenter-default"


def _pool() -> NodePool:
    return converted_pool("a21-provisioner-with-requirements-twice")


async def _running(world: World, replicas: int) -> None:
    world.simulated(types_named("ap-northeast-2", "c5a.large", "m6i.large", "m5.xlarge", "c6g.large", "t2.micro"))
    pool = _pool()
    await begin(world, pool)
    await world.kube.create(kinds.DEPLOYMENT, pinned("web", replicas, _NAME))
    await until(lambda: is_running(world, "web", replicas), 180)


def test_both_lists_of_requirements_and_the_times_count() -> None:
    """API-A21, DIS-476, DIS-477, AWS-865"""
    pool = _pool()
    assert len(pool.spec.template.spec.requirements) == 7
    assert pool.spec.template.spec.expire_after == "720h"
    assert (pool.spec.disruption.consolidation_policy, pool.spec.disruption.consolidate_after) == ("WhenEmpty", "60s")
    assert {name: str(amount) for name, amount in pool.spec.limits.items()} == {"cpu": "1000", "memory": "1000Gi"}


@story
async def test_nodes_carry_the_finalizer_and_belong_to_a_nodeclaim(world: World) -> None:
    """DIS-472, API-A22: as in the report's dumps, but for the kind of the owner."""
    await _running(world, 3)
    (node, *_) = await world.all(kinds.NODE)
    assert labels.TERMINATION_FINALIZER in node.metadata.finalizers
    assert [owner.kind for owner in node.metadata.owner_references] == ["NodeClaim"]


@story
async def test_an_empty_node_stays_for_sixty_seconds(world: World) -> None:
    """DIS-476: counted from the end of its last pod; a node with a pod stays for hours."""
    await _running(world, 3)
    await asyncio.sleep(3600)
    nodes = await nodes_of(world, _NAME)
    assert nodes
    await scale(world, "web", 0)
    await asyncio.sleep(55)
    assert await nodes_of(world, _NAME) == nodes
    await until(lambda: _is_empty(world), 300)


@story
async def test_a_node_is_drained_by_evictions_before_its_instance_ends(world: World) -> None:
    """DIS-474, DIS-475: the report's five steps, in the order of writes and log lines; a finalizer holds the node meanwhile."""
    await _running(world, 3)
    (name, *_) = await nodes_of(world, _NAME)
    await world.kube.delete(kinds.NODE, name)
    await until(lambda: _has_gone(world, name), 300)
    await until(lambda: is_running(world, "web", 3), 300)
    assert await world.events("Evicted")
    stages = [line["message"] for line in world.lines() if line["message"] in ("deleted node", "deleted nodeclaim")]
    assert stages[:2] == ["deleted node", "deleted nodeclaim"]


async def _has_gone(world: World, name: str) -> bool:
    return not await world.has(kinds.NODE, name)


@story
async def test_a_daemonset_that_comes_later_and_does_not_fit_is_said_on_the_nodeclaim(world: World) -> None:
    """DIS-479, AWS-861: the report's log shipper waited on full nodes, and nothing said so."""
    await _running(world, 3)
    (claim, *_) = await world.all(kinds.NODE_CLAIM)
    node = await world.get_node(claim.status.node_name)
    await world.kube.create(kinds.DAEMON_SET, _shipper(str(node.status.allocatable["cpu"])))
    await until(lambda: _lacks_room(world, claim.metadata.name), 900)
    condition = await world.condition(claim.metadata.name, "DaemonSetsFit")
    assert condition is not None
    assert "log-shipper" in condition[2]


def _shipper(cpu: str) -> DaemonSet:
    """One that would need all of a node."""
    container = Container(name="ship", resources=ResourceRequirements(requests={"cpu": cpu}))
    template = PodTemplateSpec(spec=PodSpec(containers=(container,)))
    return DaemonSet(
        metadata=ObjectMeta(name="log-shipper", namespace="default"), spec=DaemonSetSpec(template=template)
    )


async def _lacks_room(world: World, claim: str) -> bool:
    condition = await world.condition(claim, "DaemonSetsFit")
    return condition is not None and condition[0] == "False"


async def _is_empty(world: World) -> bool:
    return not await world.all(kinds.NODE)
