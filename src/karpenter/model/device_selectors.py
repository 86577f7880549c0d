"""CEL selectors of devices (K15-156, K15-157): compiled once, with a bound on their cost.

``device`` has ``driver``, ``attributes`` and ``capacity`` by domain, and ``allowMultipleAllocations``. Functions of Kubernetes
that selectors use are here: ``quantity`` and ``semver`` with their comparisons. A domain that a device lacks is an empty map, as
in Kubernetes; an attribute that it lacks is an error at run time, which `matches` returns as text.

The API server has bounded the cost of expressions that it stores. Those of files have met no such bound, so an expression may
have 10 KiB and three loops within each other: maps of a device have 32 entries, so that is 32,768 steps. Macros that the library
lacks (``cel.bind``, optional values) do not compile.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from karpenter.model import cel_library, quantity

if TYPE_CHECKING:
    import cel

MAX_EXPRESSION_BYTES = 10 * 1024
MAX_NESTED_LOOPS = 3
_MACRO = re.compile(r"\.(?:all|exists|exists_one|map|filter)\(")
_DOMAIN = re.compile(r"""(attributes|capacity)\s*\[\s*(?:"([^"]*)"|'([^']*)')\s*\]""")
_SEMVER = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?$")
_EVALUATION_ERRORS = (RuntimeError, TypeError, ValueError, ArithmeticError, LookupError)
_CACHE_SIZE = 65_536

#: Attribute values and capacities by domain and name. Capacities are thousandths, versions `Version`.
Scalar = str | int | bool


