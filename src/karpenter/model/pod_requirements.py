"""What makes a pod's own node requirement unusable (SCH-055).

Pods are untrusted input, so nothing here raises: each violation is a sentence, and a pod with one stays pending.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from karpenter.model import labels
from karpenter.model.requirements import Op, as_integer

_NUMERIC_OPERATORS = frozenset({Op.GT, Op.LT, Op.GTE, Op.LTE})
_OPERATORS = frozenset(Op)


def pod_requirement_errors(
    key: str, operator: str, values: Iterable[str], well_known: frozenset[str]
) -> tuple[str, ...]:
    """Why this requirement of a pod is refused; empty when it is fine. Aliases of keys are resolved first."""
    return tuple(_requirement_errors(labels.normalise(key), operator, tuple(values), well_known))


def _requirement_errors(key: str, operator: str, values: tuple[str, ...], well_known: frozenset[str]) -> Iterator[str]:
    if operator not in _OPERATORS:
        yield f"key {key} has an unsupported operator {operator}"
        return
    if labels.is_restricted(key, well_known):
        yield f"label {key} is restricted; specify a well known label or a custom label that does not use a restricted domain"
    if not labels.is_qualified_name(key):
        yield f"key {key!r} is not a qualified name"
    for value in values:
        if value and (len(value) > 63 or "/" in value or not labels.is_qualified_name(value)):
            yield f"invalid value {value!r} for key {key}"
    yield from _operator_errors(key, operator, values)


def _operator_errors(key: str, operator: str, values: tuple[str, ...]) -> Iterator[str]:
    if operator == Op.IN and not values:
        yield f"key {key} with operator In must have a value"
    closed_values = labels.CLOSED_LABEL_VALUES.get(key)
    if operator == Op.IN and values and closed_values is not None and not closed_values.intersection(values):
        yield f"no valid values found in [{' '.join(values)}] for {key}, expected one of [{' '.join(sorted(closed_values))}]"
    bound = as_integer(values[0]) if len(values) == 1 else None
    if operator in _NUMERIC_OPERATORS and (bound is None or bound < 0):
        yield f"key {key} with operator {operator} must have a single positive integer value"
