"""How a pod's volumes restrict its placement: claim errors, allowed nodes, and attachments it uses (SCH §18).

A pod refers to claims, and a claim to a volume or, while unbound, to a storage class. The location of the volume, or the allowed
topologies of the class, determine where the pod can run. ``VolumeIndex`` follows these objects; ``ClusterVolumes`` is its
snapshot, which is free while nothing changes and otherwise costs one copy of a dictionary.

Deliberately left to kube-scheduler, because no rule keeps the pod from running elsewhere:

* A ReadWriteOnce claim in use on another node: only attaching may have to wait.
* Zones of disks that a pod uses without a claim: only the cloud provider has them. They do count as attachments.
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

#: In-tree volume sources, by field, and the CSI driver that replaced them. Beyond SCH-460, which counts the first only.
_DRIVER_OF_SOURCE = {
    "aws_elastic_block_store": "ebs.csi.aws.com",
    "gce_persistent_disk": "pd.csi.storage.gke.io",
    "cinder": "cinder.csi.openstack.org",
    "azure_disk": "disk.csi.azure.com",
    "azure_file": "file.csi.azure.com",
    "vsphere_volume": "csi.vsphere.vmware.com",
    "portworx_volume": "pxd.portworx.com",
}
#: In-tree provisioners and the CSI driver that replaced them (SCH-460).
_DRIVER_OF_PROVISIONER = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/azure-file": "file.csi.azure.com",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
}
#: In-tree sources a pod can use without a claim.
_INLINE_DISK_SOURCES = ("aws_elastic_block_store", "gce_persistent_disk", "azure_disk", "cinder")

#: Limit of node alternatives per pod. Any of them suffices, so dropping some loses options, never correctness.
_MAX_ALTERNATIVES = 1000

_ANY_NODE = (Requirements(),)
_NO_VOLUMES_BY_DRIVER: VolumesByDriver = {}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PodVolumes:
    """How a pod's volumes restrict its placement.

    ``claim_errors`` say why a pending pod cannot be scheduled (SCH-450), one text per claim. ``unresolved_claim_errors`` also
    apply to a pod that must leave its node and is not validated again (SCH-063): its volumes' location is unknown (SCH-441).
    ``errors_are_transient``: other controllers normally resolve all of the errors within seconds.

    ``node_alternatives``: one of these must hold for the node, in this order; empty means any node (SCH-440). They restrict the
    node only, not the domains of the pod's spread constraints (SCH-442). ``volumes_by_driver`` is what the pod attaches to its
    node (SCH-460).
    """

    claim_errors: tuple[str, ...] = ()
    unresolved_claim_errors: tuple[str, ...] = ()
    errors_are_transient: bool = False
    node_alternatives: tuple[Requirements, ...] = ()
    volumes_by_driver: VolumesByDriver = field(default_factory=dict, hash=False)

    @property
    def equivalence_key(self) -> tuple[object, ...]:
        """Equal for pods whose volumes restrict them alike: per driver only the number of volumes counts."""
        counts = tuple(sorted((driver, len(identities)) for driver, identities in self.volumes_by_driver.items()))
        return (self.claim_errors, self.node_alternatives, counts)


#: A pod without relevant volumes.
NO_POD_VOLUMES = PodVolumes()


@dataclass(frozen=True, slots=True)
class _ResolvedClaim:
    """How one claim restricts the pods that use it."""

    error: str = ""
    unresolved_error: str = ""
    is_transient: bool = False
    node_alternatives: tuple[Requirements, ...] = ()
    driver: str = ""


@dataclass(frozen=True)
class ClusterVolumes:
    """Snapshot of the claims, volumes, storage classes and attach limits of a cluster.

    ``attach_limits`` are allowed attachments by node and driver (SCH-093). ``single_pod_claim_users`` are the unfinished pods of
    ReadWriteOncePod claims.
    """

    claims: Mapping[ClaimKey, PersistentVolumeClaim] = field(default_factory=dict)
    volumes: Mapping[str, PersistentVolume] = field(default_factory=dict)
    classes: Mapping[str, StorageClass] = field(default_factory=dict)
    attach_limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    single_pod_claim_users: Mapping[ClaimKey, Mapping[ClaimKey, Pod]] = field(default_factory=dict)

    def resolve(self, pod: Pod) -> PodVolumes:
        """How the pod's volumes restrict it. Costs some microseconds per claim, next to nothing without claims."""
        if not pod.spec.volumes:
            return NO_POD_VOLUMES
        disks = _inline_disks(pod)
        names = dict.fromkeys(pods.volume_claim_names(pod))
        if not (names or disks):
            return NO_POD_VOLUMES
        ephemeral = {
            f"{pod.metadata.name}-{volume.name}" for volume in pod.spec.volumes if volume.ephemeral is not None
        }
        resolved_by_key = {
            (pod.metadata.namespace, name): self._resolve_claim((pod.metadata.namespace, name), name in ephemeral)
            for name in names
        }
        conflicts = [text for key in resolved_by_key if (text := self._single_pod_conflict(key, pod))]
        resolved = resolved_by_key.values()
        return PodVolumes(
            claim_errors=(*(claim.error for claim in resolved if claim.error), *conflicts),
            unresolved_claim_errors=tuple([claim.unresolved_error for claim in resolved if claim.unresolved_error]),
            errors_are_transient=not conflicts and _is_transient(resolved),
            node_alternatives=_combined_alternatives([claim.node_alternatives for claim in resolved]),
            volumes_by_driver=_by_driver(
                {"/".join(key): claim.driver for key, claim in resolved_by_key.items()} | disks
            ),
        )

    def attached_volumes(self, running: Iterable[Pod]) -> VolumesByDriver:
        """Volumes attached for pods of one node; a claim shared by several pods counts once (SCH-093)."""
        by_driver: dict[str, set[str]] = {}
        for pod in running:
            for driver, identities in self.resolve(pod).volumes_by_driver.items():
                by_driver.setdefault(driver, set()).update(identities)
        return (
            {driver: frozenset(identities) for driver, identities in by_driver.items()}
            if by_driver
            else _NO_VOLUMES_BY_DRIVER
        )

    def _resolve_claim(self, key: ClaimKey, is_ephemeral: bool) -> _ResolvedClaim:
        claim = self.claims.get(key)
        if claim is None:
            cause = f'persistentvolumeclaims "{key[1]}" not found'
            text = f"getting persistent volume claim, {cause} (PersistentVolumeClaim={'/'.join(key)})"
            return _ResolvedClaim(text, text, is_transient=is_ephemeral)
        resolved = self._resolve_bound(claim) if claim.spec.volume_name else self._resolve_unbound(claim)
        claim_error = _claim_error(claim)
        return replace(resolved, error=claim_error, is_transient=False) if claim_error else resolved

    def _resolve_bound(self, claim: PersistentVolumeClaim) -> _ResolvedClaim:
        name = claim.spec.volume_name
        volume = self.volumes.get(name)
        involved = _involved_objects(claim, ("PersistentVolume", name))
        if volume is None:
            text = f'failed to validate pvc, persistentvolumes "{name}" not found{involved}'
            return _ResolvedClaim(text, text)
        affinity = volume.spec.node_affinity
        terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
        alternatives = _reachable_from(terms, _is_host_local(volume.spec))
        driver = _csi_driver_of(volume.spec)
        if volume.metadata.deletion_timestamp is not None:
            text = f"failed to validate pvc, persistentvolume is being deleted{involved}"
            return _ResolvedClaim(text, node_alternatives=alternatives, driver=driver)
        if BIND_COMPLETED not in claim.metadata.annotations:
            involved = _involved_objects(claim, ("annotation", BIND_COMPLETED))
            text = f"pvc is considered unbound because it does not contain annotation{involved}"
            return _ResolvedClaim(text, is_transient=True, node_alternatives=alternatives, driver=driver)
        return _ResolvedClaim(node_alternatives=alternatives, driver=driver)

    def _resolve_unbound(self, claim: PersistentVolumeClaim) -> _ResolvedClaim:
        name = claim.metadata.annotations.get(_STORAGE_CLASS_ANNOTATION, claim.spec.storage_class_name)
        if not name:
            return _ResolvedClaim(f"unbound pvc must define a storage class{_involved_objects(claim)}")
        storage_class = self.classes.get(name)
        involved = _involved_objects(claim, ("StorageClass", name))
        if storage_class is None:
            cause = f'storageclasses "{name}" not found'
            text = f"failed to validate pvc, failed to get storage class, {cause}{involved}"
            return _ResolvedClaim(text, text)
        alternatives = _allowed_topologies(storage_class.allowed_topologies)
        driver = _DRIVER_OF_PROVISIONER.get(storage_class.provisioner, storage_class.provisioner)
        if storage_class.volume_binding_mode != _WAIT_FOR_FIRST_CONSUMER:
            text = f"failed to validate pvc, pvc with immediate volume binding mode must be bound{involved}"
            return _ResolvedClaim(text, is_transient=True, node_alternatives=alternatives, driver=driver)
        return _ResolvedClaim(node_alternatives=alternatives, driver=driver)

    def _single_pod_conflict(self, key: ClaimKey, pod: Pod) -> str:
        """Why the pod may not use a ReadWriteOncePod claim; empty when it may.

        Running pods come first, then pending pods by priority and age: nodes launched for all of them would stay idle.
        """
        users = self.single_pod_claim_users.get(key)
        if not users:
            return ""
        other_users = [user for user in users.values() if user.spec.node_name or pods.is_provisionable(user)]
        first = min((*other_users, pod), key=_claim_precedence)
        meta = first.metadata
        if (meta.namespace, meta.name) == (pod.metadata.namespace, pod.metadata.name):
            return ""
        verb = "is used by" if first.spec.node_name else "goes to"
        claim = "/".join(key)
        return f"persistentvolumeclaim {claim} is for one pod only and {verb} pod {meta.namespace}/{meta.name}"


