"""The virtual pods of capacity buffers, and where the last plan put them: what snapshots say beyond the cluster (SCH §25)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from karpenter.api.core import Pod
from karpenter.cluster.classes import PodClasses
from karpenter.cluster.faces import face_of
from karpenter.cluster.snapshot import PodGroup, Snapshot


class VirtualPods:
    """Pods that wait in every plan and are never bound, by buffer (``namespace/name``)."""

    def __init__(self) -> None:
        self._classes = PodClasses()
        self._groups: dict[str, PodGroup] = {}
        #: How many of them the last plan put on each machine, by key of its view (SCH-741).
        self.held: Mapping[str, int] = {}

    def put(self, buffer: str, pods: tuple[Pod, ...]) -> None:
        """These are the buffer's pods now, all alike; none drops it. Raises ``quantity.QuantityError``."""
        if pods:
            self._groups[buffer] = PodGroup(self._classes.of(pods[0]), face_of(pods[0]), pods)
        else:
            self._groups.pop(buffer, None)

    def into(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the virtual pods behind the real ones; the same where there are none."""
        if not self._groups and not self.held:
            return snapshot
        groups = tuple(self._groups[buffer] for buffer in sorted(self._groups))
        return replace(snapshot, groups=(*snapshot.groups, *groups), held=self.held)
