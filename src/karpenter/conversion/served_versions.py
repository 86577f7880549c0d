"""An object that an API server stores, in each version that it serves: ``v1`` and ``v1beta1`` (API-713, API-851).

The conversion webhook answers with these. They never fail: what has no equivalent stands as it was, with a warning in an
annotation, because one object without an answer would fail the whole list it is in. What one version cannot hold is remembered in
an annotation and restored on the way back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from karpenter.api.karpenter import DURATION_OR_NEVER_PATTERN
from karpenter.conversion import node_claims, node_classes, node_pools
from karpenter.conversion.field_memory import FieldMemory
from karpenter.conversion.json_fields import Json, object_field, text_field, text_map, without_empty
from karpenter.conversion.metadata import KUBELET_ANNOTATION
from karpenter.conversion.notes import NotConvertible, NoteLevel, NoteList
from karpenter.conversion.options import ConversionOptions

#: On an object of ``v1beta1``: the fields of its ``v1`` form that it cannot hold, as JSON.
V1_FIELDS_ANNOTATION = "compatibility.karpenter.sh/v1-fields"
#: On an object of ``v1``: the fields of its ``v1beta1`` form that it cannot hold, as JSON.
BETA_FIELDS_ANNOTATION = "compatibility.karpenter.sh/v1beta1-fields"
#: On an object of ``v1``: what its conversion changed, one warning per line.
WARNINGS_ANNOTATION = "compatibility.karpenter.sh/conversion-warnings"
_OWN_ANNOTATIONS = (V1_FIELDS_ANNOTATION, BETA_FIELDS_ANNOTATION, WARNINGS_ANNOTATION, KUBELET_ANNOTATION)
_BETA = "v1beta1"
_DEFAULT_EXPIRY = "720h"


@dataclass(frozen=True, slots=True)
class _Spec:
    """A ``spec`` in one version, and the kubelet configuration that only ``v1beta1`` has in it."""

    fields: Json
    kubelet: Json
    notes: NoteList


@dataclass(frozen=True, slots=True)
class _KindConversion:
    """How the ``spec`` of a kind is converted to ``v1``, and from it. Both take the whole object."""

    to_v1: Callable[[Json, ConversionOptions], _Spec]
    to_beta: Callable[[Json], Json]


def converted(content: Json, api_version: str, options: ConversionOptions) -> Json:
    """The object in the version ``api_version`` of its group. ``metadata`` and ``status`` stay, apart from our annotations."""
    conversion = _KINDS.get(text_field(content, "kind"))
    if conversion is None or content.get("apiVersion") == api_version:
        return {**content, "apiVersion": api_version}
    try:
        if api_version.endswith(f"/{_BETA}"):
            return {**_as_beta(content, conversion, options), "apiVersion": api_version}
        return {**_as_v1(content, conversion, options), "apiVersion": api_version}
    except NotConvertible as error:
        warning = f"{error.path}: {error}; the object is served as it is stored"
        return {**_with_annotations(content, {WARNINGS_ANNOTATION: warning}), "apiVersion": api_version}


def _as_v1(content: Json, conversion: _KindConversion, options: ConversionOptions) -> Json:
    annotations = _annotations(content)
    made = conversion.to_v1(content, options)
    spec = FieldMemory.read(annotations.get(V1_FIELDS_ANNOTATION, "")).restored(made.fields)
    again = conversion.to_beta(_with_kubelet_annotation({**content, "spec": spec}, made.kubelet))
    lost = FieldMemory.of(object_field(content, "spec", ""), again)
    ours = {
        BETA_FIELDS_ANNOTATION: lost.text(),
        WARNINGS_ANNOTATION: _warnings(made.notes),
        KUBELET_ANNOTATION: _kubelet_text(made.kubelet),
    }
    return _with_annotations({**content, "spec": spec}, ours)


def _as_beta(content: Json, conversion: _KindConversion, options: ConversionOptions) -> Json:
    annotations = _annotations(content)
    spec = FieldMemory.read(annotations.get(BETA_FIELDS_ANNOTATION, "")).restored(conversion.to_beta(content))
    again = conversion.to_v1({**content, "spec": spec}, options)
    lost = FieldMemory.of(object_field(content, "spec", ""), again.fields)
    return _with_annotations({**content, "spec": spec}, {V1_FIELDS_ANNOTATION: lost.text()})


def _annotations(content: Json) -> dict[str, str]:
    return text_map(object_field(content, "metadata", ""), "annotations", "metadata")


def _with_annotations(content: Json, ours: Mapping[str, str]) -> Json:
    """The object with these of our annotations and no other; those of users stay."""
    metadata = object_field(content, "metadata", "")
    kept = object_field(metadata, "annotations", "metadata")
    written = {key: text for key, text in kept.items() if key not in _OWN_ANNOTATIONS} | without_empty(ours)
    rest = {name: value for name, value in metadata.items() if name != "annotations"}
    return {**content, "metadata": {**rest, "annotations": written} if written else rest}


def _with_kubelet_annotation(content: Json, kubelet: Json) -> Json:
    return _with_annotations(content, {KUBELET_ANNOTATION: _kubelet_text(kubelet)})


def _kubelet_text(kubelet: Json) -> str:
    return json.dumps(kubelet, separators=(",", ":")) if kubelet else ""


def _kubelet(content: Json) -> Json:
    """The kubelet configuration that an annotation keeps; empty where it is none."""
    try:
        kept = json.loads(_annotations(content).get(KUBELET_ANNOTATION, "{}"))
    except ValueError:
        return {}
    return kept if isinstance(kept, dict) else {}


def _warnings(notes: NoteList) -> str:
    return "\n".join(f"{note.path}: {note.text}" for note in notes.frozen() if note.level is NoteLevel.WARN)


def _metadata(content: Json) -> Json:
    metadata = object_field(content, "metadata", "")
    return {"name": text_field(metadata, "name"), "annotations": text_map(metadata, "annotations", "metadata")}


# -- NodePool -----------------------------------------------------------------------------------------------------------------


def _pool_to_v1(content: Json, options: ConversionOptions) -> _Spec:
    notes = NoteList()
    made = node_pools.from_beta(_metadata(content), content, options, notes)
    spec = object_field(made.pool, "spec", "")
    disruption = object_field(spec, "disruption", "spec")
    after = text_field(disruption, "consolidateAfter")
    if not re.fullmatch(DURATION_OR_NEVER_PATTERN, after):
        notes.warn("spec.disruption.consolidateAfter", f"{after} is not a duration; 0s counts")
        spec["disruption"] = disruption | {"consolidateAfter": "0s"}
    return _Spec(spec, made.kubelet, notes)


def _pool_to_beta(content: Json) -> Json:
    spec = object_field(content, "spec", "")
    template = object_field(spec, "template", "spec")
    written = object_field(template, "spec", "spec.template")
    disruption = object_field(spec, "disruption", "spec")
    beta_template = _without(written, "expireAfter", "terminationGracePeriod") | _beta_terms(written)
    beta_template |= without_empty({"kubelet": _kubelet(content)})
    return _without(spec, "replicas") | {
        "template": {**template, "spec": beta_template},
        "disruption": _beta_disruption(disruption, text_field(written, "expireAfter")),
    }


def _beta_disruption(disruption: Json, expire_after: str) -> Json:
    after = text_field(disruption, "consolidateAfter")
    is_empty_only = disruption.get("consolidationPolicy") == "WhenEmpty"
    kept_after = {"consolidateAfter": after} if is_empty_only or after == "Never" else {}
    budgets = disruption.get("budgets")
    without_reasons = [_without(budget, "reasons") for budget in budgets] if isinstance(budgets, list) else None
    return {
        "consolidationPolicy": "WhenEmpty" if is_empty_only else "WhenUnderutilized",
        "expireAfter": expire_after or _DEFAULT_EXPIRY,
        **kept_after,
        **without_empty({"budgets": without_reasons}),
    }


def _beta_terms(spec: Json) -> Json:
    """Requirements and class of a template or claim as ``v1beta1`` writes them."""
    requirements = spec.get("requirements")
    kept = [one for one in requirements if _is_beta_requirement(one)] if isinstance(requirements, list) else []
    reference = object_field(spec, "nodeClassRef", "spec")
    made = {
        "apiVersion": f"{text_field(reference, 'group')}/{_BETA}",
        "kind": reference.get("kind"),
        "name": reference.get("name"),
    }
    return {"requirements": kept, "nodeClassRef": without_empty(made)}


def _is_beta_requirement(requirement: object) -> bool:
    return not (isinstance(requirement, dict) and requirement.get("operator") in ("Gte", "Lte"))


def _without(fields: Json, *names: str) -> Json:
    return {name: value for name, value in fields.items() if name not in names}


# -- NodeClaim ----------------------------------------------------------------------------------------------------------------


def _claim_to_v1(content: Json, options: ConversionOptions) -> _Spec:
    notes = NoteList()
    spec = object_field(content, "spec", "")
    kubelet = without_empty(object_field(spec, "kubelet", "spec"))
    made = node_claims.from_beta(_metadata(content), {**content, "spec": _without(spec, "kubelet")}, options, notes)
    return _Spec(object_field(made, "spec", "") | {"expireAfter": _DEFAULT_EXPIRY}, kubelet, notes)


def _claim_to_beta(content: Json) -> Json:
    spec = object_field(content, "spec", "")
    made = _without(spec, "expireAfter", "terminationGracePeriod") | _beta_terms(spec)
    return made | without_empty({"kubelet": _kubelet(content)})


# -- EC2NodeClass -------------------------------------------------------------------------------------------------------------


def _class_to_v1(content: Json, options: ConversionOptions) -> _Spec:
    notes = NoteList()
    made = node_classes.from_beta(_metadata(content), content, options, notes)
    return _Spec(object_field(node_classes.with_role(made, options, notes), "spec", ""), {}, notes)


def _class_to_beta(content: Json) -> Json:
    """An alias is a family without terms; every field that ``v1beta1`` never had is left out."""
    spec = object_field(content, "spec", "")
    terms = spec.get("amiSelectorTerms")
    alias = text_field(terms[0], "alias") if isinstance(terms, list) and terms and isinstance(terms[0], dict) else ""
    made = {name: value for name, value in spec.items() if name in _BETA_CLASS_FIELDS}
    if not alias:
        return made
    family = _family(alias)
    return _without(made, "amiSelectorTerms") | {"amiFamily": text_field(spec, "amiFamily") or family}


def _family(alias: str) -> str:
    """The image family of an alias such as ``al2023@latest``."""
    name = alias.partition("@")[0]
    return _FAMILIES.get(name, name)


_FAMILIES = {
    family.lower(): family for family in ("AL2", "AL2023", "Bottlerocket", "Windows2019", "Windows2022", "Windows2025")
}
_BETA_CLASS_FIELDS = frozenset(
    (
        *("subnetSelectorTerms", "securityGroupSelectorTerms", "amiSelectorTerms", "amiFamily", "userData"),
        *("role", "instanceProfile", "tags", "blockDeviceMappings", "instanceStorePolicy", "detailedMonitoring"),
        *("associatePublicIPAddress", "metadataOptions", "context"),
    )
)
_KINDS = {
    "NodePool": _KindConversion(_pool_to_v1, _pool_to_beta),
    "NodeClaim": _KindConversion(_claim_to_v1, _claim_to_beta),
    "EC2NodeClass": _KindConversion(_class_to_v1, _class_to_beta),
}
