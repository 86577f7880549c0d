"""What an API server with our CRDs does when an object is written: it completes the object, and takes or refuses it (API §§1-4).

The schema is the CRDs' own (``api.crds``). The rule expressions beside it (``api.rules``) are said here once more as functions,
each at the place its expression stands at, reading as much of the value there as it needs and no more: so all findings come
together, whatever else is wrong with the object (API-034). A place that is as it was is not judged again (``schema``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeVar, cast

import msgspec

from karpenter.api import crds, label_domains
from karpenter.api.kinds import (
    CAPACITY_BUFFER,
    EC2_NODE_CLASS,
    KWOK_NODE_CLASS,
    NODE_CLAIM,
    NODE_OVERLAY,
    NODE_POOL,
    Kind,
)
from karpenter.api.meta import Wire
from karpenter.model import ec2_crd_admission, labels, structural_schema
from karpenter.model.requirements import as_integer
from karpenter.model.rule_locations import RuleLocation, TransitionCheck, typed_check
from karpenter.model.structural_schema import ABSENT, Finding

Findings = tuple[Finding, ...]
Json = Mapping[str, object]
T = TypeVar("T", bound=Wire)

#: Resources of a machine that no overlay changes (API-153).
OVERLAY_RESTRICTED_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage", "pods"})
_NUMERIC_OPERATORS = frozenset({"Gt", "Lt", "Gte", "Lte"})
#: What a scale subresource can express.
_MAX_REPLICAS = 2**31 - 1


def admit(kind: Kind[T], data: Json, old: Json | None = None) -> Findings:
    """Why an API server with our CRDs would refuse this decoded JSON; empty when it would store it.

    ``old`` is the stored object where this one replaces it. Status is not looked at: it is written elsewhere.
    """
    return validate_object(kind, _without_status(kind, data), None if old is None else _without_status(kind, old))


def _without_status(kind: Kind[T], data: Json) -> Json:
    return prune_and_default_object(kind, {name: value for name, value in data.items() if name != "status"})


def prune_and_default_object(kind: Kind[T], data: Json) -> dict[str, object]:
    """The object as a server takes it in: nulls and unknown fields dropped, defaults filled in (API-020, API-021)."""
    return cast("dict[str, object]", structural_schema.prune_and_default(crds.schema(kind.type), data))


def validate_object(kind: Kind[T], body: Json, old_object: Json | None = None) -> Findings:
    """Why a completed object is refused, status included; ``old`` is the stored object it replaces."""
    before = ABSENT if old_object is None else old_object
    return (
        *structural_schema.schema_findings(crds.schema(kind.type), body, "", before),
        *(finding for place in _RULE_LOCATIONS.get(kind.name, ()) for finding in place.findings(body, before)),
    )


# -- NodePools ------------------------------------------------------------------------------------------------------------


class _StaticPoolFields(msgspec.Struct, frozen=True):
    replicas: int | None = None
    weight: int | None = None
    limits: Mapping[str, object] = {}


def _static_pool_rules(spec: _StaticPoolFields, path: str) -> Iterator[Finding]:
    if spec.replicas is None:
        return
    if set(spec.limits) - {"nodes"}:
        text = "only limits.nodes is supported on static NodePools (those with replicas)"
        yield Finding(f"{path}.limits", "static", text)
    elif isinstance(spec.limits.get("nodes"), float):
        # The expression cannot compare it, although the schema takes it for a whole number (API-024).
        yield Finding(f"{path}.limits.nodes", "type", f"{spec.limits['nodes']} has a fraction; write a whole number")
    if spec.weight is not None:
        yield Finding(f"{path}.weight", "static", "weight is not supported on static NodePools (those with replicas)")


def _replicas_immutable(new: object, old: object, path: str) -> Iterator[Finding]:
    if (structural_schema.get_member(new, "replicas") is ABSENT) != (
        structural_schema.get_member(old, "replicas") is ABSENT
    ):
        yield Finding(
            f"{path}.replicas",
            "immutable",
            "cannot switch between static and dynamic: replicas may be neither added nor removed; make a new NodePool",
        )


def _scale_subresource_range(value: object, path: str) -> Iterator[Finding]:
    """A scale subresource stands on the field, which narrows what fits: no fraction, not even of zero, and 32 bits."""
    if isinstance(value, float) or (isinstance(value, int) and not 0 <= value <= _MAX_REPLICAS):
        yield Finding(path, "range", f"{value} is not a whole number from 0 to {_MAX_REPLICAS}")


class _BudgetScheduleFields(msgspec.Struct, frozen=True):
    schedule: str | None = None
    duration: str | None = None


def _budgets(budgets: tuple[_BudgetScheduleFields, ...], path: str) -> Iterator[Finding]:
    for index, budget in enumerate(budgets):
        if (budget.schedule is None) != (budget.duration is None):
            yield Finding(f"{path}[{index}]", "together", "schedule and duration must be set together or not at all")


def _template_labels(found: dict[str, object], path: str) -> Iterator[Finding]:
    for key in found:
        if key == labels.NODE_POOL or not _is_admitted_label(key):
            yield restricted_label(structural_schema.child_path(path, key), key)


def _immutable_field(new: object, old: object, path: str) -> Iterator[Finding]:
    if new != old:
        yield Finding(path, "immutable", f"{path.rpartition('.')[2]} is immutable; make a new NodePool")


# -- requirements and node class references ---------------------------------------------------------------------------------


class RequirementEntry(Protocol):
    """A requirement as far as the rules about its values read it."""

    @property
    def operator(self) -> str:
        """In, NotIn, Exists …"""

    @property
    def values(self) -> tuple[str, ...]:
        """The values listed."""

    @property
    def min_values(self) -> int | None:
        """How many different values the types must offer."""


class _WireRequirementEntry(msgspec.Struct, frozen=True, rename="camel"):
    key: str
    operator: str
    values: tuple[str, ...] = ()
    min_values: int | None = None


def _requirements(items: tuple[_WireRequirementEntry, ...], path: str) -> Iterator[Finding]:
    for index, item in enumerate(items):
        if not _is_admitted_label(item.key):
            yield restricted_label(f"{path}[{index}].key", item.key)
        yield from requirement_value_findings(item, f"{path}[{index}]")


def _pool_requirements(items: tuple[_WireRequirementEntry, ...], path: str) -> Iterator[Finding]:
    for index, item in enumerate(items):
        if item.key == labels.NODE_POOL:
            yield restricted_label(f"{path}[{index}].key", item.key)
    yield from _requirements(items, path)


def requirement_value_findings(entry: RequirementEntry, path: str) -> Iterator[Finding]:
    """What is wrong with the number and form of a requirement's values (API-401)."""
    if entry.operator == "In":
        if not entry.values:
            yield Finding(f"{path}.values", "values", "operator In must have a value; list at least one")
        elif len(entry.values) < (entry.min_values or 0):
            text = f"minValues is {entry.min_values}, so at least that many values must be listed"
            yield Finding(f"{path}.values", "minValues", text)
    elif entry.operator in _NUMERIC_OPERATORS and not _is_bound(entry.values):
        text = f"operator {entry.operator} must have a single positive integer value, not {list(entry.values)}"
        yield Finding(f"{path}.values", "bound", text)


