"""Arithmetic in kubelet settings: CEL over the facts of a type (AWS-111 to AWS-114).

An expression is judged three times: it must parse and name only what exists (``fault`` when the class is looked at), yield a
number on a sample of machines (the same), and yield a usable number on every type there is (AWS-107). CEL never mixes whole
numbers and fractions in arithmetic; only ``min`` and ``max`` take any two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import cel


class ExpressionError(ValueError):
    """An expression that cannot be computed, or not for this type. The text says why."""


@dataclass(frozen=True)
class TypeFacts:
    """What expressions may ask about a type of machine.

    ``default_enis`` are the interfaces of its default network card, ``ips_per_eni`` IPv4 addresses of each, ``default_pods`` the
    pods it runs unless told otherwise (AWS-300).
    """

    instance_type: str
    vcpus: int
    memory_mib: int
    default_enis: int
    ips_per_eni: int
    default_pods: int


_Value = str | int | float
_VARIABLES = frozenset({"instance_type", "vcpus", "memory_mib", "default_enis", "ips_per_eni", "max_pods"})
#: Comprehensions bind a name of their own: ``[1, 2].map(x, x * 2)``.
_BOUND = re.compile(r"\.\s*(?:map|filter|all|exists|exists_one)\s*\(\s*([A-Za-z_]\w*)\s*,")
#: A machine no expression should divide by zero on; what only some types trip over is found by looking at all of them.
_SAMPLE = TypeFacts("m5.large", 2, 8192, 3, 10, 29)
#: Beyond 64 bits no field takes a number.
_LARGEST = 2**63 - 1
#: The parser is recursive and takes the process with it when it runs out of stack, which begins beyond ten times this length.
_LONGEST = 2048
#: Texts of expressions are few (a handful per class); this many programs stay compiled.
_CACHED = 1024


def variables(facts: TypeFacts, max_pods: int) -> dict[str, _Value]:
    """What an expression sees of a type; ``max_pods`` means different things in different fields (AWS-113)."""
    seen: dict[str, _Value] = {name: value for name, value in asdict(facts).items() if name in _VARIABLES}
    return seen | {"max_pods": max_pods}


def evaluate(expression: str, values: Mapping[str, _Value]) -> int:
    """The expression's value, fractions cut off (AWS-112). Raises ``ExpressionError``; division by zero is one."""
    program = _compiled(expression)
    try:
        import cel  # late: it takes a third of a second, and few classes have expressions

        result = program.execute(cel.Context(variables=dict(values), functions=_functions()))
    # The evaluator tells overflows, wrong types, divisions by zero and unknown names apart by the error's class; here all of
    # them are the user's mistakes.
    except (RuntimeError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise ExpressionError(_first_sentence(error)) from error
    return _whole(result)


def fault(expression: str) -> str:
    """Why the expression can never be computed, empty if nothing is wrong with it as such (AWS-103).

    A failure that depends on the numbers, such as a division by zero, is not one: it is found by looking at every type.
    """
    try:
        unknown = _unknown_names(expression)
        if unknown:
            return f"unknown name {unknown[0]}"
        evaluate(expression, variables(_SAMPLE, _SAMPLE.default_pods))
    except ExpressionError as error:
        return "" if isinstance(error.__cause__, ArithmeticError) else str(error)
    return ""


@lru_cache(maxsize=_CACHED)
def _compiled(expression: str) -> cel.Program:
    if len(expression) > _LONGEST:
        raise ExpressionError(f"is {len(expression)} characters long, at most {_LONGEST} are read")
    try:
        import cel

        return cel.compile(expression)
    except ValueError as error:
        raise ExpressionError(_first_sentence(error)) from error


def _unknown_names(expression: str) -> list[str]:
    bound = set(_BOUND.findall(expression))
    return [name for name in _compiled(expression).variables() if name not in _VARIABLES | bound]


def _functions() -> dict[str, Callable[..., object]]:
    return {"min": _either(min), "max": _either(max)}


def _either(choose: Callable[[list[float]], float]) -> Callable[..., object]:
    """Of exactly two numbers one. Anything else yields nothing, which no arithmetic and no field takes."""

    def chosen(*given: object) -> object:
        numbers = [value for value in given if isinstance(value, int | float) and not isinstance(value, bool)]
        return choose(numbers) if len(numbers) == len(given) == 2 else None

    return chosen


def _whole(result: object) -> int:
    if isinstance(result, bool) or not isinstance(result, int | float):
        raise ExpressionError(f"yields {_kind(result)}, not a number")
    if not math.isfinite(result):
        raise ExpressionError(f"yields {result}, not a finite number")
    if not abs(result) <= _LARGEST:
        raise ExpressionError(f"yields {result}, which is too large")
    return int(result)


def _kind(result: object) -> str:
    names: Mapping[type[object], str] = {str: "a text", bool: "a truth value", list: "a list", dict: "a map"}
    return names.get(type(result), "something else")


def _first_sentence(error: Exception) -> str:
    return str(error).splitlines()[0].partition(". ")[0]
