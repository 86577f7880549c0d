"""What the volumes of a pod mean for its place: why it waits, which nodes will do, what it takes of their attachments (SCH §18).

A pod names claims, a claim names a volume or, as long as it has none, a storage class; where the volume is, or may be made, says
where the pod can run. ``VolumeIndex`` follows the four kinds and the pods that use claims; ``Volumes`` is its immutable picture.
A picture costs nothing while nothing changes, and one copy of a dictionary where something did.

Deliberately left to the scheduler, because no rule of the cluster keeps a pod from running elsewhere:

* A ReadWriteOnce claim in use on some node. It is the attaching that may have to wait there, not the pod.
* Zones of disks that a pod names without any claim: nothing but the cloud knows them. They do count as attachments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice

from karpenter.api.core import Pod
from karpenter.api.scheduling_constraints import NodeSelectorTerm
from karpenter.api.storage import (
    InTreeVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
    StorageClass,
    TopologySelectorTerm,
    Volume,
)
from karpenter.model import labels, pods
from karpenter.model.requirements import Op, Requirements, intersects, requirement

#: Namespace and name of a claim, or of a pod.
ClaimKey = tuple[str, str]
#: Per CSI driver the identities of what is attached: ``namespace/name`` of a claim, ``/id`` of a disk named without one.
VolumesByDriver = Mapping[str, frozenset[str]]

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
_STORAGE_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
_WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"

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
_INLINE_DISK_SOURCES = ("aws_elastic_block_store", "gce_persistent_disk", "azure_disk", "cinder")

#: Combinations of places kept for one pod. Any of them would do, so leaving some out loses places, never correctness.
_MAX_ALTERNATIVES = 1000

_ANY_NODE = (Requirements(),)
_NO_VOLUMES_BY_DRIVER: VolumesByDriver = {}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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

    claim_errors: tuple[str, ...] = ()
    unresolved_claim_errors: tuple[str, ...] = ()
    errors_are_transient: bool = False
    node_alternatives: tuple[Requirements, ...] = ()
    volumes_by_driver: VolumesByDriver = field(default_factory=dict, hash=False)

    @property
    def equivalence_key(self) -> tuple[object, ...]:
        """What makes two pods equal as far as volumes go, whosever they are: of each driver only the number counts."""
        counts = tuple(sorted((driver, len(identities)) for driver, identities in self.volumes_by_driver.items()))
        return (self.claim_errors, self.node_alternatives, counts)


#: A pod without volumes that matter.
NO_POD_VOLUMES = PodVolumes()


@dataclass(frozen=True, slots=True)
class _ResolvedClaim:
    """What one claim means for the pods that use it."""

    error: str = ""
    unresolved_error: str = ""
    is_transient: bool = False
    node_alternatives: tuple[Requirements, ...] = ()
    driver: str = ""


@dataclass(frozen=True)
class ClusterVolumes:
    """The claims, volumes, storage classes and attach limits of a cluster at one moment.

    ``limits`` are attachments a driver allows, by node and driver (SCH-093). ``users`` are the unfinished pods of the claims that
    only one pod may use at a time.
    """

    claims: Mapping[ClaimKey, PersistentVolumeClaim] = field(default_factory=dict)
    volumes: Mapping[str, PersistentVolume] = field(default_factory=dict)
    classes: Mapping[str, StorageClass] = field(default_factory=dict)
    attach_limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    single_pod_claim_users: Mapping[ClaimKey, Mapping[ClaimKey, Pod]] = field(default_factory=dict)

    def resolve(self, pod: Pod) -> PodVolumes:
        """What the pod's volumes mean for its place. Costs some microseconds per claim, next to nothing without."""
        if not pod.spec.volumes:
            return NO_POD_VOLUMES
        disks = _inline_disks(pod)
        names = dict.fromkeys(pods.volume_claim_names(pod))
        if not (names or disks):
            return NO_POD_VOLUMES
        ephemeral = {
            f"{pod.metadata.name}-{volume.name}" for volume in pod.spec.volumes if volume.ephemeral is not None
        }
        found = {
            (pod.metadata.namespace, name): self._resolve_claim((pod.metadata.namespace, name), name in ephemeral)
            for name in names
        }
        contested = [text for key in found if (text := self._single_pod_conflict(key, pod))]
        resolved = found.values()
        return PodVolumes(
            claim_errors=(*(item.error for item in resolved if item.error), *contested),
            unresolved_claim_errors=tuple([item.unresolved_error for item in resolved if item.unresolved_error]),
            errors_are_transient=not contested and _is_transient(resolved),
            node_alternatives=_combined_alternatives([item.node_alternatives for item in resolved]),
            volumes_by_driver=_by_driver({"/".join(key): item.driver for key, item in found.items()} | disks),
        )

    def attach_limit(self, node_name: str, driver: str) -> int | None:
        """How many volumes of a driver the node can hold; None where nobody says (SCH-093)."""
        return self.attach_limits.get(node_name, {}).get(driver)

    def attached_volumes(self, running: Iterable[Pod]) -> VolumesByDriver:
        """What pods of one node hold of its attachments, claims shared by several counted once (SCH-093)."""
        found: dict[str, set[str]] = {}
        for pod in running:
            for driver, identities in self.resolve(pod).volumes_by_driver.items():
                found.setdefault(driver, set()).update(identities)
        return (
            {driver: frozenset(identities) for driver, identities in found.items()} if found else _NO_VOLUMES_BY_DRIVER
        )

    def _resolve_claim(self, key: ClaimKey, is_ephemeral: bool) -> _ResolvedClaim:
        claim = self.claims.get(key)
        if claim is None:
            cause = f'persistentvolumeclaims "{key[1]}" not found'
            text = f"getting persistent volume claim, {cause} (PersistentVolumeClaim={'/'.join(key)})"
            return _ResolvedClaim(text, text, is_transient=is_ephemeral)
        found = self._resolve_bound(claim) if claim.spec.volume_name else self._resolve_unbound(claim)
        doomed = _claim_error(claim)
        return replace(found, error=doomed, is_transient=False) if doomed else found

    def _resolve_bound(self, claim: PersistentVolumeClaim) -> _ResolvedClaim:
        name = claim.spec.volume_name
        volume = self.volumes.get(name)
        about = _involved_objects(claim, ("PersistentVolume", name))
        if volume is None:
            text = f'failed to validate pvc, persistentvolumes "{name}" not found{about}'
            return _ResolvedClaim(text, text)
        affinity = volume.spec.node_affinity
        terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
        alternatives = _reachable_from(terms, _is_host_local(volume.spec))
        driver = _csi_driver_of(volume.spec)
        if volume.metadata.deletion_timestamp is not None:
            text = f"failed to validate pvc, persistentvolume is being deleted{about}"
            return _ResolvedClaim(text, node_alternatives=alternatives, driver=driver)
        if BIND_COMPLETED not in claim.metadata.annotations:
            about = _involved_objects(claim, ("annotation", BIND_COMPLETED))
            text = f"pvc is considered unbound because it does not contain annotation{about}"
            return _ResolvedClaim(text, is_transient=True, node_alternatives=alternatives, driver=driver)
        return _ResolvedClaim(node_alternatives=alternatives, driver=driver)

    def _resolve_unbound(self, claim: PersistentVolumeClaim) -> _ResolvedClaim:
        name = claim.metadata.annotations.get(_STORAGE_CLASS_ANNOTATION, claim.spec.storage_class_name)
        if not name:
            return _ResolvedClaim(f"unbound pvc must define a storage class{_involved_objects(claim)}")
        storage_class = self.classes.get(name)
        about = _involved_objects(claim, ("StorageClass", name))
        if storage_class is None:
            cause = f'storageclasses "{name}" not found'
            text = f"failed to validate pvc, failed to get storage class, {cause}{about}"
            return _ResolvedClaim(text, text)
        alternatives = _allowed_topologies(storage_class.allowed_topologies)
        driver = _DRIVER_OF_PROVISIONER.get(storage_class.provisioner, storage_class.provisioner)
        if storage_class.volume_binding_mode != _WAIT_FOR_FIRST_CONSUMER:
            text = f"failed to validate pvc, pvc with immediate volume binding mode must be bound{about}"
            return _ResolvedClaim(text, is_transient=True, node_alternatives=alternatives, driver=driver)
        return _ResolvedClaim(node_alternatives=alternatives, driver=driver)

    def _single_pod_conflict(self, key: ClaimKey, pod: Pod) -> str:
        """Why the pod may not use a claim that only one pod may use at a time; empty when it may.

        Those that run come first, then those that wait, by priority and age: machines bought for several would stand idle.
        """
        users = self.single_pod_claim_users.get(key)
        if not users:
            return ""
        rivals = [user for user in users.values() if user.spec.node_name or pods.is_provisionable(user)]
        first = min((*rivals, pod), key=_claim_precedence)
        meta = first.metadata
        if (meta.namespace, meta.name) == (pod.metadata.namespace, pod.metadata.name):
            return ""
        what = "is used by" if first.spec.node_name else "goes to"
        claim = "/".join(key)
        return f"persistentvolumeclaim {claim} is for one pod only and {what} pod {meta.namespace}/{meta.name}"