def _is_bound(values: Sequence[str]) -> bool:
    number = as_integer(values[0]) if len(values) == 1 else None
    return number is not None and number >= 0


def restricted_label(path: str, key: str) -> Finding:
    """The finding that users may not set or ask for a label."""
    return Finding(path, "restricted", f'label "{key}" is restricted; use a label of your own domain')


def _is_admitted_label(key: str, admitted_labels: Mapping[str, frozenset[str]] = label_domains.ADMITTED_LABELS) -> bool:
    """Whether admission lets a label key through (API-431); a key without slash counts as its own domain."""
    domain = key.partition("/")[0]
    return key != labels.HOSTNAME and not any(
        key not in admitted and (domain == own or domain.endswith("." + own))
        for own, admitted in admitted_labels.items()
    )


def _not_empty(text: str, path: str) -> Iterator[Finding]:
    if not text:
        yield Finding(path, "empty", f"{path.rpartition('.')[2]} may not be empty")


def _node_class(*names: str, fixed: tuple[TransitionCheck, ...] = ()) -> Iterator[RuleLocation]:
    """The three fields of a reference; ``fixed`` holds for group and kind."""
    for field in ("group", "kind"):
        yield RuleLocation((*names, field), (typed_check(str, _not_empty),), fixed)
    yield RuleLocation((*names, "name"), (typed_check(str, _not_empty),))


