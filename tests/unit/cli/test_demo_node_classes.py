"""What the demo's cluster says about EC2NodeClasses of visitors."""

from __future__ import annotations

import asyncio
import json

import msgspec

from karpenter.api.kinds import EC2_NODE_CLASS, NODE_POOL
from karpenter.cli.demo_node_classes import MESSAGE, REASON, report_ec2_classes
from support.aws.aws_cluster import node_pool
from support.aws.provider_process import node_class
from support.virtual_cluster import VirtualCluster, in_virtual_time


@in_virtual_time
async def test_an_ec2_class_is_not_ready_and_says_why(cluster: VirtualCluster) -> None:
    """`kubectl get ec2nodeclasses` shows False under READY: nobody waits for instances that nobody launches."""
    cluster.also(report_ec2_classes(cluster.kube, cluster.clock))
    await cluster.kube.create(EC2_NODE_CLASS, node_class())
    await asyncio.sleep(1)
    (ready,) = (await cluster.kube.get(EC2_NODE_CLASS, "default")).status.conditions
    assert (ready.type, ready.status, ready.reason, ready.message) == ("Ready", "False", REASON, MESSAGE)
    version = (await cluster.kube.get(EC2_NODE_CLASS, "default")).metadata.resource_version
    await asyncio.sleep(60)
    assert (await cluster.kube.get(EC2_NODE_CLASS, "default")).metadata.resource_version == version


@in_virtual_time
async def test_a_node_pool_of_an_ec2_class_is_not_ready_for_the_same_reason(cluster: VirtualCluster) -> None:
    """Issue 16: READY of `kubectl get nodepools` is False, as a controller says it of a class that is not ready."""
    cluster.also(report_ec2_classes(cluster.kube, cluster.clock))
    await cluster.kube.create(NODE_POOL, node_pool("spot", ("spot",)))
    await asyncio.sleep(1)
    conditions = {one.type: one for one in (await cluster.kube.get(NODE_POOL, "spot")).status.conditions}
    assert conditions["Ready"].status == "False"
    class_ready = conditions["NodeClassReady"]
    assert (class_ready.status, class_ready.reason, class_ready.message) == ("False", REASON, MESSAGE)


@in_virtual_time
async def test_a_node_pool_that_changes_to_an_ec2_class_is_no_longer_ready(cluster: VirtualCluster) -> None:
    """Issue 16: what the controller wrote while the pool had a simulated class is replaced, not taken for an answer."""
    cluster.also(report_ec2_classes(cluster.kube, cluster.clock))
    kinds = ("ValidationSucceeded", "NodeClassReady", "Ready")
    ready = [{"type": kind, "status": "True", "reason": kind} for kind in kinds]
    await cluster.kube.create(NODE_POOL, {**node_pool("spot", ("spot",)), "status": {"conditions": ready}})
    await asyncio.sleep(1)
    conditions = {one.type: one for one in (await cluster.kube.get(NODE_POOL, "spot")).status.conditions}
    assert (conditions["Ready"].status, conditions["NodeClassReady"].reason) == ("False", REASON)
    version = (await cluster.kube.get(NODE_POOL, "spot")).metadata.resource_version
    await asyncio.sleep(60)
    assert (await cluster.kube.get(NODE_POOL, "spot")).metadata.resource_version == version


@in_virtual_time
async def test_an_ec2_class_that_brings_its_status_of_another_cluster_is_not_ready(cluster: VirtualCluster) -> None:
    cluster.also(report_ec2_classes(cluster.kube, cluster.clock))
    brought_condition = {"type": "Ready", "status": "True", "reason": "Ready"}
    brought = {**json.loads(msgspec.json.encode(node_class())), "status": {"conditions": [brought_condition]}}
    await cluster.kube.create(EC2_NODE_CLASS, brought)
    await asyncio.sleep(1)
    (ready,) = (await cluster.kube.get(EC2_NODE_CLASS, "default")).status.conditions
    assert (ready.status, ready.reason) == ("False", REASON)
