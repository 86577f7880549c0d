"""Provisioner and NodePool of ``v1beta1`` as NodePool of ``v1`` (API §14.1, §15.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from karpenter.conversion.json_fields import (
    Json,
    count_field,
    object_field,
    text_field,
    text_map,
    warn_unknown_fields,
    without_empty,
)
from karpenter.conversion.metadata import converted_annotations, converted_taints, template_labels
from karpenter.conversion.node_classes import from_inline_provider
from karpenter.conversion.node_requirements import converted_requirements, provisioner_defaults
from karpenter.conversion.notes import NoteList
from karpenter.conversion.options import ConversionOptions

_TEMPLATE = "spec.template.spec"
_SECONDS_PER_HOUR = 3600
_PROVISIONER_FIELDS = (
    *(
        "labels",
        "annotations",
        "taints",
        "startupTaints",
        "requirements",
        "providerRef",
        "provider",
        "limits",
        "weight",
    ),
    *("kubeletConfiguration", "ttlSecondsAfterEmpty", "ttlSecondsUntilExpired", "consolidation"),
)
_BETA_FIELDS = ("template", "disruption", "limits", "weight")
_BETA_TEMPLATE_FIELDS = ("taints", "startupTaints", "requirements", "resources", "kubelet", "nodeClassRef")
_BETA_DISRUPTION_FIELDS = ("consolidationPolicy", "consolidateAfter", "expireAfter", "budgets")
_DEFAULT_EXPIRY = "720h"
_DEFAULT_BUDGET = (
    "Provisioners had no disruption budget; a NodePool disrupts at most 10% of its nodes at a time by default"
)
_NO_CONSOLIDATION = "no node was removed for being empty; consolidateAfter Never keeps it so"


@dataclass(frozen=True, slots=True)
class ConvertedPool:
    """A NodePool of ``v1``, the kubelet configuration it had, the class made of its inline provider."""

    pool: Json
    kubelet: Json
    inline_class: Json | None = None


def from_provisioner(metadata: Json, content: Json, options: ConversionOptions, notes: NoteList) -> ConvertedPool:
    """The NodePool of a Provisioner. Raises ``NotConvertible``."""
    spec = object_field(content, "spec", "")
    warn_unknown_fields(spec, _PROVISIONER_FIELDS, "spec", notes)
    name = text_field(metadata, "name")
    template_metadata = _template_metadata(spec, name, "spec", notes)
    requirements = converted_requirements(spec, "spec", notes)
    if not options.ignore_defaults:
        requirements += provisioner_defaults(requirements, text_map(template_metadata, "labels", ""))
    inline_class = None
    if spec.get("provider") is not None:
        inline_class = from_inline_provider(name, object_field(spec, "provider", "spec"), options, notes)
    template_spec = without_empty(
        {
            "taints": converted_taints(spec, "taints", "spec"),
            "startupTaints": converted_taints(spec, "startupTaints", "spec"),
            "expireAfter": _provisioner_expiry(spec),
        }
    ) | {"requirements": requirements, "nodeClassRef": _provisioner_class_ref(spec, name, options, notes)}
    pool_spec = {
        "template": _template(template_metadata, template_spec),
        "disruption": _provisioner_disruption(spec, notes),
        "limits": object_field(object_field(spec, "limits", "spec"), "resources", "spec.limits"),
        "weight": spec.get("weight"),
    }
    notes.inform("spec.disruption.budgets", _DEFAULT_BUDGET)
    return ConvertedPool(_pool(metadata, without_empty(pool_spec)), _provisioner_kubelet(spec, notes), inline_class)


def from_beta(metadata: Json, content: Json, options: ConversionOptions, notes: NoteList) -> ConvertedPool:
    """The NodePool of one of ``v1beta1``. Raises ``NotConvertible``."""
    spec = object_field(content, "spec", "")
    template = object_field(spec, "template", "spec")
    written = object_field(template, "spec", "spec.template")
    disruption = object_field(spec, "disruption", "spec")
    warn_unknown_fields(spec, _BETA_FIELDS, "spec", notes)
    warn_unknown_fields(written, _BETA_TEMPLATE_FIELDS, _TEMPLATE, notes)
    warn_unknown_fields(disruption, _BETA_DISRUPTION_FIELDS, "spec.disruption", notes)
    template_fields = {name: value for name, value in written.items() if name in _BETA_TEMPLATE_FIELDS}
    template_spec = _repaired_template_spec(spec, template_fields, options, notes)
    kubelet = object_field(template_spec, "kubelet", _TEMPLATE)
    template_spec = {name: value for name, value in template_spec.items() if name not in {"kubelet", "resources"}}
    template_spec["expireAfter"] = text_field(disruption, "expireAfter") or _DEFAULT_EXPIRY
    template_metadata = _template_metadata(
        object_field(template, "metadata", "spec.template"),
        text_field(metadata, "name"),
        "spec.template.metadata",
        notes,
    )
    pool_spec = {
        "template": _template(template_metadata, template_spec),
        "disruption": _beta_disruption(disruption),
        "limits": spec.get("limits"),
        "weight": spec.get("weight"),
    }
    return ConvertedPool(_pool(metadata, without_empty(pool_spec)), without_empty(kubelet))


def from_v1(metadata: Json, content: Json, options: ConversionOptions, notes: NoteList) -> ConvertedPool:
    """The same NodePool, with values corrected that every API server refuses. Raises ``NotConvertible``."""
    spec = object_field(content, "spec", "")
    template = object_field(spec, "template", "spec")
    written = object_field(template, "spec", "spec.template")
    template_metadata = _template_metadata(
        object_field(template, "metadata", "spec.template"),
        text_field(metadata, "name"),
        "spec.template.metadata",
        notes,
    )
    made = _template(template_metadata, _repaired_template_spec(spec, written, options, notes))
    return ConvertedPool(_pool(metadata, {**spec, "template": {**template, **made}}), {})


def class_reference(
    reference: Mapping[str, object], path: str, options: ConversionOptions, notes: NoteList
) -> dict[str, str]:
    """A reference to a node class as ``v1`` writes it (API-705, API-824)."""
    name = text_field(reference, "name")
    if not name:
        name = options.default_node_class
        notes.warn(path, f"names no node class; {name} is written, another is set with --default-nodeclass")
    group = text_field(reference, "group") or text_field(reference, "apiVersion").partition("/")[0]
    return {
        "group": group or "karpenter.k8s.aws",
        "kind": text_field(reference, "kind") or "EC2NodeClass",
        "name": name,
    }


def _pool(metadata: Json, spec: Json) -> Json:
    return {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": metadata, "spec": spec}


def _template(metadata: Json, spec: Json) -> Json:
    return without_empty({"metadata": metadata}) | {"spec": spec}


def _template_metadata(parent: Json, pool_name: str, path: str, notes: NoteList) -> Json:
    return without_empty(
        {
            "labels": template_labels(text_map(parent, "labels", path), pool_name, f"{path}.labels", notes),
            "annotations": converted_annotations(text_map(parent, "annotations", path)),
        }
    )


def _repaired_template_spec(spec: Json, written: Json, options: ConversionOptions, notes: NoteList) -> Json:
    """The spec of a NodePool's template with requirements, taints and class in order."""
    if spec.get("template") is None:
        notes.warn("spec.template", "is missing; a template without requirements is written")
    repaired = dict(written)
    for name in ("taints", "startupTaints"):
        repaired[name] = converted_taints(written, name, _TEMPLATE)
        if not repaired[name]:
            del repaired[name]
    repaired["requirements"] = converted_requirements(written, _TEMPLATE, notes)
    reference = object_field(written, "nodeClassRef", _TEMPLATE)
    repaired["nodeClassRef"] = class_reference(reference, f"{_TEMPLATE}.nodeClassRef", options, notes)
    return repaired


