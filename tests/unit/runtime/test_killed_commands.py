"""The process vanishes while nodes are being replaced: the next one leaves none half closed, none orphaned, no pod without a
place.

The controller is cut off right after one of its writes, before it hears the answer. The new process knows nothing of the command.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from karpenter.api import kinds
from karpenter.api.apps import Deployment, ReplicatedSpec
from karpenter.api.core import PodSpec, PodTemplateSpec
from karpenter.api.karpenter import Budget, Disruption
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.model import conditions, labels, pods
from support.builders import container
from support.commands import carry_out, command
from support.examples import series
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

REPLICAS = 12
FEW = (1, 2, 3, 4, 6, 9, 14, 20)


async def begin(cluster: VirtualCluster) -> None:
    """Twelve running pods on a few nodes."""
    cluster.simulated()
    cluster.scheduled()
    await cluster.node_class(node_registration_delay="2s")
    await cluster.pool(disruption=Disruption(consolidate_after="20s", budgets=(Budget(nodes="100%"),)))
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": "web"}),
        spec=PodSpec(containers=(container({"cpu": "1500m", "memory": "512Mi"}),)),
    )
    spec = ReplicatedSpec(replicas=REPLICAS, selector=LabelSelector(match_labels={"app": "web"}), template=template)
    await cluster.kube.create(
        kinds.DEPLOYMENT, Deployment(metadata=ObjectMeta(name="web", namespace="default"), spec=spec)
    )
    await cluster.start()
    await until(lambda: all_running(cluster), 180)
    await asyncio.sleep(30)


async def all_running(cluster: VirtualCluster, count: int = REPLICAS) -> bool:
    result = [obj for obj in await cluster.all(kinds.POD) if obj.metadata.deletion_timestamp is None]
    return len(result) == count and all(element.status.phase == "Running" for element in result)


async def is_at_rest(cluster: VirtualCluster, count: int = REPLICAS) -> bool:
    """Everything runs; claims, Nodes and instances are one to one, each with pods, and none is marked or leaving."""
    claims, nodes = await cluster.all(kinds.NODE_CLAIM), await cluster.all(kinds.NODE)
    used = {obj.spec.node_name for obj in await cluster.all(kinds.POD) if pods.is_reschedulable(obj)}
    return (
        await all_running(cluster, count)
        and len(claims) == len(nodes) == len(await cluster.all(kinds.CONFIG_MAP))
        and {node.metadata.name for node in nodes} == used
        and not any(labels.DISRUPTED_TAINT in node.spec.taints for node in nodes)
        and not any(conditions.find_condition(claim.status.conditions, "DisruptionReason") for claim in claims)
        and not any(obj.metadata.deletion_timestamp for obj in (*claims, *nodes))
    )


async def crash(cluster: VirtualCluster, count: int) -> None:
    crashed = cluster.crash_after(count)
    with suppress(TimeoutError):
        await asyncio.wait_for(crashed.wait(), 60)
    await cluster.crash()
    await asyncio.sleep(3)
    await cluster.start()


async def replace_and_crash(cluster: VirtualCluster, count: int, *more: int) -> None:
    """Half of the nodes are to be replaced by two, and the process goes after so many writes."""
    await begin(cluster)
    before = [obj.metadata.name for obj in await cluster.all(kinds.NODE_CLAIM)]
    going = before[: max(1, len(before) // 2)]
    replacement = command(cluster, *going, launched=("r0", "r1"))
    beginning = asyncio.create_task(carry_out(cluster, replacement))
    await crash(cluster, count)
    beginning.cancel()
    for further in more:
        await crash(cluster, further)
    await until(lambda: is_at_rest(cluster), 900, 5)
    await asyncio.sleep(120)
    assert await is_at_rest(cluster)


@pytest.mark.parametrize("count", FEW)
@in_virtual_time
async def test_a_crash_after_any_write_leaves_nothing_half_done(cluster: VirtualCluster, count: int) -> None:
    """DIS-054, DIS-300 to DIS-315"""
    await replace_and_crash(cluster, count)


@pytest.mark.soak
@pytest.mark.parametrize("count", range(1, 61))
@in_virtual_time
async def test_a_crash_after_each_of_sixty_writes_leaves_nothing_half_done(cluster: VirtualCluster, count: int) -> None:
    await replace_and_crash(cluster, count)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
@in_virtual_time
async def test_crash_upon_crash_leaves_nothing_half_done(cluster: VirtualCluster, seed: int) -> None:
    numbers = random.Random(seed)
    await replace_and_crash(cluster, *(numbers.randint(1, 25) for _ in range(4)))


async def consolidate_and_crash(cluster: VirtualCluster, *counts: int) -> None:
    """Two thirds of the pods go, the process after so many writes, while what is left moves together."""
    await begin(cluster)
    await asyncio.sleep(300)
    for number in range(4):
        obj = (await cluster.all(kinds.POD))[number]
        await cluster.kube.delete(kinds.POD, obj.metadata.name, "default", grace_period_seconds=0)
    await cluster.kube.patch(kinds.DEPLOYMENT, "web", {"spec": {"replicas": 4}}, "default")
    await until(lambda: all_running(cluster, 4), 60)
    for count in counts:
        await crash(cluster, count)
    await until(lambda: is_at_rest(cluster, 4), 1200, 5)
    await asyncio.sleep(600)
    assert await is_at_rest(cluster, 4)
    assert len(await cluster.all(kinds.NODE)) <= 2


@pytest.mark.parametrize("count", series([1, 3, 5, 8, 13, 21], 3, 13))
@in_virtual_time
async def test_a_crash_while_the_controller_consolidates_leaves_nothing_half_done(
    cluster: VirtualCluster, count: int
) -> None:
    """The decisions are the controller's own, before and after."""
    await consolidate_and_crash(cluster, count)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(60))
@in_virtual_time
async def test_crashes_while_the_controller_consolidates_leave_nothing_half_done(
    cluster: VirtualCluster, seed: int
) -> None:
    numbers = random.Random(seed)
    await consolidate_and_crash(cluster, *(numbers.randint(1, 40) for _ in range(numbers.randint(1, 4))))
