"""Builders and steps for tests of consolidation: workloads on simulated nodes of a pool that consolidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from karpenter.api import kinds
from karpenter.api.apps import Deployment, ReplicatedSpec
from karpenter.api.core import PodSpec, PodTemplateSpec
from karpenter.api.karpenter import Budget, Disruption
from karpenter.api.meta import LabelSelector, ObjectMeta
from support.builders import container
from support.virtual_cluster import VirtualCluster, until

OPEN = (Budget(nodes="100%"),)


def deployment(name: str, replicas: int, cpu: str = "900m") -> Deployment:
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": name}),
        spec=PodSpec(containers=(container({"cpu": cpu, "memory": "256Mi"}),)),
    )
    selector = LabelSelector(match_labels={"app": name})
    spec = ReplicatedSpec(replicas=replicas, selector=selector, template=template)
    return Deployment(metadata=ObjectMeta(name=name, namespace="default"), spec=spec)


async def scale(cluster: VirtualCluster, name: str, replicas: int) -> None:
    await cluster.kube.patch(kinds.DEPLOYMENT, name, {"spec": {"replicas": replicas}}, "default")


async def begin(
    cluster: VirtualCluster,
    *workloads: Deployment,
    budgets: Sequence[Budget] = OPEN,
    policy: str = "WhenEmptyOrUnderutilized",
    **pool: Any,
) -> None:
    """Simulated nodes, a pool that consolidates, and workloads that run."""
    cluster.simulated()
    cluster.scheduled()
    await cluster.node_class(node_registration_delay="2s")
    disruption = Disruption(consolidate_after="10s", consolidation_policy=policy, budgets=tuple(budgets))
    await cluster.pool(disruption=disruption, **pool)
    for workload in workloads:
        await cluster.kube.create(kinds.DEPLOYMENT, workload)
    await cluster.start()
    await until(lambda: runs(cluster, sum(workload.spec.replicas or 0 for workload in workloads)), 180)


async def runs(cluster: VirtualCluster, count: int) -> bool:
    result = [obj for obj in await cluster.all(kinds.POD) if obj.metadata.deletion_timestamp is None]
    return len(result) == count and all(element.status.phase == "Running" for element in result)
