"""Volumes of pods: claims, persistent volumes, storage classes, CSI nodes and attachments (``v1``, ``storage.k8s.io/v1``)."""

from __future__ import annotations

import msgspec

from karpenter.api.meta import ObjectMeta, ObjectReference, Wire
from karpenter.api.scheduling_constraints import NodeSelector


class PersistentVolumeClaimSource(Wire, frozen=True, kw_only=True):
    """Reference to a claim in the pod's namespace."""

    claim_name: str


class PersistentVolumeClaimSpec(Wire, frozen=True, kw_only=True):
    """The requested volume, and the bound one: empty until then.

    An absent class is the cluster's default one, filled in when the claim is made; an empty class means no class at all.
    """

    storage_class_name: str | None = None
    volume_name: str = ""
    access_modes: tuple[str, ...] = ()


class PersistentVolumeClaimTemplate(Wire, frozen=True, kw_only=True):
    """The claim that is made for a pod alone."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class EphemeralVolumeSource(Wire, frozen=True, kw_only=True):
    """A volume that lives as long as its pod, by a claim called after pod and volume."""

    volume_claim_template: PersistentVolumeClaimTemplate = PersistentVolumeClaimTemplate()


class InTreeVolumeSource(Wire, frozen=True, kw_only=True):
    """A disk a pod names without a claim; which of the names it has depends on the cloud."""

    volume_id: str = msgspec.field(name="volumeID", default="")
    pd_name: str = ""
    disk_uri: str = msgspec.field(name="diskURI", default="")


class Volume(Wire, frozen=True, kw_only=True):
    """A pod volume; sources that do not influence where the pod may run are not decoded."""

    name: str = ""
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    ephemeral: EphemeralVolumeSource | None = None
    aws_elastic_block_store: InTreeVolumeSource | None = None
    gce_persistent_disk: InTreeVolumeSource | None = None
    azure_disk: InTreeVolumeSource | None = None
    cinder: InTreeVolumeSource | None = None


class VolumeAttachmentSource(Wire, frozen=True, kw_only=True):
    """What is attached; a volume without an object of its own (inline) has no name here."""

    persistent_volume_name: str = ""


class VolumeAttachmentSpec(Wire, frozen=True, kw_only=True):
    """Which volume is, or is to be, attached to which node."""

    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(Wire, frozen=True, kw_only=True):
    """A volume on a node; the cluster's attach/detach controller makes and removes it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


class VolumeNodeAffinity(Wire, frozen=True, kw_only=True):
    """Which nodes can reach a volume."""

    required: NodeSelector | None = None


class CSIVolume(Wire, frozen=True, kw_only=True):
    """A volume of a CSI driver."""

    driver: str = ""


class PersistentVolumeSource(Wire, frozen=True, kw_only=True):
    """A source of a volume of which only the presence matters."""


class PersistentVolumeSpec(Wire, frozen=True, kw_only=True):
    """Which claim a volume belongs to, where it can be reached and what provides it."""

    claim_ref: ObjectReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIVolume | None = None
    local: PersistentVolumeSource | None = None
    host_path: PersistentVolumeSource | None = None
    aws_elastic_block_store: PersistentVolumeSource | None = None
    gce_persistent_disk: PersistentVolumeSource | None = None
    azure_disk: PersistentVolumeSource | None = None
    azure_file: PersistentVolumeSource | None = None
    cinder: PersistentVolumeSource | None = None
    portworx_volume: PersistentVolumeSource | None = None
    vsphere_volume: PersistentVolumeSource | None = None


class PersistentVolume(Wire, frozen=True, kw_only=True):
    """A volume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class PersistentVolumeClaimStatus(Wire, frozen=True, kw_only=True):
    """Whether a claim is Pending, Bound or Lost."""

    phase: str = ""


class PersistentVolumeClaim(Wire, frozen=True, kw_only=True):
    """What pods name when they want a volume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class TopologySelectorRequirement(Wire, frozen=True, kw_only=True):
    """A label and the values it may have."""

    key: str
    values: tuple[str, ...] = ()


class TopologySelectorTerm(Wire, frozen=True, kw_only=True):
    """Labels that must all fit."""

    match_label_expressions: tuple[TopologySelectorRequirement, ...] = ()


class StorageClass(Wire, frozen=True, kw_only=True):
    """How volumes of a class are made; an absent binding mode is Immediate."""

    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    volume_binding_mode: str = ""
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()


class VolumeNodeResources(Wire, frozen=True, kw_only=True):
    """How many volumes of a driver a node can hold; absent: as many as one likes."""

    count: int | None = None


class CSINodeDriver(Wire, frozen=True, kw_only=True):
    """A CSI driver that runs on a node."""

    name: str = ""
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(Wire, frozen=True, kw_only=True):
    """The CSI drivers of a node."""

    drivers: tuple[CSINodeDriver, ...] = ()


class CSINode(Wire, frozen=True, kw_only=True):
    """What CSI drivers say about the node of the same name."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CSINodeSpec = CSINodeSpec()
