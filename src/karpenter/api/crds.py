"""Custom resource definitions, generated from the structs that decode the objects (API-001 ff.).

One source: the struct's annotations give types, patterns, ranges and defaults, its docstring the description,
``api.cel_rules`` what needs more than one field, ``api.field_descriptions`` what each field means. The schema refuses nothing
users could store before (API-033 and the compatibility rule that admission never gets stricter), and whatever it lets in, the
structs decode.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import TypeVar, cast

import msgspec
from msgspec import inspect

from karpenter.api import (
    capacity_buffer,
    capacity_schedule,
    cel_rules,
    ec2_node_class,
    field_descriptions,
    karpenter,
    kinds,
    kwok_node_class,
    machine_node_class,
    node_overlay,
    older_kinds,
    older_schemas,
    plain_yaml,
)
from karpenter.api.kinds import Kind
from karpenter.api.meta import Condition, ObjectMeta, Wire

Json = dict[str, object]
T = TypeVar("T", bound=Wire)

#: API-027. The API server searches, so the pattern is anchored; what passes and is no quantity is rejected at runtime.
QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_CONDITION_TYPE = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
)
_REASON = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
_REASON_OR_NONE = r"^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?)?$"

_SPEC_ID_REFERENCE = re.compile(r"\s*\([A-Z]+-[0-9][^)]*\)")
_QUOTED = re.compile("``(.*?)``")

_ATOMIC_LIST: Json = {"x-kubernetes-list-type": "atomic"}
_CONDITIONS: Json = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
#: Fields a schema requires, so that they are spelled out in defaults even when empty.
_ALWAYS_WRITTEN = frozenset({"message"})
#: What a 32-bit number can be.
_LARGEST_COUNT = 2**31 - 1
_SCALE: Json = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.nodes"}

#: What a schema says beyond the struct, by struct and wire name of the field (API-025, API-607).
_SCHEMA_EXTRAS: Mapping[tuple[type[Wire], str], Json] = {
    (karpenter.NodeClaimTemplateSpec, "requirements"): _ATOMIC_LIST,
    (karpenter.NodeClaimTemplateSpec, "taints"): _ATOMIC_LIST,
    (karpenter.NodeClaimTemplateSpec, "startupTaints"): _ATOMIC_LIST,
    (karpenter.NodeClaimSpec, "requirements"): _ATOMIC_LIST,
    (karpenter.NodeClaimSpec, "taints"): _ATOMIC_LIST,
    (karpenter.NodeClaimSpec, "startupTaints"): _ATOMIC_LIST,
    (karpenter.NodeSelectorRequirementWithMinValues, "values"): _ATOMIC_LIST,
    (karpenter.Disruption, "budgets"): _ATOMIC_LIST,
    (karpenter.Budget, "reasons"): {"x-kubernetes-list-type": "set"},
    (karpenter.NodeClaimTemplateMeta, "labels"): {"x-kubernetes-map-type": "atomic"},
    (karpenter.NodePoolSpec, "weight"): {"format": "int32"},
    (karpenter.NodePoolStatus, "nodes"): {"default": 0},
    (capacity_buffer.CapacityBufferSpec, "replicas"): {"format": "int32", "maximum": _LARGEST_COUNT},
    (capacity_buffer.CapacityBufferSpec, "percentage"): {"format": "int32", "maximum": _LARGEST_COUNT},
    (capacity_buffer.CapacityBufferStatus, "replicas"): {"format": "int32", "maximum": _LARGEST_COUNT},
    (capacity_schedule.CapacityScheduleSpec, "windows"): _ATOMIC_LIST,
    (capacity_schedule.SleepSettings, "respect"): {"x-kubernetes-list-type": "set"},
    (machine_node_class.MachineNodeClassSpec, "hosts"): {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    },
    (node_overlay.NodeOverlaySpec, "requirements"): _ATOMIC_LIST,
    (node_overlay.NodeOverlaySpec, "weight"): {"format": "int32"},
    (node_overlay.OverlayRequirement, "values"): _ATOMIC_LIST,
    (ec2_node_class.EC2NodeClassSpec, "metadataOptions"): {
        "default": {
            "httpEndpoint": "enabled",
            "httpProtocolIPv6": "disabled",
            "httpPutResponseHopLimit": 1,
            "httpTokens": "required",
        }
    },
    (ec2_node_class.EC2NodeClassSpec, "ipPrefixCount"): {"format": "int32", "maximum": _LARGEST_COUNT},
    (ec2_node_class.CapacityReservation, "id"): {"pattern": r"^cr-[0-9a-z]+$"},
    (ec2_node_class.CapacityReservation, "ownerID"): {"pattern": r"^[0-9]{12}$"},
    (ec2_node_class.CapacityReservation, "instanceMatchCriteria"): {"enum": ["open", "targeted"]},
    (ec2_node_class.CapacityReservation, "reservationType"): {"enum": ["capacity-block", "default"]},
    (ec2_node_class.CapacityReservation, "state"): {"enum": ["active", "expiring"]},
    (Condition, "type"): {"maxLength": 316, "pattern": _CONDITION_TYPE},
    (Condition, "status"): {"enum": ["True", "False", "Unknown"]},
    (Condition, "reason"): {"maxLength": 1024, "pattern": _REASON_OR_NONE},
    (Condition, "message"): {"maxLength": 32768},
    (Condition, "observedGeneration"): {"minimum": 0},
}
#: Required on the wire although the struct can do without (API-115, API-200 to API-202).
_ALSO_REQUIRED: Mapping[type[Wire], tuple[str, ...]] = {
    Condition: ("lastTransitionTime",),
    ec2_node_class.EC2NodeClassSpec: ("subnetSelectorTerms", "securityGroupSelectorTerms"),
}
#: Conditions that must come with a reason and a message (API-607). A NodeClaim's need neither (API-115).
_EXPLAINED_CONDITIONS = frozenset(
    (status, "conditions")
    for status in (
        karpenter.NodePoolStatus,
        kwok_node_class.KWOKNodeClassStatus,
        machine_node_class.MachineNodeClassStatus,
        ec2_node_class.EC2NodeClassStatus,
        node_overlay.NodeOverlayStatus,
        capacity_buffer.CapacityBufferStatus,
        capacity_schedule.CapacityScheduleStatus,
    )
)

#: Conditions that users know as a plain list (API-025).
_PLAIN_LISTS = frozenset({(ec2_node_class.EC2NodeClassStatus, "conditions")})


def _column(name: str, path: str, type_: str = "string", priority: int = 0) -> Json:
    column: Json = {"jsonPath": path, "name": name, "type": type_}
    return column | {"priority": priority} if priority else column


def _label(key: str) -> str:
    return ".metadata.labels." + key.replace(".", r"\.")


_READY = _column("Ready", '.status.conditions[?(@.type=="Ready")].status')
_AGE = _column("Age", ".metadata.creationTimestamp", "date")
_WEIGHT = _column("Weight", ".spec.weight", "integer", 1)
_POOL_COLUMNS = (
    _column("NodeClass", ".spec.template.spec.nodeClassRef.name"),
    _column("Nodes", ".status.nodes"),
    _READY,
    _AGE,
    _WEIGHT,
    _column("CPU", ".status.resources.cpu", priority=1),
    _column("Memory", ".status.resources.memory", priority=1),
)
_CLAIM_COLUMNS = (
    _column("Type", _label("node.kubernetes.io/instance-type")),
    _column("Capacity", _label("karpenter.sh/capacity-type")),
    _column("Zone", _label("topology.kubernetes.io/zone")),
    _column("Node", ".status.nodeName"),
    _READY,
    _AGE,
    _column("ImageID", ".status.imageID", priority=1),
    _column("ID", ".status.providerID", priority=1),
    _column("NodePool", _label("karpenter.sh/nodepool"), priority=1),
    _column("NodeClass", ".spec.nodeClassRef.name", priority=1),
    _column("Drifted", '.status.conditions[?(@.type=="Drifted")].status', priority=1),
)
_EC2_CLASS_COLUMNS = (_READY, _AGE, _column("Role", ".spec.role", priority=1))
_BUFFER_COLUMNS = (
    _column("Strategy", ".spec.provisioningStrategy"),
    _column("PodTemplate", ".status.podTemplateRef.name"),
    _column("Replicas", ".status.replicas", "integer"),
    _column("ConditionsType", ".status.conditions[*].type"),
    _column("ConditionsStatus", ".status.conditions[*].status"),
    _column("ConditionsReason", ".status.conditions[*].reason"),
    _AGE,
)
_SCHEDULE_COLUMNS = (
    _column("State", ".status.state"),
    _column("Next", ".status.nextState"),
    _column("At", ".status.nextChange"),
    _column("NodePools", ".status.nodePools", "integer"),
    _column("Nodes", ".status.nodes", "integer"),
    _READY,
    _AGE,
)
_BETA_POOL_COLUMNS = (_column("NodeClass", ".spec.template.spec.nodeClassRef.name"), _WEIGHT)
_BETA_CLAIM_COLUMNS = (
    _column("Type", _label("node.kubernetes.io/instance-type")),
    _column("Zone", _label("topology.kubernetes.io/zone")),
    _column("Node", ".status.nodeName"),
    _READY,
    _AGE,
    _column("Capacity", _label("karpenter.sh/capacity-type"), priority=1),
    _column("NodePool", _label("karpenter.sh/nodepool"), priority=1),
    _column("NodeClass", ".spec.nodeClassRef.name", priority=1),
)
_ACTIVE = _column("Active", '.status.conditions[?(@.type=="Active")].status')
#: The conversion webhook where the manifests and charts put it. The controller writes its actual address and CA bundle.
CONVERSION: Json = {
    "strategy": "Webhook",
    "webhook": {
        "clientConfig": {
            "service": {"name": "karpenter", "namespace": "kube-system", "path": "/conversion", "port": 8443}
        },
        "conversionReviewVersions": ["v1"],
    },
}
#: Versions of the same schema that are served beside the one that is stored, because published manifests use them (API §6).
_OLDER_VERSIONS = {kinds.CAPACITY_BUFFER.name: ("v1alpha1",)}
#: What commands for a whole category of kinds call them; our own are in one of our name.
_CATEGORIES = {kinds.CAPACITY_BUFFER.group: "autoscaling"}


def custom_resource_definitions() -> tuple[Json, ...]:
    """The CRDs of all our kinds, ready for an API server."""
    return (
        _with_beta(
            _definition(kinds.NODE_POOL, (), _POOL_COLUMNS, {"scale": _SCALE}), kinds.NODE_POOL, _BETA_POOL_COLUMNS
        ),
        _with_beta(_definition(kinds.NODE_CLAIM, (), _CLAIM_COLUMNS, {}), kinds.NODE_CLAIM, _BETA_CLAIM_COLUMNS),
        _definition(kinds.KWOK_NODE_CLASS, ("kwoknc", "kwokncs"), (_READY, _AGE), {}),
        _definition(kinds.NODE_OVERLAY, ("overlays",), (_READY, _AGE, _WEIGHT), {}),
        _definition(kinds.CAPACITY_BUFFER, ("cb",), _BUFFER_COLUMNS, {}),
        _with_beta(
            _definition(kinds.EC2_NODE_CLASS, ("ec2nc", "ec2ncs"), _EC2_CLASS_COLUMNS, {}),
            kinds.EC2_NODE_CLASS,
            _EC2_CLASS_COLUMNS,
        ),
        _definition(kinds.CAPACITY_SCHEDULE, ("capsched",), _SCHEDULE_COLUMNS, {}),
        _definition(kinds.MACHINE_NODE_CLASS, ("machinenc", "machinencs"), (_READY, _AGE), {}),
        _older_definition(
            older_kinds.PROVISIONER, (_column("Template", ".spec.providerRef.name"), _ACTIVE, _AGE, _WEIGHT)
        ),
        _older_definition(older_kinds.MACHINE, (_ACTIVE, _AGE)),
        _older_definition(older_kinds.AWS_NODE_TEMPLATE, (_ACTIVE, _AGE)),
    )


def to_yaml() -> str:
    """The same as a stream of YAML documents."""
    return "---\n".join(map(plain_yaml.to_yaml, custom_resource_definitions()))


def _definition(kind: Kind[T], short_names: tuple[str, ...], columns: tuple[Json, ...], subresources: Json) -> Json:
    names: Json = {
        "categories": [_CATEGORIES.get(kind.group, "karpenter")],
        "kind": kind.name,
        "listKind": f"{kind.name}List",
        "plural": kind.plural,
        "singular": kind.name.lower(),
    }
    if short_names:
        names["shortNames"] = list(short_names)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "names": names,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": version == kind.version,
                    "schema": {"openAPIV3Schema": copy.deepcopy(schema(kind.type))},
                    "subresources": {"status": {}, **subresources},
                    "additionalPrinterColumns": list(columns),
                }
                for version in (kind.version, *_OLDER_VERSIONS.get(kind.name, ()))
            ],
        },
    }


def _with_beta(definition: Json, kind: Kind[T], columns: tuple[Json, ...]) -> Json:
    """The definition with ``v1beta1`` beside ``v1``, and the webhook that converts between them (API-851)."""
    spec = cast(Json, definition["spec"])
    version = {
        "name": "v1beta1",
        "served": True,
        "storage": False,
        "schema": {"openAPIV3Schema": older_schemas.beta_schema(kind.name, schema(kind.type))},
        "subresources": {"status": {}},
        "additionalPrinterColumns": list(columns),
    }
    versions = [*cast("list[Json]", spec["versions"]), version]
    return {**definition, "spec": {**spec, "versions": versions, "conversion": copy.deepcopy(CONVERSION)}}


def _older_definition(kind: Kind[T], columns: tuple[Json, ...]) -> Json:
    """A kind of older releases, which keeps whatever is written (API-850)."""
    definition = _definition(kind, (), columns, {})
    (version,) = cast("list[Json]", cast(Json, definition["spec"])["versions"])
    version["schema"] = {"openAPIV3Schema": older_schemas.open_schema(_description(kind.type))}
    return definition


@cache
def schema(type_: type[Wire]) -> Json:
    """The structural schema of a kind's struct, ``apiVersion`` and ``kind`` included. Not to be modified.

    The API server knows ``metadata`` of an object itself and refuses a definition that says more of it than its type.
    """
    object_schema = _object(cast(inspect.StructType, inspect.type_info(type_)))
    properties = cast(Json, object_schema["properties"])
    object_schema["properties"] = {
        "apiVersion": {"description": field_descriptions.API_VERSION, "type": "string"},
        "kind": {"description": field_descriptions.KIND, "type": "string"},
        **properties,
        "metadata": {"type": "object"},
    }
    return object_schema


def _object(info: inspect.StructType) -> Json:
    """Schema of a struct. The API server validates metadata itself, so its schema stays open."""
    if info.cls is ObjectMeta:
        return {"description": field_descriptions.METADATA, "type": "object"}
    owner = cast(type[Wire], info.cls)
    object_schema: Json = {"description": _description(owner), "type": "object"}
    object_schema["properties"] = {field.encode_name: _property(owner, field) for field in info.fields}
    required = [field.encode_name for field in info.fields if field.required]
    required += _ALSO_REQUIRED.get(owner, ())
    return object_schema | {"required": required} if required else object_schema


def _description(type_: type[Wire]) -> str:
    """The struct's docstring for users: field names as they are written, without references to our own documents."""
    text = _SPEC_ID_REFERENCE.sub("", type_.__doc__ or "")
    return " ".join(_QUOTED.sub(lambda match: _camel(match[1]), text).split())


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def _property(owner: type[Wire], field: inspect.Field) -> Json:
    place = (owner, field.encode_name)
    property_schema = _schema_of_type(field.type) | _SCHEMA_EXTRAS.get(place, {})
    if place in _EXPLAINED_CONDITIONS:
        property_schema["items"] = _with_reason_and_message(cast(Json, property_schema["items"]))
    if place in _PLAIN_LISTS:
        property_schema = {name: value for name, value in property_schema.items() if name not in _CONDITIONS}
    default = _default(field)
    if default is not None:
        property_schema["default"] = default
    if place in cel_rules.CEL_RULES:
        property_schema["x-kubernetes-validations"] = [rule.as_json() for rule in cel_rules.CEL_RULES[place]]
    description = field_descriptions.FIELD_DESCRIPTIONS.get(place)
    if description is None:
        return property_schema
    return {
        "description": description,
        **{name: part for name, part in property_schema.items() if name != "description"},
    }


