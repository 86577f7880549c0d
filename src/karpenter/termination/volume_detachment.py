"""Volumes of a draining node: its instance does not end before they are detached (DIS §17.5).

Detaching is the work of the cluster's attach/detach controller; here it is only waited for. Volumes of pods that stay on the node
to its end are not waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from karpenter.api.storage import VolumeAttachment
from karpenter.model import pod_disruption, pods
from karpenter.state import ClusterState


def awaited_attachments(state: ClusterState, node_name: str, now: datetime) -> tuple[VolumeAttachment, ...]:
    """The attachments the node waits for (DIS-540)."""
    named = [item for item in state.attachments_on(node_name) if _volume_name(item)]
    if not named:
        return ()
    staying = set(_volumes_of_staying_pods(state, node_name, now))
    return tuple(item for item in named if _volume_name(item) not in staying)


def volume_claim_of(state: ClusterState, attachment: VolumeAttachment) -> str:
    """Namespace and name of the claim behind an attachment, empty where that cannot be told."""
    volume = state.volume(_volume_name(attachment))
    reference = volume.spec.claim_ref if volume is not None else None
    return f"{reference.namespace}/{reference.name}" if reference is not None else ""


def _volumes_of_staying_pods(state: ClusterState, node_name: str, now: datetime) -> Iterator[str]:
    """Volumes of the pods that no drain waits for."""
    for pod in state.pods_on(node_name):
        if not pod_disruption.needs_draining(pod, now):
            for name in pods.volume_claim_names(pod):
                claim = state.volume_claim((pod.metadata.namespace, name))
                if claim is not None:
                    yield claim.spec.volume_name


def _volume_name(attachment: VolumeAttachment) -> str:
    return attachment.spec.source.persistent_volume_name
