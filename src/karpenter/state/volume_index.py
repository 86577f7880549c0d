"""The volume index of the cluster state: everything volumes consist of, the pods that use claims, and VolumeAttachments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from karpenter.api.core import Pod
from karpenter.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment
from karpenter.model import pods
from karpenter.state.pod_volumes import ClaimKey, ClusterVolumes

K = TypeVar("K")
V = TypeVar("V")
READ_WRITE_ONCE_POD = "ReadWriteOncePod"


class _CopyOnWriteDict(Generic[K, V]):
    """A dictionary whose snapshots share its contents: the first change after a snapshot copies it."""

    def __init__(self) -> None:
        self._items: dict[K, V] = {}
        self._is_shared = False

    def snapshot(self) -> Mapping[K, V]:
        """The current items; later changes do not affect them."""
        self._is_shared = True
        return self._items

    def get(self, key: K) -> V | None:
        return self._items.get(key)

    def put(self, key: K, value: V) -> None:
        self._writable()[key] = value

    def drop(self, key: K) -> None:
        if key in self._items:
            del self._writable()[key]

    def _writable(self) -> dict[K, V]:
        if self._is_shared:
            self._items = dict(self._items)
            self._is_shared = False
        return self._items


class VolumeIndex:
    """Follows claims, volumes, storage classes, CSI drivers and attachments."""

    def __init__(self) -> None:
        self._claims: _CopyOnWriteDict[ClaimKey, PersistentVolumeClaim] = _CopyOnWriteDict()
        self._volumes: _CopyOnWriteDict[str, PersistentVolume] = _CopyOnWriteDict()
        self._classes: _CopyOnWriteDict[str, StorageClass] = _CopyOnWriteDict()
        self._limits: _CopyOnWriteDict[str, Mapping[str, int]] = _CopyOnWriteDict()
        self._attachments: dict[str, VolumeAttachment] = {}
        self._attachments_by_node: dict[str, set[str]] = {}
        self._users: dict[ClaimKey, dict[ClaimKey, Pod]] = {}
        #: Claims with access mode ReadWriteOncePod.
        self._single_pod_claims: set[ClaimKey] = set()
        self._snapshot: ClusterVolumes | None = None

    def snapshot(self) -> ClusterVolumes:
        """The current volumes; the same object as long as nothing changes."""
        if self._snapshot is None:
            self._snapshot = ClusterVolumes(
                self._claims.snapshot(),
                self._volumes.snapshot(),
                self._classes.snapshot(),
                self._limits.snapshot(),
                {key: dict(self._users[key]) for key in self._single_pod_claims if key in self._users},
            )
        return self._snapshot

    def claim(self, key: ClaimKey) -> PersistentVolumeClaim | None:
        """A claim by namespace and name."""
        return self._claims.get(key)

    def volume(self, name: str) -> PersistentVolume | None:
        """A volume by name."""
        return self._volumes.get(name)

    def users(self, claim: ClaimKey) -> tuple[Pod, ...]:
        """Unfinished pods that name the claim."""
        return tuple(self._users.get(claim, {}).values())

    def set_pod(self, key: ClaimKey, pod: Pod) -> None:
        """An unfinished pod appeared; ``drop_pod`` must have been called for its previous version."""
        for claim in _claim_keys_of(pod):
            self._users.setdefault(claim, {})[key] = pod
            if claim in self._single_pod_claims:
                self._snapshot = None

    def drop_pod(self, key: ClaimKey, pod: Pod) -> None:
        """The pod given to ``set_pod`` is gone, changed or finished."""
        for claim in _claim_keys_of(pod):
            users = self._users.get(claim, {})
            users.pop(key, None)
            if not users:
                self._users.pop(claim, None)
            if claim in self._single_pod_claims:
                self._snapshot = None

    def set_claim(self, claim: PersistentVolumeClaim) -> None:
        """A claim appeared or changed."""
        key = (claim.metadata.namespace, claim.metadata.name)
        self.remove_claim(key)
        self._claims.put(key, claim)
        if READ_WRITE_ONCE_POD in claim.spec.access_modes:
            self._single_pod_claims.add(key)

    def remove_claim(self, key: ClaimKey) -> None:
        """A claim is gone."""
        self._snapshot = None
        self._claims.drop(key)
        self._single_pod_claims.discard(key)

    def set_volume(self, volume: PersistentVolume) -> None:
        """A volume appeared or changed."""
        self._snapshot = None
        self._volumes.put(volume.metadata.name, volume)

    def remove_volume(self, name: str) -> None:
        """A volume is gone."""
        self._snapshot = None
        self._volumes.drop(name)

    def set_class(self, storage_class: StorageClass) -> None:
        """A storage class appeared or changed."""
        self._snapshot = None
        self._classes.put(storage_class.metadata.name, storage_class)

    def remove_class(self, name: str) -> None:
        """A storage class is gone."""
        self._snapshot = None
        self._classes.drop(name)

    def set_csi_node(self, csi_node: CSINode) -> None:
        """A node's drivers appeared or changed; drivers without a count have no limit."""
        limits = {
            driver.name: max(0, driver.allocatable.count)
            for driver in csi_node.spec.drivers
            if driver.allocatable is not None and driver.allocatable.count is not None
        }
        name = csi_node.metadata.name
        if limits != (self._limits.get(name) or {}):
            self.remove_csi_node(name)
            if limits:
                self._limits.put(name, limits)

    def remove_csi_node(self, name: str) -> None:
        """A node's drivers are gone."""
        self._snapshot = None
        self._limits.drop(name)

    def set_attachment(self, attachment: VolumeAttachment) -> None:
        """A VolumeAttachment appeared or changed."""
        name = attachment.metadata.name
        self.remove_attachment(name)
        self._attachments[name] = attachment
        self._attachments_by_node.setdefault(attachment.spec.node_name, set()).add(name)

    def remove_attachment(self, name: str) -> None:
        """A VolumeAttachment is gone."""
        attachment = self._attachments.pop(name, None)
        if attachment is None:
            return
        names = self._attachments_by_node[attachment.spec.node_name]
        names.discard(name)
        if not names:
            del self._attachments_by_node[attachment.spec.node_name]

    def attachments_on(self, node_name: str) -> tuple[VolumeAttachment, ...]:
        """The volumes attached to a node, by name of the attachment."""
        return tuple(self._attachments[name] for name in sorted(self._attachments_by_node.get(node_name, ())))


def _claim_keys_of(pod: Pod) -> Iterator[ClaimKey]:
    if pod.spec.volumes:
        for name in pods.volume_claim_names(pod):
            yield (pod.metadata.namespace, name)
