"""What is wrong with an object of ours, as findings: where, what and how to mend it.

Three moments, three functions. ``admit`` (from ``admission``) answers what an API server with our CRDs would answer when the
object is written, for manifests that never met one (API-033). ``runtime`` finds what passes there and still makes no sense; a
pool with such findings is not used (API-075 ff.). ``unknown_fields`` and ``advise`` (from ``advice``) find what is legal and
probably not meant. Admission never gets stricter than users know it, so later insights belong to the last two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from karpenter.api import crds
from karpenter.api.karpenter import NodePool, NodeSelectorRequirementWithMinValues, PoolTaint
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.model import durations, labels, schema
from karpenter.model.admission import Findings, admit, entry_values, restricted
from karpenter.model.advice import advise, too_long
from karpenter.model.quantities import check_quantities
from karpenter.model.schema import Finding

__all__ = [
    "Finding",
    "Findings",
    "admit",
    "advise",
    "check_quantities",
    "runtime",
    "unknown_fields",
]

T = TypeVar("T", bound=Wire)

_REQUIREMENTS = "spec.template.spec.requirements"
_LABELS = "spec.template.metadata.labels"


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
    if len(name) > labels.LONGEST_VALUE:
        text = (
            f"is {len(name)} characters long, but becomes a label value of at most {labels.LONGEST_VALUE}; shorten it"
        )
        yield Finding(path, "length", text)


def _template_labels(found: Mapping[str, str], well_known: frozenset[str]) -> Iterator[Finding]:
    for key, value in found.items():
        path = schema.at(_LABELS, key)
        yield from _label_key(key, path, well_known)
        yield from _label_value(value, path)


def _label_key(key: str, path: str, well_known: frozenset[str]) -> Iterator[Finding]:
    if key == labels.NODE_POOL or labels.is_restricted(key, well_known):
        yield restricted(path, key)
    yield from _qualified(key, path, "a label key")


def _qualified(text: str, path: str, what: str) -> Iterator[Finding]:
    if not labels.is_qualified_name(text):
        yield Finding(
            path, "name", f"{text!r} is not {what} (letters, digits and -_. after an optional domain and slash)"
        )


def _label_value(value: str, path: str) -> Iterator[Finding]:
    if not labels.is_value(value):
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
    yield from entry_values(item, path)
    yield from _closed_values(item, key, path)


def _closed_values(item: NodeSelectorRequirementWithMinValues, key: str, path: str) -> Iterator[Finding]:
    valid = labels.CLOSED_VALUES.get(key)
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
        if text is not None and not durations.is_readable(text):
            yield too_long(path, text)


def unknown_fields(kind: Kind[T], data: object) -> Findings:
    """Fields of decoded JSON that the kind does not have and the server would drop silently (API-021)."""
    return tuple(schema.unknown(crds.schema(kind.type), data))
