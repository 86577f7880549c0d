"""Kubelet configuration moves from NodePools to the EC2NodeClass they refer to (API-822)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from karpenter.conversion.drafts import Draft
from karpenter.conversion.json_fields import Json, object_field, text_field
from karpenter.conversion.metadata import KUBELET_ANNOTATION
from karpenter.conversion.notes import NoteList

_SOURCE_FIELD = "spec.template.spec.kubelet"


def place_kubelets(drafts: Sequence[Draft]) -> list[Draft]:
    """The drafts with every kubelet configuration where ``v1`` has it; copies of a class follow the class."""
    class_names = {draft.name for draft in drafts if draft.is_a("EC2NodeClass")}
    pools_by_class: dict[str, list[Draft]] = {name: [] for name in class_names}
    for draft in drafts:
        if draft.is_a("NodePool"):
            name = _class_name(draft)
            if name in pools_by_class:
                pools_by_class[name].append(draft)
            elif draft.kubelet:
                _keep_in_annotation(draft)
    placed: list[Draft] = []
    for draft in drafts:
        placed.append(draft)
        if draft.is_a("EC2NodeClass"):
            placed += _share_out(draft, pools_by_class[draft.name])
    return placed


def _class_name(pool: Draft) -> str:
    reference = _class_reference(pool)
    return text_field(reference, "name") if reference.get("kind") == "EC2NodeClass" else ""


def _class_reference(pool: Draft) -> Json:
    spec = object_field(pool.content, "spec", "")
    template = object_field(object_field(spec, "template", "spec"), "spec", "spec.template")
    return object_field(template, "nodeClassRef", "spec.template.spec")


def _keep_in_annotation(pool: Draft) -> None:
    metadata = object_field(pool.content, "metadata", "")
    annotations = object_field(metadata, "annotations", "metadata")
    kept = {**annotations, KUBELET_ANNOTATION: json.dumps(pool.kubelet, separators=(",", ":"))}
    pool.content = {**pool.content, "metadata": {**metadata, "annotations": kept}}
    text = (
        f"EC2NodeClass {_class_name(pool) or 'of the NodePool'} is not in the input; convert both together, or write the kubelet "
        f"configuration into it: annotation {KUBELET_ANNOTATION} keeps it, and only this controller honors it"
    )
    pool.notes.warn(_SOURCE_FIELD, text)


def _share_out(node_class: Draft, pools: Sequence[Draft]) -> list[Draft]:
    """Give a class the kubelet configuration of its pools; the copies of it for pools that differ."""
    if all(pool.kubelet == pools[0].kubelet for pool in pools):
        if pools and pools[0].kubelet:
            node_class.content = _with_kubelet(node_class, pools[0].kubelet)
        return []
    return [_copy_for(node_class, pool) for pool in pools if pool.kubelet]


def _with_kubelet(node_class: Draft, kubelet: Json) -> Json:
    spec = object_field(node_class.content, "spec", "")
    if spec.get("kubelet") and spec["kubelet"] != kubelet:
        node_class.notes.warn("spec.kubelet", "is replaced by the kubelet configuration of its NodePools")
    return {**node_class.content, "spec": {**spec, "kubelet": kubelet}}


def _copy_for(node_class: Draft, pool: Draft) -> Draft:
    name = f"{node_class.name}-{pool.name}"
    content = _with_kubelet(node_class, pool.kubelet)
    metadata = object_field(content, "metadata", "")
    spec = object_field(pool.content, "spec", "")
    template = object_field(spec, "template", "spec")
    template_spec = object_field(template, "spec", "spec.template")
    template_spec["nodeClassRef"] = _class_reference(pool) | {"name": name}
    pool.content = {**pool.content, "spec": {**spec, "template": {**template, "spec": template_spec}}}
    copy = {**content, "metadata": {**metadata, "name": name}}
    return Draft(node_class.origin, node_class.api_version, node_class.kind, copy, NoteList())
