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

    __slots__ = ("_amounts", "_at_least")

    def __init__(self, amounts: Sequence[int]) -> None:
        self._set_members(dict(enumerate(amounts)), {})

    def _set_members(self, amounts: Mapping[int, int], others: dict[int, TypeSet]) -> None:
        """Members by position. ``others``: the set of further members that have an amount."""
        for position, amount in amounts.items():
            others[amount] = others.get(amount, 0) | 1 << position
        self._amounts = sorted(others)
        sets = [others[amount] for amount in reversed(self._amounts)]
        self._at_least: tuple[TypeSet, ...] = (*reversed(tuple(accumulate(sets, or_))), 0)

    def with_changed(self, amounts: Mapping[int, int]) -> AmountIndex:
        """The index after members at these positions got other amounts; costs what there are different amounts."""
        kept = ~type_set(amounts)
        exact = {
            amount: same
            for amount, least, more in zip(self._amounts, self._at_least, self._at_least[1:], strict=False)
            if (same := (least ^ more) & kept)
        }
        other = AmountIndex.__new__(AmountIndex)
        other._set_members(amounts, exact)
        return other

    def at_least(self, amount: int) -> TypeSet:
        """Members with at least this amount."""
        return self._at_least[bisect_left(self._amounts, amount)]

    def at_most(self, amount: int) -> TypeSet:
        """Members with at most this amount."""
        return self._at_least[0] ^ self._at_least[bisect_right(self._amounts, amount)]

    def largest_of(self, members: TypeSet) -> TypeSet:
        """Those of the members (at least one) that have the largest amount."""
        return self._at_least[self._place_of_largest(members)] & members

    def largest_amount_of(self, members: TypeSet) -> int:
        """The largest amount of the members (at least one)."""
        return self._amounts[self._place_of_largest(members)]

    def _place_of_largest(self, members: TypeSet) -> int:
        low, high = 0, len(self._amounts) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._at_least[middle] & members:
                low = middle
            else:
                high = middle - 1
        return low

    def smallest_of(self, members: TypeSet) -> TypeSet:
        """Those of the members (at least one) that have the smallest amount."""
        low, high = 1, len(self._amounts)
        while low < high:
            middle = (low + high) // 2
            if members & ~self._at_least[middle]:
                high = middle
            else:
                low = middle + 1
        return members & ~self._at_least[low]

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
