"""Schemas of ``v1beta1``, which is served beside ``v1``, and of the kinds before it (API-700 to API-736, API-850).

Those of ``v1beta1`` are made from ``v1``: only what differs stands here. They are lenient where the conversion can fill in
what is missing (API-851). The kinds of ``v1alpha5`` and ``v1alpha1`` keep every field.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import cast

from karpenter.api import field_descriptions

Json = dict[str, object]

#: The first release matched durations at their start only, so text such as ``1hr`` could be stored (API-707).
_HALF_ANCHORED_DURATION = r"^([0-9]+(s|m|h))+|Never$"
_DURATION_OR_NEVER = r"^(([0-9]+(s|m|h))+|Never)$"
_OPEN_OBJECT: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_EXPIRY = "720h"
_FAMILIES = ("AL2", "AL2023", "Bottlerocket", "Custom", "Ubuntu", "Windows2019", "Windows2022", "Windows2025")
#: Required in ``v1``; the conversion fills them in.
_FILLED_IN = frozenset({"template", "nodeClassRef", "amiSelectorTerms"})
_KUBELET = "Kubelet configuration of the nodes; v1 has it in the EC2NodeClass."
_EXPIRE_AFTER = "Age at which a node is replaced, or Never; v1 has it in the template."
#: Fields of an EC2NodeClass that came with ``v1``.
_NEW_CLASS_FIELDS = (
    *("capacityReservationSelectorTerms", "placementGroupSelector", "kubelet", "networkInterfaces"),
    *("ipPrefixCount", "connectionTracking", "cpuOptions", "enclaveOptions"),
)


def beta_schema(kind: str, schema: Json) -> Json:
    """The ``v1beta1`` schema of a kind, made from that of ``v1``."""
    made = copy.deepcopy(schema)
    spec = _field(made, "spec")
    spec["required"] = [name for name in cast("list[str]", spec["required"]) if name not in _FILLED_IN]
    if not spec["required"]:
        spec.pop("required")
    _remove_rules(spec)
    _CHANGES[kind](cast(Json, spec["properties"]))
    return made


def open_schema(description: str) -> Json:
    """The schema of a kind that keeps every field of ``spec`` and ``status``."""
    return {
        "description": description,
        "type": "object",
        "properties": {
            "apiVersion": {"description": field_descriptions.API_VERSION, "type": "string"},
            "kind": {"description": field_descriptions.KIND, "type": "string"},
            "metadata": {"type": "object"},
            "spec": _described("What the user wrote; every field is kept.", _OPEN_OBJECT),
            "status": _described("What the controller reports.", _OPEN_OBJECT),
        },
    }


def _described(description: str, schema: Mapping[str, object]) -> Json:
    return {"description": description, **schema}


def _field(schema: Json, name: str) -> Json:
    return cast(Json, cast(Json, schema["properties"])[name])


def _remove_rules(spec: Json) -> None:
    """Leave out rules on fields that ``v1beta1`` does not have, or that the conversion fills in."""
    rules = [rule for rule in cast("list[Json]", spec.pop("x-kubernetes-validations")) if not _is_foreign(rule)]
    if rules:
        spec["x-kubernetes-validations"] = rules


def _is_foreign(rule: Json) -> bool:
    return any(name in str(rule["rule"]) for name in ("replicas", "amiFamily"))


def _change_pool(spec: Json) -> None:
    spec.pop("replicas")
    template = cast(Json, spec["template"])
    template.pop("required", None)
    template_spec = cast(Json, cast(Json, template["properties"])["spec"])
    template_spec.pop("required", None)
    fields = cast(Json, template_spec["properties"])
    fields.pop("expireAfter")
    fields.pop("terminationGracePeriod")
    fields |= {
        "kubelet": _described(_KUBELET, _OPEN_OBJECT),
        "resources": _described("Has no effect; v1 does not have it.", _OPEN_OBJECT),
        "nodeClassRef": _class_reference(),
    }
    _change_disruption(cast(Json, spec["disruption"]))


def _change_disruption(disruption: Json) -> None:
    fields = cast(Json, disruption["properties"])
    after = {"type": "string", "pattern": _HALF_ANCHORED_DURATION}
    fields["consolidateAfter"] = _described("Time after which an empty node is removed, or Never.", after)
    policy = {"type": "string", "enum": ["WhenEmpty", "WhenUnderutilized"], "default": "WhenUnderutilized"}
    fields["consolidationPolicy"] = _described("Which nodes may be consolidated.", policy)
    expiry = {"type": "string", "pattern": _DURATION_OR_NEVER, "default": _EXPIRY}
    fields["expireAfter"] = _described(_EXPIRE_AFTER, expiry)
    budgets = cast(Json, fields["budgets"])
    cast(Json, cast(Json, budgets["items"])["properties"]).pop("reasons")
    disruption["default"] = {
        "budgets": copy.deepcopy(budgets["default"]),
        "consolidationPolicy": "WhenUnderutilized",
        "expireAfter": _EXPIRY,
    }


def _change_claim(spec: Json) -> None:
    spec.pop("expireAfter")
    spec.pop("terminationGracePeriod")
    spec |= {"kubelet": _described(_KUBELET, _OPEN_OBJECT), "nodeClassRef": _class_reference()}


def _class_reference() -> Json:
    """Only the name says something; group and kind of the AWS provider count where they are missing (API-705)."""
    described = {
        "apiVersion": "API version of the node class.",
        "kind": "Kind of the node class.",
        "name": "Name of the node class.",
    }
    fields = {name: _described(text, {"type": "string"}) for name, text in described.items()}
    return _described("The node class that says how instances are launched.", {"type": "object", "properties": fields})


def _change_class(spec: Json) -> None:
    for name in _NEW_CLASS_FIELDS:
        spec.pop(name)
    cast(Json, spec["amiFamily"])["enum"] = list(_FAMILIES)
    options = cast(Json, spec["metadataOptions"])
    cast(Json, cast(Json, options["properties"])["httpPutResponseHopLimit"])["default"] = 2
    options["default"] = cast(Json, options["default"]) | {"httpPutResponseHopLimit": 2}


_CHANGES: Mapping[str, Callable[[Json], None]] = {
    "NodePool": _change_pool,
    "NodeClaim": _change_claim,
    "EC2NodeClass": _change_class,
}
