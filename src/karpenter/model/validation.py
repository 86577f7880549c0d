"""What is wrong with an object of ours, as findings: where, what and how to mend it.

Three moments, three functions. ``admit`` answers what an API server with our CRDs would answer when the object is written, for
manifests that never met one (API-033). ``runtime`` finds what passes there and still makes no sense; a pool with such findings
is not used (API-075 ff.). ``unknown_fields`` and ``advise`` find what is legal and probably not meant. Admission never gets
stricter than users know it, so later insights belong to the last two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from karpenter.api import crds, domains
from karpenter.api.karpenter import (
    NodeClaim,
    NodeClassReference,
    NodePool,
    NodeSelectorRequirementWithMinValues,
    PoolTaint,
)
from karpenter.api.kinds import Kind, without_nulls
from karpenter.api.meta import Wire
from karpenter.model import durations, labels, schema
from karpenter.model.quantities import check_quantities
from karpenter.model.requirements import as_integer
from karpenter.model.schema import Finding

__all__ = [
    "Finding",
    "admission",
    "admission_claim",
    "admit",
    "advise",
    "check_quantities",
    "runtime",
    "unknown_fields",
]

Findings = tuple[Finding, ...]
T = TypeVar("T", bound=Wire)

#: Labels with a closed set of values (API-078).
CLOSED_VALUES: Mapping[str, frozenset[str]] = {
    labels.CAPACITY_TYPE: frozenset({labels.SPOT, labels.ON_DEMAND, labels.RESERVED}),
    f"{labels.AWS_GROUP}/instance-tenancy": frozenset({"default", "dedicated"}),
}
#: Longest name of a pool or node class: it becomes a label value (API-031).
LONGEST_NAME = 63

_NUMERIC = frozenset({"Gt", "Lt", "Gte", "Lte"})
_NAME_PART = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_LONGEST_PREFIX = 253
_REQUIREMENTS = "spec.template.spec.requirements"
_LABELS = "spec.template.metadata.labels"


def admit(kind: Kind[T], data: Mapping[str, object], old: Mapping[str, object] | None = None) -> Findings:
    """Why an API server with our CRDs would refuse this decoded JSON; empty when it would store it.

    ``old`` is the stored object where this one replaces it. Status is not looked at: it is written elsewhere.
    """
    given = _without_status(data)
    found = tuple(schema.misfits(crds.schema(kind.type), given))
    if found:
        return found
    try:
        new = msgspec.convert(given, kind.type)
        before = None if old is None else msgspec.convert(_without_status(old), kind.type)
    except msgspec.ValidationError as misfit:
        return (Finding("", "decode", str(misfit)),)
    if isinstance(new, NodePool):
        return admission(new, before if isinstance(before, NodePool) else None)
    if isinstance(new, NodeClaim):
        return admission_claim(new, before if isinstance(before, NodeClaim) else None)
    return ()


def _without_status(data: Mapping[str, object]) -> object:
    return without_nulls({name: value for name, value in data.items() if name != "status"})


def admission(pool: NodePool, old: NodePool | None = None) -> Findings:
    """Rules of API-035 for a NodePool that need more than one field, or the stored pool ``old`` it replaces."""
    template = pool.spec.template
    return (
        *_static(pool, old),
        *_budgets(pool),
        *_restricted(template.metadata.labels, labels.NODE_POOL),
        *_requirements(template.spec.requirements, _REQUIREMENTS),
        *_pool_key(template.spec.requirements),
        *_node_class(template.spec.node_class_ref, "spec.template.spec.nodeClassRef"),
        *(() if old is None else _same_class(template.spec.node_class_ref, old.spec.template.spec.node_class_ref)),
    )


def admission_claim(claim: NodeClaim, old: NodeClaim | None = None) -> Findings:
    """Rules of API-035 for a NodeClaim; against the stored claim ``old``, its spec may not change at all."""
    changed = old is not None and claim.spec != old.spec
    return (
        *_requirements(claim.spec.requirements, "spec.requirements"),
        *_node_class(claim.spec.node_class_ref, "spec.nodeClassRef"),
        *((Finding("spec", "immutable", "spec is immutable; delete the NodeClaim instead"),) if changed else ()),
    )


def _static(pool: NodePool, old: NodePool | None) -> Iterator[Finding]:
    spec = pool.spec
    if old is not None and (spec.replicas is None) != (old.spec.replicas is None):
        text = (
            "cannot switch between static and dynamic: replicas may be neither added nor removed; make a new NodePool"
        )
        yield Finding("spec.replicas", "immutable", text)
    if spec.replicas is None:
        return
    if set(spec.limits) - {"nodes"}:
        yield Finding(
            "spec.limits", "static", "only limits.nodes is supported on static NodePools (those with replicas)"
        )
    if spec.weight is not None:
        yield Finding("spec.weight", "static", "weight is not supported on static NodePools (those with replicas)")


def _budgets(pool: NodePool) -> Iterator[Finding]:
    for index, budget in enumerate(pool.spec.disruption.budgets):
        if (budget.schedule is None) != (budget.duration is None):
            path = f"spec.disruption.budgets[{index}]"
            yield Finding(path, "together", "schedule and duration must be set together or not at all")


def _admits(key: str) -> bool:
    """Whether admission lets a label key through (API-431); a key without slash counts as its own domain."""
    domain = key.partition("/")[0]
    return key != labels.HOSTNAME and not any(
        key not in admitted and (domain == own or domain.endswith("." + own))
        for own, admitted in domains.ADMITTED.items()
    )


def _restricted(keys: Iterable[str], *also: str) -> Iterator[Finding]:
    for key in keys:
        if key in also or not _admits(key):
            yield _is_restricted(schema.at(_LABELS, key), key)


def _is_restricted(path: str, key: str) -> Finding:
    return Finding(path, "restricted", f'label "{key}" is restricted; use a label of your own domain')


def _pool_key(items: Iterable[NodeSelectorRequirementWithMinValues]) -> Iterator[Finding]:
    for index, item in enumerate(items):
        if item.key == labels.NODE_POOL:
            yield _is_restricted(f"{_REQUIREMENTS}[{index}].key", item.key)


def _requirements(items: Iterable[NodeSelectorRequirementWithMinValues], path: str) -> Iterator[Finding]:
    for index, item in enumerate(items):
        here = f"{path}[{index}]"
        if not _admits(item.key):
            yield _is_restricted(f"{here}.key", item.key)
        yield from _values(item, here)


def _values(item: NodeSelectorRequirementWithMinValues, path: str) -> Iterator[Finding]:
    if item.operator == "In":
        if not item.values:
            yield Finding(f"{path}.values", "values", "operator In must have a value; list at least one")
        elif len(item.values) < (item.min_values or 0):
            text = f"minValues is {item.min_values}, so at least that many values must be listed"
            yield Finding(f"{path}.values", "minValues", text)
    elif item.operator in _NUMERIC and not _is_bound(item.values):
        text = f"operator {item.operator} must have a single positive integer value, not {list(item.values)}"
        yield Finding(f"{path}.values", "values", text)


def _is_bound(values: tuple[str, ...]) -> bool:
    number = as_integer(values[0]) if len(values) == 1 else None
    return number is not None and number >= 0


def _node_class(reference: NodeClassReference, path: str) -> Iterator[Finding]:
    for name in ("group", "kind", "name"):
        if getattr(reference, name) == "":
            yield Finding(f"{path}.{name}", "empty", f"{name} may not be empty")


def _same_class(new: NodeClassReference, old: NodeClassReference) -> Iterator[Finding]:
    for name in ("group", "kind"):
        if getattr(new, name) != getattr(old, name):
            path = f"spec.template.spec.nodeClassRef.{name}"
            yield Finding(path, "immutable", f"nodeClassRef.{name} is immutable; make a new NodePool")


def runtime(pool: NodePool, well_known: frozenset[str] = labels.WELL_KNOWN) -> Findings:
    """Why a stored pool cannot be used (API-075 ff.); empty when its ValidationSucceeded is True.

    ``well_known`` are the labels of the running provider that pools may set and select.
    """
    template = pool.spec.template
    return (
        *_long_name(pool.metadata.name, "metadata.name"),
        *_long_name(template.spec.node_class_ref.name, "spec.template.spec.nodeClassRef.name"),
        *_template_labels(template.metadata.labels, well_known),
        *_taints(pool),
        *(
            finding
            for index, item in enumerate(template.spec.requirements)
            for finding in _requirement(item, f"{_REQUIREMENTS}[{index}]", well_known)
        ),
        *_durations(pool),
        *check_quantities(pool),
    )


def _long_name(name: str, path: str) -> Iterator[Finding]:
    if len(name) > LONGEST_NAME:
        text = f"is {len(name)} characters long, but it becomes a label value of at most {LONGEST_NAME}; choose a shorter name"
        yield Finding(path, "length", text)


def _template_labels(found: Mapping[str, str], well_known: frozenset[str]) -> Iterator[Finding]:
    for key, value in found.items():
        path = schema.at(_LABELS, key)
        yield from _label_key(key, path, well_known)
        yield from _label_value(value, path)


def _label_key(key: str, path: str, well_known: frozenset[str]) -> Iterator[Finding]:
    if key == labels.NODE_POOL or labels.is_restricted(key, well_known):
        yield _is_restricted(path, key)
    yield from _qualified(key, path, "a label key")


def _qualified(text: str, path: str, what: str) -> Iterator[Finding]:
    if not is_qualified_name(text):
        yield Finding(
            path, "name", f"{text!r} is not {what} (letters, digits and -_. after an optional domain and slash)"
        )


def is_qualified_name(text: str) -> bool:
    """Whether a text is an optional DNS subdomain and slash, then a name of 1-63 characters (API-030, strict form)."""
    prefix, slash, name = text.rpartition("/")
    if slash and (len(prefix) > _LONGEST_PREFIX or _SUBDOMAIN.fullmatch(prefix) is None):
        return False
    return _NAME_PART.fullmatch(name) is not None


def _label_value(value: str, path: str) -> Iterator[Finding]:
    if value and _NAME_PART.fullmatch(value) is None:
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


def _taint(taint: PoolTaint, path: str, seen: set[tuple[str, str]]) -> Iterator[Finding]:
    yield from _qualified(taint.key, f"{path}.key", "a taint key")
    if taint.value:
        yield from _qualified(taint.value, f"{path}.value", "a taint value")
    if (taint.key, taint.effect) in seen:
        text = f"taint {taint.key}:{taint.effect} is there already; taints and startupTaints together may have it once"
        yield Finding(path, "duplicate", text)


def _requirement(
    item: NodeSelectorRequirementWithMinValues, path: str, well_known: frozenset[str]
) -> Iterator[Finding]:
    key = labels.normalise(item.key)
    yield from _label_key(key, f"{path}.key", well_known)
    for index, value in enumerate(item.values):
        yield from _label_value(value, f"{path}.values[{index}]")
    yield from _values(item, path)
    yield from _closed_values(item, key, path)


def _closed_values(item: NodeSelectorRequirementWithMinValues, key: str, path: str) -> Iterator[Finding]:
    valid = CLOSED_VALUES.get(key)
    if valid is None or item.operator != "In":
        return
    usable = valid.intersection(item.values)
    if not usable:
        yield Finding(f"{path}.values", "values", f"no value is one of {', '.join(sorted(valid))}")
    elif len(usable) < (item.min_values or 0):
        text = (
            f"minValues is {item.min_values}, but only {len(usable)} of the values exist: {', '.join(sorted(usable))}"
        )
        yield Finding(f"{path}.values", "minValues", text)


def _durations(pool: NodePool) -> Iterator[Finding]:
    """Durations beyond 2^63 nanoseconds pass the pattern and mean nothing (API-028)."""
    spec, disruption = pool.spec.template.spec, pool.spec.disruption
    given = {
        "spec.template.spec.expireAfter": spec.expire_after,
        "spec.template.spec.terminationGracePeriod": spec.termination_grace_period,
        "spec.disruption.consolidateAfter": disruption.consolidate_after,
    }
    given |= {f"spec.disruption.budgets[{i}].duration": budget.duration for i, budget in enumerate(disruption.budgets)}
    for path, text in given.items():
        try:
            durations.parse_or_never(text or durations.NEVER)
        except durations.DurationError as error:
            yield Finding(path, "duration", str(error))


def advise(pool: NodePool) -> Findings:
    """What is legal in a pool and probably not meant: ignored values, empty reasons, limits below zero."""
    return (*_ignored_values(pool), *_no_reasons(pool), *_negative_limits(pool))


def _ignored_values(pool: NodePool) -> Iterator[Finding]:
    for index, item in enumerate(pool.spec.template.spec.requirements):
        valid = CLOSED_VALUES.get(labels.normalise(item.key))
        wrong = sorted(set(item.values) - valid) if valid is not None and item.operator == "In" else []
        if wrong:
            text = f"ignores the values {', '.join(wrong)}; use {', '.join(sorted(valid or ()))}"
            yield Finding(f"{_REQUIREMENTS}[{index}].values", "values", text)


def _no_reasons(pool: NodePool) -> Iterator[Finding]:
    for index, budget in enumerate(pool.spec.disruption.budgets):
        if budget.reasons == ():
            text = "an empty list of reasons counts as all reasons; leave it out or name some"
            yield Finding(f"spec.disruption.budgets[{index}].reasons", "reasons", text)


def _negative_limits(pool: NodePool) -> Iterator[Finding]:
    for name, value in pool.spec.limits.items():
        if str(value).startswith("-"):
            text = f"{value} is below zero, so the pool never buys anything"
            yield Finding(schema.at("spec.limits", name), "range", text)


def unknown_fields(kind: Kind[T], data: object) -> Findings:
    """Fields of decoded JSON that the kind does not have and the server would drop silently (API-021)."""
    return tuple(schema.unknown(crds.schema(kind.type), data))