def _beta_disruption(disruption: Json) -> Json:
    policy = text_field(disruption, "consolidationPolicy") or "WhenUnderutilized"
    converted = {
        "consolidationPolicy": "WhenEmptyOrUnderutilized" if policy == "WhenUnderutilized" else policy,
        "consolidateAfter": text_field(disruption, "consolidateAfter") or "0s",
    }
    return converted | without_empty({"budgets": disruption.get("budgets")})


def _provisioner_class_ref(spec: Json, name: str, options: ConversionOptions, notes: NoteList) -> dict[str, str]:
    if spec.get("provider") is not None:
        return class_reference({"name": name}, "spec.provider", options, notes)
    reference = object_field(spec, "providerRef", "spec")
    return class_reference({"name": reference.get("name")}, "spec.providerRef", options, notes)


def _provisioner_expiry(spec: Json) -> str:
    seconds = count_field(spec, "ttlSecondsUntilExpired", "spec")
    if seconds is None:
        return "Never"
    hours, rest = divmod(seconds, _SECONDS_PER_HOUR)
    return f"{hours}h" if hours and not rest else f"{seconds}s"


def _provisioner_disruption(spec: Json, notes: NoteList) -> Json:
    ttl_seconds = count_field(spec, "ttlSecondsAfterEmpty", "spec")
    if object_field(spec, "consolidation", "spec").get("enabled") is True:
        if ttl_seconds is not None:
            notes.warn("spec.ttlSecondsAfterEmpty", "is dropped: consolidation is enabled and removes empty nodes, too")
        return {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s"}
    if ttl_seconds is not None:
        return {"consolidationPolicy": "WhenEmpty", "consolidateAfter": f"{ttl_seconds}s"}
    notes.inform("spec.disruption", _NO_CONSOLIDATION)
    return {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"}


def _provisioner_kubelet(spec: Json, notes: NoteList) -> Json:
    kubelet = without_empty(object_field(spec, "kubeletConfiguration", "spec"))
    runtime = kubelet.pop("containerRuntime", "containerd")
    if runtime != "containerd":
        notes.warn("spec.kubeletConfiguration.containerRuntime", f"{runtime} is dropped: nodes run containerd")
    return kubelet