def _with_reason_and_message(condition: Json) -> Json:
    properties = cast(Json, condition["properties"])
    reason = cast(Json, properties["reason"]) | {"minLength": 1, "pattern": _REASON}
    required = [*cast("list[str]", condition["required"]), "reason", "message"]
    return condition | {"properties": properties | {"reason": reason}, "required": required}


def _default(field: inspect.Field) -> object:
    """What the server fills in for an absent field; None where it leaves the field out. Zero values are not written."""
    value = field.default
    if value is msgspec.NODEFAULT or value is None or value in ("", 0, False, ()):
        return None
    filled = _explicit_default(value)
    return filled or None


def _explicit_default(value: object) -> object:
    """A default as JSON with its own defaults spelled out, which plain encoding would leave away."""
    if isinstance(value, msgspec.Struct):
        fields = {f.encode_name: _explicit_default(getattr(value, f.name)) for f in msgspec.structs.fields(value)}
        needless: tuple[object, ...] = (None, "", 0, {}, [])
        return {name: member for name, member in fields.items() if member not in needless or name in _ALWAYS_WRITTEN}
    if isinstance(value, tuple):
        return [_explicit_default(member) for member in value]
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    return value


def _schema_of_type(type_: inspect.Type) -> Json:
    if isinstance(type_, inspect.UnionType):
        return _union(type_)
    for type_class, build in _BUILDERS.items():
        if isinstance(type_, type_class):
            return build(type_)
    raise TypeError(f"no schema for {type_}")


