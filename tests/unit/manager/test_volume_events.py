"""Volume events that the controller watches, and the reconcilers they trigger."""

from __future__ import annotations

import asyncio

import msgspec

from karpenter.api import kinds
from karpenter.api.meta import ObjectReference, Wire
from karpenter.api.storage import PersistentVolume
from karpenter.manager_watches import VolumeWatchHandler
from karpenter.state import ClusterState, ClusterVolumes
from support.builders import feed, pod
from support.virtual_cluster import VirtualCluster, in_virtual_time
from support.volume_builders import DRIVER, csi_node, pvc, storage_class, user, zonal


def claimed(volume: PersistentVolume, claim: str) -> PersistentVolume:
    reference = ObjectReference(kind="PersistentVolumeClaim", namespace="default", name=claim)
    return msgspec.structs.replace(volume, spec=msgspec.structs.replace(volume.spec, claim_ref=reference))


@in_virtual_time
async def test_claims_volumes_classes_and_drivers_reach_the_picture(cluster: VirtualCluster) -> None:
    await cluster.start()
    objects: dict[kinds.Kind, Wire] = {
        kinds.PERSISTENT_VOLUME_CLAIM: pvc("data", "v"),
        kinds.PERSISTENT_VOLUME: zonal("v", "z3"),
        kinds.STORAGE_CLASS: storage_class(),
        kinds.CSI_NODE: csi_node("n", ebs=7),
    }
    for kind, wire in objects.items():
        await cluster.kube.create(kind, wire)
    await asyncio.sleep(1)
    assert cluster.manager is not None
    volumes = cluster.manager.state.snapshot().volumes
    pod_volumes = volumes.resolve(user("p", "data"))
    assert (pod_volumes.claim_errors, len(pod_volumes.node_alternatives), pod_volumes.volumes_by_driver) == (
        (),
        1,
        {DRIVER: {"default/data"}},
    )
    assert (volumes.attach_limits.get("n", {}).get(DRIVER), set(volumes.classes)) == (7, {"standard"})
    for kind, wire in objects.items():
        await cluster.kube.delete(kind, wire.metadata.name, wire.metadata.namespace)  # type: ignore[attr-defined]
    await asyncio.sleep(1)
    assert cluster.manager.state.snapshot().volumes == ClusterVolumes()


def woken(*there: Wire, on: str, by: Wire) -> list[str]:
    """Which pods a change wakes: ``on`` names the handler."""
    triggered: list[str] = []
    handler = VolumeWatchHandler(feed(ClusterState(), (*there, by)), triggered.append)
    getattr(handler, on)(None, by)
    return sorted(triggered)


PODS = (user("waits", "data"), user("other", "else"), user("runs", "data", node_name="n"), pod("plain"))


def test_a_claim_wakes_the_pods_that_wait_for_it() -> None:
    """The pod need not wait for its next turn once its claim is bound."""
    assert woken(*PODS, on="on_volume_claim", by=pvc("data", "v")) == ["uid-waits"]


def test_a_volume_wakes_the_pods_of_its_claim() -> None:
    assert woken(*PODS, on="on_volume", by=claimed(zonal("v", "z1"), "data")) == ["uid-waits"]
    assert woken(*PODS, on="on_volume", by=zonal("v", "z1")) == []


def test_a_class_wakes_all_that_wait_with_claims() -> None:
    assert woken(*PODS, on="on_storage_class", by=storage_class()) == ["uid-other", "uid-waits"]
