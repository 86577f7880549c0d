"""Volume detachment: which VolumeAttachments must be gone before a node's instance is terminated (DIS §17.5).

The cluster's attach/detach controller detaches; node termination only waits. It does not wait for volumes of pods that the drain
leaves on the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from karpenter.api.storage import VolumeAttachment
from karpenter.model import pod_disruption, pods
from karpenter.state import ClusterState


def awaited_attachments(state: ClusterState, node_name: str, now: datetime) -> tuple[VolumeAttachment, ...]:
    """The attachments that node termination waits for (DIS-540)."""
    attachments = [attachment for attachment in state.attachments_on(node_name) if _volume_name(attachment)]
    if not attachments:
        return ()
    staying = set(_volumes_of_staying_pods(state, node_name, now))
    return tuple(attachment for attachment in attachments if _volume_name(attachment) not in staying)


def volume_claim_of(state: ClusterState, attachment: VolumeAttachment) -> str:
    """Namespace and name of the PersistentVolumeClaim of an attachment, empty if unknown."""
    volume = state.volume(_volume_name(attachment))
    reference = volume.spec.claim_ref if volume is not None else None
    return f"{reference.namespace}/{reference.name}" if reference is not None else ""


def _volumes_of_staying_pods(state: ClusterState, node_name: str, now: datetime) -> Iterator[str]:
    """Volumes of the pods that the drain leaves on the node."""
    for pod in state.pods_on(node_name):
        if not pod_disruption.needs_draining(pod, now):
            for name in pods.volume_claim_names(pod):
                claim = state.volume_claim((pod.metadata.namespace, name))
                if claim is not None:
                    yield claim.spec.volume_name


def _volume_name(attachment: VolumeAttachment) -> str:
    return attachment.spec.source.persistent_volume_name
