"""Nominations and a scheduler that takes them back (the journey of a pending pod, step 5).

A pod that is tried while the node it is nominated to is closed loses the nomination, and its room is no longer kept free.
"""

from __future__ import annotations

import asyncio

import msgspec

from karpenter.api import kinds
from karpenter.api.core import Pod, PodStatus
from karpenter.api.meta import OwnerReference
from karpenter.model import labels
from support.builders import pods
from support.fake_cloud import Write
from support.virtual_cluster import VirtualCluster, in_virtual_time

_TAKEN = {"status": {"nominatedNodeName": None}}


async def two_claims(cluster: VirtualCluster) -> dict[str, str]:
    """Two pods planned for a claim each, whose instances are launched and have not joined: claims by pod."""
    cluster.cloud.capacity = {"cpu": "8", "memory": "16Gi", "pods": "40"}
    await cluster.node_class()
    await cluster.pool()
    await cluster.start()
    await cluster.waiting(*pods(2, {"cpu": "5"}))
    await asyncio.sleep(1.5)
    assert cluster.manager is not None
    planned = cluster.manager.state.planned_nodes
    two_claims = {pod.metadata.name: planned[pod.metadata.uid] for pod in await cluster.all(kinds.POD)}
    assert len({*two_claims.values()}) == 2
    return two_claims


def bare(pod: Pod) -> Pod:
    """The pod as it is created, without conditions."""
    meta = msgspec.structs.replace(pod.metadata, uid="", creation_timestamp=None)
    return msgspec.structs.replace(pod, metadata=meta, status=PodStatus(phase="Pending"))


async def one_of_two_siblings_tried(cluster: VirtualCluster, registration_delay: str) -> Pod:
    """Two pods of one workload, planned for a simulated instance; the second, which the scheduler has not tried."""
    cluster.simulated()
    await cluster.node_class(node_registration_delay=registration_delay)
    await cluster.pool()
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web", uid="web-1", controller=True)
    tried, untried = pods(2, {"cpu": "1"}, meta={"owner_references": (owner,)})
    await cluster.kube.create(kinds.POD, bare(untried))
    await cluster.start()
    await cluster.waiting(tried)
    return untried


async def take(cluster: VirtualCluster, name: str) -> None:
    """The scheduler finds no place for the pod, and takes its nomination away."""
    await cluster.kube.patch(kinds.POD, name, _TAKEN, "default", subresource="status")


async def nominated(cluster: VirtualCluster, name: str) -> str:
    return (await cluster.kube.get(kinds.POD, name, "default")).status.nominated_node_name


async def is_open(cluster: VirtualCluster, name: str) -> bool:
    taints = (await cluster.get_node(name)).spec.taints
    return all(taint.key != labels.UNREGISTERED_TAINT.key for taint in taints)


@in_virtual_time
async def test_nodes_of_one_plan_that_join_within_moments_open_together(cluster: VirtualCluster) -> None:
    claims = await two_claims(cluster)
    await cluster.join(claims["pod-000"], "node-0")
    await asyncio.sleep(0.8)
    assert await nominated(cluster, "pod-000") == "node-0"
    assert not await is_open(cluster, "node-0")
    await cluster.join(claims["pod-001"], "node-1")
    await asyncio.sleep(0.1)  # no other pod comes after it
    assert await is_open(cluster, "node-0")
    assert await is_open(cluster, "node-1")


@in_virtual_time
async def test_while_its_node_starts_a_pod_is_nominated_once_the_scheduler_has_tried_it(
    cluster: VirtualCluster,
) -> None:
    """The scheduler takes nominations from pods it tries before their node opens: one written earlier would be lost."""
    untried = await one_of_two_siblings_tried(cluster, "60s")
    await asyncio.sleep(5)
    node = await nominated(cluster, "pod-000")
    assert node
    assert await nominated(cluster, "pod-001") == ""
    mark = {"status": msgspec.to_builtins(untried.status)}
    await cluster.kube.patch(kinds.POD, "pod-001", mark, "default", subresource="status")
    await asyncio.sleep(0.1)
    assert await nominated(cluster, "pod-001") == node


@in_virtual_time
async def test_a_nomination_that_is_lost_while_its_node_starts_is_not_written_again_with_each_try(
    cluster: VirtualCluster,
) -> None:
    """The next try would take it again, and nominations to closed nodes make tries expensive."""
    await one_of_two_siblings_tried(cluster, "60s")
    await asyncio.sleep(5)
    assert await nominated(cluster, "pod-000")
    before = len(cluster.connection.writes)
    for number in range(4):
        message = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": f"0/{number} nodes"}
        failed = {"status": {"nominatedNodeName": None, "conditions": [message]}}
        await cluster.kube.patch(kinds.POD, "pod-000", failed, "default", subresource="status")
        await asyncio.sleep(0.1)
    assert [str(write) for write in cluster.connection.writes[before:] if write.kind == "Pod"] == []
    await asyncio.sleep(60)
    (node,) = await cluster.all(kinds.NODE)
    assert await nominated(cluster, "pod-000") == node.metadata.name
    assert await is_open(cluster, node.metadata.name)