def _claim_precedence(pod: Pod) -> tuple[bool, int, datetime, str, str]:
    """Sort key of pods that want the same claim: the running first."""
    meta = pod.metadata
    created = meta.creation_timestamp or _EPOCH
    return (not pod.spec.node_name, -(pod.spec.priority or 0), created, meta.uid, meta.name)


def _is_transient(resolved: Iterable[_ResolvedClaim]) -> bool:
    faulty = [item for item in resolved if item.error]
    return bool(faulty) and all(item.is_transient for item in faulty)


def _claim_error(claim: PersistentVolumeClaim) -> str:
    if claim.metadata.deletion_timestamp is not None:
        return f"persistentvolumeclaim is being deleted{_involved_objects(claim)}"
    if claim.status.phase == "Lost":
        return f"persistentvolumeclaim bound to non-existent persistentvolume{_involved_objects(claim)}"
    return ""


def _involved_objects(claim: PersistentVolumeClaim, *more: tuple[str, str]) -> str:
    """The objects a text is about, in parentheses (SCH-926)."""
    named = [*more, ("PersistentVolumeClaim", f"{claim.metadata.namespace}/{claim.metadata.name}")]
    return f" ({', '.join(f'{key}={value}' for key, value in sorted(named))})"


# -- where a volume can be reached ----------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _reachable_from(terms: tuple[NodeSelectorTerm, ...], is_of_one_host: bool) -> tuple[Requirements, ...]:
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
def _allowed_topologies(terms: tuple[TopologySelectorTerm, ...]) -> tuple[Requirements, ...]:
    """Where volumes of a class may be made. A term without labels selects nothing, as with nodes."""
    return tuple(
        Requirements(requirement(entry.key, Op.IN, entry.values) for entry in term.match_label_expressions)
        for term in terms
        if term.match_label_expressions
    )


