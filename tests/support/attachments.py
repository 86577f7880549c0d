"""A stand-in for the controller that attaches and detaches volumes, and for what a test attaches by hand.

``Detaching`` does what the cluster's attach/detach controller and a CSI attacher do when pods go: a volume that no pod of its
node uses any more is detached a little later, its VolumeAttachment goes. One with a finalizer of somebody else's never goes by
itself, as with an attacher that is broken.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

from karpenter.api import kinds
from karpenter.api.meta import ObjectMeta, ObjectReference
from karpenter.api.storage import (
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSource,
    PersistentVolumeClaimSpec,
    PersistentVolumeSpec,
    Volume,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
)
from karpenter.kube.protocol import Kube
from karpenter.model import pods
from karpenter.state.pod_volumes import BIND_COMPLETED

_LOOK_SECONDS = 1.0


def volume(claim: str) -> Volume:
    """A pod's volume of a claim."""
    return Volume(name="data", persistent_volume_claim=PersistentVolumeClaimSource(claim_name=claim))


async def bound_volume(kube: Kube, claim: str, name: str) -> None:
    """A claim in ``default`` and the volume it is bound to."""
    reference = ObjectReference(kind="PersistentVolumeClaim", namespace="default", name=claim)
    await kube.create(
        kinds.PERSISTENT_VOLUME,
        PersistentVolume(metadata=ObjectMeta(name=name), spec=PersistentVolumeSpec(claim_ref=reference)),
    )
    await kube.create(
        kinds.PERSISTENT_VOLUME_CLAIM,
        PersistentVolumeClaim(
            metadata=ObjectMeta(name=claim, namespace="default", annotations={BIND_COMPLETED: "yes"}),
            spec=PersistentVolumeClaimSpec(volume_name=name),
        ),
    )


async def attach(kube: Kube, node: str, name: str, *finalizers: str) -> str:
    """Attach a volume to a node; the attachment's name."""
    attachment = f"csi-{name}"
    await kube.create(
        kinds.VOLUME_ATTACHMENT,
        VolumeAttachment(
            metadata=ObjectMeta(name=attachment, finalizers=finalizers),
            spec=VolumeAttachmentSpec(
                attacher="csi.example.com",
                node_name=node,
                source=VolumeAttachmentSource(persistent_volume_name=name),
            ),
        ),
    )
    return attachment


class Detaching:
    """Plays the detaching half of the attach/detach controller while ``run`` runs."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def run(self) -> NoReturn:
        """Look every second, until cancelled."""
        while True:
            used = await self._used()
            for attachment in (await self._kube.list(kinds.VOLUME_ATTACHMENT)).items:
                place = (attachment.spec.node_name, attachment.spec.source.persistent_volume_name)
                if place not in used and attachment.metadata.deletion_timestamp is None:
                    await self._kube.delete(kinds.VOLUME_ATTACHMENT, attachment.metadata.name)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _used(self) -> set[tuple[str, str]]:
        """Node and volume of everything pods use."""
        claims = (await self._kube.list(kinds.PERSISTENT_VOLUME_CLAIM)).items
        volumes = {(claim.metadata.namespace, claim.metadata.name): claim.spec.volume_name for claim in claims}
        return {
            (pod.spec.node_name, volumes.get((pod.metadata.namespace, claim), ""))
            for pod in (await self._kube.list(kinds.POD)).items
            if pod.spec.node_name and not pods.is_finished(pod)
            for claim in pods.volume_claim_names(pod)
        }