def _claim_precedence(pod: Pod) -> tuple[bool, int, datetime, str, str]:
    """Sort key of pods that use the same claim: running pods first."""
    meta = pod.metadata
    created = meta.creation_timestamp or _EPOCH
    return (not pod.spec.node_name, -(pod.spec.priority or 0), created, meta.uid, meta.name)


def _is_transient(resolved: Iterable[_ResolvedClaim]) -> bool:
    failed = [claim for claim in resolved if claim.error]
    return bool(failed) and all(claim.is_transient for claim in failed)


def _claim_error(claim: PersistentVolumeClaim) -> str:
    if claim.metadata.deletion_timestamp is not None:
        return f"persistentvolumeclaim is being deleted{_involved_objects(claim)}"
    if claim.status.phase == "Lost":
        return f"persistentvolumeclaim bound to non-existent persistentvolume{_involved_objects(claim)}"
    return ""


def _involved_objects(claim: PersistentVolumeClaim, *others: tuple[str, str]) -> str:
    """The involved objects of an error text, in parentheses (SCH-926)."""
    named = [*others, ("PersistentVolumeClaim", f"{claim.metadata.namespace}/{claim.metadata.name}")]
    return f" ({', '.join(f'{key}={value}' for key, value in sorted(named))})"


# -- where a volume can be reached ----------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _reachable_from(terms: tuple[NodeSelectorTerm, ...], is_of_one_host: bool) -> tuple[Requirements, ...]:
    """Node requirements to reach a volume; cached, because most volumes are in one of a few zones.

    The hostname of a local volume is ignored: a replacement node has another name, and the volume is lost with it (DIS-169).
    """
    dropped = labels.HOSTNAME if is_of_one_host else None
    return tuple(
        Requirements(requirement(e.key, e.operator, e.values) for e in term.match_expressions if e.key != dropped)
        for term in terms
        if term.match_expressions
    )


