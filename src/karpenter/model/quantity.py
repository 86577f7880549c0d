"""Kubernetes quantities as exact integers.

A quantity is held as a whole number of thousandths of its unit (millicores, milli-bytes, milli-pods). Thousandths are what
the scheduler itself compares CPU in, and memory in bytes is a multiple of them, so no rounding ever makes a pod fit that
does not. The finer suffixes ``n`` and ``u`` are rounded up, as Kubernetes does when it asks for milli-values.

Grammar: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/ (API-027, QTY).
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from karpenter.api.meta import WireQuantity
from karpenter.model.texts import shorten

#: Thousandths in one unit.
MILLI = 1000

_GRAMMAR = re.compile(
    r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?[0-9]+))?", re.ASCII
)
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_MAX_EXPONENT = 64
_MAX_TEXT_LENGTH = 256
_DECIMAL_SUFFIXES = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_BINARY_SUFFIXES = tuple((factor, name) for name, factor in reversed(_BINARY.items()))


class QuantityError(ValueError):
    """A text that is not a quantity. ``text`` is what was given."""

    def __init__(self, text: object) -> None:
        shown = shorten(repr(text), _MAX_TEXT_LENGTH + 1)
        super().__init__(
            f"{shown} is not a quantity (expected a number with an optional suffix, such as 500m, 2 or 4Gi)"
        )
        self.text = text


@lru_cache(maxsize=65536)
def _milli_of_text(text: str) -> int:
    match = _GRAMMAR.fullmatch(text) if len(text) <= _MAX_TEXT_LENGTH else None
    if match is None:
        raise QuantityError(text)
    sign, digits, binary, decimal, exponent = match.groups()
    if binary:
        scale = Fraction(_BINARY[binary])
    else:
        power = _DECIMAL[decimal] if decimal else int(exponent or 0)
        if abs(power) > _MAX_EXPONENT:
            raise QuantityError(text)
        scale = Fraction(10) ** power
    value = Fraction(digits if not digits.startswith(".") else "0" + digits) * scale * MILLI
    rounded = -(-value.numerator // value.denominator)
    return -rounded if sign == "-" else rounded


def parse_milli(value: WireQuantity) -> int:
    """The quantity in thousandths of its unit, away from zero where it is finer. Raises ``QuantityError``."""
    if isinstance(value, str):
        return _milli_of_text(value)
    if isinstance(value, bool):
        raise QuantityError(value)
    return value * MILLI if isinstance(value, int) else _milli_of_text(repr(value))


def quantity_text(value_milli: int, *, binary: bool = False) -> str:
    """Canonical text of a quantity in thousandths; ``binary`` prefers Ki, Mi, Gi ... where nothing is lost."""
    if value_milli % MILLI:
        return f"{value_milli}m"
    units = value_milli // MILLI
    if units == 0:
        return "0"
    for factor, name in _BINARY_SUFFIXES if binary else _DECIMAL_SUFFIXES:
        if units % factor == 0:
            return f"{units // factor}{name}"
    return str(units)
