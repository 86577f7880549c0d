"""A NodePool with running pods that drifts, in virtual time, for tests of drift."""

from __future__ import annotations

import asyncio
from typing import Any

from karpenter.api import kinds
from karpenter.api.apps import Deployment, ReplicatedSpec
from karpenter.api.core import PodSpec, PodTemplateSpec
from karpenter.api.karpenter import Budget, Disruption
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.model import conditions
from karpenter.settings import Settings
from support.builders import container
from support.virtual_cluster import VirtualCluster, until

PODS = 6
GOLD = {"spec": {"template": {"metadata": {"labels": {"tier": "gold"}}}}}
ONE_BY_ONE = Disruption(consolidate_after="30s", budgets=(Budget(nodes="1"),))


async def workload(cluster: VirtualCluster, replicas: int) -> None:
    """A Deployment of large pods, two on a node."""
    spec = PodSpec(containers=(container({"cpu": "3", "memory": "512Mi"}),))
    template = PodTemplateSpec(metadata=ObjectMeta(labels={"app": "web"}), spec=spec)
    await cluster.kube.create(
        kinds.DEPLOYMENT,
        Deployment(
            metadata=ObjectMeta(name="web", namespace="default"),
            spec=ReplicatedSpec(
                replicas=replicas, selector=LabelSelector(match_labels={"app": "web"}), template=template
            ),
        ),
    )


async def all_running(cluster: VirtualCluster, count: int = PODS) -> bool:
    return sum(pod.status.phase == "Running" for pod in await cluster.all(kinds.POD)) == count


async def start_pool(
    cluster: VirtualCluster, delay: str = "5s", settings: Settings | None = None, pods: int = PODS, **pool: Any
) -> int:
    """Start a NodePool with running pods, whose nodes join after a delay; return the number of nodes."""
    cluster.simulated()
    cluster.scheduled()
    await cluster.node_class(node_registration_delay=delay)
    await cluster.pool(**{"disruption": ONE_BY_ONE, **pool})
    await workload(cluster, pods)
    await cluster.start(settings)
    await until(lambda: all_running(cluster, pods), 3600, 5)
    await asyncio.sleep(60)
    return len(await cluster.all(kinds.NODE_CLAIM))


async def is_renewed(cluster: VirtualCluster) -> bool:
    """Whether every node has the new template and no launch or deletion is in progress."""
    claims = await cluster.all(kinds.NODE_CLAIM)
    return all(
        claim.metadata.labels.get("tier") == "gold"
        and claim.metadata.deletion_timestamp is None
        and conditions.is_true(claim.status.conditions, "Initialized")
        for claim in claims
    )


def launches(cluster: VirtualCluster) -> int:
    return sum(write.verb == "create" and write.kind == "NodeClaim" for write in cluster.connection.writes)


async def drift(cluster: VirtualCluster) -> None:
    """Change the template of the NodePool, so that its nodes drift."""
    await cluster.kube.patch(kinds.NODE_POOL, "np", GOLD)


def errors(cluster: VirtualCluster) -> list[str]:
    """Errors of failed commands."""
    return [line["error"] for line in cluster.lines("failed terminating nodes while executing a disruption command")]


async def watch_pods(cluster: VirtualCluster, fewest_ready: list[int], most_claims: list[int]) -> None:
    """Record the smallest number of ready pods and the largest number of NodeClaims in the only entry of each list."""
    while True:
        await asyncio.sleep(1)
        pods = await cluster.all(kinds.POD)
        ready = sum(
            pod.metadata.deletion_timestamp is None and conditions.is_true(pod.status.conditions, "Ready")
            for pod in pods
        )
        fewest_ready[0] = min(fewest_ready[0], ready)
        most_claims[0] = max(most_claims[0], len(await cluster.all(kinds.NODE_CLAIM)))
