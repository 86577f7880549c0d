"""A pool of running pods that drifts, in virtual time: what tests of drift stories share."""

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
from support.world import World, until

PODS = 6
GOLD = {"spec": {"template": {"metadata": {"labels": {"tier": "gold"}}}}}
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


async def start_pool(
    world: World, delay: str = "5s", settings: Settings | None = None, pods: int = PODS, **pool: Any
) -> int:
    """Pods run on nodes of a pool whose nodes join after a while; the number of its nodes."""
    world.simulated()
    world.scheduled()
    await world.node_class(node_registration_delay=delay)
    await world.pool(**{"disruption": ONE_BY_ONE, **pool})
    await workload(world, pods)
    await world.start(settings)
    await until(lambda: all_running(world, pods), 3600, 5)
    await asyncio.sleep(60)
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


async def drift(world: World) -> None:
    """The pool's template changes: its nodes have drifted."""
    await world.kube.patch(kinds.NODE_POOL, "np", GOLD)


def errors(world: World) -> list[str]:
    """Why commands failed."""
    return [line["error"] for line in world.lines("failed terminating nodes while executing a disruption command")]


async def watch_pods(world: World, fewest_ready: list[int], most_claims: list[int]) -> None:
    """Keep the smallest number of ready pods and the largest number of NodeClaims in the only entry of each list."""
    while True:
        await asyncio.sleep(1)
        pods = await world.all(kinds.POD)
        ready = sum(
            pod.metadata.deletion_timestamp is None and conditions.is_true(pod.status.conditions, "Ready")
            for pod in pods
        )
        fewest_ready[0] = min(fewest_ready[0], ready)
        most_claims[0] = max(most_claims[0], len(await world.all(kinds.NODE_CLAIM)))
