"""What is wrong with an object of ours, as findings: where, what and how to fix it.

Three groups of checks. ``admit`` (from ``crd_admission``) answers what an API server with our CRDs would answer when the object
is written, for manifests that no API server has checked (API-033). ``validate_node_pool`` and ``validate_node_overlay`` find what
passes there and is still invalid; a pool with such findings is not used (API-075 ff.). ``unknown_fields_of`` and
``advise_object`` (from ``advice``) find what is legal and probably not meant. Admission never gets stricter than users know it,
so later insights belong to the last two.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from karpenter.api import crds
from karpenter.api.cel_rules import OVERLAY_RESTRICTED_RESOURCES
from karpenter.api.karpenter import NodePool, NodePoolTaint, NodeSelectorRequirementWithMinValues
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.api.node_overlay import PRICE_PATTERN, NodeOverlay, NodeOverlaySpec, OverlayRequirement
from karpenter.model import durations, labels, structural_schema
from karpenter.model.advice import advise_object, duration_too_long
from karpenter.model.crd_admission import Findings, admit
from karpenter.model.quantity_checks import check_quantities
from karpenter.model.requirements import as_integer
from karpenter.model.structural_schema import Finding

__all__ = [
    "Finding",
    "Findings",
    "admit",
    "advise_object",
    "check_quantities",
    "validate_node_overlay",
    "validate_node_pool",
    "unknown_fields_of",
]

T = TypeVar("T", bound=Wire)

#: Resources only the cloud knows the capacity of (API-153).
_PROVIDER_MANAGED_RESOURCES = frozenset(
    {
        "vpc.amazonaws.com/pod-eni",
        "vpc.amazonaws.com/efa",
        "aws.amazon.com/neuron",
        "aws.amazon.com/neuroncore",
        "habana.ai/gaudi",
    }
)
_NUMERIC_OPERATORS = frozenset({"Gt", "Lt", "Gte", "Lte"})
_PRICE = re.compile(PRICE_PATTERN.strip("^$"), re.ASCII)
_PRICE_ADJUSTMENT = re.compile(r"[+-]\d*\.?\d+|\+\d*\.?\d+%|-\d{1,2}(\.\d+)?%|-100%", re.ASCII)
_MIN_LABEL_SIMILARITY = 0.8
_REQUIREMENTS = "spec.template.spec.requirements"
_LABELS = "spec.template.metadata.labels"


def validate_node_pool(pool: NodePool, well_known: frozenset[str] = labels.WELL_KNOWN) -> Findings:
    """Why a stored pool cannot be used (API-075 ff.); empty when its ValidationSucceeded is True.

    ``well_known`` are the labels of the running provider that pools may set and select.
    """
    template = pool.spec.template
    return (
        *_name_too_long(pool.metadata.name, "metadata.name"),
        *_name_too_long(template.spec.node_class_ref.name, "spec.template.spec.nodeClassRef.name"),
        *_template_labels(template.metadata.labels, well_known),
        *_taints(pool),
        *(
            finding
            for index, requirement in enumerate(template.spec.requirements)
            for finding in _pool_requirement(requirement, f"{_REQUIREMENTS}[{index}]", well_known)
        ),
        *_durations(pool),
        *check_quantities(pool),
    )


def validate_node_overlay(node_overlay: NodeOverlay, well_known: frozenset[str] = labels.WELL_KNOWN) -> Findings:
    """Why a stored NodeOverlay cannot be used (SCH-755, API-163); empty when its ValidationSucceeded is True."""
    spec = node_overlay.spec
    return (
        *(
            finding
            for index, requirement in enumerate(spec.requirements)
            for finding in _overlay_requirement(requirement, f"spec.requirements[{index}]", well_known)
        ),
        *_overlay_price(spec),
        *(finding for name in spec.capacity for finding in _overlay_resource(name)),
        *check_quantities(node_overlay),
        *_negative_capacity(node_overlay),
    )


def _overlay_requirement(stated: OverlayRequirement, path: str, well_known: frozenset[str]) -> Iterator[Finding]:
    if stated.operator == "NotIn" and not stated.values:
        yield Finding(f"{path}.values", "values", "operator NotIn must have a value; list at least one")
    yield from _requirement(stated.as_nodepool_requirement(), path, well_known)


def _overlay_price(spec: NodeOverlaySpec) -> Iterator[Finding]:
    """What old CRDs may have let in."""
    if spec.price is not None and spec.price_adjustment is not None:
        yield Finding("spec", "price", "cannot set both price and priceAdjustment; keep one")
    if spec.price is not None and not _PRICE.fullmatch(spec.price):
        yield Finding("spec.price", "price", f"{spec.price!r} is not a price such as 0.25")
    if spec.price_adjustment is not None and not _PRICE_ADJUSTMENT.fullmatch(spec.price_adjustment):
        text = f"{spec.price_adjustment!r} is not a change of price such as +5%, -5%, +0.10 or -0.10"
        yield Finding("spec.priceAdjustment", "price", text)


def _overlay_resource(name: str) -> Iterator[Finding]:
    if name in OVERLAY_RESTRICTED_RESOURCES or name in _PROVIDER_MANAGED_RESOURCES:
        text = f"restricted resource: an overlay cannot change {name}"
        yield Finding(structural_schema.child_path("spec.capacity", name), "restricted", text)


def _negative_capacity(node_overlay: NodeOverlay) -> Iterator[Finding]:
    for name, value in node_overlay.spec.capacity.items():
        if str(value).startswith("-"):
            yield Finding(structural_schema.child_path("spec.capacity", name), "range", f"{value} is below zero")


def _name_too_long(name: str, path: str) -> Iterator[Finding]:
    if len(name) > labels.MAX_VALUE_LENGTH:
        text = f"is {len(name)} characters long, but becomes a label value of at most {labels.MAX_VALUE_LENGTH}; shorten it"
        yield Finding(path, "length", text)


def _template_labels(template_labels: Mapping[str, str], well_known: frozenset[str]) -> Iterator[Finding]:
    for key, value in template_labels.items():
        path = structural_schema.child_path(_LABELS, key)
        yield from _nodepool_label_restricted(key, path)
        yield from _label_key(key, path, well_known)
        yield from _label_value(value, path)


def _nodepool_label_restricted(key: str, path: str) -> Iterator[Finding]:
    """A pool gives its nodes its name itself."""
    if key == labels.NODE_POOL:
        yield _restricted_label(path, key)


def _restricted_label(path: str, key: str) -> Finding:
    near = difflib.get_close_matches(key, labels.WELL_KNOWN, n=1, cutoff=_MIN_LABEL_SIMILARITY)
    mend = f"did you mean {near[0]}?" if near else "use a label of your own domain"
    return Finding(path, "restricted", f'label "{key}" is restricted; {mend}')


def _label_key(key: str, path: str, well_known: frozenset[str]) -> Iterator[Finding]:
    if labels.is_restricted(key, well_known):
        yield _restricted_label(path, key)
    yield from _qualified(key, path, "a label key")


def _qualified(text: str, path: str, what: str) -> Iterator[Finding]:
    if not labels.is_qualified_name(text):
        yield Finding(
            path, "name", f"{text!r} is not {what} (letters, digits and -_. after an optional domain and slash)"
        )


def _label_value(value: str, path: str) -> Iterator[Finding]:
    if not labels.is_label_value(value):
        text = f"{value!r} is not a label value (up to 63 letters, digits and -_., not at the ends)"
        yield Finding(path, "value", text)


def _taints(pool: NodePool) -> Iterator[Finding]:
    """Both lists together: a node has one set of taints (API-076)."""
    spec = pool.spec.template.spec
    seen: set[tuple[str, str]] = set()
    for name, taints in (("taints", spec.taints), ("startupTaints", spec.startup_taints)):
        for index, taint in enumerate(taints):
            yield from _taint(taint, f"spec.template.spec.{name}[{index}]", seen)
            seen.add((taint.key, taint.effect))


def _taint(taint: NodePoolTaint, path: str, seen: set[tuple[str, str]]) -> Iterator[Finding]:
    yield from _qualified(taint.key, f"{path}.key", "a taint key")
    if taint.value:
        yield from _qualified(taint.value, f"{path}.value", "a taint value")
    if (taint.key, taint.effect) in seen:
        text = f"taint {taint.key}:{taint.effect} is there already; taints and startupTaints together may have it once"
        yield Finding(path, "duplicate", text)


def _pool_requirement(
    stated: NodeSelectorRequirementWithMinValues, path: str, well_known: frozenset[str]
) -> Iterator[Finding]:
    yield from _nodepool_label_restricted(labels.normalise(stated.key), f"{path}.key")
    yield from _requirement(stated, path, well_known)


def _requirement(
    stated: NodeSelectorRequirementWithMinValues, path: str, well_known: frozenset[str]
) -> Iterator[Finding]:
    key = labels.normalise(stated.key)
    yield from _label_key(key, f"{path}.key", well_known)
    for index, value in enumerate(stated.values):
        yield from _label_value(value, f"{path}.values[{index}]")
    yield from _value_findings(stated, path)
    yield from _closed_values(stated, key, path)


def _value_findings(entry: NodeSelectorRequirementWithMinValues, path: str) -> Iterator[Finding]:
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


def _closed_values(stated: NodeSelectorRequirementWithMinValues, key: str, path: str) -> Iterator[Finding]:
    valid = labels.CLOSED_LABEL_VALUES.get(key)
    if valid is None or stated.operator != "In":
        return
    usable = valid.intersection(stated.values)
    if not usable:
        yield Finding(f"{path}.values", "values", f"no value is one of {', '.join(sorted(valid))}")
    elif len(usable) < (stated.min_values or 0):
        text = (
            f"minValues is {stated.min_values}, but only {len(usable)} of the values exist: {', '.join(sorted(usable))}"
        )
        yield Finding(f"{path}.values", "minValues", text)


def _durations(pool: NodePool) -> Iterator[Finding]:
    """Durations beyond 2^63 nanoseconds pass the pattern and mean nothing (API-028)."""
    spec, disruption = pool.spec.template.spec, pool.spec.disruption
    text_by_path = {
        "spec.template.spec.expireAfter": spec.expire_after,
        "spec.template.spec.terminationGracePeriod": spec.termination_grace_period,
        "spec.disruption.consolidateAfter": disruption.consolidate_after,
    }
    text_by_path |= {
        f"spec.disruption.budgets[{i}].duration": budget.duration for i, budget in enumerate(disruption.budgets)
    }
    for path, text in text_by_path.items():
        if text is not None and not durations.is_valid_duration(text):
            yield duration_too_long(path, text)


def unknown_fields_of(kind: Kind[T], data: object) -> Findings:
    """Fields of decoded JSON that the kind does not have and the server would drop silently (API-021)."""
    return tuple(structural_schema.unknown_field_findings(crds.schema(kind.type), data))
