"""What the server knows of each kind beyond its place in the API: subresources, generation, names for the command line.

Most of it follows from the struct (a kind whose struct has ``status`` has a status subresource); the tables below hold only
what does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire

_VOLUME_KINDS = {"PersistentVolume", "PersistentVolumeClaim", "VolumeAttachment"}
_SELECTING_KINDS = {"Service", "ReplicationController"}
_PARTLY_DECODED_KINDS = {"Namespace", "DaemonSet", "CustomResourceDefinition", "CronJob", "HorizontalPodAutoscaler"}
_STATUS_WITHOUT_FIELD = _PARTLY_DECODED_KINDS | _VOLUME_KINDS | _SELECTING_KINDS
_KINDS_WITHOUT_SPEC_GENERATION = {
    "LimitRange",
    "Node",
    "Namespace",
    "ConfigMap",
    "Event",
    "Lease",
    "StorageClass",
    "CSINode",
    "Service",
    "HorizontalPodAutoscaler",
    "ResourceClaim",
    "ResourceClaimTemplate",
}
_WITHOUT_GENERATION = _KINDS_WITHOUT_SPEC_GENERATION | _VOLUME_KINDS
_SCALABLE_KINDS = {"Deployment", "ReplicaSet", "StatefulSet", "NodePool"}
_SHORT_NAMES = {
    "Pod": ("po",),
    "Node": ("no",),
    "Namespace": ("ns",),
    "ConfigMap": ("cm",),
    "Event": ("ev",),
    "DaemonSet": ("ds",),
    "Deployment": ("deploy",),
    "ReplicaSet": ("rs",),
    "StatefulSet": ("sts",),
    "Service": ("svc",),
    "ReplicationController": ("rc",),
    "CronJob": ("cj",),
    "HorizontalPodAutoscaler": ("hpa",),
    "PodDisruptionBudget": ("pdb",),
    "PersistentVolumeClaim": ("pvc",),
    "PersistentVolume": ("pv",),
    "StorageClass": ("sc",),
    "PriorityClass": ("pc",),
    "LimitRange": ("limits",),
    "CustomResourceDefinition": ("crd", "crds"),
    "NodeOverlay": ("overlays",),
    "CapacityBuffer": ("cb",),
    "CapacitySchedule": ("capsched",),
    "EC2NodeClass": ("ec2nc", "ec2ncs"),
    "KWOKNodeClass": ("kwoknc", "kwokncs"),
    "MachineNodeClass": ("machinenc", "machinencs"),
}
_WORKLOAD_KINDS = {"Pod", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet", "Job", "CronJob"}
_CATEGORY_ALL_KINDS = {"HorizontalPodAutoscaler"} | _WORKLOAD_KINDS | _SELECTING_KINDS
_CATEGORIES = {"autoscaling.x-k8s.io": ("autoscaling",)}


@dataclass(frozen=True, slots=True)
class ServedResource:
    """A kind as the server serves it."""

    kind: Kind[Wire]
    #: Has a ``status`` subresource, so that neither path writes the other's part.
    has_status: bool
    #: Counts changes outside metadata and status in ``metadata.generation``.
    has_generation: bool
    #: Served from a CustomResourceDefinition on a real cluster, and checked against its struct here.
    is_custom: bool

    @property
    def name(self) -> str:
        """``plural.group`` as error messages name the resource."""
        return f"{self.kind.plural}.{self.kind.group}" if self.kind.group else self.kind.plural

    @property
    def is_scalable(self) -> bool:
        """Has a ``scale`` subresource."""
        return self.kind.name in _SCALABLE_KINDS

    @property
    def short_names(self) -> tuple[str, ...]:
        """Abbreviations of the command line (API-001 ff.)."""
        return _SHORT_NAMES.get(self.kind.name, ())

    @property
    def categories(self) -> tuple[str, ...]:
        """Groups of kinds the command line can ask for at once (API-001 ff.)."""
        if not self.is_custom:
            return ("all",) if self.kind.name in _CATEGORY_ALL_KINDS else ()
        return _CATEGORIES.get(self.kind.group, ("karpenter",))


def _is_custom(kind: Kind[Wire]) -> bool:
    return "karpenter" in kind.group or kind.group == "autoscaling.x-k8s.io"


def resource_for(kind: Kind[Wire]) -> ServedResource:
    """What is known of ``kind``."""
    return ServedResource(
        kind=kind,
        has_status="status" in kind.type.__struct_fields__ or kind.name in _STATUS_WITHOUT_FIELD,
        has_generation=kind.name not in _WITHOUT_GENERATION,
        is_custom=_is_custom(kind),
    )
