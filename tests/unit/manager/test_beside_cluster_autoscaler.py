"""Cluster Autoscaler and this controller on one cluster: neither serves a pod the other one serves, nor touches its nodes."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec

from karpenter.api import kinds
from karpenter.api.core import Event, EventSource, Node, NodeSpec, PodStatus
from karpenter.api.meta import ObjectMeta, ObjectReference, OwnerReference
from karpenter.api.scheduling_constraints import Taint
from karpenter.provisioning.cluster_autoscaler import PATIENCE, SCALE_UP_REASON
from karpenter.settings import resolve_settings
from support.builders import pod, pods
from support.virtual_cluster import VirtualCluster, in_virtual_time

BESIDE = resolve_settings({"defer_to_cluster_autoscaler": "true"}, {})
GROUP_NODE = "ip-10-0-0-1"


async def waiting_for_group(cluster: VirtualCluster, name: str, reason: str = SCALE_UP_REASON) -> None:
    """A pod for which Cluster Autoscaler has asked a node group for a node, as it says in an event of the pod."""
    await cluster.waiting(pod(name, {"cpu": "1"}))
    meta = (await cluster.kube.get(kinds.POD, name, "default")).metadata
    about = ObjectReference(api_version="v1", kind="Pod", name=meta.name, namespace=meta.namespace, uid=meta.uid)
    event = Event(
        metadata=ObjectMeta(name=f"{meta.name}.1", namespace=meta.namespace),
        involved_object=about,
        reason=reason,
        message="pod triggered scale-up: [{ng-1 2->3 (max: 10)}]",
        type="Normal",
        source=EventSource(component="cluster-autoscaler"),
        first_timestamp=cluster.clock.now(),
        last_timestamp=cluster.clock.now(),
        count=1,
    )
    await cluster.kube.create(kinds.EVENT, event)


async def group_node(cluster: VirtualCluster) -> None:
    """The node of a managed node group, which no NodeClaim stands for."""
    labels = {"eks.amazonaws.com/nodegroup": "ng-1", "kubernetes.io/hostname": GROUP_NODE}
    metadata = ObjectMeta(name=GROUP_NODE, labels=labels)
    await cluster.kube.create(kinds.NODE, Node(metadata=metadata, spec=NodeSpec(provider_id="aws:///a/i-1")))
    room = {"cpu": "4", "memory": "16Gi", "pods": "58"}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"capacity": room, "allocatable": room, "conditions": ready}
    await cluster.kube.patch(kinds.NODE, GROUP_NODE, {"status": status}, subresource="status")
    await cluster.set_taints(GROUP_NODE, ())  # a new Node is tainted until it is ready


async def started(cluster: VirtualCluster) -> None:
    await cluster.node_class()
    await cluster.pool()
    await cluster.start(BESIDE)


@in_virtual_time
async def test_a_pod_it_scales_up_for_gets_no_second_node(cluster: VirtualCluster) -> None:
    await started(cluster)
    await waiting_for_group(cluster, "theirs")
    await asyncio.sleep(60)
    assert await cluster.all(kinds.NODE_CLAIM) == []
    await group_node(cluster)
    await cluster.gone("theirs")
    await cluster.running("theirs-2", GROUP_NODE)
    await asyncio.sleep(PATIENCE.total_seconds())
    assert await cluster.all(kinds.NODE_CLAIM) == []
    assert [node.metadata.name for node in await cluster.all(kinds.NODE)] == [GROUP_NODE]
    assert "pod waits for cluster-autoscaler" in cluster.log.getvalue()


@in_virtual_time
async def test_siblings_that_the_scheduler_has_not_tried_wait_for_their_own_mark(cluster: VirtualCluster) -> None:
    """Cluster Autoscaler says what it does only of pods that are marked."""
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web", uid="web-1", controller=True)
    marked, untried = pods(2, {"cpu": "1"}, meta={"owner_references": (owner,)})
    await started(cluster)
    bare = msgspec.structs.replace(untried.metadata, uid="", creation_timestamp=None)
    await cluster.kube.create(kinds.POD, msgspec.structs.replace(untried, metadata=bare, status=PodStatus()))
    await cluster.waiting(marked)
    await asyncio.sleep(5)
    (claim,) = await cluster.all(kinds.NODE_CLAIM)
    assert claim.spec.resources.requests["pods"] == "1"


@in_virtual_time
async def test_other_pods_do_not_wait(cluster: VirtualCluster) -> None:
    await started(cluster)
    await waiting_for_group(cluster, "theirs")
    await cluster.waiting(pod("ours", {"cpu": "1"}))
    await waiting_for_group(cluster, "refused", "NotTriggerScaleUp")
    await asyncio.sleep(60)
    (claim,) = await cluster.all(kinds.NODE_CLAIM)
    assert claim.spec.resources.requests["cpu"] == "2"


@in_virtual_time
async def test_a_scale_up_that_brings_no_node_is_waited_for_as_long_as_it_waits_itself(cluster: VirtualCluster) -> None:
    await started(cluster)
    await waiting_for_group(cluster, "theirs")
    await asyncio.sleep((PATIENCE - timedelta(seconds=30)).total_seconds())
    assert await cluster.all(kinds.NODE_CLAIM) == []
    await asyncio.sleep(60)
    assert len(await cluster.all(kinds.NODE_CLAIM)) == 1


@in_virtual_time
async def test_without_the_setting_no_events_are_watched(cluster: VirtualCluster) -> None:
    await cluster.node_class()
    await cluster.pool()
    await cluster.start()
    await waiting_for_group(cluster, "theirs")
    await asyncio.sleep(60)
    assert len(await cluster.all(kinds.NODE_CLAIM)) == 1


@in_virtual_time
async def test_no_pod_is_planned_onto_a_node_that_it_is_about_to_remove(cluster: VirtualCluster) -> None:
    await started(cluster)
    await group_node(cluster)
    await cluster.set_taints(GROUP_NODE, [Taint(key="ToBeDeletedByClusterAutoscaler", effect="NoSchedule", value="1")])
    await cluster.waiting(pod("small", {"cpu": "1"}))
    await asyncio.sleep(10)
    assert len(await cluster.all(kinds.NODE_CLAIM)) == 1


@in_virtual_time
async def test_nodes_of_groups_are_used_and_never_touched(cluster: VirtualCluster) -> None:
    """An empty node of a group stays, whatever consolidation would save; a pod that fits there gets no node."""
    await started(cluster)
    await group_node(cluster)
    before = await cluster.get_node(GROUP_NODE)
    await asyncio.sleep(3600)
    await cluster.waiting(pod("small", {"cpu": "1"}))
    await asyncio.sleep(60)
    assert await cluster.all(kinds.NODE_CLAIM) == []
    assert await cluster.get_node(GROUP_NODE) == before
