"""An operations write-up of releases 0.2x to 0.34: one Provisioner for all workloads, and its problems (DIS §23.2)."""

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
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

_NAME = "karpenter-default"


def _pool() -> NodePool:
    return converted_pool("a21-provisioner-with-requirements-twice")


async def _running(cluster: VirtualCluster, replicas: int) -> None:
    cluster.simulated(types_named("ap-northeast-2", "c5a.large", "m6i.large", "m5.xlarge", "c6g.large", "t2.micro"))
    pool = _pool()
    await begin(cluster, pool)
    await cluster.kube.create(kinds.DEPLOYMENT, pinned("web", replicas, _NAME))
    await until(lambda: is_running(cluster, "web", replicas), 180)


def test_requirements_and_times_of_the_provisioner_are_converted() -> None:
    """API-A21, DIS-476, DIS-477, AWS-865"""
    pool = _pool()
    assert len(pool.spec.template.spec.requirements) == 7
    assert pool.spec.template.spec.expire_after == "720h"
    assert (pool.spec.disruption.consolidation_policy, pool.spec.disruption.consolidate_after) == ("WhenEmpty", "60s")
    assert {name: str(amount) for name, amount in pool.spec.limits.items()} == {"cpu": "1000", "memory": "1000Gi"}


@in_virtual_time
async def test_nodes_carry_the_finalizer_and_belong_to_a_nodeclaim(cluster: VirtualCluster) -> None:
    """DIS-472, API-A22: as in the report's output, except for the kind of the owner."""
    await _running(cluster, 3)
    (node, *_) = await cluster.all(kinds.NODE)
    assert labels.TERMINATION_FINALIZER in node.metadata.finalizers
    assert [owner.kind for owner in node.metadata.owner_references] == ["NodeClaim"]


@in_virtual_time
async def test_an_empty_node_stays_for_sixty_seconds(cluster: VirtualCluster) -> None:
    """DIS-476: from the end of its last pod; a node with a pod stays for hours."""
    await _running(cluster, 3)
    await asyncio.sleep(3600)
    nodes = await nodes_of(cluster, _NAME)
    assert nodes
    await scale(cluster, "web", 0)
    await asyncio.sleep(55)
    assert await nodes_of(cluster, _NAME) == nodes
    await until(lambda: _is_empty(cluster), 300)


@in_virtual_time
async def test_a_node_is_drained_by_evictions_before_its_instance_ends(cluster: VirtualCluster) -> None:
    """DIS-474, DIS-475: the report's five steps, in the order of writes and log lines; a finalizer keeps the node meanwhile."""
    await _running(cluster, 3)
    (name, *_) = await nodes_of(cluster, _NAME)
    await cluster.kube.delete(kinds.NODE, name)
    await until(lambda: _has_gone(cluster, name), 300)
    await until(lambda: is_running(cluster, "web", 3), 300)
    assert await cluster.events("Evicted")
    stages = [line["message"] for line in cluster.lines() if line["message"] in ("deleted node", "deleted nodeclaim")]
    assert stages[:2] == ["deleted node", "deleted nodeclaim"]


async def _has_gone(cluster: VirtualCluster, name: str) -> bool:
    return not await cluster.has(kinds.NODE, name)


@in_virtual_time
async def test_a_later_daemonset_that_does_not_fit_is_reported_on_the_nodeclaim(cluster: VirtualCluster) -> None:
    """DIS-479, AWS-861: the report's log shipper waited on full nodes without any message."""
    await _running(cluster, 3)
    (claim, *_) = await cluster.all(kinds.NODE_CLAIM)
    node = await cluster.get_node(claim.status.node_name)
    await cluster.kube.create(kinds.DAEMON_SET, _shipper(str(node.status.allocatable["cpu"])))
    await until(lambda: _has_insufficient_resources(cluster, claim.metadata.name), 900)
    condition = await cluster.condition(claim.metadata.name, "DaemonSetsFit")
    assert condition is not None
    assert "log-shipper" in condition[2]


def _shipper(cpu: str) -> DaemonSet:
    """A DaemonSet whose pods need a whole node."""
    container = Container(name="ship", resources=ResourceRequirements(requests={"cpu": cpu}))
    template = PodTemplateSpec(spec=PodSpec(containers=(container,)))
    return DaemonSet(
        metadata=ObjectMeta(name="log-shipper", namespace="default"), spec=DaemonSetSpec(template=template)
    )


async def _has_insufficient_resources(cluster: VirtualCluster, claim: str) -> bool:
    condition = await cluster.condition(claim, "DaemonSetsFit")
    return condition is not None and condition[0] == "False"


async def _is_empty(cluster: VirtualCluster) -> bool:
    return not await cluster.all(kinds.NODE)