@lru_cache(maxsize=4096)
def _allowed_topologies(terms: tuple[TopologySelectorTerm, ...]) -> tuple[Requirements, ...]:
    """Node requirements from the allowed topologies of a storage class. A term without labels selects nothing, as for nodes."""
    return tuple(
        Requirements(requirement(entry.key, Op.IN, entry.values) for entry in term.match_label_expressions)
        for term in terms
        if term.match_label_expressions
    )


def _combined_alternatives(per_claim: list[tuple[Requirements, ...]]) -> tuple[Requirements, ...]:
    """Alternatives of all claims combined (SCH-440); contradicting claims give alternatives that no node satisfies."""
    combined: tuple[Requirements, ...] = _ANY_NODE
    for alternatives in per_claim:
        if alternatives:
            combined = _pairwise_intersections(combined, alternatives)
    return combined if any(combined) else ()


@lru_cache(maxsize=4096)
def _pairwise_intersections(
    left: tuple[Requirements, ...], right: tuple[Requirements, ...]
) -> tuple[Requirements, ...]:
    intersections = (first.intersect(second) for first in left for second in right if intersects(first, second))
    alternatives = tuple(islice(dict.fromkeys(intersections), _MAX_ALTERNATIVES))
    if alternatives:
        return alternatives
    return tuple(
        islice(dict.fromkeys(first.intersect(second) for first in left for second in right), _MAX_ALTERNATIVES)
    )


# -- what is attached -------------------------------------------------------------------------------------------------------


def _is_host_local(spec: PersistentVolumeSpec) -> bool:
    return spec.local is not None or spec.host_path is not None


def _csi_driver_of(spec: PersistentVolumeSpec) -> str:
    if spec.csi is not None:
        return spec.csi.driver
    drivers = (driver for source, driver in _DRIVER_OF_SOURCE.items() if getattr(spec, source) is not None)
    return next(drivers, "")


def _inline_disks(pod: Pod) -> dict[str, str]:
    """Disks the pod uses without a claim, and their drivers."""
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
    """Identities by driver; volumes without a driver are not counted."""
    by_driver: dict[str, set[str]] = {}
    for identity, driver in drivers.items():
        if driver:
            by_driver.setdefault(driver, set()).add(identity)
    return (
        {driver: frozenset(identities) for driver, identities in by_driver.items()}
        if by_driver
        else _NO_VOLUMES_BY_DRIVER
    )
