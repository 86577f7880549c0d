"""Volumes of a draining node: which are waited for, and for how long (DIS §17.5)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from karpenter.api import kinds
from karpenter.api.meta import ObjectMeta, OwnerReference
from karpenter.api.scheduling_constraints import Toleration
from karpenter.api.storage import EphemeralVolumeSource, Volume, VolumeAttachment, VolumeAttachmentSpec
from karpenter.model import labels
from support.attachments import Detaching, attach, bound_volume, volume
from support.nodeclaim_stages import all_gone, ready
from support.virtual_cluster import START, VirtualCluster, in_virtual_time, until

WAITING = "AwaitingVolumeDetachment"
STAYS = (Toleration(key=labels.DISRUPTED_TAINT.key, operator="Exists"),)


def ended(cluster: VirtualCluster) -> bool:
    """Whether the cloud was asked to end the node."""
    return any(call[0] == "delete" for call in cluster.cloud.calls)


@in_virtual_time
async def test_the_instance_lives_until_its_volumes_are_detached(cluster: VirtualCluster) -> None:
    """DIS-S311, DIS-540, DIS-541: Unknown while an attachment exists, True once it has gone."""
    await ready(cluster)
    await bound_volume(cluster.kube, "data", "pv-1")
    name = await attach(cluster.kube, "node-c", "pv-1")
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(30)
    assert await cluster.condition("c", "Drained") == ("True", "Drained", "")
    assert await cluster.condition("c", "VolumesDetached") == (
        "Unknown",
        WAITING,
        f"volume pv-1 (PersistentVolumeClaim default/data) is still attached, VolumeAttachment {name}",
    )
    assert not ended(cluster)
    (event,) = await cluster.events(WAITING, "node-c")
    assert (event.type, name in event.message) == ("Normal", True)
    await cluster.kube.delete(kinds.VOLUME_ATTACHMENT, name)
    await asyncio.sleep(0.5)
    assert await cluster.condition("c", "VolumesDetached") == ("True", "VolumesDetached", "")
    await until(lambda: all_gone(cluster), 20)


@in_virtual_time
async def test_a_node_without_volumes_says_so_and_does_not_wait(cluster: VirtualCluster) -> None:
    """DIS-542"""
    await ready(cluster)
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(7)
    assert await cluster.condition("c", "VolumesDetached") == ("True", "VolumesDetached", "")
    assert await cluster.events(WAITING) == []


@in_virtual_time
async def test_volumes_go_by_themselves_once_the_pods_have_gone(cluster: VirtualCluster) -> None:
    """DIS-540: detaching is the attach/detach controller's work; here it is played."""
    await ready(cluster)
    cluster.also(Detaching(cluster.kube).run())
    await bound_volume(cluster.kube, "data", "pv-1")
    await cluster.running("user", "node-c", volumes=(volume("data"),))
    await attach(cluster.kube, "node-c", "pv-1")
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(10)
    assert await cluster.has(kinds.VOLUME_ATTACHMENT, "csi-pv-1")
    await cluster.gone("user")
    await until(lambda: all_gone(cluster), 30)
    assert not await cluster.has(kinds.VOLUME_ATTACHMENT, "csi-pv-1")


@in_virtual_time
async def test_an_attacher_that_never_detaches_holds_the_node_and_is_named(cluster: VirtualCluster) -> None:
    await ready(cluster)
    cluster.also(Detaching(cluster.kube).run())
    await attach(cluster.kube, "node-c", "pv-1", "external-attacher/csi")
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(400)
    assert not ended(cluster)
    condition = await cluster.condition("c", "VolumesDetached")
    assert condition is not None
    assert condition[2].endswith("VolumeAttachment csi-pv-1 waits for finalizer external-attacher/csi")
    events = await cluster.events("FailedTermination")
    assert {event.involved_object.kind for event in events} == {"Node", "NodeClaim"}
    assert all("external-attacher/csi" in event.message for event in events)


@in_virtual_time
async def test_after_the_deadline_volumes_are_not_waited_for(cluster: VirtualCluster) -> None:
    """DIS-542: the condition says why it is False, and the ending goes on.

    DIS-324, API-126: VolumesDetached is False with `TerminationGracePeriodElapsed`.
    """
    await ready(cluster, termination_grace_period="60s")
    cluster.cloud.lingers = 3
    await attach(cluster.kube, "node-c", "pv-1")
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(55)
    assert not ended(cluster)
    await asyncio.sleep(7)
    elapsed = "TerminationGracePeriodElapsed"
    assert await cluster.condition("c", "VolumesDetached") == ("False", elapsed, elapsed)
    await until(lambda: all_gone(cluster), 30)
    assert await cluster.has(kinds.VOLUME_ATTACHMENT, "csi-pv-1")


