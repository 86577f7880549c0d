"""Many different writes of our kinds, most of them a little wrong: what two readers of the same rules may disagree about.

A valid object is changed at one or two places. Half the changes are made where rules stand that read several fields, with values
at the edge of what those allow; the others anywhere the schema names a field, where sometimes something is put that fits nowhere.
The same seed gives the same writes.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from karpenter.api import crds
from karpenter.model.structural_schema import Schema
from support.admission_rows import META, REQUIREMENTS, D, Json, T, built, condition
from support.mutation_values import (
    BOUNDS,
    BUFFER,
    BY_NAME,
    CLAIM,
    COUNTS,
    EC2_BASES,
    JUNK,
    KEYS,
    NODES,
    OVERLAY,
    POOL,
    QUANTITIES,
    RESOURCES,
    TEXTS,
    TIMES,
)
from support.server_writes import KINDS, Write

_Maker = Callable[[random.Random], object]

#: Seed and number of the writes that are judged in every run.
USUAL = (13, 1600)
#: The same for EC2NodeClasses, which have many rules of their own.
USUAL_EC2 = (16, 1200)

#: Valid objects to start from; each may also be what is stored.
_BASES = [
    built("NodePool", {}),
    built("NodePool", POOL),
    built("NodePool", {"spec.replicas": 3, "spec.limits": {"nodes": 5}}),
    built("NodeClaim", {}),
    built("NodeClaim", CLAIM),
    built("KWOKNodeClass", {"spec.nodeRegistrationDelay": "30s"}),
    built("NodeOverlay", OVERLAY),
    built("CapacityBuffer", BUFFER),
    built("CapacityBuffer", {"spec.podTemplateRef": {"name": "t"}, "spec.replicas": 1}),
]
_STATUSES: Mapping[str, Json] = {
    "EC2NodeClass": {
        "subnets": [{"id": "subnet-1", "zone": "z"}],
        "amis": [{"id": "ami-1", "requirements": [{"key": "a", "operator": "Exists"}]}],
        "conditions": [condition(type="Ready")],
    },
    "NodePool": {"nodes": 3, "resources": {"cpu": "24"}, "conditions": [condition(), condition(type="Ready")]},
    "NodeClaim": {"nodeName": "n", "capacity": {"cpu": 4}, "conditions": [condition(), condition(type="Ready")]},
    "KWOKNodeClass": {"conditions": [condition(type="Ready")]},
    "NodeOverlay": {"conditions": [condition(type="Ready")]},
    "CapacityBuffer": {"replicas": 3, "podTemplateRef": {"name": "t"}, "conditions": [condition()]},
}


def writes(seed: int, count: int, bases: Sequence[Json] = _BASES) -> Iterator[Write]:
    """New objects, replacements and status writes, in about equal parts."""
    rng = random.Random(seed)
    for _ in range(count):
        base = rng.choice(bases)
        made = rng.choice((_created, _created, _replaced, _replaced, _status))
        yield made(rng, base, bases)


def ec2_writes(seed: int, count: int) -> Iterator[Write]:
    """The same of EC2NodeClasses alone."""
    return writes(seed, count, EC2_BASES)


def _created(rng: random.Random, base: Json, _bases: Sequence[Json]) -> Write:
    return Write(str(base["kind"]), _changed(rng, base))


def _replaced(rng: random.Random, base: Json, bases: Sequence[Json]) -> Write:
    kind = str(base["kind"])
    start = rng.choice([other for other in bases if other["kind"] == kind]) if rng.random() < 0.2 else base
    wanted = copy.deepcopy(start) if rng.random() < 0.1 else _changed(rng, start)
    return Write(kind, wanted, base)


def _status(rng: random.Random, base: Json, _bases: Sequence[Json]) -> Write:
    kind = str(base["kind"])
    schema = cast("Mapping[str, Schema]", crds.schema(KINDS[kind].type)["properties"])["status"]
    status: object = copy.deepcopy(_STATUSES[kind])
    for _ in range(rng.randint(1, 3)):
        status = _mutated(rng, schema, status, "status")
    return Write(kind, {**base, "status": status}, base, is_status=True)


def _changed(rng: random.Random, base: Json) -> Json:
    kind = str(base["kind"])
    changed = copy.deepcopy(base)
    schema = cast("Mapping[str, Schema]", crds.schema(KINDS[kind].type)["properties"])["spec"]
    for _ in range(rng.choice((1, 1, 2))):
        if kind in _RULED and rng.random() < 0.7:
            path, make = rng.choice(_RULED[kind])
            _put(changed, path.split("."), make(rng))
        else:
            changed["spec"] = _mutated(rng, schema, changed["spec"], "spec")
    return changed


def _put(place: object, names: Sequence[str], value: object) -> None:
    """Set a member of an object, where the way there is still one."""
    *parents, last = names
    for name in parents:
        place = place.setdefault(name, {}) if isinstance(place, dict) else None
    if isinstance(place, dict):
        place[last] = value


# -- where rules stand that read several fields -----------------------------------------------------------------------------


def _requirement(rng: random.Random) -> Json:
    """One with a doubtful key, or one with doubtful values."""
    if rng.random() < 0.5:
        return {"key": rng.choice(KEYS), "operator": "Exists"}
    operator = rng.choice(["In", "In", "In", "In", "Gt", "Lt", "Gte", "Lte", "NotIn", "DoesNotExist"])
    requirement: Json = {"key": "example.com/a", "operator": operator}
    if operator in ("Gt", "Lt", "Gte", "Lte"):
        requirement["values"] = rng.choice([[rng.choice(BOUNDS)], [rng.choice(BOUNDS)], ["1", "2"], []])
    elif rng.random() < 0.9:
        requirement["values"] = rng.choice([["a"], ["a", "b"], ["a", "b"], []])
    if rng.random() < 0.3:
        requirement["minValues"] = rng.choice([1, 2, 3, 50])
    return requirement


def _requirements(rng: random.Random) -> object:
    return [_requirement(rng) for _ in range(rng.choice((1, 1, 2)))]


def _budgets(rng: random.Random) -> object:
    return [_budget(rng) for _ in range(rng.choice((1, 1, 2)))]


def _budget(rng: random.Random) -> Json:
    budget: Json = {"nodes": rng.choice(["1", "10%", rng.choice(NODES)])}
    if rng.random() < 0.6:
        budget["schedule"] = rng.choice(["@daily", "0 9 * * 1-5"])
    if rng.random() < 0.6:
        budget["duration"] = "8h"
    return budget


def _labels(rng: random.Random) -> object:
    return {rng.choice(KEYS): rng.choice(["a", "a", ""]) for _ in range(rng.choice((1, 1, 2)))}


def _reference(rng: random.Random) -> object:
    name = rng.choice(list(_CLASS))
    return {**_CLASS, name: rng.choice(BY_NAME[name])}


def _terms(*fields: tuple[str, Sequence[object]]) -> _Maker:
    """Lists of terms that have each field about as often as not."""

    def made(rng: random.Random) -> object:
        count = rng.choice((0, 1, 1, 1, 2, 2))
        return [{name: rng.choice(values) for name, values in fields if rng.random() < 0.4} for _ in range(count)]

    return made


def _interfaces(rng: random.Random) -> object:
    kinds = ("interface", "efa-only")
    first = {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"}
    more = [
        {
            "networkCardIndex": rng.choice((0, 1)),
            "deviceIndex": rng.choice((0, 1, 2)),
            "interfaceType": rng.choice(kinds),
        }
        for _ in range(rng.choice((0, 1, 2, 3)))
    ]
    return [first, *more] if rng.random() < 0.7 else more


def _volumes(rng: random.Random) -> object:
    volume: Json = {}
    if rng.random() < 0.5:
        volume["volumeSize"] = rng.choice(["20Gi", "Ti", "58Ti", "59Ti", "64000G", "64001G", "1.5Gi"])
    if rng.random() < 0.5:
        volume["snapshotID"] = rng.choice(["s", ""])
    if rng.random() < 0.4:
        volume["volumeInitializationRate"] = rng.choice([99, 100, 300])
    roots = [{"rootVolume": rng.choice((True, False))} for _ in range(rng.choice((0, 1, 2)))]
    return [*roots, {"ebs": volume}]


_TAG_MAPS: Sequence[object] = ({"a": "b"}, {"a": "b"}, {}, {"": "b"}, {"a": ""})
_OWNERS = ("1" * 12, "self")
_ALIASES = ("al2@latest", "al2@latest", "al2023@v1", "windows2022@latest", "windows2022@v1", "al2", "ubuntu@1", "al2@")
_OWN_TAGS = ("a", "", "eks:eks-cluster-name", "kubernetes.io/cluster/x", "karpenter.sh/nodepool", "karpenter.sh/x")
#: What may stand where anything may; no nulls, which a real server keeps there and ours drops.
_OPEN: Sequence[object] = ({}, {"maxPods": 5}, {"a": {"b": [1, 2.5, True, "x"]}}, [], "text", 5)
_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
_AMOUNTS: list[object] = [{"nodes": 5}, {"cpu": 5}, {"nodes": "5", "cpu": 5}, {"nodes": 5.0}, {}]
_RULED: Mapping[str, Sequence[tuple[str, _Maker]]] = {
    "NodePool": (
        (REQUIREMENTS, _requirements),
        (REQUIREMENTS, _requirements),
        (f"{META}.labels", _labels),
        (f"{META}.labels", _labels),
        (f"{D}.budgets", _budgets),
        (f"{T}.nodeClassRef", _reference),
        ("spec.replicas", lambda rng: rng.choice([0, 1, 5, None])),
        ("spec.weight", lambda rng: rng.choice([1, 100, None])),
        ("spec.limits", lambda rng: copy.deepcopy(rng.choice(_AMOUNTS))),
    ),
    "NodeClaim": (
        ("spec.requirements", _requirements),
        ("spec.requirements", _requirements),
        ("spec.nodeClassRef", _reference),
    ),
    "CapacityBuffer": (
        ("spec.podTemplateRef", lambda rng: rng.choice([{"name": "t"}, {"name": ""}, {}, None])),
        ("spec.scalableRef", lambda rng: rng.choice([{"kind": "a", "name": "b"}, {"kind": "a"}, None])),
        ("spec.replicas", lambda rng: rng.choice([0, 1, -1, 2**31, None])),
        ("spec.limits", lambda rng: rng.choice([{}, {"cpu": 1}, None])),
    ),
    "EC2NodeClass": (
        ("spec.subnetSelectorTerms", _terms(("tags", _TAG_MAPS), ("id", ("subnet-1", "x")))),
        (
            "spec.securityGroupSelectorTerms",
            _terms(("tags", _TAG_MAPS), ("id", ("sg-1", "a sg-1 b")), ("name", ("n", ""))),
        ),
        (
            "spec.capacityReservationSelectorTerms",
            _terms(("tags", _TAG_MAPS), ("id", ("cr-1",)), ("ownerID", _OWNERS), ("instanceMatchCriteria", ("open",))),
        ),
        (
            "spec.amiSelectorTerms",
            _terms(
                ("tags", _TAG_MAPS), ("id", ("ami-1",)), ("name", ("n",)), ("owner", _OWNERS), ("ssmParameter", ("p",))
            ),
        ),
        ("spec.amiSelectorTerms", lambda rng: [{"alias": rng.choice(_ALIASES)}]),
        ("spec.amiSelectorTerms", _terms(("alias", _ALIASES), ("name", ("n",)))),
        ("spec.amiFamily", lambda rng: rng.choice(["AL2", "AL2023", "Custom", "Windows2022", None])),
        ("spec.placementGroupSelector", lambda rng: rng.choice([{"name": "n"}, {"id": "pg-1"}, {}])),
        ("spec.placementGroupSelector", lambda rng: {"name": "n", "id": rng.choice(["pg-1", None])}),
        ("spec.role", lambda rng: rng.choice(["r", "", None])),
        ("spec.instanceProfile", lambda rng: rng.choice(["p", "", None])),
        ("spec.tags", lambda rng: {rng.choice(_OWN_TAGS): "v" for _ in range(rng.choice((1, 2)))}),
        ("spec.blockDeviceMappings", _volumes),
        ("spec.networkInterfaces", _interfaces),
        ("spec.connectionTracking", lambda rng: rng.choice([{}, {"udpTimeout": 30}, {"udpStreamTimeout": None}])),
    ),
    "NodeOverlay": (
        ("spec.requirements", _requirements),
        ("spec.requirements", _requirements),
        ("spec.price", lambda rng: rng.choice(["1", "0.5", ".5", "1.", "-1", None])),
        ("spec.priceAdjustment", lambda rng: rng.choice(["+5%", "-.5%", "-5.5%", "+.5", "5", "-100%", "-101%", None])),
        ("spec.capacity", lambda rng: copy.deepcopy(rng.choice([*_AMOUNTS, {"a/b": 1}, {"pods": 1}]))),
    ),
}


# -- anywhere -----------------------------------------------------------------------------------------------------------------


def _mutated(rng: random.Random, schema: Schema, value: object, name: str) -> object:
    """The value with something changed in it, mostly far inside."""
    inside = _INSIDE.get(str(schema.get("type")))
    if _is_open(schema):
        return copy.deepcopy(rng.choice(_OPEN))
    if inside is None or rng.random() < 0.08:
        return _made(rng, schema, name)
    return inside(rng, schema, value, name)


def _is_open(schema: Schema) -> bool:
    return "x-kubernetes-preserve-unknown-fields" in schema


def _mutated_object(rng: random.Random, schema: Schema, value: object, name: str) -> object:
    if not isinstance(value, dict):
        return _made(rng, schema, name)
    result = dict(value)
    if "additionalProperties" in schema:
        keys = RESOURCES if "int-or-string" in str(schema["additionalProperties"]) else KEYS
        key = rng.choice([*keys, *result])
        result[key] = _made(rng, cast(Schema, schema["additionalProperties"]), "a value")
        return result
    fields = cast("Mapping[str, Schema]", schema.get("properties", {}))
    field = rng.choice([*fields, *result, "unknown"])
    if field not in fields:
        result[field] = rng.choice(JUNK)
    elif rng.random() < 0.1:
        result.pop(field, None)
    else:
        result[field] = _mutated(rng, fields[field], result.get(field), field)
    return result


def _mutated_list(rng: random.Random, schema: Schema, value: object, name: str) -> object:
    element_schema = cast(Schema, schema["items"])
    if not isinstance(value, list) or name in BY_NAME:
        return _made(rng, schema, name)
    result = list(value)
    choice = rng.random()
    if choice < 0.6 and result:
        place = rng.randrange(len(result))
        result[place] = _mutated(rng, element_schema, result[place], name)
    elif choice < 0.7 and result:
        result.append(copy.deepcopy(rng.choice(result)))
    elif choice < 0.75:
        result = [_made(rng, element_schema, name)] * rng.choice([50, 51, 100, 101])
    else:
        result.append(_made(rng, element_schema, name))
    return result


def _made(rng: random.Random, schema: Schema, name: str) -> object:
    """A new value for a place: right in form more often than not."""
    if _is_open(schema):
        return copy.deepcopy(rng.choice(_OPEN))
    if rng.random() < 0.15:
        # A real server lets a list pass for a time, which is nothing to imitate: it does not decode.
        return rng.choice([element for element in JUNK if not (isinstance(element, list) and "format" in schema)])
    if name in BY_NAME:
        return copy.deepcopy(rng.choice(BY_NAME[name]))
    return _new(rng, schema, name)


def _new(rng: random.Random, schema: Schema, name: str) -> object:
    if schema.get("x-kubernetes-int-or-string"):
        return rng.choice(QUANTITIES)
    if schema.get("type") == "integer":
        return rng.choice(COUNTS)
    if schema.get("type") == "array":
        return [_made(rng, cast(Schema, schema["items"]), name) for _ in range(rng.randint(0, 2))]
    if schema.get("type") == "object":
        return _new_object(rng, schema)
    return _new_text(rng, schema, name)


def _new_object(rng: random.Random, schema: Schema) -> Json:
    if "additionalProperties" in schema:
        element_schema = cast(Schema, schema["additionalProperties"])
        keys = RESOURCES if "int-or-string" in str(element_schema) else KEYS
        return {rng.choice(keys): _made(rng, element_schema, "a value") for _ in range(rng.randint(0, 2))}
    required = cast("list[str]", schema.get("required", []))
    fields = cast("Mapping[str, Schema]", schema.get("properties", {}))
    return {
        field: _made(rng, field_schema, field)
        for field, field_schema in fields.items()
        if rng.random() < (0.95 if field in required else 0.4)
    }


def _new_text(rng: random.Random, schema: Schema, name: str) -> object:
    if "enum" in schema:
        return rng.choice([*cast("list[str]", schema["enum"]), *cast("list[str]", schema["enum"]), "", "wrong"])
    if schema.get("format") == "date-time":
        return rng.choice(TIMES)
    return rng.choice(NODES if name == "nodes" else TEXTS)


_INSIDE: Mapping[str, Callable[[random.Random, Schema, object, str], object]] = {
    "object": _mutated_object,
    "array": _mutated_list,
}
