"""What the volumes of a pod mean for its place: why it waits, which nodes will do, what it takes of their attachments (SCH §18).

A pod names claims, a claim names a volume or, as long as it has none, a storage class; where the volume is, or may be made, says
where the pod can run. ``VolumeIndex`` follows the four kinds and the pods that use claims; ``Volumes`` is its immutable picture.
A picture costs nothing while nothing changes, and one copy of a dictionary where something did.

Deliberately left to the scheduler, because no rule of the cluster keeps a pod from running elsewhere:

* A ReadWriteOnce claim in use on some node. It is the attaching that may have to wait there, not the pod.
* Zones of disks that a pod names without any claim: nothing but the cloud knows them. They do count as attachments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from typing import Generic, TypeVar

from karpenter.api.core import (
    CSINode,
    InTreeDisk,
    NodeSelectorTerm,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
    Pod,
    StorageClass,
    TopologySelectorTerm,
    Volume,
)
from karpenter.model import labels, pods
from karpenter.model.requirements import Op, Requirements, intersects, requirement

K = TypeVar("K")
V = TypeVar("V")

#: Namespace and name of a claim, or of a pod.
Key = tuple[str, str]
#: Per CSI driver the identities of what is attached: ``namespace/name`` of a claim, ``/id`` of a disk named without one.
Mounted = Mapping[str, frozenset[str]]

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
_WAITS_FOR_POD = "WaitForFirstConsumer"
_ONE_POD = "ReadWriteOncePod"

#: Sources of volumes older than CSI, by field, and the driver that serves them now. Beyond SCH-460, which counts the first only.
_DRIVER_OF_SOURCE = {
    "aws_elastic_block_store": "ebs.csi.aws.com",
    "gce_persistent_disk": "pd.csi.storage.gke.io",
    "cinder": "cinder.csi.openstack.org",
    "azure_disk": "disk.csi.azure.com",
    "azure_file": "file.csi.azure.com",
    "vsphere_volume": "csi.vsphere.vmware.com",
    "portworx_volume": "pxd.portworx.com",
}
#: Provisioners older than CSI and the driver that does their work now (SCH-460).
_DRIVER_OF_PROVISIONER = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/azure-file": "file.csi.azure.com",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
}
#: Sources a pod can name without a claim.
_DISKS = ("aws_elastic_block_store", "gce_persistent_disk", "azure_disk", "cinder")

#: Combinations of places kept for one pod. Any of them would do, so leaving some out loses places, never correctness.
_MOST_ALTERNATIVES = 1000

_ANYWHERE = (Requirements(),)
_NOTHING_MOUNTED: Mounted = {}
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """What a pod's volumes mean for its place.

    ``faults`` say why a waiting pod cannot be planned for (SCH-450), one text per claim. ``unresolved`` are those of them that
    hold for every pod, also for one that must leave its node and is not validated again (SCH-063): where its volumes are is not
    known (SCH-441). ``transient``: all faults are of a kind that other controllers normally end within seconds.

    ``alternatives``: one of these must hold for the node, in this order; none means that any node will do (SCH-440). They are
    about the node only and do not shrink the domains over which the pod wants to be spread (SCH-442).
    ``mounts`` is what the pod attaches to its node (SCH-460).
    """

    faults: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    transient: bool = False
    alternatives: tuple[Requirements, ...] = ()
    mounts: Mounted = field(default_factory=dict, hash=False)

    @property
    def profile(self) -> tuple[object, ...]:
        """What makes two pods equal as far as volumes go, whosever they are: of each driver only the number counts."""
        counts = tuple(sorted((driver, len(identities)) for driver, identities in self.mounts.items()))
        return (self.faults, self.alternatives, counts)


#: A pod without volumes that matter.
NO_VOLUMES = PodVolumes()


@dataclass(frozen=True, slots=True)
class _Resolved:
    """What one claim means for the pods that use it."""

    fault: str = ""
    unresolved: str = ""
    is_transient: bool = False
    alternatives: tuple[Requirements, ...] = ()
    driver: str = ""


@dataclass(frozen=True)
class Volumes:
    """The claims, volumes, storage classes and attach limits of a cluster at one moment.

    ``limits`` are attachments a driver allows, by node and driver (SCH-093). ``users`` are the unfinished pods of the claims that
    only one pod may use at a time.
    """

    claims: Mapping[Key, PersistentVolumeClaim] = field(default_factory=dict)
    volumes: Mapping[str, PersistentVolume] = field(default_factory=dict)
    classes: Mapping[str, StorageClass] = field(default_factory=dict)
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    users: Mapping[Key, Mapping[Key, Pod]] = field(default_factory=dict)

    def of(self, pod: Pod) -> PodVolumes:
        """What the pod's volumes mean for its place. Costs some microseconds per claim, next to nothing without."""
        if not pod.spec.volumes:
            return NO_VOLUMES
        disks = _disks(pod)
        names = dict.fromkeys(pods.volume_claims(pod))
        if not (names or disks):
            return NO_VOLUMES
        ephemeral = {
            f"{pod.metadata.name}-{volume.name}" for volume in pod.spec.volumes if volume.ephemeral is not None
        }
        found = {
            (pod.metadata.namespace, name): self._resolved((pod.metadata.namespace, name), name in ephemeral)
            for name in names
        }
        contested = [text for key in found if (text := self._contested(key, pod))]
        resolved = found.values()
        return PodVolumes(
            faults=(*(item.fault for item in resolved if item.fault), *contested),
            unresolved=tuple([item.unresolved for item in resolved if item.unresolved]),
            transient=not contested and _is_transient(resolved),
            alternatives=_combined([item.alternatives for item in resolved]),
            mounts=_mounts({"/".join(key): item.driver for key, item in found.items()} | disks),
        )

    def limit(self, node_name: str, driver: str) -> int | None:
        """How many volumes of a driver the node can hold; None where nobody says (SCH-093)."""
        return self.limits.get(node_name, {}).get(driver)

    def mounted(self, running: Iterable[Pod]) -> Mounted:
        """What pods of one node hold of its attachments, claims shared by several counted once (SCH-093)."""
        found: dict[str, set[str]] = {}
        for pod in running:
            for driver, identities in self.of(pod).mounts.items():
                found.setdefault(driver, set()).update(identities)
        return {driver: frozenset(identities) for driver, identities in found.items()} if found else _NOTHING_MOUNTED

    def _resolved(self, key: Key, is_ephemeral: bool) -> _Resolved:
        claim = self.claims.get(key)
        if claim is None:
            cause = f'persistentvolumeclaims "{key[1]}" not found'
            text = f"getting persistent volume claim, {cause} (PersistentVolumeClaim={'/'.join(key)})"
            return _Resolved(text, text, is_transient=is_ephemeral)
        found = self._bound(claim) if claim.spec.volume_name else self._unbound(claim)
        doomed = _doomed(claim)
        return replace(found, fault=doomed, is_transient=False) if doomed else found

    def _bound(self, claim: PersistentVolumeClaim) -> _Resolved:
        name = claim.spec.volume_name
        volume = self.volumes.get(name)
        about = _about(claim, ("PersistentVolume", name))
        if volume is None:
            text = f'failed to validate pvc, persistentvolumes "{name}" not found{about}'
            return _Resolved(text, text)
        affinity = volume.spec.node_affinity
        terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
        alternatives = _places(terms, _is_of_one_host(volume.spec))
        driver = _driver_of(volume.spec)
        if volume.metadata.deletion_timestamp is not None:
            text = f"failed to validate pvc, persistentvolume is being deleted{about}"
            return _Resolved(text, alternatives=alternatives, driver=driver)
        if BIND_COMPLETED not in claim.metadata.annotations:
            about = _about(claim, ("annotation", BIND_COMPLETED))
            text = f"pvc is considered unbound because it does not contain annotation{about}"
            return _Resolved(text, is_transient=True, alternatives=alternatives, driver=driver)
        return _Resolved(alternatives=alternatives, driver=driver)

    def _unbound(self, claim: PersistentVolumeClaim) -> _Resolved:
        name = claim.metadata.annotations.get(_CLASS_ANNOTATION, claim.spec.storage_class_name)
        if not name:
            return _Resolved(f"unbound pvc must define a storage class{_about(claim)}")
        storage_class = self.classes.get(name)
        about = _about(claim, ("StorageClass", name))
        if storage_class is None:
            cause = f'storageclasses "{name}" not found'
            text = f"failed to validate pvc, failed to get storage class, {cause}{about}"
            return _Resolved(text, text)
        alternatives = _allowed(storage_class.allowed_topologies)
        driver = _DRIVER_OF_PROVISIONER.get(storage_class.provisioner, storage_class.provisioner)
        if storage_class.volume_binding_mode != _WAITS_FOR_POD:
            text = f"failed to validate pvc, pvc with immediate volume binding mode must be bound{about}"
            return _Resolved(text, is_transient=True, alternatives=alternatives, driver=driver)
        return _Resolved(alternatives=alternatives, driver=driver)

    def _contested(self, key: Key, pod: Pod) -> str:
        """Why the pod may not use a claim that only one pod may use at a time; empty when it may.

        Those that run come first, then those that wait, by priority and age: machines bought for several would stand idle.
        """
        users = self.users.get(key)
        if not users:
            return ""
        rivals = [user for user in users.values() if user.spec.node_name or pods.is_provisionable(user)]
        first = min((*rivals, pod), key=_turn)
        meta = first.metadata
        if (meta.namespace, meta.name) == (pod.metadata.namespace, pod.metadata.name):
            return ""
        what = "is used by" if first.spec.node_name else "goes to"
        claim = "/".join(key)
        return f"persistentvolumeclaim {claim} is for one pod only and {what} pod {meta.namespace}/{meta.name}"


