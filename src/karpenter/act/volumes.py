"""Volumes of a draining node: its instance does not end before they are detached (DIS §17.5).

Detaching is the work of the cluster's attach/detach controller; here it is only waited for. Volumes of pods that stay on the node
to its end are not waited for. Which volume a claim has, and which claim a volume belongs to, is asked of the API server once each
and only for nodes that have volumes to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from karpenter.act.world import World
from karpenter.api.core import Pod, VolumeAttachment
from karpenter.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from karpenter.kube.errors import KubeError, NotFound
from karpenter.model import pods


@dataclass
class _Known:
    """What has been asked about the volumes of one node."""

    #: Volume of a pod's claim, by uid of the pod and name of the claim.
    volumes: dict[tuple[str, str], str] = field(default_factory=dict)
    #: Namespace and name of a volume's claim, by name of the volume; empty where it cannot be told.
    claims: dict[str, str] = field(default_factory=dict)


class Volumes:
    """Knows which volumes of a node have to be waited for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[str, _Known] = {}

    def forget(self, node_name: str) -> None:
        """The node is gone, or waits for no volume any more."""
        self._known.pop(node_name, None)

    async def attached(self, node_name: str) -> tuple[VolumeAttachment, ...]:
        """The attachments the node waits for (DIS-540). Raises ``KubeError``."""
        named = [item for item in self._world.state.attachments_of(node_name) if _volume(item)]
        if not named:
            return ()
        staying = await self._staying(node_name)
        return tuple(item for item in named if _volume(item) not in staying)

    async def claims_of(self, node_name: str, attachments: Sequence[VolumeAttachment]) -> list[str]:
        """Namespace and name of the claim behind each attachment, empty where that cannot be told."""
        return [await self._claim_of(node_name, _volume(item)) for item in attachments]

    async def _staying(self, node_name: str) -> set[str]:
        """Volumes of the pods that no drain waits for."""
        now = self._world.clock.now()
        staying = [pod for pod in self._world.state.pods_on(node_name) if not pods.needs_draining(pod, now)]
        return {await self._volume_of(node_name, pod, claim) for pod in staying for claim in pods.volume_claims(pod)}

    async def _volume_of(self, node_name: str, pod: Pod, claim: str) -> str:
        known = self._known.setdefault(node_name, _Known()).volumes
        key = (pod.metadata.uid, claim)
        if not known.get(key):
            try:
                found = await self._world.kube.get(PERSISTENT_VOLUME_CLAIM, claim, pod.metadata.namespace)
            except NotFound:
                return ""
            known[key] = found.spec.volume_name
        return known[key]

    async def _claim_of(self, node_name: str, volume: str) -> str:
        known = self._known.setdefault(node_name, _Known()).claims
        if volume not in known:
            try:
                reference = (await self._world.kube.get(PERSISTENT_VOLUME, volume)).spec.claim_ref
            except KubeError:
                # The name of the claim is a help to the reader; without it the volume's own must do.
                reference = None
            known[volume] = f"{reference.namespace}/{reference.name}" if reference is not None else ""
        return known[volume]


def _volume(attachment: VolumeAttachment) -> str:
    return attachment.spec.source.persistent_volume_name
