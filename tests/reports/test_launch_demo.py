"""The demo of the launch announcement (v0.5): a Deployment scales from zero and back, and nodes follow."""

from __future__ import annotations

import asyncio

from karpenter.api import kinds
from karpenter.model import labels
from support.consolidation_cases import scale
from support.report_pools import begin, converted_pool, is_running, nodes_of, pinned, types_named
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

_TYPES = ("m5.large", "m5.2xlarge")


async def _grown(cluster: VirtualCluster, replicas: int) -> None:
    """The Provisioner of the announcement, and its Deployment with replicas."""
    cluster.simulated(types_named("us-east-1", *_TYPES, "m5.xlarge", "t3.micro"))
    await begin(cluster, converted_pool("a30-provisioner-with-inline-provider"))
    await cluster.kube.create(kinds.DEPLOYMENT, pinned("inflate", 0, "default"))
    await asyncio.sleep(30)
    assert not await nodes_of(cluster, "default")
    await scale(cluster, "inflate", replicas)
    await until(lambda: is_running(cluster, "inflate", replicas), 180)


@in_virtual_time
async def test_pods_get_nodes_of_the_types_and_zones_of_the_provisioner(cluster: VirtualCluster) -> None:
    """API-A30: two types, two zones, and spot because it is cheaper."""
    await _grown(cluster, 5)
    nodes = [node.metadata.labels for node in await cluster.all(kinds.NODE)]
    assert nodes
    assert {node[labels.INSTANCE_TYPE] for node in nodes} <= set(_TYPES)
    assert {node[labels.ZONE] for node in nodes} <= {"us-east-1a", "us-east-1b"}
    assert {node[labels.CAPACITY_TYPE] for node in nodes} == {"spot"}


@in_virtual_time
async def test_empty_nodes_are_removed_after_thirty_seconds(cluster: VirtualCluster) -> None:
    """DIS-484, DIS-440: with the current log lines instead of those in the announcement."""
    await _grown(cluster, 5)
    await scale(cluster, "inflate", 0)
    await asyncio.sleep(25)
    assert await nodes_of(cluster, "default")
    await until(lambda: _is_empty(cluster), 300)
    said = {str(line["message"]) for line in cluster.lines()}
    assert {"disrupting node(s)", "tainted node", "deleted node", "deleted nodeclaim"} <= said


async def _is_empty(cluster: VirtualCluster) -> bool:
    return not await cluster.all(kinds.NODE) and not await cluster.all(kinds.NODE_CLAIM)