# -- NodeOverlays -----------------------------------------------------------------------------------------------------------


def _exclusive_prices(spec: object, path: str) -> Iterator[Finding]:
    if (
        structural_schema.get_member(spec, "price") is not ABSENT
        and structural_schema.get_member(spec, "priceAdjustment") is not ABSENT
    ):
        yield Finding(path, "price", "cannot set both price and priceAdjustment; keep one")


def _overlay_requirements(items: tuple[_WireRequirementEntry, ...], path: str) -> Iterator[Finding]:
    for index, item in enumerate(items):
        if not _is_admitted_label(item.key, label_domains.LABELS_ADMITTED_IN_OVERLAYS):
            yield restricted_label(f"{path}[{index}].key", item.key)
        if item.operator == "NotIn" and not item.values:
            yield Finding(f"{path}[{index}].values", "values", "operator NotIn must have a value; list at least one")
        yield from requirement_value_findings(item, f"{path}[{index}]")


def _overlay_capacity(found: dict[str, object], path: str) -> Iterator[Finding]:
    for name in found:
        if name in OVERLAY_RESTRICTED_RESOURCES:
            yield Finding(
                structural_schema.child_path(path, name),
                "restricted",
                f"restricted resource: an overlay cannot change {name}",
            )


# -- CapacityBuffers --------------------------------------------------------------------------------------------------------


def _buffer_rules(spec: object, path: str) -> Iterator[Finding]:
    given = {
        name
        for name in ("podTemplateRef", "scalableRef", "replicas", "limits")
        if structural_schema.get_member(spec, name) is not ABSENT
    }
    if "podTemplateRef" in given and not given & {"replicas", "limits"}:
        yield Finding(path, "count", "a buffer with podTemplateRef needs replicas or limits")
    if {"podTemplateRef", "scalableRef"} <= given:
        yield Finding(path, "reference", "set either podTemplateRef or scalableRef, not both")


def _immutable_spec(_new: object, _old: object, path: str) -> Iterator[Finding]:
    yield Finding(path, "immutable", "spec is immutable; delete the NodeClaim instead")


_TEMPLATE = ("spec", "template", "spec")
#: Where the rules of each kind stand.
_RULE_LOCATIONS: Mapping[str, tuple[RuleLocation, ...]] = {
    NODE_POOL.name: (
        RuleLocation(("spec",), (typed_check(_StaticPoolFields, _static_pool_rules),), (_replicas_immutable,)),
        RuleLocation(("spec", "replicas"), (_scale_subresource_range,)),
        RuleLocation(("spec", "disruption", "budgets"), (typed_check(tuple[_BudgetScheduleFields, ...], _budgets),)),
        RuleLocation(("spec", "template", "metadata", "labels"), (typed_check(dict[str, object], _template_labels),)),
        RuleLocation(
            (*_TEMPLATE, "requirements"), (typed_check(tuple[_WireRequirementEntry, ...], _pool_requirements),)
        ),
        *_node_class(*_TEMPLATE, "nodeClassRef", fixed=(_immutable_field,)),
        RuleLocation(("status", "nodes"), (_scale_subresource_range,)),
    ),
    NODE_CLAIM.name: (
        RuleLocation(("spec",), (), (_immutable_spec,)),
        RuleLocation(("spec", "requirements"), (typed_check(tuple[_WireRequirementEntry, ...], _requirements),)),
        *_node_class("spec", "nodeClassRef"),
    ),
    NODE_OVERLAY.name: (
        RuleLocation(("spec",), (_exclusive_prices,)),
        RuleLocation(
            ("spec", "requirements"), (typed_check(tuple[_WireRequirementEntry, ...], _overlay_requirements),)
        ),
        RuleLocation(("spec", "capacity"), (typed_check(dict[str, object], _overlay_capacity),)),
    ),
    CAPACITY_BUFFER.name: (RuleLocation(("spec",), (_buffer_rules,)),),
    KWOK_NODE_CLASS.name: (),
    EC2_NODE_CLASS.name: ec2_crd_admission.EC2_RULE_LOCATIONS,
}