@in_virtual_time
async def test_nodes_that_no_pod_was_planned_for_do_not_keep_others_closed(cluster: VirtualCluster) -> None:
    claims = await two_claims(cluster)
    for number in range(4):
        await cluster.claim(f"spare-{number}", pool="np")
    await asyncio.sleep(2)
    await cluster.join(claims["pod-000"], "node-0")
    for number in range(4):
        await asyncio.sleep(0.4)
        await cluster.join(f"spare-{number}")
    assert await is_open(cluster, "node-0")
    assert await is_open(cluster, "node-spare-0")


@in_virtual_time
async def test_an_untried_pod_is_nominated_before_its_node_opens(cluster: VirtualCluster) -> None:
    await one_of_two_siblings_tried(cluster, "5s")
    await asyncio.sleep(10)
    first = await nominated(cluster, "pod-000")
    assert first
    assert await nominated(cluster, "pod-001") == first
    assert await is_open(cluster, first)
    written = [(write.kind, write.name) for write in cluster.connection.writes]
    opened = max(number for number, write in enumerate(written) if write == ("Node", first))
    assert opened > written.index(("Pod", "pod-001"), written.index(("Pod", "pod-000")))


@in_virtual_time
async def test_a_node_waits_for_those_that_join_later_no_more_than_a_moment(cluster: VirtualCluster) -> None:
    claims = await two_claims(cluster)
    await cluster.join(claims["pod-000"], "node-0")
    await asyncio.sleep(1.2)
    assert await is_open(cluster, "node-0")
    await cluster.join(claims["pod-001"], "node-1")
    await asyncio.sleep(0.1)  # no other pod comes after it
    assert await is_open(cluster, "node-1")


@in_virtual_time
async def test_a_nomination_lost_while_others_are_waited_for_is_written_again_before_the_node_opens(
    cluster: VirtualCluster,
) -> None:
    claims = await two_claims(cluster)
    await cluster.join(claims["pod-000"], "node-0")
    await asyncio.sleep(0.2)
    before = len(cluster.connection.writes)
    await take(cluster, "pod-000")
    await asyncio.sleep(0.2)
    assert await nominated(cluster, "pod-000") == ""
    await asyncio.sleep(1.0)
    since = [str(write) for write in cluster.connection.writes[before:] if write.kind in ("Pod", "Node")]
    assert since[:2] == ["patch Pod/status", "patch Node"]
    assert await nominated(cluster, "pod-000") == "node-0"
    assert await is_open(cluster, "node-0")


@in_virtual_time
async def test_a_nomination_lost_to_a_node_just_open_is_given_again_a_few_times(cluster: VirtualCluster) -> None:
    claims = await two_claims(cluster)
    await cluster.join(claims["pod-000"], "node-0")
    await asyncio.sleep(1.5)
    for _ in range(3):
        await take(cluster, "pod-000")
        await asyncio.sleep(0.1)
        assert await nominated(cluster, "pod-000") == "node-0"
    await take(cluster, "pod-000")
    await asyncio.sleep(0.1)
    assert await nominated(cluster, "pod-000") == ""


@in_virtual_time
async def test_a_pod_bound_elsewhere_is_not_nominated_again(cluster: VirtualCluster) -> None:
    claims = await two_claims(cluster)
    await cluster.join(claims["pod-000"], "node-0")
    await asyncio.sleep(1.5)
    await cluster.kube.bind("pod-000", "default", "elsewhere")
    before = cluster.writes("Pod")
    await take(cluster, "pod-000")
    await asyncio.sleep(0.5)
    assert cluster.writes("Pod") == before


@in_virtual_time
async def test_a_node_opens_although_its_nominations_are_taken_back_at_once(cluster: VirtualCluster) -> None:
    claims = await two_claims(cluster)
    undone: set[asyncio.Task[None]] = set()

    def undo(write: Write) -> None:
        if str(write) == "patch Pod/status" and write.body["status"]["nominatedNodeName"]:
            undone.add(asyncio.create_task(take(cluster, write.name)))

    cluster.connection.after = undo
    await cluster.join(claims["pod-000"], "node-0")
    await asyncio.sleep(7)
    assert undone
    assert await is_open(cluster, "node-0")