def _combined_alternatives(per_claim: list[tuple[Requirements, ...]]) -> tuple[Requirements, ...]:
    """Alternatives of all claims at once (SCH-440); claims that contradict each other give alternatives nothing satisfies."""
    found: tuple[Requirements, ...] = _ANY_NODE
    for alternatives in per_claim:
        if alternatives:
            found = _pairwise_intersections(found, alternatives)
    return found if any(found) else ()


@lru_cache(maxsize=4096)
def _pairwise_intersections(known: tuple[Requirements, ...], new: tuple[Requirements, ...]) -> tuple[Requirements, ...]:
    together = (one.intersect(other) for one in known for other in new if intersects(one, other))
    found = tuple(islice(dict.fromkeys(together), _MAX_ALTERNATIVES))
    if found:
        return found
    return tuple(islice(dict.fromkeys(one.intersect(other) for one in known for other in new), _MAX_ALTERNATIVES))


# -- what is attached -------------------------------------------------------------------------------------------------------


def _is_host_local(spec: PersistentVolumeSpec) -> bool:
    return spec.local is not None or spec.host_path is not None


def _csi_driver_of(spec: PersistentVolumeSpec) -> str:
    if spec.csi is not None:
        return spec.csi.driver
    found = (driver for source, driver in _DRIVER_OF_SOURCE.items() if getattr(spec, source) is not None)
    return next(found, "")


def _inline_disks(pod: Pod) -> dict[str, str]:
    """Disks the pod names without a claim, and their drivers."""
    return {
        f"/{name}": _DRIVER_OF_SOURCE[source]
        for volume in pod.spec.volumes
        for source in _INLINE_DISK_SOURCES
        if (name := _disk_name(volume, source))
    }


def _disk_name(volume: Volume, source: str) -> str:
    disk: InTreeVolumeSource | None = getattr(volume, source)
    return "" if disk is None else disk.volume_id or disk.pd_name or disk.disk_uri


def _by_driver(drivers: Mapping[str, str]) -> VolumesByDriver:
    """Identities by driver; what has no driver is not counted."""
    found: dict[str, set[str]] = {}
    for identity, driver in drivers.items():
        if driver:
            found.setdefault(driver, set()).add(identity)
    return {driver: frozenset(identities) for driver, identities in found.items()} if found else _NO_VOLUMES_BY_DRIVER