def _turn(pod: Pod) -> tuple[bool, int, datetime, str, str]:
    """Sort key of pods that want the same claim: the running first."""
    meta = pod.metadata
    created = meta.creation_timestamp or _LONG_AGO
    return (not pod.spec.node_name, -(pod.spec.priority or 0), created, meta.uid, meta.name)


def _is_transient(resolved: Iterable[_Resolved]) -> bool:
    faulty = [item for item in resolved if item.fault]
    return bool(faulty) and all(item.is_transient for item in faulty)


def _doomed(claim: PersistentVolumeClaim) -> str:
    if claim.metadata.deletion_timestamp is not None:
        return f"persistentvolumeclaim is being deleted{_about(claim)}"
    if claim.status.phase == "Lost":
        return f"persistentvolumeclaim bound to non-existent persistentvolume{_about(claim)}"
    return ""


def _about(claim: PersistentVolumeClaim, *more: tuple[str, str]) -> str:
    """The objects a text is about, in parentheses (SCH-926)."""
    named = [*more, ("PersistentVolumeClaim", f"{claim.metadata.namespace}/{claim.metadata.name}")]
    return f" ({', '.join(f'{key}={value}' for key, value in sorted(named))})"


# -- where a volume can be reached ----------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _places(terms: tuple[NodeSelectorTerm, ...], is_of_one_host: bool) -> tuple[Requirements, ...]:
    """What a node must offer to reach a volume; shared, since most volumes lie in one of a few zones.

    The host of a local volume does not count: nodes come and go under other names, and the volume dies with its node (DIS-169).
    """
    dropped = labels.HOSTNAME if is_of_one_host else None
    return tuple(
        Requirements(
            requirement(entry.key, entry.operator, entry.values)
            for entry in term.match_expressions
            if entry.key != dropped
        )
        for term in terms
        if term.match_expressions
    )