@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version, of an attribute."""

    text: str


AttributeValue = Scalar | Version


@dataclass(frozen=True)
class DeviceFacts:
    """What selectors read of a device. Names are ``<domain>/<name>``; capacities are in thousandths."""

    driver: str
    attributes: tuple[tuple[str, AttributeValue], ...] = ()
    capacity: tuple[tuple[str, int], ...] = ()
    allow_multiple_allocations: bool = False


@dataclass(frozen=True)
class SelectorMatch:
    """Whether a selector selects a device. ``error``: what went wrong at run time; the device does not match then."""

    matches: bool
    error: str = ""


class DeviceSelectorError(ValueError):
    """The expression cannot be used."""


@lru_cache(_CACHE_SIZE)
def selector_error(expression: str) -> str:
    """Why an expression cannot be used; empty when it can."""
    try:
        _program(expression)
    except ValueError as error:
        return str(error).partition("\n")[0]
    return ""


@lru_cache(_CACHE_SIZE)
def match(expression: str, facts: DeviceFacts) -> SelectorMatch:
    """Whether a device meets an expression that compiles. A few expressions meet a few kinds of devices: answers are kept."""
    try:
        result = _program(expression).execute(_context(facts, _named_domains(expression)))
    except _EVALUATION_ERRORS as error:
        return SelectorMatch(False, str(error).partition("\n")[0] or type(error).__name__)
    if not isinstance(result, bool):
        return SelectorMatch(False, "the expression does not yield true or false")
    return SelectorMatch(result)


@lru_cache(_CACHE_SIZE)
def _program(expression: str) -> cel.Program:
    if len(expression.encode()) > MAX_EXPRESSION_BYTES:
        raise DeviceSelectorError(f"too long: more than {MAX_EXPRESSION_BYTES} bytes")
    if _loop_depth(expression) > MAX_NESTED_LOOPS:
        raise DeviceSelectorError(f"costs too much: more than {MAX_NESTED_LOOPS} loops within each other")
    return cel_library.compile_expression(expression)


def _loop_depth(expression: str) -> int:
    """How deep macros that loop are nested."""
    deepest, open_loops = 0, list[bool]()
    starts = {macro.end() - 1 for macro in _MACRO.finditer(expression)}
    for at, character in enumerate(expression):
        if character == "(":
            open_loops.append(at in starts)
            deepest = max(deepest, sum(open_loops))
        elif character == ")" and open_loops:
            open_loops.pop()
    return deepest


@lru_cache(_CACHE_SIZE)
def _named_domains(expression: str) -> tuple[tuple[str, str], ...]:
    """The domains an expression names: these are empty maps where a device lacks them."""
    return tuple(sorted({(kind, one or other) for kind, one, other in _DOMAIN.findall(expression)}))


@lru_cache(_CACHE_SIZE)
def _context(facts: DeviceFacts, domains: tuple[tuple[str, str], ...]) -> cel.Context:
    by_kind: dict[str, dict[str, dict[str, object]]] = {"attributes": {}, "capacity": {}}
    for kind, domain in domains:
        by_kind[kind][domain] = {}
    for name, value in facts.attributes:
        _put(by_kind["attributes"], name, _semver(value.text) if isinstance(value, Version) else value)
    for name, amount in facts.capacity:
        _put(by_kind["capacity"], name, {"quantity": amount})
    device = {
        "driver": facts.driver,
        **by_kind,
        "allowMultipleAllocations": facts.allow_multiple_allocations,
    }
    return cel_library.context({"device": device}, _FUNCTIONS)


def _put(by_domain: dict[str, dict[str, object]], qualified_name: str, value: object) -> None:
    domain, _, name = qualified_name.rpartition("/")
    by_domain.setdefault(domain, {})[name] = value


# -- functions of Kubernetes ------------------------------------------------------------------------------------------------


def _quantity(text: object) -> Mapping[str, object]:
    if not isinstance(text, str):
        raise ValueError("quantity of something that is not a text")
    return {"quantity": quantity.parse_milli(text)}


def _is_quantity(text: object) -> bool:
    try:
        _quantity(text)
    except ValueError:
        return False
    return True


def _semver(text: object) -> Mapping[str, object]:
    parsed = _SEMVER.match(text) if isinstance(text, str) else None
    if parsed is None:
        raise ValueError(f"{text!r} is not a semantic version")
    return {"semver": [int(part) for part in parsed.groups()[:3]], "pre": parsed.group(4) or ""}


def _is_semver(text: object) -> bool:
    try:
        _semver(text)
    except ValueError:
        return False
    return True


def _order(value: object) -> tuple[object, ...]:
    """What comparable values are ordered by. Raises ValueError for others."""
    if isinstance(value, dict) and "quantity" in value:
        return (value["quantity"],)
    if isinstance(value, dict) and "semver" in value:
        return (*value["semver"], *_prerelease_order(str(value["pre"])))
    raise ValueError("not comparable")


def _prerelease_order(pre: str) -> tuple[object, ...]:
    """A release comes after its pre-releases; numbers before texts."""
    if not pre:
        return (1,)
    parts = ((0, int(part), "") if part.isdigit() else (1, 0, part) for part in pre.split("."))
    return (0, *parts)


def _compare(left: object, right: object) -> int:
    first, second = _order(left), _order(right)
    return (first > second) - (first < second)


def _amount(value: object) -> int:
    if isinstance(value, dict) and isinstance(value.get("quantity"), int):
        return int(value["quantity"])
    raise ValueError("not a quantity")


def _sum(left: object, right: object) -> Mapping[str, object]:
    added = right * quantity.MILLI if isinstance(right, int) else _amount(right)
    return {"quantity": _amount(left) + added}


def _difference(left: object, right: object) -> Mapping[str, object]:
    taken = right * quantity.MILLI if isinstance(right, int) else _amount(right)
    return {"quantity": _amount(left) - taken}


def _as_integer(value: object) -> int:
    amount = _amount(value)
    if amount % quantity.MILLI:
        raise ValueError("not an integer")
    return amount // quantity.MILLI


def _semver_part(number: int) -> Callable[[object], int]:
    def part(value: object) -> int:
        parts = value.get("semver") if isinstance(value, dict) else None
        if not isinstance(parts, Sequence):
            raise ValueError("not a semantic version")
        return int(parts[number])

    return part


_FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "quantity": _quantity,
    "isQuantity": _is_quantity,
    "semver": _semver,
    "isSemver": _is_semver,
    "compareTo": _compare,
    "isGreaterThan": lambda left, right: _compare(left, right) > 0,
    "isLessThan": lambda left, right: _compare(left, right) < 0,
    "sign": lambda value: (_amount(value) > 0) - (_amount(value) < 0),
    "add": _sum,
    "sub": _difference,
    "asInteger": _as_integer,
    "isInteger": lambda value: _amount(value) % quantity.MILLI == 0,
    "asApproximateFloat": lambda value: _amount(value) / quantity.MILLI,
    "major": _semver_part(0),
    "minor": _semver_part(1),
    "patch": _semver_part(2),
    "lowerAscii": lambda text: str(text).lower(),
    "upperAscii": lambda text: str(text).upper(),
}
