"""A list of instance types prepared for decisions: every set of types is one integer, one bit per type.

"Which types satisfy this requirement, have an offering in that zone and hold 13 cores" is then three ANDs over a thousand
types at once. Bit ``i`` is the type ``types[i]``; types are held in name order, so lower bits break ties.

* per label key and value: the types having it (`matching`);
* per resource: the distinct allocatable amounts with, for each, the types that have at least that much (`holding`);
* per kind of offering (its requirements): the types that can be bought that way now, and the prices (`buyable`, `Prices`).

Preparing costs O(types x (labels + offerings)); a query costs a dictionary look-up and a few operations on integers of a
thousand bits. An index is immutable in meaning: its caches only remember answers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from operator import or_

from karpenter.catalog.types import InstanceType, Offering
from karpenter.model import labels
from karpenter.model.requirements import Requirement, Requirements, compatible
from karpenter.model.resources import Resources

#: A set of instance types of one index: bit i set means ``types[i]`` is in.
TypeSet = int


def members(types: TypeSet) -> Iterator[int]:
    """Positions of the types in a set, lowest first."""
    while types:
        lowest = types & -types
        yield lowest.bit_length() - 1
        types ^= lowest


@dataclass(frozen=True)
class Prices:
    """The cheapest acceptable available offering of every type that has one.

    ``order`` lists positions by price, ties by name; ``offering`` maps a position to its cheapest offering.
    """

    buyable: TypeSet
    order: tuple[int, ...]
    offering: Mapping[int, Offering]

    def cheapest_first(self, types: TypeSet) -> list[int]:
        """The members of a set in price order; members without an offering are left out."""
        return [position for position in self.order if types >> position & 1]

    def cheapest(self, types: TypeSet) -> int:
        """Position of the cheapest member, -1 if none can be bought."""
        return next((position for position in self.order if types >> position & 1), -1)


class _Axis:
    """One resource: which types have at least (or at most) a given amount of it."""

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
        return self._at_least[bisect_left(self._amounts, amount)]

    def at_most(self, amount: int) -> TypeSet:
        return self._at_most[bisect_right(self._amounts, amount)]


class TypeIndex:
    """Instance types prepared for set queries. ``well_known`` are the label keys nobody has to define (SCH-168)."""

    def __init__(self, types: Iterable[InstanceType], well_known: frozenset[str]) -> None:
        self.types = tuple(sorted(types, key=lambda item: item.name))
        self.well_known = well_known
        self.everything: TypeSet = (1 << len(self.types)) - 1
        self.position = {item.name: position for position, item in enumerate(self.types)}
        self._forms = _forms(self.types)
        self._offered = _offered(self.types)
        self._offering_keys = frozenset(key for requirements in self._offered for key in requirements)
        self._allocatable = _axes([item.allocatable for item in self.types])
        self._capacity = _axes([item.capacity for item in self.types])
        self._matching: dict[Requirement, TypeSet] = {}
        self._prices: dict[Requirements, Prices] = {}

    def matching(self, requirements: Requirements) -> TypeSet:
        """Types whose labels intersect the requirements (SCH-165): the R of SCH-331."""
        found = self.everything
        for requirement in requirements.values():
            known = self._matching.get(requirement)
            if known is None:
                known = self._matching[requirement] = self._match(requirement)
            found &= known
        return found

    def _match(self, requirement: Requirement) -> TypeSet:
        forms = self._forms.get(requirement.key)
        if forms is None:
            return self.everything
        tolerant = requirement.accepts_absent
        found = self.everything & ~forms.defined
        for form, types in forms.candidates(requirement):
            if form.has_intersection(requirement) or (tolerant and form.accepts_absent):
                found |= types
        return found

    def buyable(self, requirements: Requirements) -> TypeSet:
        """Types with an available offering the requirements accept: the O of SCH-331."""
        return self.prices(requirements).buyable

    def prices(self, requirements: Requirements) -> Prices:
        """Cheapest accepted available offering per type (SCH-616)."""
        relevant = Requirements(item for key, item in requirements.items() if key in self._offering_keys)
        known = self._prices.get(relevant)
        if known is None:
            known = self._prices[relevant] = self._price(relevant)
        return known

    def _price(self, requirements: Requirements) -> Prices:
        best: dict[int, Offering] = {}
        for asked, sold in self._offered.items():
            if compatible(requirements, asked, self.well_known):
                for position, offering in sold:
                    held = best.get(position)
                    if held is None or _rank(offering) < _rank(held):
                        best[position] = offering
        order = tuple(sorted(best, key=lambda position: (best[position].price_per_hour, position)))
        return Prices(_set_of(best), order, best)

    def holding(self, requests: Resources) -> TypeSet:
        """Types whose allocatable resources cover the requests (SCH-198): the F of SCH-331, offerings aside."""
        found = self.everything
        for name, amount in requests.items():
            if amount > 0:
                axis = self._allocatable.get(name)
                if axis is None:
                    return 0
                found &= axis.at_least(amount)
        return found

    def within(self, remaining: Resources) -> TypeSet:
        """Types whose capacity does not exceed what is left of each limit; one lacking the resource counts 0 (SCH-382)."""
        found = self.everything
        for name, amount in remaining.items():
            axis = self._capacity.get(name)
            if axis is not None:
                found &= axis.at_most(amount)
            elif amount < 0:
                return 0
        return found

    def values(self, key: str, types: TypeSet, enough: int) -> int:
        """How many different values of a label the types offer, counting no further than ``enough`` (SCH-360)."""
        forms = self._forms.get(key)
        if forms is None:
            return 0
        count = 0
        for with_value in forms.by_value.values():
            if with_value & types:
                count += 1
                if count >= enough:
                    break
        return count

    def diverse(self, requirements: Requirements, types: TypeSet) -> bool:
        """Whether the types offer the ``minValues`` the requirements ask for."""
        return all(
            item.min_values is None or self.values(key, types, item.min_values) >= item.min_values
            for key, item in requirements.items()
        )

    def cheapest(self, requirements: Requirements, types: TypeSet, most: int) -> list[int]:
        """The cheapest members that can be bought under the requirements, at most so many and cheapest first.

        Dearer ones take the place of some where the ``minValues`` of the requirements need them (SCH-617).
        """
        order = self.prices(requirements).cheapest_first(types)
        if len(order) <= most or self.diverse(requirements, _set_of(order[:most])):
            return order[:most]
        needed = self._needed(requirements, order)
        others = (position for position in order if position not in needed)
        kept = needed | set(islice(others, max(0, most - len(needed))))
        return [position for position in order if position in kept]

    def _needed(self, requirements: Requirements, order: Sequence[int]) -> set[int]:
        """For each label with ``minValues``, the first types to offer so many values."""
        needed: set[int] = set()
        for key, item in requirements.items():
            seen: set[str] = set()
            for position in order if item.min_values is not None else ():
                values = self.types[position].requirements.of(key).values
                if len(seen) < (item.min_values or 0) and not values <= seen:
                    seen |= values
                    needed.add(position)
        return needed

    def efficient(self, types: TypeSet, prices: Prices, resources: Iterable[str]) -> list[int]:
        """Members no other member beats: none as cheap has at least as much of every named resource. Cheapest first."""
        axes = [(name, self._allocatable[name]) for name in resources if name in self._allocatable]
        kept: list[int] = []
        seen: TypeSet = 0
        for position in prices.order:
            if not types >> position & 1:
                continue
            better = seen
            allocatable = self.types[position].allocatable
            for name, axis in axes:
                better &= axis.at_least(allocatable.get(name, 0))
            if not better:
                kept.append(position)
            seen |= 1 << position
        return kept


@dataclass(frozen=True)
class _Forms:
    """How the types constrain one label key: each distinct requirement with the types that have it."""

    defined: TypeSet
    all: tuple[tuple[Requirement, TypeSet], ...]
    open: tuple[tuple[Requirement, TypeSet], ...]
    by_value: Mapping[str, TypeSet]

    def candidates(self, asked: Requirement) -> Iterable[tuple[Requirement, TypeSet]]:
        """The forms worth testing: for a few named values not the thousand others."""
        if asked.complement:
            return self.all
        named = ((Requirement(asked.key, False, frozenset((v,))), self.by_value.get(v, 0)) for v in asked.values)
        return (*named, *self.open)


def _forms(types: Sequence[InstanceType]) -> dict[str, _Forms]:
    found: dict[str, dict[Requirement, int]] = {}
    for position, item in enumerate(types):
        for key, requirement in item.requirements.items():
            per_form = found.setdefault(key, {})
            per_form[requirement] = per_form.get(requirement, 0) | 1 << position
    return {key: _forms_of_key(per_form) for key, per_form in found.items()}


def _forms_of_key(per_form: Mapping[Requirement, int]) -> _Forms:
    by_value: dict[str, int] = {}
    defined = 0
    for form, types in per_form.items():
        defined |= types
        if not form.complement:
            for value in form.values:
                by_value[value] = by_value.get(value, 0) | types
    open_forms = tuple((form, types) for form, types in per_form.items() if form.complement or not form.values)
    return _Forms(defined, tuple(per_form.items()), open_forms, by_value)


def _offered(types: Sequence[InstanceType]) -> dict[Requirements, list[tuple[int, Offering]]]:
    found: dict[Requirements, list[tuple[int, Offering]]] = {}
    for position, item in enumerate(types):
        for offering in item.offerings:
            if offering.available:
                found.setdefault(offering.requirements, []).append((position, offering))
    return found


def _axes(lists: Sequence[Resources]) -> dict[str, _Axis]:
    names = {name for resources in lists for name in resources}
    return {name: _Axis([resources.get(name, 0) for resources in lists]) for name in sorted(names)}


def _rank(offering: Offering) -> tuple[float, str, str]:
    return (offering.price_per_hour, offering.capacity_type, offering.zone)


def _set_of(positions: Iterable[int]) -> TypeSet:
    types = 0
    for position in positions:
        types |= 1 << position
    return types


def well_known_of(types: Iterable[InstanceType]) -> frozenset[str]:
    """Label keys the types define besides the core ones; all of them count as well known (instance-type files)."""
    return labels.CORE_WELL_KNOWN | frozenset(key for item in types for key in item.requirements)
