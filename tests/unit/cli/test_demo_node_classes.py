"""What the demo's cluster says about EC2NodeClasses of visitors."""

from __future__ import annotations

import asyncio
import json

import msgspec

from karpenter.api.kinds import EC2_NODE_CLASS, NODE_POOL
from karpenter.cli.demo_node_classes import MESSAGE, REASON, report_ec2_classes
from support.aws.process import node_class
from support.aws.stage import node_pool
from support.world import World, story


@story
async def test_an_ec2_class_is_not_ready_and_says_why(world: World) -> None:
    """`kubectl get ec2nodeclasses` shows False under READY: nobody waits for instances that nobody launches."""
    world.also(report_ec2_classes(world.kube, world.clock))
    await world.kube.create(EC2_NODE_CLASS, node_class())
    await asyncio.sleep(1)
    (ready,) = (await world.kube.get(EC2_NODE_CLASS, "default")).status.conditions
    assert (ready.type, ready.status, ready.reason, ready.message) == ("Ready", "False", REASON, MESSAGE)
    version = (await world.kube.get(EC2_NODE_CLASS, "default")).metadata.resource_version
    await asyncio.sleep(60)
    assert (await world.kube.get(EC2_NODE_CLASS, "default")).metadata.resource_version == version


@story
async def test_a_node_pool_of_an_ec2_class_is_not_ready_for_the_same_reason(world: World) -> None:
    """Issue 16: READY of `kubectl get nodepools` is False, as a controller says it of a class that is not ready."""
    world.also(report_ec2_classes(world.kube, world.clock))
    await world.kube.create(NODE_POOL, node_pool("spot", ("spot",)))
    await asyncio.sleep(1)
    conditions = {one.type: one for one in (await world.kube.get(NODE_POOL, "spot")).status.conditions}
    assert conditions["Ready"].status == "False"
    class_ready = conditions["NodeClassReady"]
    assert (class_ready.status, class_ready.reason, class_ready.message) == ("False", REASON, MESSAGE)


@story
async def test_a_node_pool_that_changes_to_an_ec2_class_is_no_longer_ready(world: World) -> None:
    """Issue 16: what the controller wrote while the pool had a simulated class is replaced, not taken for an answer."""
    world.also(report_ec2_classes(world.kube, world.clock))
    kinds = ("ValidationSucceeded", "NodeClassReady", "Ready")
    ready = [{"type": kind, "status": "True", "reason": kind} for kind in kinds]
    await world.kube.create(NODE_POOL, {**node_pool("spot", ("spot",)), "status": {"conditions": ready}})
    await asyncio.sleep(1)
    conditions = {one.type: one for one in (await world.kube.get(NODE_POOL, "spot")).status.conditions}
    assert (conditions["Ready"].status, conditions["NodeClassReady"].reason) == ("False", REASON)
    version = (await world.kube.get(NODE_POOL, "spot")).metadata.resource_version
    await asyncio.sleep(60)
    assert (await world.kube.get(NODE_POOL, "spot")).metadata.resource_version == version


@story
async def test_an_ec2_class_that_brings_its_status_of_another_cluster_is_not_ready(world: World) -> None:
    world.also(report_ec2_classes(world.kube, world.clock))
    ready = {"type": "Ready", "status": "True", "reason": "Ready"}
    brought = {**json.loads(msgspec.json.encode(node_class())), "status": {"conditions": [ready]}}
    await world.kube.create(EC2_NODE_CLASS, brought)
    await asyncio.sleep(1)
    (ready,) = (await world.kube.get(EC2_NODE_CLASS, "default")).status.conditions
    assert (ready.status, ready.reason) == ("False", REASON)
