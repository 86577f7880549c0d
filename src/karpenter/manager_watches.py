"""What is told about claims, volumes, storage classes and drivers goes into the state, and wakes the pods that waited for it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog

from karpenter.api.apps import SelectorWorkload
from karpenter.api.core import ConfigMap, Pod, ReplicationController, Service
from karpenter.api.kinds import CONFIG_MAP
from karpenter.api.meta import Condition, ObjectMeta, Wire
from karpenter.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass
from karpenter.kube.decoding import metadata_of
from karpenter.kube.errors import KubeError
from karpenter.kube.informer import Informer, WatchScope
from karpenter.kube.protocol import Reader, UndecodableObject
from karpenter.model import freezes, pods
from karpenter.state import ClusterState
from karpenter.state.workload_selectors import WorkloadSelectorIndex

T = TypeVar("T", bound=Wire)


class VolumeWatchHandlers:
    """Handlers of the four kinds. ``trigger`` is told the uid of each waiting pod for which a plan may now be made."""

    def __init__(self, state: ClusterState, trigger: Callable[[str], None]) -> None:
        self._state = state
        self._trigger = trigger

    def on_volume_claim(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        """A PersistentVolumeClaim."""
        if new is not None:
            self._state.set_volume_claim(new)
            self._trigger_pods(self._state.users_of_volume_claim((new.metadata.namespace, new.metadata.name)))
        elif old is not None:
            self._state.remove_volume_claim((old.metadata.namespace, old.metadata.name))

    def on_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        """A PersistentVolume."""
        if new is not None:
            self._state.set_volume(new)
            claim = new.spec.claim_ref
            if claim is not None:
                self._trigger_pods(self._state.users_of_volume_claim((claim.namespace, claim.name)))
        elif old is not None:
            self._state.remove_volume(old.metadata.name)

    def on_storage_class(self, old: StorageClass | None, new: StorageClass | None) -> None:
        """A StorageClass; which claims are of it nobody keeps in mind, classes hardly ever change."""
        if new is not None:
            self._state.set_storage_class(new)
            self._trigger_pods(pod for pod in self._state.pending_pods() if pods.volume_claim_names(pod))
        elif old is not None:
            self._state.remove_storage_class(old.metadata.name)

    def on_csi_node(self, old: CSINode | None, new: CSINode | None) -> None:
        """A CSINode."""
        if new is not None:
            self._state.set_csi_node(new)
        elif old is not None:
            self._state.remove_csi_node(old.metadata.name)

    def _trigger_pods(self, pods_using_volume: Iterable[Pod]) -> None:
        for pod in pods_using_volume:
            if pods.is_provisionable(pod):
                self._trigger(pod.metadata.uid)


class NodeClassObject(Protocol):
    """What readiness reads of a node class of any kind."""

    metadata: ObjectMeta
    status: NodeClassObjectStatus


class NodeClassObjectStatus(Protocol):
    """The part of a node class's status that readiness reads."""

    conditions: tuple[Condition, ...]


class WatchSource(Protocol):
    """What running watches need of an informer, whatever it watches."""

    fault: KubeError | None

    @property
    def synced(self) -> bool:
        """Whether the first list has arrived."""

    async def wait_synced(self) -> None:
        """Return once the first list has arrived."""

    async def run(self) -> None:
        """Watch until cancelled."""


@dataclass(frozen=True)
class WatchedKind:
    """An informer by the plural of its kind."""

    plural: str
    source: WatchSource


def guarded_handler(kind: str, handler: Callable[[T | None, T | None], None]) -> Callable[[T | None, T | None], None]:
    """A handler that survives its own mistakes: one object we cannot cope with must not end the watch on all others (OPS-371)."""

    def handle(old: T | None, new: T | None) -> None:
        try:
            handler(old, new)
        except Exception as error:
            meta = metadata_of(new if new is not None else old)  # type: ignore[arg-type]
            name = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
            trace = traceback.format_exc()
            _log.error("object cannot be used", **{kind: name}, error=repr(error), stacktrace=trace)

    return handle


def log_unusable_object(kind: str, name: str, error: str) -> None:
    """Log an object whose contents make no sense."""
    _log.error("object cannot be used", **{kind: name}, error=error)


def log_rejected_object(rejected: UndecodableObject) -> None:
    """Log an object that is not of its kind's schema."""
    name = f"{rejected.namespace}/{rejected.name}" if rejected.namespace else rejected.name
    _log.error("object does not decode", **{rejected.kind: name}, error=rejected.error)


_log = structlog.get_logger()


def watch_cluster_freeze(reader: Reader, state: ClusterState) -> Informer[ConfigMap]:
    """A watch on that one object, which needs no right on any other (OPS-660 ff.)."""
    informer = Informer(
        reader,
        CONFIG_MAP,
        WatchScope(freezes.FREEZE_NAMESPACE, field_selector=f"metadata.name={freezes.FREEZE_CONFIG_MAP}"),
    )

    def tell(_old: ConfigMap | None, new: ConfigMap | None) -> None:
        state.freeze = None if new is None else freezes.cluster_freeze(new)
        if state.freeze is None:
            _log.info(
                "freeze of the cluster taken away",
                ConfigMap={"namespace": freezes.FREEZE_NAMESPACE, "name": freezes.FREEZE_CONFIG_MAP},
            )
        elif state.freeze.findings:
            _log.error("freeze of the cluster cannot be read in full", freeze=str(state.freeze))
        else:
            _log.info("freeze of the cluster", freeze=str(state.freeze))

    informer.subscribe(tell)
    return informer


SelectingOwner = SelectorWorkload | ReplicationController


class WorkloadWatchHandlers:
    """Handlers of the kinds. Nobody is woken: pods that wait are looked at every few seconds anyway."""

    def __init__(self, index: WorkloadSelectorIndex) -> None:
        self._index = index

    def on_service(self, old: Service | None, new: Service | None) -> None:
        """A Service."""
        if new is not None:
            self._index.set_service(new)
        elif old is not None:
            self._index.remove_service((old.metadata.namespace, old.metadata.name))

    def on_owner(self, old: SelectingOwner | None, new: SelectingOwner | None) -> None:
        """A ReplicationController, ReplicaSet or StatefulSet; one made anew under the same name has another uid."""
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._index.remove_owner(old.metadata.uid)
        if new is not None:
            self._index.set_owner(new)
