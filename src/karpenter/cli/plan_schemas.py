"""JSON schemas of what ``karpenter plan -o json`` and ``plan --diff -o json`` print (draft 2020-12).

Objects list their members and allow no others, so a member that is added without its schema fails the tests. Figures of filters
depend on the filter; ``disruption`` is described by the specification of commands and left open here.
"""

from __future__ import annotations

from karpenter.cli.render_common import Json
from karpenter.scheduling.solution import PackingFallback

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_NUMBER: Json = {"type": "number"}
_POD: Json = {"type": "string", "pattern": "^[^/]+/[^/]+$", "description": "namespace/name"}
_VERSION: Json = {
    "type": "string",
    "pattern": r"^1\.\d+$",
    "description": "The first number changes when a member goes or changes its meaning, the second when one is added.",
}


def plan_schema() -> Json:
    """Of ``karpenter plan -o json``."""
    return {"$schema": _DIALECT, "title": "Plan", **_plan()}


def plan_difference_schema() -> Json:
    """Of ``karpenter plan --diff OLD NEW -o json``."""
    side = _object({"nodes": _COUNT, "perHour": _usd("Price of the new nodes"), "unschedulable": _COUNT})
    node = _object(
        {
            **dict.fromkeys(("nodePool", "instanceType", "zone", "capacityType"), _TEXT),
            "price": _usd("Of one node"),
            "old": _COUNT,
            "new": _COUNT,
        }
    )
    members: Json = {
        "formatVersion": _VERSION,
        "old": side,
        "new": side,
        "changePerHour": _usd("New less old"),
        "changePerMonth": {**_NUMBER, "description": "USD for 730 hours."},
        "nodes": {**_list(node), "description": "Offers whose number of nodes differs."},
        "losePlace": _list(_object({"pod": _POD, "message": _TEXT})),
        "getPlace": _list(_POD),
    }
    return {"$schema": _DIALECT, "title": "Difference of two plans", **_object(members)}


def _existing_node() -> Json:
    awaits = {
        "type": "boolean",
        "description": "Whether the pods fit only once pods that are being deleted there have ended.",
    }
    return _object({"name": _TEXT, "pods": _list(_POD), "awaitsTerminatingPods": awaits})


def _plan() -> Json:
    parts: Json = {
        "nodeClaims": {**_list(_node_claim()), "description": "NodeClaims to create."},
        "existingNodes": _list(_existing_node()),
        "unschedulable": _list(_unschedulable()),
        "exposure": _exposure(),
        "cost": _cost(),
        "timings": _object(dict.fromkeys(("decisionSeconds", "catalogueSeconds", "wallSeconds"), _NUMBER)),
    }
    buffer = _object({"name": _TEXT, **dict.fromkeys(("existingNodes", "newNodes", "unschedulable"), _COUNT)})
    comparison = _object(
        {"classic": _object(parts), "savedPerHour": _usd("Saved by the plan"), "savedShare": _nullable(_NUMBER)}
    )
    members: Json = {
        "formatVersion": _VERSION,
        **parts,
        "capacityBuffers": _list(buffer),
        "gangs": {**_list(_gang()), "description": "Pods that get places together or not at all."},
        "limitIncreases": _list(_limit_increase()),
        "packingFallback": _packing_fallback(),
        "prices": _nullable({"type": "object", "required": ["source", "region"]}),
    }
    optional: Json = {
        "comparison": {**comparison, "description": "With --compare."},
        "disruption": {"type": "object", "description": "With --consolidate."},
    }
    return _object(members, optional)


def _limit_increase() -> Json:
    """What is enough for all the pods together; with less, one of them at least gets no node."""
    return _object({**dict.fromkeys(("nodePool", "resource", "amount"), _TEXT), "pods": _COUNT})


def _packing_fallback() -> Json:
    return {
        "enum": [None, *(cause.value for cause in PackingFallback)],
        "description": "Why pods were packed first-fit decreasing although `--packing fewest-pods` is set.",
    }


def _gang() -> Json:
    counts = dict.fromkeys(("minimum", "running", "placed"), _COUNT)
    return _object({"name": _TEXT, "complete": {"type": "boolean"}, **counts, "domain": _nullable(_TEXT)})


def _node_claim() -> Json:
    cheapest = _object(
        {
            **dict.fromkeys(("instanceType", "zone", "capacityType"), _TEXT),
            "price": _usd("Of the offering"),
            "cpuSurplus": _usd("Of CPU beyond the baseline of a burstable type"),
        }
    )
    requirement = _object({"key": _TEXT, "operator": _TEXT, "values": _list(_TEXT)})
    return _object(
        {
            "name": _TEXT,
            "nodePool": _TEXT,
            "instanceTypes": {**_list(_TEXT), "minItems": 1, "description": "Cheapest first."},
            "cheapest": cheapest,
            "requirements": _list(requirement),
            "requests": {"type": "object", "additionalProperties": _TEXT},
            "pods": _list(_POD),
        }
    )


def _unschedulable() -> Json:
    reason = _object(
        {
            **dict.fromkeys(("nodePool", "category", "message"), _TEXT),
            "types": _nullable(_breakdown()),
            "nearestFit": _nullable(_nearest_fit()),
        }
    )
    return _object(
        {
            "pod": _POD,
            "reasons": _list(reason),
            "sentence": _TEXT,
            "nearestFit": _nullable(_nearest_fit()),
            "nearestExistingNode": _nullable(_nearest_fit()),
        }
    )


def _breakdown() -> Json:
    filtered: Json = {
        **_open_filter(),
        "required": ["kind", "subject", "message", "types", "typesFilteredAlone", "offerings"],
    }
    return _object({"types": _COUNT, "offerings": _COUNT, "filtered": _list(filtered)})


def _nearest_fit() -> Json:
    confinement = _object(dict.fromkeys(("constraint", "key", "domain"), _TEXT))
    return _object(
        {
            "nodePool": _TEXT,
            "instanceType": _TEXT,
            "node": _TEXT,
            "confinedTo": _list(confinement),
            "changes": _list(_open_filter()),
        }
    )


def _open_filter() -> Json:
    """A filter with figures of its own, such as ``asked`` and ``there``."""
    return {"type": "object", "required": ["kind", "subject", "message"], "properties": {"message": _TEXT}}


def _exposure() -> Json:
    relaxed = _object({**dict.fromkeys(("subject", "place", "reason"), _TEXT), "number": _COUNT, "most": _COUNT})
    unreadable = _object(dict.fromkeys(("subject", "annotation", "fault"), _TEXT))
    return _object({"relaxed": _list(relaxed), "unreadable": _list(unreadable)})


def _cost() -> Json:
    return _object(
        {
            "perHour": _usd("Price of the new nodes"),
            "cpuSurplusPerHour": _usd("Of CPU beyond the baseline of burstable types"),
            "lowerBoundPerHour": _nullable(_usd("No plan for the same pods costs less")),
            "gap": _nullable(_NUMBER),
            "optimal": {"type": "boolean"},
            "nodeShareCostPerHour": _usd("Paid so that no node has more than its share of the pods"),
            "nodeShareSavingPerHour": _usd("Saved because a node has more than its share of the pods"),
        }
    )


def _object(members: Json, optional: Json | None = None) -> Json:
    properties = {**members, **(optional or {})}
    return {"type": "object", "required": list(members), "properties": properties, "additionalProperties": False}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _nullable(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _usd(meaning: str) -> Json:
    return {**_NUMBER, "description": f"{meaning}, in USD per hour."}
