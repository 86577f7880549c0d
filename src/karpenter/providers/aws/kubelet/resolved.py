"""What the class's kubelet settings come to on one type of machine (AWS-111 to AWS-114, AWS-129).

The same numbers reckon the type's capacity and are told to the node, so that the plan and the machine agree. A class whose
settings are wrong is not ready and never gets here by a launch; types are still resolved for it, and what cannot be read is then
left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import structlog

from karpenter.model import quantity
from karpenter.providers.aws.kubelet.expressions import ExpressionError, TypeFacts, evaluate, variables

__all__ = ["RESERVED", "Resolved", "TypeFacts", "is_expression", "resolve", "resolve_max_pods", "resolve_reserved"]

#: The settings whose values may be expressions, beside ``maxPods``.
RESERVED = ("kubeReserved", "systemReserved")
LARGEST_PODS = 2**31 - 1

_CPU_STEP_MILLIS = 10
_MEMORY_STEP_MIB = 16

#: Expressions, by their field, that were said to fail; so many at most.
_SAID_AT_MOST = 1000
_said: set[tuple[str, str]] = set()
_log = structlog.get_logger()


@dataclass(frozen=True)
class Resolved:
    """Kubelet settings of one type. ``max_pods`` is None where the class leaves it to the type, ``pods_per_core`` 0 where unset.

    The maps hold quantities, thresholds of eviction also percentages, as the user or an expression gave them.
    """

    max_pods: int | None = None
    pods_per_core: int = 0
    kube_reserved: Mapping[str, str] = field(default_factory=dict)
    system_reserved: Mapping[str, str] = field(default_factory=dict)
    eviction_hard: Mapping[str, str] = field(default_factory=dict)
    cluster_dns: tuple[str, ...] = ()


def resolve(kubelet: Mapping[str, object], facts: TypeFacts, expressions: bool) -> Resolved:
    """The settings for a type; ``expressions`` is whether the gate NodeClassCEL is on. Never raises.

    An expression that fails or is negative is left out and logged, as is every one while the gate is off (AWS-114, AWS-129).
    """
    max_pods = _max_pods(kubelet.get("maxPods"), facts, expressions)
    pods = facts.default_pods if max_pods is None else max_pods
    known = variables(facts, pods) if expressions else None
    return Resolved(
        max_pods=max_pods,
        pods_per_core=_number(kubelet.get("podsPerCore")) or 0,
        kube_reserved=dict(_reserved(kubelet.get("kubeReserved"), known)),
        system_reserved=dict(_reserved(kubelet.get("systemReserved"), known)),
        eviction_hard=_texts(kubelet.get("evictionHard")),
        cluster_dns=tuple(_listed(kubelet.get("clusterDNS"))),
    )


def is_expression(value: object) -> bool:
    """Whether a value of a reserved map is an expression: a text that is no quantity."""
    if not isinstance(value, str):
        return False
    try:
        quantity.milli(value)
    except quantity.QuantityError:
        return True
    return False


def resolve_max_pods(expression: str, facts: TypeFacts) -> int:
    """The pods an expression allows on a type. Raises ``ExpressionError``, also when they are negative or too many."""
    pods = evaluate(expression, variables(facts, facts.default_pods))
    if not 0 <= pods <= LARGEST_PODS:
        raise ExpressionError(f"yields {pods}, which is not between 0 and {LARGEST_PODS}")
    return pods


def resolve_reserved(name: str, expression: str, known: Mapping[str, str | int | float]) -> str:
    """The quantity an expression reserves of the resource ``name`` (AWS-114). Raises ``ExpressionError``, also below 0."""
    amount = evaluate(expression, known)
    if amount < 0:
        raise ExpressionError(f"yields {amount}, which is negative")
    return _with_unit(name, amount)


def _with_unit(name: str, amount: int) -> str:
    match name:
        case "cpu":
            return f"{_up_to(amount, _CPU_STEP_MILLIS)}m"
        case "memory":
            return f"{_up_to(amount, _MEMORY_STEP_MIB)}Mi"
        case "ephemeral-storage":
            return f"{amount}Gi"
        case _:
            return str(amount)


def _up_to(amount: int, step: int) -> int:
    return -(-amount // step) * step


def _max_pods(value: object, facts: TypeFacts, expressions: bool) -> int | None:
    if not isinstance(value, str):
        return _number(value)
    if not expressions:
        return None
    try:
        return resolve_max_pods(value, facts)
    except ExpressionError as error:
        _drop("maxPods", value, error)
        return None


def _reserved(values: object, known: Mapping[str, str | int | float] | None) -> Iterator[tuple[str, str]]:
    """Quantities as they are, expressions as what they come to; without ``known`` values expressions are skipped."""
    for name, value in _texts(values).items():
        if not is_expression(value):
            yield name, value
        elif known is not None:
            try:
                yield name, resolve_reserved(name, value, known)
            except ExpressionError as error:
                _drop(name, value, error)


def _drop(field_name: str, expression: str, error: ExpressionError) -> None:
    """Say so once: an expression that fails does so for hundreds of types, and again whenever they are looked at."""
    said = (field_name, expression)
    if said in _said:
        return
    if len(_said) == _SAID_AT_MOST:
        _said.clear()
    _said.add(said)
    _log.warning("ignoring kubelet expression", field=field_name, expression=expression, error=str(error))


def _number(value: object) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and isinstance(value, int) and value >= 0 else None


def _texts(values: object) -> dict[str, str]:
    if not isinstance(values, Mapping):
        return {}
    return {str(name): _text(value) for name, value in values.items() if _is_scalar(value)}


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _listed(values: object) -> Iterator[str]:
    if isinstance(values, list | tuple):
        yield from (value for value in values if isinstance(value, str))