@lru_cache(maxsize=4096)
def _allowed(terms: tuple[TopologySelectorTerm, ...]) -> tuple[Requirements, ...]:
    """Where volumes of a class may be made. A term without labels selects nothing, as with nodes."""
    return tuple(
        Requirements(requirement(entry.key, Op.IN, entry.values) for entry in term.match_label_expressions)
        for term in terms
        if term.match_label_expressions
    )


def _combined(per_claim: list[tuple[Requirements, ...]]) -> tuple[Requirements, ...]:
    """Alternatives of all claims at once (SCH-440); claims that contradict each other give alternatives nothing satisfies."""
    found: tuple[Requirements, ...] = _ANYWHERE
    for alternatives in per_claim:
        if alternatives:
            found = _pairs(found, alternatives)
    return found if any(found) else ()


@lru_cache(maxsize=4096)
def _pairs(known: tuple[Requirements, ...], new: tuple[Requirements, ...]) -> tuple[Requirements, ...]:
    together = (one.intersect(other) for one in known for other in new if intersects(one, other))
    found = tuple(islice(dict.fromkeys(together), _MOST_ALTERNATIVES))
    if found:
        return found
    return tuple(islice(dict.fromkeys(one.intersect(other) for one in known for other in new), _MOST_ALTERNATIVES))


# -- what is attached -------------------------------------------------------------------------------------------------------


def _is_of_one_host(spec: PersistentVolumeSpec) -> bool:
    return spec.local is not None or spec.host_path is not None


def _driver_of(spec: PersistentVolumeSpec) -> str:
    if spec.csi is not None:
        return spec.csi.driver
    found = (driver for source, driver in _DRIVER_OF_SOURCE.items() if getattr(spec, source) is not None)
    return next(found, "")


def _disks(pod: Pod) -> dict[str, str]:
    """Disks the pod names without a claim, and their drivers."""
    return {
        f"/{name}": _DRIVER_OF_SOURCE[source]
        for volume in pod.spec.volumes
        for source in _DISKS
        if (name := _disk_name(volume, source))
    }


def _disk_name(volume: Volume, source: str) -> str:
    disk: InTreeDisk | None = getattr(volume, source)
    return "" if disk is None else disk.volume_id or disk.pd_name or disk.disk_uri


