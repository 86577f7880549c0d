"""A list of instance types prepared for decisions: every set of types is one integer, one bit per type.

"Which types satisfy this requirement, have an offering in that zone and hold 13 cores" is then three ANDs over a thousand
types at once. Bit ``i`` is the type ``types[i]``; types are held in name order, so lower bits break ties.

* per label key and value: the types having it (`matching`);
* per resource: the distinct allocatable amounts with, for each, the types that have at least that much (`holding`);
* per kind of offering (its requirements): the types that can be bought that way now, and the prices (`buyable`, `Prices`).

Preparing costs O(types x (labels + offerings)); a query costs a dictionary look-up and a few operations on integers of a
thousand bits. An index is immutable in meaning: its caches only remember answers, the latest few thousand of each kind, for it
lives as long as its types do while pods ask for ever new things.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, islice
from operator import or_

from karpenter.catalog.types import InstanceType, Offering
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Requirement, Requirements, compatible
from karpenter.model.resources import Resources

#: A set of instance types of one index: bit i set means ``types[i]`` is in.
TypeSet = int

#: Stands for units of a reservation that nobody counts.
UNCOUNTED = 2**31
#: Kinds of capacity in the order a launch tries them.
_LAUNCHED = (labels.RESERVED, labels.SPOT, labels.ON_DEMAND)
#: Answers remembered per kind of question.
_REMEMBERED = 4096


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


class Axis:
    """One resource: which of a list (types, machines) have at least, or at most, a given amount of it, as bit sets."""

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
        """Those with so much or more."""
        return self._at_least[bisect_left(self._amounts, amount)]

    def at_most(self, amount: int) -> TypeSet:
        """Those with so much or less."""
        return self._at_most[bisect_right(self._amounts, amount)]

    def most_among(self, members: TypeSet) -> TypeSet:
        """Those members, at least one given, that have the most."""
        low, high = 0, len(self._amounts) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._at_least[middle] & members:
                low = middle
            else:
                high = middle - 1
        return self._at_least[low] & members

    def least_among(self, members: TypeSet) -> TypeSet:
        """Those members, at least one given, that have the least."""
        low, high = 1, len(self._amounts)
        while low < high:
            middle = (low + high) // 2
            if self._at_most[middle] & members:
                high = middle
            else:
                low = middle + 1
        return self._at_most[low] & members

    def largest_within(self, amount: int) -> int:
        """The largest amount there is that is no more than this; this itself where there is none."""
        place = bisect_right(self._amounts, amount)
        return self._amounts[place - 1] if place else amount


class TypeIndex:
    """Instance types prepared for set queries. ``well_known`` are the label keys nobody has to define (SCH-168)."""

    def __init__(self, types: Iterable[InstanceType], well_known: frozenset[str]) -> None:
        self.types = tuple(sorted(types, key=lambda item: item.name))
        self.well_known = well_known
        self.everything: TypeSet = (1 << len(self.types)) - 1
        self.position = {item.name: position for position, item in enumerate(self.types)}
        self._forms = _forms(self.types)
        self._offered = _offered(self.types)
        #: Units left of every reservation, and of reserved capacity that names none (SCH-581).
        self.reservations = _reservations(self.types)
        self._offering_keys = frozenset(key for requirements in self._offered for key in requirements)
        self._allocatable = axes([item.allocatable for item in self.types])
        self._capacity = axes([item.capacity for item in self.types])
        self._matching = lru_cache(_REMEMBERED)(self._match)
        self._prices = lru_cache(_REMEMBERED)(self._price)
        self._dearest = lru_cache(_REMEMBERED)(self._find_dearest)
        self._implying = lru_cache(_REMEMBERED)(self._imply)
        self._most = lru_cache(_REMEMBERED)(self._find_most)
        self._reached = lru_cache(_REMEMBERED)(self._reach)

    def matching(self, requirements: Requirements) -> TypeSet:
        """Types whose labels intersect the requirements (SCH-165): the R of SCH-331."""
        found = self.everything
        for requirement in requirements.values():
            found &= self._matching(requirement)
        return found

    def _match(self, requirement: Requirement) -> TypeSet:
        forms = self._forms.get(requirement.key)
        if forms is None:
            return self.everything
        tolerant = requirement.accepts_absent
        found = self.everything & ~forms.defined
        if not requirement.complement:
            for value in requirement.values:
                found |= forms.by_value.get(value, 0)
        for form, types in forms.candidates(requirement):
            if form.has_intersection(requirement) or (tolerant and form.accepts_absent):
                found |= types
        return found

    def implying(self, held: Requirement, asked: Requirement) -> TypeSet:
        """Types whose label, once ``held`` is true of it, satisfies what is asked whatever it turns out to be."""
        return self._implying(held, asked)

    def _imply(self, held: Requirement, asked: Requirement) -> TypeSet:
        forms = self._forms.get(asked.key)
        undefined = self.everything if forms is None else self.everything & ~forms.defined
        found = undefined if held.implies(asked) else 0
        for form, types in forms.all if forms is not None else ():
            if form.intersect(held).implies(asked):
                found |= types
        return found

    def values(self, key: str, types: TypeSet) -> frozenset[str]:
        """The values of a label that these types may have."""
        forms = self._forms.get(key)
        if forms is None:
            return frozenset()
        return frozenset(value for value, having in forms.by_value.items() if having & types)

    def buyable(self, requirements: Requirements) -> TypeSet:
        """Types with an available offering the requirements accept: the O of SCH-331."""
        return self.prices(requirements).buyable

    @cached_property
    def _listed(self) -> Mapping[Requirements, tuple[TypeSet, TypeSet]]:
        """Per kind of offering the types that can be had that way now, and those sold out. Only explanations ask for it."""
        found: dict[Requirements, tuple[TypeSet, TypeSet]] = {}
        for position, item in enumerate(self.types):
            for offering in item.offerings:
                now, gone = found.get(offering.requirements, (0, 0))
                bit = 1 << position
                found[offering.requirements] = (now | bit, gone) if offering.available else (now, gone | bit)
        return found

    def listed(self, requirements: Requirements) -> TypeSet:
        """Types with an offering the requirements accept, sold out or not."""
        found: TypeSet = 0
        for now, gone in self._accepted(requirements):
            found |= now | gone
        return found

    def ways(self, requirements: Requirements, types: TypeSet) -> tuple[int, int]:
        """How many offerings of these types the requirements accept: those to be had now, and those sold out."""
        accepted = self._accepted(requirements)
        here = sum((now & types).bit_count() for now, _ in accepted)
        return here, sum((gone & types).bit_count() for _, gone in accepted)

    def _accepted(self, requirements: Requirements) -> list[tuple[TypeSet, TypeSet]]:
        matters = Requirements(item for key, item in requirements.items() if key in self.listed_keys)
        return [sold for offered, sold in self._listed.items() if compatible(matters, offered, self.well_known)]

    @cached_property
    def listed_keys(self) -> frozenset[str]:
        """The labels that offerings, sold out or not, speak of."""
        return frozenset(key for offered in self._listed for key in offered)

    def prices(self, requirements: Requirements) -> Prices:
        """Cheapest accepted available offering per type (SCH-616)."""
        return self._prices(self._of_offerings(requirements))

    def _of_offerings(self, requirements: Requirements) -> Requirements:
        """The requirements that choose among offerings."""
        return Requirements(item for key, item in requirements.items() if key in self._offering_keys)

    def dearest(self, requirements: Requirements) -> Mapping[int, float]:
        """What a launch may cost at worst (DIS-190): of each type the dearest accepted available offering of the first kind there
        is of reserved, spot and on-demand."""
        return self._dearest(self._of_offerings(requirements))

    def _find_dearest(self, requirements: Requirements) -> dict[int, float]:
        found: dict[int, tuple[int, float]] = {}
        for asked, sold in self._offered.items():
            if not compatible(requirements, asked, self.well_known):
                continue
            for position, offering in sold:
                kind = _LAUNCHED.index(offering.capacity_type) if offering.capacity_type in _LAUNCHED else 0
                held = found.get(position)
                if held is None or (-kind, offering.price_per_hour) > (-held[0], held[1]):
                    found[position] = (kind, offering.price_per_hour)
        return {position: price for position, (_, price) in found.items()}

    def _price(self, requirements: Requirements) -> Prices:
        best: dict[int, Offering] = {}
        for asked, sold in self._offered.items():
            if compatible(requirements, asked, self.well_known):
                for position, offering in sold:
                    held = best.get(position)
                    if held is None or _rank(offering) < _rank(held):
                        best[position] = offering
        order = tuple(sorted(best, key=lambda position: (best[position].price_per_hour, position)))
        return Prices(set_of(best), order, best)

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

    def roomiest(self, name: str, types: TypeSet) -> TypeSet:
        """Those of the types that leave most of a resource to pods; all of them where none has any."""
        axis = self._allocatable.get(name)
        return axis.most_among(types) if axis is not None and types else types

    def smallest(self, name: str, types: TypeSet) -> TypeSet:
        """Those of the types that have the least capacity of a resource."""
        axis = self._capacity.get(name)
        return axis.least_among(types) if axis is not None and types else types

    def most(self, types: TypeSet) -> Resources:
        """The most of each resource that any of these types leaves to pods."""
        return self._most(types)

    def _find_most(self, types: TypeSet) -> Resources:
        return res.maximum(self.types[position].allocatable for position in members(types))

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

    def largest_within(self, name: str, amount: int) -> int:
        """The largest capacity of a resource that is no more than the amount; the amount itself where there is none."""
        axis = self._capacity.get(name)
        return amount if axis is None else axis.largest_within(amount)

    def shortages(self, requirements: Requirements, types: TypeSet) -> dict[str, int]:
        """The labels of which the types offer fewer values than ``minValues`` asks, each with how many they offer.

        A value counts where the requirements allow it and an available offering they accept reaches it (SCH-360 Beyond).
        """
        return {
            key: count
            for key, item in requirements.items()
            if item.min_values is not None and (count := self._offers(requirements, key, types)) < item.min_values
        }

    def diverse(self, requirements: Requirements, types: TypeSet) -> bool:
        """Whether the types offer the ``minValues`` the requirements ask for."""
        return not self.shortages(requirements, types)

    def _offers(self, requirements: Requirements, key: str, types: TypeSet) -> int:
        """How many different values of a label the types offer, counting no further than ``minValues``."""
        return self._reached_by(requirements, key).count(types, requirements[key].min_values or 0)

    def _reached_by(self, requirements: Requirements, key: str) -> _Reached:
        matters = self._of_offerings(requirements) if key in self._offering_keys else Requirements()
        return self._reached(requirements[key], matters)

    def _reach(self, asked: Requirement, of_offerings: Requirements) -> _Reached:
        forms = self._forms.get(asked.key)
        values = {v: types for v, types in forms.by_value.items() if asked.allows(v)} if forms is not None else {}
        if asked.key not in self._offering_keys:
            return _Reached(values)
        found: dict[str, TypeSet] = {}
        for offered, sold in self._offered.items():
            if compatible(of_offerings, offered, self.well_known):
                by = set_of(position for position, _ in sold)
                for value, types in values.items():
                    if offered.of(asked.key).allows(value):
                        found[value] = found.get(value, 0) | types & by
        return _Reached({value: types for value, types in found.items() if types})

    def cheapest(self, requirements: Requirements, types: TypeSet, most: int) -> list[int]:
        """The cheapest members that can be bought under the requirements, at most so many and cheapest first.

        Dearer ones take the place of some where the ``minValues`` of the requirements need them (SCH-617).
        """
        order = self.prices(requirements).cheapest_first(types)
        if len(order) <= most or self.diverse(requirements, set_of(order[:most])):
            return order[:most]
        needed = self._needed(requirements, order)
        others = (position for position in order if position not in needed)
        kept = needed | set(islice(others, max(0, most - len(needed))))
        return [position for position in order if position in kept]

    def _needed(self, requirements: Requirements, order: Sequence[int]) -> set[int]:
        """For each label with ``minValues``, the first types to offer so many values."""
        needed: set[int] = set()
        for key, item in requirements.items():
            if item.min_values is not None:
                needed |= self._reached_by(requirements, key).first(order, item.min_values)
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
class _Reached:
    """The values of one label that can be had, each with the types to have it on."""

    by_value: Mapping[str, TypeSet]

    @cached_property
    def _each_its_own(self) -> TypeSet:
        """All types, where every type has a value of its own as with type names; else none."""
        together: TypeSet = 0
        for types in self.by_value.values():
            together |= types
        pairs = sum(types.bit_count() for types in self.by_value.values())
        return together if pairs == len(self.by_value) == together.bit_count() else 0

    def count(self, types: TypeSet, enough: int) -> int:
        """How many values the types offer, at most ``enough``."""
        if self._each_its_own:
            return min(enough, (types & self._each_its_own).bit_count())
        return sum(1 for _ in islice((1 for having in self.by_value.values() if having & types), enough))

    def first(self, order: Iterable[int], enough: int) -> set[int]:
        """The first positions to offer so many values together."""
        needed: set[int] = set()
        missing = dict(self.by_value)
        for position in order:
            gained = [value for value, types in missing.items() if types >> position & 1]
            if gained:
                needed.add(position)
                for value in gained:
                    del missing[value]
                if len(self.by_value) - len(missing) >= enough:
                    break
        return needed


@dataclass(frozen=True)
class _Forms:
    """How the types constrain one label key: each distinct requirement with the types that have it."""

    defined: TypeSet
    all: tuple[tuple[Requirement, TypeSet], ...]
    open: tuple[tuple[Requirement, TypeSet], ...]
    by_value: Mapping[str, TypeSet]

    def candidates(self, asked: Requirement) -> tuple[tuple[Requirement, TypeSet], ...]:
        """The forms worth testing; named values are looked up instead."""
        return self.all if asked.complement else self.open


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


def _reservations(types: Iterable[InstanceType]) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in types:
        for offering in item.offerings:
            if offering.capacity_type == labels.RESERVED:
                units = UNCOUNTED if offering.units_left is None else offering.units_left
                found[offering.reservation] = min(units, found.get(offering.reservation, units))
    return found


def axes(lists: Sequence[Resources]) -> dict[str, Axis]:
    """One axis per resource that any of the lists names; one that lacks it has none of it."""
    names = {name for resources in lists for name in resources}
    return {name: Axis([resources.get(name, 0) for resources in lists]) for name in sorted(names)}


def _rank(offering: Offering) -> tuple[float, str, str]:
    return (offering.price_per_hour, offering.capacity_type, offering.zone)


def set_of(positions: Iterable[int]) -> TypeSet:
    """Positions as a set."""
    types = 0
    for position in positions:
        types |= 1 << position
    return types


def well_known_of(types: Iterable[InstanceType]) -> frozenset[str]:
    """Label keys that types or offerings speak of, and the core ones: all count as well known (OPS-254)."""
    return labels.CORE_WELL_KNOWN.union(
        *((*item.requirements, *(key for sold in item.offerings for key in sold.requirements)) for item in types)
    )