def _union(type_: inspect.UnionType) -> Json:
    """An optional value, or a quantity: the only unions on the wire."""
    alternatives = [instance_type for instance_type in type_.types if not isinstance(instance_type, inspect.NoneType)]
    if len(alternatives) == 1:
        return _schema_of_type(alternatives[0])
    return {"anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": QUANTITY, "x-kubernetes-int-or-string": True}


def _text(type_: inspect.StrType) -> Json:
    limits = {"minLength": type_.min_length, "maxLength": type_.max_length, "pattern": type_.pattern}
    return {"type": "string", **_without_none(limits)}


def _number(type_: inspect.IntType) -> Json:
    return {"type": "integer", "format": "int64", **_without_none({"minimum": type_.ge, "maximum": type_.le})}


def _list(type_: inspect.VarTupleType) -> Json:
    limits = {"minItems": type_.min_length, "maxItems": type_.max_length}
    return {"type": "array", "items": _schema_of_type(type_.item_type), **_without_none(limits)} | _keyed(
        type_.item_type
    )


def _keyed(described: inspect.Type) -> Json:
    is_condition = isinstance(described, inspect.StructType) and described.cls is Condition
    return _CONDITIONS if is_condition else {}


def _map(type_: inspect.DictType) -> Json:
    if isinstance(type_.value_type, inspect.CustomType):
        # Any value at all: a map whose keys are defined elsewhere.
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    limits = {"minProperties": type_.min_length, "maxProperties": type_.max_length}
    return {"type": "object", "additionalProperties": _schema_of_type(type_.value_type), **_without_none(limits)}


def _without_none(limits: Mapping[str, object]) -> Json:
    return {name: limit for name, limit in limits.items() if limit is not None}


_BUILDERS: Mapping[type[inspect.Type], Callable[..., Json]] = {
    inspect.StructType: _object,
    inspect.StrType: _text,
    inspect.IntType: _number,
    inspect.BoolType: lambda _: {"type": "boolean"},
    inspect.DateTimeType: lambda _: {"type": "string", "format": "date-time"},
    inspect.LiteralType: lambda type_: {"type": "string", "enum": sorted(type_.values)},
    inspect.VarTupleType: _list,
    inspect.DictType: _map,
    inspect.AnyType: lambda _: {"x-kubernetes-preserve-unknown-fields": True},
    inspect.CustomType: lambda _: {"x-kubernetes-preserve-unknown-fields": True},
}