def _mounts(drivers: Mapping[str, str]) -> Mounted:
    """Identities by driver; what has no driver is not counted."""
    found: dict[str, set[str]] = {}
    for identity, driver in drivers.items():
        if driver:
            found.setdefault(driver, set()).add(identity)
    return {driver: frozenset(identities) for driver, identities in found.items()} if found else _NOTHING_MOUNTED


# -- following the cluster --------------------------------------------------------------------------------------------------


class _Shared(Generic[K, V]):
    """A dictionary that can be shown as it is now: before the first change after that it copies itself."""

    def __init__(self) -> None:
        self._items: dict[K, V] = {}
        self._is_shown = False

    def show(self) -> Mapping[K, V]:
        """The items of this moment, for good."""
        self._is_shown = True
        return self._items

    def get(self, key: K) -> V | None:
        return self._items.get(key)

    def put(self, key: K, value: V) -> None:
        self._own()[key] = value

    def drop(self, key: K) -> None:
        if key in self._items:
            del self._own()[key]

    def _own(self) -> dict[K, V]:
        if self._is_shown:
            self._items = dict(self._items)
            self._is_shown = False
        return self._items


class VolumeIndex:
    """Follows everything volumes are made of."""

    def __init__(self) -> None:
        self._claims: _Shared[Key, PersistentVolumeClaim] = _Shared()
        self._volumes: _Shared[str, PersistentVolume] = _Shared()
        self._classes: _Shared[str, StorageClass] = _Shared()
        self._limits: _Shared[str, Mapping[str, int]] = _Shared()
        self._users: dict[Key, dict[Key, Pod]] = {}
        #: Claims that only one pod may use at a time.
        self._for_one: set[Key] = set()
        self._picture: Volumes | None = None

    def picture(self) -> Volumes:
        """Everything as it is now; the same object as long as nothing changes."""
        if self._picture is None:
            self._picture = Volumes(
                self._claims.show(),
                self._volumes.show(),
                self._classes.show(),
                self._limits.show(),
                {key: dict(self._users[key]) for key in self._for_one if key in self._users},
            )
        return self._picture

    def claim(self, key: Key) -> PersistentVolumeClaim | None:
        """A claim by namespace and name."""
        return self._claims.get(key)

    def volume(self, name: str) -> PersistentVolume | None:
        """A volume by name."""
        return self._volumes.get(name)

    def users(self, claim: Key) -> tuple[Pod, ...]:
        """Unfinished pods that name the claim."""
        return tuple(self._users.get(claim, {}).values())

    def set_pod(self, key: Key, pod: Pod) -> None:
        """An unfinished pod appeared; ``drop_pod`` was called for what was known under its name."""
        for claim in _claims_of(pod):
            self._users.setdefault(claim, {})[key] = pod
            if claim in self._for_one:
                self._picture = None

    def drop_pod(self, key: Key, pod: Pod) -> None:
        """A pod as it was given to ``set_pod`` is gone, or has finished."""
        for claim in _claims_of(pod):
            users = self._users.get(claim, {})
            users.pop(key, None)
            if not users:
                self._users.pop(claim, None)
            if claim in self._for_one:
                self._picture = None

    def set_claim(self, claim: PersistentVolumeClaim) -> None:
        """A claim appeared or changed."""
        key = (claim.metadata.namespace, claim.metadata.name)
        self.remove_claim(key)
        self._claims.put(key, claim)
        if _ONE_POD in claim.spec.access_modes:
            self._for_one.add(key)

    def remove_claim(self, key: Key) -> None:
        """A claim is gone."""
        self._picture = None
        self._claims.drop(key)
        self._for_one.discard(key)

    def set_volume(self, volume: PersistentVolume) -> None:
        """A volume appeared or changed."""
        self._picture = None
        self._volumes.put(volume.metadata.name, volume)

    def remove_volume(self, name: str) -> None:
        """A volume is gone."""
        self._picture = None
        self._volumes.drop(name)

    def set_class(self, storage_class: StorageClass) -> None:
        """A storage class appeared or changed."""
        self._picture = None
        self._classes.put(storage_class.metadata.name, storage_class)

    def remove_class(self, name: str) -> None:
        """A storage class is gone."""
        self._picture = None
        self._classes.drop(name)

    def set_csi_node(self, csi_node: CSINode) -> None:
        """A node's drivers appeared or changed; those that say nothing about volumes have no limit."""
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
        """What drivers said about a node is gone."""
        self._picture = None
        self._limits.drop(name)


def _claims_of(pod: Pod) -> Iterator[Key]:
    if pod.spec.volumes:
        for name in pods.volume_claims(pod):
            yield (pod.metadata.namespace, name)