@in_virtual_time
async def test_an_instance_to_be_ended_at_once_does_not_wait_for_volumes(cluster: VirtualCluster) -> None:
    """DIS-386: node repair writes a deadline that has come."""
    await ready(cluster)
    await attach(cluster.kube, "node-c", "pv-1")
    past = (START - timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    await cluster.kube.patch(kinds.NODE_CLAIM, "c", {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: past}}})
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await until(lambda: all_gone(cluster), 20)


@pytest.mark.parametrize("stays", ["tolerates", "mirror", "stuck"])
@in_virtual_time
async def test_volumes_of_pods_that_stay_are_not_waited_for(cluster: VirtualCluster, stays: str) -> None:
    """DIS-540: only the volume of the pod that leaves counts."""
    await ready(cluster)
    mirror = OwnerReference(api_version="v1", kind="Node", name="node-c", uid="n", controller=True)
    fields: dict[str, object] = {
        "tolerates": {"tolerations": STAYS},
        "mirror": {"meta": {"owner_references": (mirror,)}},
        "stuck": {"meta": {"finalizers": ("example.com/hold",)}},
    }[stays]
    await bound_volume(cluster.kube, "own", "pv-own")
    await bound_volume(cluster.kube, "daemon", "pv-daemon")
    await cluster.running("stays", "node-c", volumes=(volume("daemon"),), **fields)
    if stays == "stuck":
        await cluster.kube.delete(kinds.POD, "stays", "default", grace_period_seconds=0)
        await asyncio.sleep(61)
    await attach(cluster.kube, "node-c", "pv-daemon")
    name = await attach(cluster.kube, "node-c", "pv-own")
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(10)
    condition = await cluster.condition("c", "VolumesDetached")
    assert condition is not None
    assert "pv-own" in condition[2]
    assert "pv-daemon" not in condition[2]
    await cluster.kube.delete(kinds.VOLUME_ATTACHMENT, name)
    await until(lambda: all_gone(cluster), 20)


@in_virtual_time
async def test_a_volume_made_for_one_pod_is_found_by_its_name(cluster: VirtualCluster) -> None:
    """DIS-540: the claim of an ephemeral volume is called after pod and volume."""
    await ready(cluster)
    await bound_volume(cluster.kube, "stays-scratch", "pv-scratch")
    await cluster.running(
        "stays", "node-c", volumes=(Volume(name="scratch", ephemeral=EphemeralVolumeSource()),), tolerations=STAYS
    )
    await attach(cluster.kube, "node-c", "pv-scratch")
    await cluster.kube.delete(kinds.NODE, "node-c")
    await until(lambda: all_gone(cluster), 20)


@in_virtual_time
async def test_an_attachment_without_a_volume_of_its_own_is_not_waited_for(cluster: VirtualCluster) -> None:
    """DIS-540: inline volumes have no PersistentVolume."""
    await ready(cluster)
    volume_attachment = VolumeAttachment(
        metadata=ObjectMeta(name="inline"), spec=VolumeAttachmentSpec(node_name="node-c")
    )
    await cluster.kube.create(kinds.VOLUME_ATTACHMENT, volume_attachment)
    await cluster.kube.delete(kinds.NODE, "node-c")
    await until(lambda: all_gone(cluster), 20)


@in_virtual_time
async def test_another_nodes_volumes_are_no_concern(cluster: VirtualCluster) -> None:
    await ready(cluster)
    await attach(cluster.kube, "node-other", "pv-1")
    await cluster.kube.delete(kinds.NODE, "node-c")
    await until(lambda: all_gone(cluster), 20)


@in_virtual_time
async def test_of_many_volumes_some_are_named_without_further_requests(cluster: VirtualCluster) -> None:
    """DIS-541: up to five names; and no call per second for state that the watch delivers."""
    await ready(cluster)
    asked: list[str] = []
    real = cluster.kube.get

    async def counting(kind: object, name: str, namespace: str = "") -> object:
        if kind in (kinds.PERSISTENT_VOLUME, kinds.PERSISTENT_VOLUME_CLAIM):
            asked.append(name)
        return await real(kind, name, namespace)

    cluster.connection.get = counting
    for number in range(7):
        await bound_volume(cluster.kube, f"data-{number}", f"pv-{number}")
        await attach(cluster.kube, "node-c", f"pv-{number}")
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(60)
    (event,) = (await cluster.events(WAITING))[:1]
    assert event.message.endswith("and 2 other(s)")
    assert asked == []
