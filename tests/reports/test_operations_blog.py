"""An operations write-up of releases 0.2x to 0.34: one Provisioner for everything, and the troubles it had (DIS §23.2)."""

from __future__ import annotations

import asyncio

from karpenter.api import kinds
from karpenter.api.karpenter import NodePool
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


async def _is_empty(world: World) -> bool:
    return not await world.all(kinds.NODE)
