"""What an API server with our CRDs does when an object is written: it completes it, and accepts or refuses it (API §§1-4).

The schema is the CRDs' own (``api.crds``, evaluated by ``structural_schema``), and so are the CEL rules in it (``api.cel_rules``,
evaluated by ``cel_validation``). All findings come together, whatever else is wrong with the object (API-034). Only what a server
does beyond schema and rules is written here by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TypeVar, cast

from karpenter.api import crds
from karpenter.api.kinds import NODE_POOL, Kind
from karpenter.api.meta import Wire
from karpenter.model import cel_validation, structural_schema
from karpenter.model.structural_schema import ABSENT, Finding

Findings = tuple[Finding, ...]
Json = Mapping[str, object]
T = TypeVar("T", bound=Wire)

#: What a scale subresource can express.
_MAX_REPLICAS = 2**31 - 1
_SCALE_FIELDS = (("spec", "replicas"), ("status", "nodes"))


def admit(kind: Kind[T], data: Json, old: Json | None = None) -> Findings:
    """Why an API server with our CRDs would refuse this decoded JSON; empty when it would store it.

    ``old`` is the stored object where this one replaces it. Status is not checked: it is written elsewhere.
    """
    return validate_object(kind, _without_status(kind, data), None if old is None else _without_status(kind, old))


def _without_status(kind: Kind[T], data: Json) -> Json:
    return prune_and_default_object(kind, {name: value for name, value in data.items() if name != "status"})


def prune_and_default_object(kind: Kind[T], data: Json) -> dict[str, object]:
    """The object as a server takes it in: nulls and unknown fields dropped, defaults filled in (API-020, API-021)."""
    return cast("dict[str, object]", structural_schema.prune_and_default(crds.schema(kind.type), data))


def validate_object(kind: Kind[T], body: Json, old_object: Json | None = None) -> Findings:
    """Why a completed object is refused, status included; ``old_object`` is the stored object it replaces."""
    before = ABSENT if old_object is None else old_object
    return (
        *structural_schema.schema_findings(crds.schema(kind.type), body, "", before),
        *cel_validation.rule_findings(_rule_tree(kind.type), body, "", before),
        *(_number_findings(body, before) if kind.name == NODE_POOL.name else ()),
    )


@cache
def _rule_tree(type_: type[Wire]) -> cel_validation.RuleTree:
    return cel_validation.rule_tree(crds.schema(type_))


def _number_findings(pool: object, old_pool: object) -> Iterator[Finding]:
    """Numbers of a NodePool that its schema accepts and a server refuses all the same."""
    for names in _SCALE_FIELDS:
        value = structural_schema.get_member(pool, *names)
        if not structural_schema.is_unchanged(structural_schema.get_member(old_pool, *names), value):
            yield from _scale_subresource_range(value, ".".join(names))
    spec = structural_schema.get_member(pool, "spec")
    if not structural_schema.is_unchanged(structural_schema.get_member(old_pool, "spec"), spec):
        yield from _fraction_in_node_limit(spec)


def _scale_subresource_range(value: object, path: str) -> Iterator[Finding]:
    """A scale subresource stands on the field, which narrows what fits: no fraction, not even of zero, and 32 bits."""
    if isinstance(value, float) or (isinstance(value, int) and not 0 <= value <= _MAX_REPLICAS):
        yield Finding(path, "range", f"{value} is not a whole number from 0 to {_MAX_REPLICAS}")


def _fraction_in_node_limit(spec: object) -> Iterator[Finding]:
    """A server's expression cannot read the limit, although the schema takes it for a whole number (API-024)."""
    nodes = structural_schema.get_member(spec, "limits", "nodes")
    if structural_schema.get_member(spec, "replicas") is not ABSENT and isinstance(nodes, float):
        yield Finding("spec.limits.nodes", "type", f"{nodes} has a fraction; write a whole number")
