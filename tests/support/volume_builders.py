"""Words for claims, volumes, storage classes and attach limits: say what matters, the rest is as in a healthy cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from karpenter.api.core import Pod
from karpenter.api.meta import ObjectMeta
from karpenter.api.scheduling_constraints import NodeSelector, NodeSelectorTerm
from karpenter.api.storage import (
    CSINode,
    CSINodeDriver,
    CSINodeSpec,
    CSIVolume,
    EphemeralVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSource,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeClaimTemplate,
    PersistentVolumeSpec,
    StorageClass,
    TopologySelectorRequirement,
    TopologySelectorTerm,
    Volume,
    VolumeNodeAffinity,
    VolumeNodeResources,
)
from karpenter.model import labels
from karpenter.state.pod_volumes import BIND_COMPLETED
from support.builders import NOW, expr, pod, term

DRIVER = "ebs.csi.aws.com"


def using(*claims: str) -> tuple[Volume, ...]:
    """Volumes of a pod, one per claim."""
    return tuple(
        Volume(name=name, persistent_volume_claim=PersistentVolumeClaimSource(claim_name=name)) for name in claims
    )


def user(name: str, *claims: str, **fields: object) -> Pod:
    """A waiting pod that uses claims."""
    return pod(name, volumes=using(*claims), **fields)


def scratch(name: str, storage_class: str | None = "standard") -> Volume:
    """A volume made for its pod alone."""
    spec = PersistentVolumeClaimSpec(storage_class_name=storage_class)
    return Volume(
        name=name, ephemeral=EphemeralVolumeSource(volume_claim_template=PersistentVolumeClaimTemplate(spec=spec))
    )


def pvc(
    name: str,
    volume: str = "",
    storage_class: str | None = None,
    *,
    modes: Iterable[str] = (),
    phase: str = "",
    deleted: bool = False,
    annotations: Mapping[str, str] | None = None,
) -> PersistentVolumeClaim:
    """A claim: bound where it has a volume, else waiting for its class."""
    done = {BIND_COMPLETED: "yes"} if volume else {}
    return PersistentVolumeClaim(
        metadata=ObjectMeta(
            name=name,
            namespace="default",
            annotations=done if annotations is None else annotations,
            deletion_timestamp=NOW if deleted else None,
        ),
        spec=PersistentVolumeClaimSpec(
            volume_name=volume, storage_class_name=storage_class, access_modes=tuple(modes) or ("ReadWriteOnce",)
        ),
        status=PersistentVolumeClaimStatus(phase=phase or ("Bound" if volume else "Pending")),
    )


def pv(
    name: str, *terms: NodeSelectorTerm, driver: str = DRIVER, deleted: bool = False, **sources: object
) -> PersistentVolume:
    """A volume of a CSI driver, unless ``sources`` are given; reachable from nodes of one of the terms."""
    kind: Mapping[str, object] = sources or {"csi": CSIVolume(driver=driver)}
    affinity = VolumeNodeAffinity(required=NodeSelector(node_selector_terms=terms)) if terms else None
    return PersistentVolume(
        metadata=ObjectMeta(name=name, deletion_timestamp=NOW if deleted else None),
        spec=PersistentVolumeSpec(node_affinity=affinity, **kind),
    )


def zonal(name: str, *zones: str, **fields: object) -> PersistentVolume:
    """A volume in one of the zones, each a term of its own."""
    return pv(name, *(term(expr(labels.ZONE, "In", zone)) for zone in zones), **fields)


def storage_class(
    name: str = "standard",
    *allowed: Mapping[str, Iterable[str]],
    provisioner: str = DRIVER,
    mode: str = "WaitForFirstConsumer",
) -> StorageClass:
    """A class whose volumes wait for their pod; ``allowed`` are terms of labels and their values."""
    terms = tuple(
        TopologySelectorTerm(
            match_label_expressions=tuple(
                TopologySelectorRequirement(key=key, values=tuple(values)) for key, values in one.items()
            )
        )
        for one in allowed
    )
    return StorageClass(
        metadata=ObjectMeta(name=name), provisioner=provisioner, volume_binding_mode=mode, allowed_topologies=terms
    )


def csi_node(name: str, **limits: int | None) -> CSINode:
    """What drivers say about a node; the driver ``ebs`` stands for the usual one. None: no limit."""
    drivers = tuple(
        CSINodeDriver(
            name=DRIVER if driver == "ebs" else driver,
            allocatable=None if count is None else VolumeNodeResources(count=count),
        )
        for driver, count in limits.items()
    )
    return CSINode(metadata=ObjectMeta(name=name), spec=CSINodeSpec(drivers=drivers))
