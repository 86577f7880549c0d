"""A new DaemonSet does not fit: on a whole cluster, nodes are replaced within budgets by nodes with room for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from karpenter.api import kinds
from karpenter.api.apps import DaemonSet, Deployment
from karpenter.api.karpenter import (
    Budget,
    Disruption,
    NodeClaimTemplate,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
)
from karpenter.api.kwok_node_class import KWOKNodeClass, KWOKNodeClassSpec
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.disruption.decide.remaining_budgets import pool_node_counts
from karpenter.model import labels
from karpenter.simulation import LoopClock, SimulatedCluster, SimulationConfig, run_virtual, running_cluster
from support.builders import daemon_set
from support.instance_types import offering, shape
from support.stand_in_cluster import deployment

START = datetime(2026, 1, 1, tzinfo=UTC)
TYPES = tuple(
    shape(f"t{cpu}", {"cpu": cpu, "memory": "64Gi", "pods": 50}, [offering("on-demand", "z1", cpu)], overhead={})
    for cpu in (1, 2, 4)
)
CLASS = KWOKNodeClass(metadata=ObjectMeta(name="default"), spec=KWOKNodeClassSpec(node_registration_delay="5s"))
_TEMPLATE = NodeClaimTemplateSpec(
    requirements=(),
    node_class_ref=NodeClassReference(group="karpenter.kwok.sh", kind="KWOKNodeClass", name="default"),
)
POOL = NodePool(
    metadata=ObjectMeta(name="default", annotations={labels.REPLACE_FOR_DAEMON_SETS: "true"}),
    spec=NodePoolSpec(
        template=NodeClaimTemplate(spec=_TEMPLATE),
        disruption=Disruption(consolidate_after="Never", budgets=(Budget(nodes="1"),)),
    ),
)


def agent() -> DaemonSet:
    result = daemon_set("agent", {"cpu": "500m"})
    own = {"app": "agent"}
    template = msgspec.structs.replace(result.spec.template, metadata=ObjectMeta(labels=own))
    spec = msgspec.structs.replace(result.spec, selector=LabelSelector(match_labels=own), template=template)
    return msgspec.structs.replace(result, spec=spec)


def web() -> Iterator[Deployment]:
    """Deployments whose pods fill nodes up."""
    for name in ("a", "b", "c"):
        yield deployment(name, 1, "2")


def agents(stage: SimulatedCluster) -> set[str]:
    """Nodes on which the agent runs."""
    own = [
        pod for pod in stage.manager.informers.pods if pod.metadata.labels.get("app") == "agent" and pod.spec.node_name
    ]
    return {pod.spec.node_name for pod in own if pod.status.phase == "Running"}


async def _story(stage: SimulatedCluster) -> None:
    await stage.create(CLASS, POOL, *web())
    assert await stage.wait_until(lambda: stage.counts().pods == 3 and stage.counts().all_ready, 300)
    full = {node.metadata.name for node in (await stage.kube.list(kinds.NODE)).items}
    await stage.create(agent())
    most = 0

    def everywhere() -> bool:
        nonlocal most
        views = stage.state.state_nodes()
        most = max(most, pool_node_counts(views)[POOL.metadata.name].unavailable)
        return agents(stage) == {view.name for view in views} and stage.counts().all_ready

    assert await stage.wait_until(everywhere, 3600)
    await asyncio.sleep(900)
    assert everywhere()
    assert most == 1
    assert full.isdisjoint(agents(stage))


def test_nodes_without_room_for_a_new_daemon_set_are_replaced_one_at_a_time() -> None:
    """DIS-482: opt-in, within the budgets for Drifted, and it comes to rest."""

    async def main(clock: LoopClock) -> None:
        async with running_cluster(clock, SimulationConfig(TYPES)) as stage:
            await _story(stage)

    run_virtual(main, START)
