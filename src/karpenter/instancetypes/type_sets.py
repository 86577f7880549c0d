"""Sets of instance types as integers with one bit per type, and indexes from resource amounts to such sets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import or_

from karpenter.model.resources import Resources

#: A set of instance types of one index: bit i set means ``types[i]`` is in.
TypeSet = int


def members(types: TypeSet) -> Iterator[int]:
    """Positions of the types in a set, lowest first.

    Looking for digits in a text takes half as long as arithmetic on integers of a thousand bits.
    """
    digits = binary_digits(types)
    position = digits.find("1")
    while position >= 0:
        yield position
        position = digits.find("1", position + 1)


def binary_digits(types: TypeSet) -> str:
    """A digit for each type up to the last one of the set, the lowest first: ``1`` where it is in."""
    return f"{types:b}"[::-1]


class AmountIndex:
    """Index of one resource: which members of a list have at least, or at most, a given amount, as bit sets."""

    __slots__ = ("_amounts", "_at_least", "_at_most")

    def __init__(self, amounts: Sequence[int]) -> None:
        by_amount: dict[int, int] = {}
        for position, amount in enumerate(amounts):
            by_amount[amount] = by_amount.get(amount, 0) | 1 << position
        self._amounts = sorted(by_amount)
        sets = [by_amount[amount] for amount in self._amounts]
        self._at_most: tuple[TypeSet, ...] = (0, *accumulate(sets, or_))
        self._at_least: tuple[TypeSet, ...] = (*reversed(tuple(accumulate(reversed(sets), or_))), 0)

    def at_least(self, amount: int) -> TypeSet:
        """Members with at least this amount."""
        return self._at_least[bisect_left(self._amounts, amount)]

    def at_most(self, amount: int) -> TypeSet:
        """Members with at most this amount."""
        return self._at_most[bisect_right(self._amounts, amount)]

    def largest_of(self, members: TypeSet) -> TypeSet:
        """Those of the members (at least one) that have the largest amount."""
        low, high = 0, len(self._amounts) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._at_least[middle] & members:
                low = middle
            else:
                high = middle - 1
        return self._at_least[low] & members

    def smallest_of(self, members: TypeSet) -> TypeSet:
        """Those of the members (at least one) that have the smallest amount."""
        low, high = 1, len(self._amounts)
        while low < high:
            middle = (low + high) // 2
            if self._at_most[middle] & members:
                high = middle
            else:
                low = middle + 1
        return self._at_most[low] & members

    def largest_within(self, amount: int) -> int:
        """The largest indexed amount not above this one; this amount itself if there is none."""
        place = bisect_right(self._amounts, amount)
        return self._amounts[place - 1] if place else amount


def amount_indexes(resource_lists: Sequence[Resources]) -> dict[str, AmountIndex]:
    """One index per resource that any of the lists contains; a missing resource counts as 0."""
    names = {name for resources in resource_lists for name in resources}
    return {name: AmountIndex([resources.get(name, 0) for resources in resource_lists]) for name in sorted(names)}


def with_at_least(requests: Resources, indexes: Mapping[str, AmountIndex], universe: int) -> int:
    """Members of ``universe`` that have at least the requested amount of every resource, by these indexes."""
    matching = universe
    for name, amount in requests.items():
        if amount > 0:
            axis = indexes.get(name)
            if axis is None:
                return 0
            matching &= axis.at_least(amount)
    return matching


def type_set(positions: Iterable[int]) -> TypeSet:
    """Positions as a set."""
    types = 0
    for position in positions:
        types |= 1 << position
    return types
