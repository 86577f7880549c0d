"""What is told about claims, volumes, storage classes and drivers goes into the state, and wakes the pods that waited for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from karpenter.api.core import CSINode, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass
from karpenter.cluster import ClusterState
from karpenter.model import pods


class VolumeEvents:
    """Handlers of the four kinds. ``trigger`` is told the uid of each waiting pod for which a plan may now be made."""

    def __init__(self, state: ClusterState, trigger: Callable[[str], None]) -> None:
        self._state = state
        self._trigger = trigger

    def on_claim(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        """A PersistentVolumeClaim."""
        if new is not None:
            self._state.set_volume_claim(new)
            self._wake(self._state.users_of_volume_claim((new.metadata.namespace, new.metadata.name)))
        elif old is not None:
            self._state.remove_volume_claim((old.metadata.namespace, old.metadata.name))

    def on_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        """A PersistentVolume."""
        if new is not None:
            self._state.set_volume(new)
            claim = new.spec.claim_ref
            if claim is not None:
                self._wake(self._state.users_of_volume_claim((claim.namespace, claim.name)))
        elif old is not None:
            self._state.remove_volume(old.metadata.name)

    def on_class(self, old: StorageClass | None, new: StorageClass | None) -> None:
        """A StorageClass; which claims are of it nobody keeps in mind, classes hardly ever change."""
        if new is not None:
            self._state.set_storage_class(new)
            self._wake(pod for pod in self._state.waiting_pods() if pods.volume_claims(pod))
        elif old is not None:
            self._state.remove_storage_class(old.metadata.name)

    def on_csi_node(self, old: CSINode | None, new: CSINode | None) -> None:
        """A CSINode."""
        if new is not None:
            self._state.set_csi_node(new)
        elif old is not None:
            self._state.remove_csi_node(old.metadata.name)

    def _wake(self, users: Iterable[Pod]) -> None:
        for pod in users:
            if pods.is_provisionable(pod):
                self._trigger(pod.metadata.uid)
