"""Deletion costs on pods of a running controller (K15 §9)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.core import Pod
from karpenter.api.karpenter import Budget, Disruption
from karpenter.kube.errors import Conflict, KubeError, NotFound, ServerUnavailable
from karpenter.model import labels
from karpenter.model.feature_gate_flags import parse_feature_gates
from karpenter.model.pod_disruption import DELETION_COST_ANNOTATION
from karpenter.poddeletioncost.deletion_cost_ranking import CostChange
from karpenter.poddeletioncost.deletion_cost_writer import DeletionCostWriter
from karpenter.settings import Settings
from support.builders import owner, pod
from support.virtual_cluster import VirtualCluster, in_virtual_time, refusing, until

ON = Settings(feature_gates=parse_feature_gates("PodDeletionCostManagement=true"), wait_for_rollouts=False)
#: Nothing is disrupted in these tests, though budgets are open: consolidation is an hour away.
LATER = Disruption(consolidate_after="1h", budgets=(Budget(nodes="100%"),))
WRITES = "pod_deletion_cost_pod_annotation_writes_total"
PENDING = "pod_deletion_cost_nodes_with_pending_annotation_writes"


async def replicas(cluster: VirtualCluster, *hosts: str, settings: Settings = ON) -> None:
    """A node with a pod of a ReplicaSet for each name."""
    await cluster.node_class()
    pool = await cluster.pool(disruption=LATER)
    await cluster.start(settings)
    for host in hosts:
        await cluster.owned_claim(pool, host)
    await asyncio.sleep(0.1)
    for host in hosts:
        await cluster.join(host, host)
    await asyncio.sleep(1)
    for host in hosts:
        await cluster.running(f"p-{host}", host, meta={"owner_references": (owner("ReplicaSet", "rs"),)})


async def costs(cluster: VirtualCluster) -> dict[str, str | None]:
    return {
        pod.metadata.name: pod.metadata.annotations.get(DELETION_COST_ANNOTATION)
        for pod in await cluster.all(kinds.POD)
    }


@in_virtual_time
async def test_pods_get_the_cost_of_their_node_and_it_follows_the_cluster(cluster: VirtualCluster) -> None:
    """K15-345, K15-346, K15-S20, K15-461: at the next pass, at most a minute later."""
    await replicas(cluster, "a", "b", "c")
    await asyncio.sleep(61)
    assert await costs(cluster) == {"p-a": "-3", "p-b": "-2", "p-c": "-1"}
    assert cluster.counted(WRITES, result="updated") == 3
    assert cluster.counted(PENDING, nodepool="np") == 0
    await cluster.kube.patch(kinds.NODE, "a", {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}})
    await asyncio.sleep(61)
    assert await costs(cluster) == {"p-a": None, "p-b": "-2", "p-c": "-1"}


@in_virtual_time
async def test_without_a_change_of_the_cluster_nothing_is_ranked(cluster: VirtualCluster) -> None:
    """K15-345, K15-503: what the controller itself wrote is no change."""
    await replicas(cluster, "a")
    await asyncio.sleep(61)
    ranked = len(cluster.lines("completed node ranking"))
    (*_, last) = cluster.lines("completed node ranking")
    assert (last["totalNodes"], last["rankedNodes"], last["cleanupOnlyNodes"], last["disruptedNodes"]) == (1, 1, 0, 0)
    await asyncio.sleep(300)
    assert len(cluster.lines("completed node ranking")) == ranked
    assert cluster.lines("no changes detected, skipping pod deletion cost update")


@in_virtual_time
async def test_without_the_gate_pods_are_left_alone(cluster: VirtualCluster) -> None:
    """K15-042, K15-352"""
    await replicas(cluster, "a", settings=Settings())
    await cluster.kube.patch(
        kinds.POD, "p-a", {"metadata": {"annotations": {DELETION_COST_ANNOTATION: "5"}}}, "default"
    )
    await asyncio.sleep(200)
    assert await costs(cluster) == {"p-a": "5"}
    assert seen_cost(cluster, "p-a") == "5"


def seen_cost(cluster: VirtualCluster, name: str) -> str | None:
    """The deletion cost of a pod as decisions see it."""
    assert cluster.manager is not None
    pod = cluster.manager.state.pod(("default", name))
    assert pod is not None
    return pod.metadata.annotations.get(DELETION_COST_ANNOTATION)


@in_virtual_time
async def test_with_the_gate_no_decision_sees_deletion_costs(cluster: VirtualCluster) -> None:
    """K15-340: they are written from decisions and must not feed back into them."""
    await replicas(cluster, "a")
    await asyncio.sleep(61)
    assert await costs(cluster) == {"p-a": "-1"}
    assert seen_cost(cluster, "p-a") is None


@pytest.mark.parametrize(
    ("error", "result"), [(Conflict, "skipped_conflict"), (NotFound, "skipped_notfound")], ids=["conflict", "gone"]
)
@in_virtual_time
async def test_a_write_that_comes_too_late_is_dropped(
    cluster: VirtualCluster, error: type[KubeError], result: str
) -> None:
    """K15-351: the next pass over a changed cluster sees what is there."""
    await replicas(cluster, "a")
    cluster.connection.refuse = refusing(lambda: error("too late"), 1, "patch Pod")
    await until(lambda: _has_counted(cluster, result), 70)
    assert cluster.counted(PENDING, nodepool="np") == 0
    assert cluster.counted(WRITES, result="updated") == 0


async def _has_counted(cluster: VirtualCluster, result: str) -> bool:
    return cluster.counted(WRITES, result=result) == 1


@in_virtual_time
async def test_a_write_that_fails_is_tried_again(cluster: VirtualCluster) -> None:
    """K15-351, K15-460, K15-461"""
    await replicas(cluster, "a")
    cluster.connection.refuse = refusing(lambda: ServerUnavailable("later"), 2, "patch Pod")
    await until(lambda: _has_counted(cluster, "updated"), 80, step=0.05)
    assert cluster.counted(WRITES, result="error") == 2
    assert await costs(cluster) == {"p-a": "-1"}


@in_virtual_time
async def test_only_the_last_cost_of_a_pod_is_written_and_only_on_that_pod(cluster: VirtualCluster) -> None:
    """K15-351: a pod that took the name of another is another pod."""
    await cluster.start()
    first, second = [await cluster.kube.create(kinds.POD, pod(name)) for name in ("first", "second")]
    assert cluster.manager is not None
    woken: list[str] = []
    known = {first.metadata.name: first, second.metadata.name: second}
    writer = DeletionCostWriter(cluster.manager.context, lambda name, _namespace: known.get(name), woken.append)
    writer.set_costs([wish(first, -1), wish(second, -2)])
    writer.set_costs([wish(first, -9), wish(second, -2)])
    known["second"] = msgspec.structs.replace(
        second, metadata=msgspec.structs.replace(second.metadata, uid="another pod of that name")
    )
    assert cluster.counted(PENDING, nodepool="np") == 1
    for key in ["default/first", "default/second", "default/first", "default/unknown"]:
        assert await writer.reconcile(key) is None
    assert woken == ["default/first", "default/second"] * 2
    assert await costs(cluster) == {"first": "-9", "second": None}
    assert cluster.counted(WRITES, result="skipped_notfound") == 1
    assert cluster.counted(PENDING, nodepool="np") == 0


@in_virtual_time
async def test_a_cost_that_a_later_ranking_does_not_repeat_is_dropped(cluster: VirtualCluster) -> None:
    """K15-351, K15-460: a pod without a change has the cost it should have; its write is not tried again."""
    await cluster.start()
    first, second = [await cluster.kube.create(kinds.POD, pod(name)) for name in ("first", "second")]
    assert cluster.manager is not None
    known = {first.metadata.name: first, second.metadata.name: second}
    writer = DeletionCostWriter(cluster.manager.context, lambda name, _namespace: known.get(name), lambda _key: None)
    writer.set_costs([wish(first, -1), wish(second, -2)])
    writer.set_costs([wish(second, -2)])
    assert cluster.counted(PENDING, nodepool="np") == 1
    for name in known:
        await writer.reconcile(f"default/{name}")
    assert await costs(cluster) == {"first": None, "second": "-2"}
    assert cluster.counted(PENDING, nodepool="np") == 0


@in_virtual_time
async def test_a_pod_that_has_its_cost_already_is_not_written(cluster: VirtualCluster) -> None:
    """K15-461"""
    await cluster.start()
    noted = await cluster.kube.create(kinds.POD, pod("p", meta={"annotations": {DELETION_COST_ANNOTATION: "-1"}}))
    assert cluster.manager is not None
    writer = DeletionCostWriter(cluster.manager.context, lambda _name, _namespace: noted, lambda _key: None)
    writer.set_costs([wish(noted, -1)])
    await writer.reconcile("default/p")
    assert cluster.counted(WRITES, result="skipped_unchanged") == 1
    assert cluster.writes("Pod") == []


def wish(of: Pod, cost: int) -> CostChange:
    return CostChange(("default", of.metadata.name), of.metadata.uid, "node", "np", cost)
