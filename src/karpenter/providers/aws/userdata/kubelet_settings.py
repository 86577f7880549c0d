"""Arithmetic in kubelet settings: CEL over the facts of a type (AWS-111 to AWS-114).

An expression is judged three times: it must parse and name only what exists (``expression_fault``, when the class is reconciled),
yield a number on a sample of instances (the same), and yield a usable number on every type there is (AWS-107). CEL never mixes
whole numbers and fractions in arithmetic; only ``min`` and ``max`` take any two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import structlog

from karpenter.model import cel_library, quantity

if TYPE_CHECKING:
    import cel


class ExpressionError(ValueError):
    """An expression that cannot be computed, or not for this type. The text says why."""


@dataclass(frozen=True)
class KubeletTypeFacts:
    """The variables of an instance type for expressions.

    ``default_enis`` are the interfaces of its default network card, ``ips_per_eni`` IPv4 addresses of each, ``default_pods`` the
    pods it runs unless the class says otherwise (AWS-300). ``applies_pods_per_core`` is no variable of expressions: whether the
    kubelet of the AMI family knows ``podsPerCore``.
    """

    instance_type: str
    vcpus: int
    memory_mib: int
    default_enis: int
    ips_per_eni: int
    default_pods: int
    applies_pods_per_core: bool = True

    def pods(self, max_pods: int | None, pods_per_core: int) -> int:
        """How many pods the kubelet allows with these settings; ``max_pods`` None leaves it to the type (AWS-300)."""
        allowed = self.default_pods if max_pods is None else max_pods
        return min(allowed, pods_per_core * self.vcpus) if pods_per_core and self.applies_pods_per_core else allowed


_Value = str | int | float
_VARIABLES = frozenset({"instance_type", "vcpus", "memory_mib", "default_enis", "ips_per_eni", "max_pods"})
#: Comprehensions bind a name of their own: ``[1, 2].map(x, x * 2)``.
_BOUND_NAME = re.compile(r"\.\s*(?:map|filter|all|exists|exists_one)\s*\(\s*([A-Za-z_]\w*)\s*,")
#: An instance no expression should divide by zero on; what only some types trip over is found by looking at all of them.
_SAMPLE_FACTS = KubeletTypeFacts("m5.large", 2, 8192, 3, 10, 29)
#: Beyond 64 bits no field takes a number.
_MAX_VALUE = 2**63 - 1
#: The parser is recursive and takes the process with it when it runs out of stack, which begins beyond ten times this length.
_MAX_EXPRESSION_LENGTH = 2048
#: Texts of expressions are few (a handful per class); this many programs stay compiled.
_MAX_COMPILED = 1024


def expression_variables(facts: KubeletTypeFacts, max_pods: int) -> dict[str, _Value]:
    """What an expression sees of a type; ``max_pods`` means different things in different fields (AWS-113)."""
    seen: dict[str, _Value] = {name: value for name, value in asdict(facts).items() if name in _VARIABLES}
    return seen | {"max_pods": max_pods}


def evaluate_expression(expression: str, values: Mapping[str, _Value]) -> int:
    """The expression's value, fractions cut off (AWS-112). Raises ``ExpressionError``; division by zero is one."""
    program = _compiled(expression)
    try:
        result = program.execute(cel_library.context(dict(values), _functions()))
    # The evaluator has an error class each for overflows, wrong types, divisions by zero and unknown names; here all of
    # them are the user's mistakes.
    except (RuntimeError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise ExpressionError(_first_sentence(error)) from error
    return _to_integer(result)


def expression_fault(expression: str) -> str:
    """Why the expression can never be computed, empty if nothing is wrong with it as such (AWS-103).

    A failure that depends on the numbers, such as a division by zero, is not one: it is found by looking at every type.
    """
    try:
        unknown = _unknown_names(expression)
        if unknown:
            return f"unknown name {unknown[0]}"
        evaluate_expression(expression, expression_variables(_SAMPLE_FACTS, _SAMPLE_FACTS.default_pods))
    except ExpressionError as error:
        return "" if isinstance(error.__cause__, ArithmeticError) else str(error)
    return ""


@lru_cache(maxsize=_MAX_COMPILED)
def _compiled(expression: str) -> cel.Program:
    if len(expression) > _MAX_EXPRESSION_LENGTH:
        raise ExpressionError(f"is {len(expression)} characters long, at most {_MAX_EXPRESSION_LENGTH} are read")
    try:
        return cel_library.compile_expression(expression)
    except ValueError as error:
        raise ExpressionError(_first_sentence(error)) from error


def _unknown_names(expression: str) -> list[str]:
    bound = set(_BOUND_NAME.findall(expression))
    return [name for name in _compiled(expression).variables() if name not in _VARIABLES | bound]


def _functions() -> dict[str, Callable[..., object]]:
    return {"min": _choose_of_two(min), "max": _choose_of_two(max)}


def _choose_of_two(choose: Callable[[list[float]], float]) -> Callable[..., object]:
    """Of exactly two numbers one. Anything else yields nothing, which no arithmetic and no field takes."""

    def chosen(*given: object) -> object:
        numbers = [value for value in given if isinstance(value, int | float) and not isinstance(value, bool)]
        return choose(numbers) if len(numbers) == len(given) == 2 else None

    return chosen


def _to_integer(result: object) -> int:
    if isinstance(result, bool) or not isinstance(result, int | float):
        raise ExpressionError(f"yields {_type_name(result)}, not a number")
    if not math.isfinite(result):
        raise ExpressionError(f"yields {result}, not a finite number")
    if not abs(result) <= _MAX_VALUE:
        raise ExpressionError(f"yields {result}, which is too large")
    return int(result)


def _type_name(result: object) -> str:
    names: Mapping[type[object], str] = {str: "a text", bool: "a truth value", list: "a list", dict: "a map"}
    return names.get(type(result), "something else")


def _first_sentence(error: Exception) -> str:
    return str(error).splitlines()[0].partition(". ")[0]


__all__ = [
    "RESERVED_FIELDS",
    "KubeletSettings",
    "KubeletTypeFacts",
    "is_expression",
    "resolve_kubelet_settings",
    "resolve_max_pods",
    "resolve_reserved",
]

#: The settings whose values may be expressions, beside ``maxPods``.
RESERVED_FIELDS = ("kubeReserved", "systemReserved")
MAX_POD_COUNT = 2**31 - 1

_CPU_STEP_MILLIS = 10
_MEMORY_STEP_MIB = 16

#: Expressions, by their field, that were said to fail; so many at most.
_MAX_LOGGED = 1000
_logged: set[tuple[str, str]] = set()
_log = structlog.get_logger()


@dataclass(frozen=True)
class KubeletSettings:
    """Kubelet settings of one type. ``max_pods`` is None where the class leaves it to the type, ``pods_per_core`` 0 where unset.

    The maps hold quantities, thresholds of eviction also percentages, as the user or an expression gave them.
    """

    max_pods: int | None = None
    pods_per_core: int = 0
    kube_reserved: Mapping[str, str] = field(default_factory=dict)
    system_reserved: Mapping[str, str] = field(default_factory=dict)
    eviction_hard: Mapping[str, str] = field(default_factory=dict)
    cluster_dns: tuple[str, ...] = ()


def resolve_kubelet_settings(
    kubelet: Mapping[str, object], facts: KubeletTypeFacts, expressions: bool
) -> KubeletSettings:
    """The settings for a type; ``expressions`` is whether the gate NodeClassCEL is on. Never raises.

    An expression that fails or is negative is left out and logged, as is every one while the gate is off (AWS-114, AWS-129).
    """
    max_pods = _max_pods(kubelet.get("maxPods"), facts, expressions)
    pods_per_core = whole_number(kubelet.get("podsPerCore")) or 0
    variables = expression_variables(facts, facts.pods(max_pods, pods_per_core)) if expressions else None
    return KubeletSettings(
        max_pods=max_pods,
        pods_per_core=pods_per_core,
        kube_reserved=dict(_reserved(kubelet.get("kubeReserved"), variables)),
        system_reserved=dict(_reserved(kubelet.get("systemReserved"), variables)),
        eviction_hard=_string_map(kubelet.get("evictionHard")),
        cluster_dns=tuple(_string_list(kubelet.get("clusterDNS"))),
    )


def is_expression(value: object) -> bool:
    """Whether a value of a reserved map is an expression: a text that is no quantity."""
    if not isinstance(value, str):
        return False
    try:
        quantity.parse_milli(value)
    except quantity.QuantityError:
        return True
    return False


def resolve_max_pods(expression: str, facts: KubeletTypeFacts) -> int:
    """The pods an expression allows on a type. Raises ``ExpressionError``, also when they are negative or too many."""
    pods = evaluate_expression(expression, expression_variables(facts, facts.default_pods))
    if not 0 <= pods <= MAX_POD_COUNT:
        raise ExpressionError(f"yields {pods}, which is not between 0 and {MAX_POD_COUNT}")
    return pods


def resolve_reserved(name: str, expression: str, expression_values: Mapping[str, str | int | float]) -> str:
    """The quantity an expression reserves of the resource ``name`` (AWS-114). Raises ``ExpressionError``, also below 0."""
    amount = evaluate_expression(expression, expression_values)
    if amount < 0:
        raise ExpressionError(f"yields {amount}, which is negative")
    return _with_unit(name, amount)


def _with_unit(name: str, amount: int) -> str:
    match name:
        case "cpu":
            return f"{_round_up(amount, _CPU_STEP_MILLIS)}m"
        case "memory":
            return f"{_round_up(amount, _MEMORY_STEP_MIB)}Mi"
        case "ephemeral-storage":
            return f"{amount}Gi"
        case _:
            return str(amount)


def _round_up(amount: int, step: int) -> int:
    return -(-amount // step) * step


def _max_pods(value: object, facts: KubeletTypeFacts, expressions: bool) -> int | None:
    if not isinstance(value, str):
        return whole_number(value)
    if not expressions:
        return None
    try:
        return resolve_max_pods(value, facts)
    except ExpressionError as error:
        _log_dropped("maxPods", value, error)
        return None


def _reserved(values: object, expression_values: Mapping[str, str | int | float] | None) -> Iterator[tuple[str, str]]:
    """Quantities as they are, expressions as what they come to; without ``expression_values`` expressions are skipped."""
    for name, value in _string_map(values).items():
        if not is_expression(value):
            yield name, value
        elif expression_values is not None:
            try:
                yield name, resolve_reserved(name, value, expression_values)
            except ExpressionError as error:
                _log_dropped(name, value, error)


def _log_dropped(field_name: str, expression: str, error: ExpressionError) -> None:
    """Log it once: a failing expression fails for hundreds of types, and again at every evaluation."""
    dropped = (field_name, expression)
    if dropped in _logged:
        return
    if len(_logged) == _MAX_LOGGED:
        _logged.clear()
    _logged.add(dropped)
    _log.warning("ignoring kubelet expression", field=field_name, expression=expression, error=str(error))


def whole_number(value: object) -> int | None:
    """The value of an integer field; None for anything else, and below 0."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and isinstance(value, int) and value >= 0 else None


def _string_map(values: object) -> dict[str, str]:
    if not isinstance(values, Mapping):
        return {}
    return {str(name): _text(value) for name, value in values.items() if _is_scalar(value)}


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _string_list(values: object) -> Iterator[str]:
    if isinstance(values, list | tuple):
        yield from (value for value in values if isinstance(value, str))
