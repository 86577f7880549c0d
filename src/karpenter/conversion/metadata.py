"""Object metadata, labels, annotations and taints under the names of ``v1`` (API §16, API-817)."""

from __future__ import annotations

from collections.abc import Mapping

from karpenter.api.label_domains import PROVISIONER_NAME
from karpenter.conversion.json_fields import (
    Json,
    as_object,
    list_field,
    object_field,
    text_field,
    text_map,
    text_of,
    without_empty,
)
from karpenter.conversion.notes import NoteList
from karpenter.model import labels
from karpenter.model.structural_schema import child_path

#: On a NodePool: the kubelet configuration of its ``v1beta1`` form as JSON (API-735).
KUBELET_ANNOTATION = "compatibility.karpenter.sh/v1beta1-kubelet-conversion"

_DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
_RENAMED_ANNOTATIONS = {
    "karpenter.sh/do-not-evict": _DO_NOT_DISRUPT,
    "karpenter.sh/do-not-consolidate": _DO_NOT_DISRUPT,
}
#: Written by servers and controllers, never by users (API-802, API-803, API-817).
_DROPPED_ANNOTATIONS = frozenset(
    {
        labels.LAST_APPLIED,
        "karpenter.sh/provisioner-hash",
        "karpenter.sh/nodepool-hash",
        "karpenter.sh/nodepool-hash-version",
        "karpenter.sh/emptiness-timestamp",
        "karpenter.sh/stored-version",
        "karpenter.k8s.aws/nodetemplate-hash",
        "karpenter.k8s.aws/ec2nodeclass-hash",
        "karpenter.k8s.aws/ec2nodeclass-hash-version",
    }
)
_RENAMED_LABELS = {
    PROVISIONER_NAME: labels.NODE_POOL,
    "node.k8s.aws/instance-type": labels.INSTANCE_TYPE,
    "node.k8s.aws/capacity-type": labels.CAPACITY_TYPE,
}
#: Labels without an equivalent (API-807).
UNMAPPABLE_LABELS = frozenset(
    {
        "karpenter.k8s.aws/instance-pods",
        "karpenter.k8s.aws/instance-ami-id",
        "karpenter.sh/machine-name",
        "karpenter.sh/managed-by",
    }
)
_RENAMED_TAINTS = {
    "karpenter.sh/disruption": "karpenter.sh/disrupted",
    "karpenter.sh/not-ready": "karpenter.sh/unregistered",
}
_OWN_DOMAINS = ("karpenter.sh", "karpenter.k8s.aws")


def renamed_label(key: str) -> str:
    """The label's key in ``v1`` (API-425, API-800, API-808)."""
    return _RENAMED_LABELS.get(key) or labels.normalise(key)


def converted_metadata(content: Mapping[str, object], notes: NoteList) -> Json:
    """Name, labels, annotations and finalizers of others; nothing that a server or controller wrote."""
    metadata = object_field(content, "metadata", "")
    if metadata.get("ownerReferences"):
        notes.warn("metadata.ownerReferences", "dropped: a copied owner reference names no object of another cluster")
    finalizers = [text_of(finalizer) for finalizer in list_field(metadata, "finalizers", "metadata")]
    name = text_field(metadata, "name")
    labels_written = text_map(metadata, "labels", "metadata")
    return without_empty(
        {
            "name": name,
            "generateName": "" if name else text_field(metadata, "generateName"),
            "labels": {_RENAMED_LABELS.get(key, key): value for key, value in labels_written.items()},
            "annotations": converted_annotations(text_map(metadata, "annotations", "metadata")),
            "finalizers": [finalizer for finalizer in finalizers if not _is_own(finalizer)],
        }
    )


def _is_own(finalizer: str) -> bool:
    domain = finalizer.partition("/")[0]
    return any(domain == own or domain.endswith(f".{own}") for own in _OWN_DOMAINS)


def converted_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Annotations under their new names, without hashes and what ``kubectl apply`` wrote."""
    return {
        _RENAMED_ANNOTATIONS.get(key, key): value
        for key, value in annotations.items()
        if key not in _DROPPED_ANNOTATIONS
    }


def template_labels(written: Mapping[str, str], pool_name: str, path: str, notes: NoteList) -> dict[str, str]:
    """Labels of a NodePool's nodes; those that no NodePool may set are dropped (API-833)."""
    kept: dict[str, str] = {}
    for key, value in written.items():
        if key == PROVISIONER_NAME and value == pool_name:
            continue
        new_key = renamed_label(key)
        if new_key == labels.NODE_POOL or labels.is_restricted(new_key, labels.WELL_KNOWN):
            notes.warn(child_path(path, key), f"label {key!r} is dropped: a NodePool cannot set it")
        else:
            kept[new_key] = value
    return kept


def converted_taints(parent: Mapping[str, object], name: str, path: str) -> list[object]:
    """Taints under their new keys (API-805, API-806)."""
    return [
        _converted_taint(as_object(taint, f"{path}.{name}[{index}]"))
        for index, taint in enumerate(list_field(parent, name, path))
    ]


def _converted_taint(taint: Json) -> Json:
    key = text_field(taint, "key")
    return {**taint, "key": _RENAMED_TAINTS.get(key, key)} if key in _RENAMED_TAINTS else taint
