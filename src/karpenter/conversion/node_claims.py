"""Machine and NodeClaim of ``v1beta1`` as NodeClaim of ``v1`` (API §14.2, §15.2)."""

from __future__ import annotations

from karpenter.conversion.json_fields import Json, object_field, warn_unknown_fields, without_empty
from karpenter.conversion.metadata import converted_taints
from karpenter.conversion.node_pools import class_reference
from karpenter.conversion.node_requirements import converted_requirements
from karpenter.conversion.notes import NoteList
from karpenter.conversion.options import ConversionOptions

_COMMON_FIELDS = ("taints", "startupTaints", "requirements", "resources", "kubelet")


def from_machine(metadata: Json, content: Json, options: ConversionOptions, notes: NoteList) -> Json:
    """The NodeClaim of a Machine. Raises ``NotConvertible``."""
    spec = object_field(content, "spec", "")
    warn_unknown_fields(spec, (*_COMMON_FIELDS, "machineTemplateRef"), "spec", notes)
    reference = object_field(spec, "machineTemplateRef", "spec")
    converted = _spec(spec, notes)
    converted["nodeClassRef"] = class_reference(
        {"name": reference.get("name")}, "spec.machineTemplateRef", options, notes
    )
    return _claim(metadata, converted | {"expireAfter": "Never"})


def from_beta(metadata: Json, content: Json, options: ConversionOptions, notes: NoteList) -> Json:
    """The NodeClaim of one of ``v1beta1``, without its age limit: that is its NodePool's. Raises ``NotConvertible``."""
    spec = object_field(content, "spec", "")
    warn_unknown_fields(spec, (*_COMMON_FIELDS, "nodeClassRef"), "spec", notes)
    reference = object_field(spec, "nodeClassRef", "spec")
    converted = _spec(spec, notes)
    converted["nodeClassRef"] = class_reference(reference, "spec.nodeClassRef", options, notes)
    return _claim(metadata, converted)


def from_v1(metadata: Json, content: Json, options: ConversionOptions, notes: NoteList) -> Json:
    """The same NodeClaim, with values corrected that every API server refuses. Raises ``NotConvertible``."""
    spec = object_field(content, "spec", "")
    reference = object_field(spec, "nodeClassRef", "spec")
    repaired = {
        "requirements": converted_requirements(spec, "spec", notes),
        "nodeClassRef": class_reference(reference, "spec.nodeClassRef", options, notes),
    }
    return _claim(metadata, {**spec, **repaired})


def _spec(spec: Json, notes: NoteList) -> Json:
    if spec.get("kubelet"):
        notes.warn("spec.kubelet", "is dropped: a NodeClaim takes it from its EC2NodeClass")
    kept = {
        "taints": converted_taints(spec, "taints", "spec"),
        "startupTaints": converted_taints(spec, "startupTaints", "spec"),
        "resources": spec.get("resources"),
    }
    return without_empty(kept) | {"requirements": converted_requirements(spec, "spec", notes)}


def _claim(metadata: Json, spec: Json) -> Json:
    return {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": metadata, "spec": spec}
