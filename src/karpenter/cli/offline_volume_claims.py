"""Volume claims as a cluster would have them by now.

Offline nobody makes the claims of ephemeral volumes, and no admission writes the default storage class into claims that name
none. Both are done here; binding is not, because only a provisioner knows where a volume will be. Manifests of workloads rarely
bring storage classes along: without any, those that claims need are assumed, with volumes in any zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from karpenter.api.core import Pod
from karpenter.api.meta import ObjectMeta
from karpenter.api.storage import PersistentVolumeClaim, StorageClass

_DEFAULT_CLASS_ANNOTATIONS = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def complete_volume_claims(
    claims: Sequence[PersistentVolumeClaim], pods: Iterable[Pod], classes: Iterable[StorageClass]
) -> list[PersistentVolumeClaim]:
    """The claims, those of the pods' ephemeral volumes and the default class included."""
    existing = {(claim.metadata.namespace, claim.metadata.name) for claim in claims}
    made = [
        claim for claim in _ephemeral_claims(pods) if (claim.metadata.namespace, claim.metadata.name) not in existing
    ]
    default = _default_class(classes)
    return [_with_class(claim, default) for claim in (*claims, *made)]


#: Stands for the default class of a cluster that was not read; no class can have the name.
_ASSUMED_DEFAULT = "(default)"


def assumed_storage_classes(
    claims: Sequence[PersistentVolumeClaim],
) -> tuple[list[PersistentVolumeClaim], list[StorageClass], str]:
    """Claims of an input without storage classes, the classes they need, and a line that says what is assumed; empty for none."""
    unbound = [claim for claim in claims if not claim.spec.volume_name and claim.spec.storage_class_name != ""]
    names = sorted({claim.spec.storage_class_name or _ASSUMED_DEFAULT for claim in unbound})
    if not names:
        return list(claims), [], ""
    classes = [
        StorageClass(metadata=ObjectMeta(name=name), volume_binding_mode="WaitForFirstConsumer") for name in names
    ]
    line = (
        f"no StorageClass in the input: volumes of {', '.join(names)} are assumed to be made where their pods go; "
        "add the StorageClasses if they have zones"
    )
    return [_with_class(claim, _ASSUMED_DEFAULT) for claim in claims], classes, line


def _ephemeral_claims(pods: Iterable[Pod]) -> Iterator[PersistentVolumeClaim]:
    for pod in pods:
        for volume in pod.spec.volumes:
            if volume.ephemeral is not None:
                meta = ObjectMeta(name=f"{pod.metadata.name}-{volume.name}", namespace=pod.metadata.namespace)
                yield PersistentVolumeClaim(metadata=meta, spec=volume.ephemeral.volume_claim_template.spec)


def _default_class(classes: Iterable[StorageClass]) -> str | None:
    """The default class; of several the newest, as admission chooses, then the first by name."""
    marked = sorted(
        (
            storage_class.metadata
            for storage_class in classes
            if "true" in map(storage_class.metadata.annotations.get, _DEFAULT_CLASS_ANNOTATIONS)
        ),
        key=lambda meta: meta.name,
    )
    newest = max(marked, key=lambda meta: meta.creation_timestamp or _EPOCH, default=None)
    return newest.name if newest is not None else None


def _with_class(claim: PersistentVolumeClaim, name: str | None) -> PersistentVolumeClaim:
    if claim.spec.storage_class_name is not None or claim.spec.volume_name or name is None:
        return claim
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, storage_class_name=name))
