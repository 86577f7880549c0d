"""An index over instance types for scheduling decisions: every set of types is one integer, one bit per type.

"Which types satisfy this requirement, have an offering in that zone and hold 13 cores" is then three ANDs over a thousand
types at once. Bit ``i`` is the type ``types[i]``; types are held in name order, so lower bits break ties.

* per label key and value: the types having it (`matching`);
* per resource: the distinct allocatable amounts with, for each, the types that have at least that much (`holding`);
* per kind of offering (its requirements): the types that can be launched that way now (`with_available_offering`), and the prices
  (`OfferingPrices`).

Building costs O(types x (labels + offerings)); a query costs a dictionary look-up and a few operations on integers of a
thousand bits. An index is logically immutable: its caches only keep query results, the latest few thousand of each kind, because
the index lives as long as its types while pods bring ever new queries.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, reduce
from itertools import islice
from math import inf
from operator import or_

from karpenter.instancetypes.counted_offerings import counted_offerings
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.label_values import LabelValues, label_forms
from karpenter.instancetypes.type_order import in_order, listed_in_order
from karpenter.instancetypes.type_sets import AmountIndex, TypeSet, amount_indexes, members, type_set, with_at_least
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Requirement, Requirements, compatible
from karpenter.model.resources import Resources

#: Kinds of capacity in the order a launch tries them.
_LAUNCH_ORDER = (labels.RESERVED, labels.SPOT, labels.ON_DEMAND)
#: Cached results per kind of query.
_CACHE_SIZE = 4096
#: The same of what has a number for every type.
_MATRICES = 64
#: What a unit of each resource weighs.
ResourceWeights = tuple[tuple[str, float], ...]


@dataclass(frozen=True, eq=False)
class OfferingPrices:
    """The cheapest acceptable available offering of every type that has one. Equal to itself only, so it is hashed at once.

    ``order`` lists positions by price, ties by name; ``offering`` maps a position to its cheapest offering.
    """

    available_types: TypeSet
    order: tuple[int, ...]
    cheapest_offering: Mapping[int, Offering]

    def cheapest_first(self, types: TypeSet) -> list[int]:
        """The members of a set in price order; members without an offering are omitted."""
        return listed_in_order(self.order, types & self.available_types)

    def cheapest(self, types: TypeSet) -> int:
        """Position of the cheapest member, -1 if none has an offering."""
        return next(in_order(self.order, types & self.available_types), -1)


class TypeIndex:
    """Instance types indexed for set queries. ``well_known`` are the label keys that need not be defined (SCH-168).

    A type whose offerings override amounts has one entry in ``types`` per allocatable group (SCH-117), all of the same name.
    So "fits and has an offering" is one question per entry.
    """

    def __init__(self, types: Iterable[InstanceType], well_known: frozenset[str]) -> None:
        groups = (group for instance_type in types for group in instance_type.allocatable_groups())
        self.types = tuple(sorted(groups, key=lambda instance_type: instance_type.name))
        self.well_known = well_known
        self.all_types: TypeSet = (1 << len(self.types)) - 1
        self._types_by_name = _types_by_name(self.types)
        self._label_forms = label_forms(self.types)
        self._available_offerings = _available_offerings_by_requirements(self.types)
        #: Reservations and stocks (SCH-581), with what is left of each.
        self.counted = counted_offerings(self.types)
        self.reservation_units = self.counted.units
        self._offering_keys = frozenset(key for requirements in self._available_offerings for key in requirements)
        self._allocatable = amount_indexes([instance_type.allocatable for instance_type in self.types])
        self._capacity = amount_indexes([instance_type.capacity for instance_type in self.types])
        self._at_least_as_large_by_resource: dict[str, list[TypeSet]] = {}
        self._matching = lru_cache(_CACHE_SIZE)(self._find_matching)
        self._cheapest_offerings = lru_cache(_CACHE_SIZE)(self._find_cheapest_offerings)
        self._accepted_offerings = lru_cache(_CACHE_SIZE)(self._find_accepted_offerings)
        self._prices_by_requirements = lru_cache(_CACHE_SIZE)(self._find_prices)
        self._min_values_keys = lru_cache(_CACHE_SIZE)(_min_values_keys)
        self._worst_launch_prices = lru_cache(_CACHE_SIZE)(self._find_worst_launch_prices)
        self._implying = lru_cache(_CACHE_SIZE)(self._find_implying)
        self._max_allocatable = lru_cache(_CACHE_SIZE)(self._find_max_allocatable)
        self._max_capacity = lru_cache(_CACHE_SIZE)(self._find_max_capacity)
        self._allocatable_units = lru_cache(_MATRICES)(self._find_allocatable_units)
        self._lowest_unit_prices = lru_cache(_CACHE_SIZE)(self._find_lowest_unit_price)
        self._pareto_fronts = lru_cache(_CACHE_SIZE)(self._find_pareto_front)
        self._available_values_of = lru_cache(_CACHE_SIZE)(self._find_available_values)

    def with_resources(self, amounts_by_resource: Mapping[str, Sequence[int]]) -> TypeIndex:
        """The same types with amounts of further resources, given in the order of ``types``; cached label queries are kept."""
        other = copy(self)
        other.types = tuple(
            replace(
                instance_type,
                capacity={
                    **instance_type.capacity,
                    **{name: amounts[at] for name, amounts in amounts_by_resource.items()},
                },
            )
            for at, instance_type in enumerate(self.types)
        )
        further = {name: AmountIndex(amounts) for name, amounts in amounts_by_resource.items()}
        other._allocatable = {**self._allocatable, **further}
        other._capacity = {**self._capacity, **further}
        other._max_allocatable = lru_cache(_CACHE_SIZE)(other._find_max_allocatable)
        other._max_capacity = lru_cache(_CACHE_SIZE)(other._find_max_capacity)
        other._allocatable_units = lru_cache(_MATRICES)(other._find_allocatable_units)
        other._lowest_unit_prices = lru_cache(_CACHE_SIZE)(other._find_lowest_unit_price)
        other._pareto_fronts = lru_cache(_CACHE_SIZE)(other._find_pareto_front)
        return other

    def defines_label(self, key: str) -> bool:
        """Whether the label is well known, or some type or offering says anything about it."""
        return key in self._label_keys

    @cached_property
    def _label_keys(self) -> frozenset[str]:
        sold = (offering.requirements for instance_type in self.types for offering in instance_type.offerings)
        distinct = {id(requirements): requirements for requirements in sold}
        return self.well_known.union(self._label_forms, *distinct.values())

    def named(self, *names: str) -> TypeSet:
        """The types of these names; names that the index lacks are passed over."""
        return reduce(or_, (self._types_by_name.get(name, 0) for name in names), 0)

    def selling(self, name: str, offering: Offering) -> InstanceType:
        """The type of this name, in the allocatable group that sells the offering; the first group if none does.

        Raises ``KeyError`` if there is no type of this name.
        """
        groups = [self.types[position] for position in members(self._types_by_name[name])]
        return next((group for group in groups if offering in group.offerings), groups[0])

    def matching(self, requirements: Requirements) -> TypeSet:
        """Types whose labels intersect the requirements (SCH-165): the R of SCH-331."""
        matching = self.all_types
        for requirement in requirements.values():
            matching &= self._matching(requirement)
        return matching

    def _find_matching(self, requirement: Requirement) -> TypeSet:
        forms = self._label_forms.get(requirement.key)
        if forms is None:
            return self.all_types
        tolerant = requirement.accepts_absent
        matching = self.all_types & ~forms.defining_types
        if not requirement.complement:
            for value in requirement.values:
                matching |= forms.by_value.get(value, 0)
        for form, types in forms.forms_to_test(requirement):
            if form.has_intersection(requirement) or (tolerant and form.accepts_absent):
                matching |= types
        return matching

    def implying(self, assumed: Requirement, required: Requirement) -> TypeSet:
        """Types whose label satisfies ``required`` for every value that ``assumed`` allows."""
        return self._implying(assumed, required)

    def _find_implying(self, assumed: Requirement, required: Requirement) -> TypeSet:
        forms = self._label_forms.get(required.key)
        undefined = self.all_types if forms is None else self.all_types & ~forms.defining_types
        implying = undefined if assumed.is_subset_of(required) else 0
        for form, types in forms.all_forms if forms is not None else ():
            if form.intersect(assumed).is_subset_of(required):
                implying |= types
        return implying

    def values(self, key: str, types: TypeSet) -> frozenset[str]:
        """The values of a label that these types may have."""
        forms = self._label_forms.get(key)
        if forms is None:
            return frozenset()
        return frozenset(value for value, having in forms.by_value.items() if having & types)

    def with_available_offering(self, requirements: Requirements) -> TypeSet:
        """Types with an available offering the requirements accept: the O of SCH-331."""
        return self.prices(requirements).available_types

    @cached_property
    def _types_by_offering(self) -> Mapping[Requirements, tuple[TypeSet, TypeSet]]:
        """Types by offering requirements: those available now and those unavailable."""
        types_by_offering: dict[Requirements, tuple[TypeSet, TypeSet]] = {}
        for position, instance_type in enumerate(self.types):
            for offering in instance_type.offerings:
                now, gone = types_by_offering.get(offering.requirements, (0, 0))
                bit = 1 << position
                types_by_offering[offering.requirements] = (
                    (now | bit, gone) if offering.available else (now, gone | bit)
                )
        return types_by_offering

    @cached_property
    def types_by_offering_requirements(self) -> Mapping[Requirements, TypeSet]:
        """The ways nodes are sold, each with the types sold so, now or not."""
        return {requirements: now | gone for requirements, (now, gone) in self._types_by_offering.items()}

    def with_any_offering(self, requirements: Requirements) -> TypeSet:
        """Types with an offering the requirements accept, available or not."""
        types: TypeSet = 0
        for now, gone in self._compatible_offerings(requirements):
            types |= now | gone
        return types

    def offering_counts(self, requirements: Requirements, types: TypeSet) -> tuple[int, int]:
        """Number of accepted offerings of these types: available now, and unavailable."""
        accepted = self._compatible_offerings(requirements)
        here = sum((now & types).bit_count() for now, _ in accepted)
        return here, sum((gone & types).bit_count() for _, gone in accepted)

    def _compatible_offerings(self, requirements: Requirements) -> list[tuple[TypeSet, TypeSet]]:
        matters = Requirements(
            requirement for key, requirement in requirements.items() if key in self.all_offering_keys
        )
        return [
            sold for offered, sold in self._types_by_offering.items() if compatible(matters, offered, self.well_known)
        ]

    @cached_property
    def all_offering_keys(self) -> frozenset[str]:
        """Label keys of all offerings, available or not."""
        return frozenset(key for offered in self._types_by_offering for key in offered)

    def prices(self, requirements: Requirements) -> OfferingPrices:
        """Cheapest accepted available offering per type (SCH-616)."""
        return self._prices_by_requirements(requirements)

    def _find_prices(self, requirements: Requirements) -> OfferingPrices:
        return self.cheapest_of_offerings(self.accepted_offerings(requirements))

    def accepted_offerings(self, requirements: Requirements) -> tuple[int, ...]:
        """Numbers of the kinds of available offerings that the requirements accept: of zones and capacity types, as a rule."""
        return self._accepted_offerings(self._offering_requirements(requirements))

    def _find_accepted_offerings(self, requirements: Requirements) -> tuple[int, ...]:
        return tuple(
            number
            for number, offered in enumerate(self._available_offerings)
            if compatible(requirements, offered, self.well_known)
        )

    def cheapest_of_offerings(self, numbers: tuple[int, ...]) -> OfferingPrices:
        """The cheapest available offering per type among these kinds."""
        return self._cheapest_offerings(numbers)

    @cached_property
    def fixed_label_keys(self) -> frozenset[str]:
        """Labels of which every type, or every available offering, has exactly one value or none."""
        of_types = (
            key for key, forms in self._label_forms.items() if forms.is_fixed and forms.defining_types == self.all_types
        )
        of_offerings = (
            key
            for key in self._offering_keys
            if all(_has_one_value(offered.get(key)) for offered in self._available_offerings)
        )
        return frozenset((*of_types, *of_offerings))

    def _offering_requirements(self, requirements: Requirements) -> Requirements:
        """The requirements on labels of offerings."""
        return Requirements(requirement for key, requirement in requirements.items() if key in self._offering_keys)

    def worst_launch_prices(self, requirements: Requirements) -> Mapping[int, float]:
        """Worst-case launch price per type (DIS-190): its most expensive accepted available offering of the first capacity type
        available among reserved, spot and on-demand."""
        return self._worst_launch_prices(self._offering_requirements(requirements))

    def _find_worst_launch_prices(self, requirements: Requirements) -> dict[int, float]:
        worst: dict[int, tuple[int, float]] = {}
        for offering_requirements, offerings in self._available_offerings.items():
            if not compatible(requirements, offering_requirements, self.well_known):
                continue
            for position, offering in offerings.items():
                kind = _LAUNCH_ORDER.index(offering.capacity_type) if offering.capacity_type in _LAUNCH_ORDER else 0
                current = worst.get(position)
                if current is None or (-kind, offering.price_per_hour) > (-current[0], current[1]):
                    worst[position] = (kind, offering.price_per_hour)
        return {position: price for position, (_, price) in worst.items()}

    def _find_cheapest_offerings(self, numbers: tuple[int, ...]) -> OfferingPrices:
        offerings_by_number = tuple(self._available_offerings.values())
        accepted = [offerings_by_number[number] for number in numbers]
        best = dict(accepted[0]) if accepted else {}
        for offerings in accepted[1:]:
            for position, offering in offerings.items():
                current = best.get(position)
                if current is None or offering.price_per_hour < current.price_per_hour:
                    best[position] = offering
        order = sorted([(offering.price_per_hour, position) for position, offering in best.items()])
        return OfferingPrices(type_set(best), tuple([position for _, position in order]), best)

    def fitting(self, requests: Resources) -> TypeSet:
        """Types whose allocatable resources cover the requests (SCH-198): the F of SCH-331, offerings aside."""
        return with_at_least(requests, self._allocatable, self.all_types)

    @property
    def resources(self) -> Iterable[str]:
        """All resources of the types."""
        return self._capacity.keys()

    def largest_allocatable(self, name: str, types: TypeSet) -> TypeSet:
        """Those of the types with the largest allocatable amount of a resource; all of them if none has any."""
        axis = self._allocatable.get(name)
        return axis.largest_of(types) if axis is not None and types else types

    def smallest_capacity(self, name: str, types: TypeSet) -> TypeSet:
        """Those of the types with the smallest capacity of a resource."""
        axis = self._capacity.get(name)
        return axis.smallest_of(types) if axis is not None and types else types

    def max_allocatable(self, types: TypeSet) -> Resources:
        """The largest allocatable amount of each resource over these types."""
        return self._max_allocatable(types)

    def _find_max_allocatable(self, types: TypeSet) -> Resources:
        return res.maximum(self.types[position].allocatable for position in members(types))

    def allocatable_units(self, units: tuple[tuple[str, int], ...]) -> array[float]:
        """Allocatable amounts of these resources in units of these sizes, rounded down: type after type, in that order."""
        return self._allocatable_units(units)

    def _find_allocatable_units(self, units: tuple[tuple[str, int], ...]) -> array[float]:
        return array("d", (type_.allocatable.get(name, 0) // size for type_ in self.types for name, size in units))

    def lowest_unit_price(self, requirements: Requirements, types: TypeSet, weights: ResourceWeights) -> float:
        """The least USD per hour for a unit of weighted allocatable resources; infinite where no type offers any."""
        return self._lowest_unit_prices(requirements, types, weights)

    def _find_lowest_unit_price(self, requirements: Requirements, types: TypeSet, weights: ResourceWeights) -> float:
        prices = self.prices(requirements)
        lowest = inf
        for position in members(types & prices.available_types):
            allocatable = self.types[position].allocatable
            weight = sum(allocatable.get(name, 0) * factor for name, factor in weights)
            if weight > 0:
                lowest = min(lowest, prices.cheapest_offering[position].price_per_hour / weight)
        return lowest

    def max_capacity(self, types: TypeSet) -> Resources:
        """The largest capacity of each resource over these types."""
        return self._max_capacity(types)

    def _find_max_capacity(self, types: TypeSet) -> Resources:
        return res.maximum(self.types[position].capacity for position in members(types))

    def within_limits(self, remaining: Resources) -> TypeSet:
        """Types whose capacity does not exceed any remaining limit; a missing resource counts as 0 (SCH-382)."""
        types = self.all_types
        for name, amount in remaining.items():
            axis = self._capacity.get(name)
            if axis is not None:
                types &= axis.at_most(amount)
            elif amount < 0:
                return 0
        return types

    def largest_capacity_within(self, name: str, amount: int) -> int:
        """The largest capacity of a resource not above the amount; the amount itself if there is none."""
        axis = self._capacity.get(name)
        return amount if axis is None else axis.largest_within(amount)

    def min_values_shortages(self, requirements: Requirements, types: TypeSet) -> dict[str, int]:
        """The labels of which the types offer fewer values than ``minValues`` asks, each with how many they offer.

        A value counts where the requirements allow it and an available offering they accept reaches it (SCH-360 Beyond).
        """
        return {
            key: count
            for key, least in self._min_values_keys(requirements)
            if (count := self._value_count(requirements, key, types)) < least
        }

    def satisfies_min_values(self, requirements: Requirements, types: TypeSet) -> bool:
        """Whether the types offer the ``minValues`` the requirements ask for."""
        return not self._min_values_keys(requirements) or not self.min_values_shortages(requirements, types)

    def _value_count(self, requirements: Requirements, key: str, types: TypeSet) -> int:
        """Number of distinct values of a label over the types, counted up to ``minValues``."""
        return self._available_values(requirements, key).count(types, requirements[key].min_values or 0)

    def _available_values(self, requirements: Requirements, key: str) -> LabelValues:
        matters = self._offering_requirements(requirements) if key in self.all_offering_keys else Requirements()
        return self._available_values_of(requirements[key], matters)

    def _find_available_values(self, requirement: Requirement, of_offerings: Requirements) -> LabelValues:
        forms = self._label_forms.get(requirement.key)
        values = {v: types for v, types in forms.by_value.items() if requirement.allows(v)} if forms is not None else {}
        if requirement.key not in self.all_offering_keys:
            return LabelValues(values)
        available_values: dict[str, TypeSet] = {}
        for offered, sold in self._available_offerings.items():
            if compatible(of_offerings, offered, self.well_known):
                by = type_set(sold)
                for value, types in values.items():
                    if offered.requirement_for(requirement.key).allows(value):
                        available_values[value] = available_values.get(value, 0) | types & by
        return LabelValues({value: types for value, types in available_values.items() if types})

    def cheapest(self, requirements: Requirements, types: TypeSet, limit: int) -> list[int]:
        """The cheapest members that can be launched under the requirements, at most so many and cheapest first.

        More expensive ones replace some of them if the ``minValues`` of the requirements need them (SCH-617).
        """
        order = self.prices(requirements).cheapest_first(types)
        if len(order) <= limit or self.satisfies_min_values(requirements, type_set(order[:limit])):
            return order[:limit]
        needed = self._types_for_min_values(requirements, order)
        others = (position for position in order if position not in needed)
        kept = needed | set(islice(others, max(0, limit - len(needed))))
        return [position for position in order if position in kept]

    def _types_for_min_values(self, requirements: Requirements, order: Sequence[int]) -> set[int]:
        """For each label with ``minValues``, the first types that together offer that many values."""
        needed: set[int] = set()
        for key, requirement in requirements.items():
            if requirement.min_values is not None:
                needed |= self._available_values(requirements, key).first_types_offering(order, requirement.min_values)
        return needed

    def pareto_front(self, types: TypeSet, prices: OfferingPrices, resources: Iterable[str]) -> Sequence[int]:
        """The Pareto front of the members by price and the named resources, cheapest first."""
        return self._pareto_fronts(types, prices, tuple(resources))

    def _find_pareto_front(self, types: TypeSet, prices: OfferingPrices, resources: Sequence[str]) -> tuple[int, ...]:
        columns = [self._at_least_as_large(name) for name in resources if name in self._allocatable]
        kept: list[int] = []
        seen: TypeSet = 0
        for position in prices.order:
            if not types >> position & 1:
                continue
            better = seen
            for with_as_much in columns:
                better &= with_as_much[position]
            if not better:
                kept.append(position)
            seen |= 1 << position
        return tuple(kept)

    def _at_least_as_large(self, name: str) -> list[TypeSet]:
        """For each type, the types with at least the same allocatable amount of a resource."""
        type_sets = self._at_least_as_large_by_resource.get(name)
        if type_sets is None:
            axis = self._allocatable[name]
            type_sets = self._at_least_as_large_by_resource[name] = [
                axis.at_least(instance_type.allocatable.get(name, 0)) for instance_type in self.types
            ]
        return type_sets


def _types_by_name(types: Sequence[InstanceType]) -> dict[str, TypeSet]:
    types_by_name: dict[str, TypeSet] = {}
    for position, instance_type in enumerate(types):
        types_by_name[instance_type.name] = types_by_name.get(instance_type.name, 0) | 1 << position
    return types_by_name


def _available_offerings_by_requirements(types: Sequence[InstanceType]) -> dict[Requirements, dict[int, Offering]]:
    """Per kind of offering, the types with an available offering of that kind, each with its cheapest.

    Kinds go by capacity type, then zone: of equal prices the first counts.
    """
    offerings_by_requirements: dict[Requirements, dict[int, Offering]] = {}
    for position, entry in enumerate(types):
        for offering in entry.offerings:
            if offering.launchable:
                offerings = offerings_by_requirements.setdefault(offering.requirements, {})
                current = offerings.get(position)
                if current is None or offering.price_per_hour < current.price_per_hour:
                    offerings[position] = offering
    entries = offerings_by_requirements.items()
    return dict(sorted(entries, key=lambda entry: _offering_sort_key(next(iter(entry[1].values())))))


def _min_values_keys(requirements: Requirements) -> tuple[tuple[str, int], ...]:
    """The labels with ``minValues``, each with that number."""
    return tuple(
        (key, requirement.min_values) for key, requirement in requirements.items() if requirement.min_values is not None
    )


def _has_one_value(requirement: Requirement | None) -> bool:
    return requirement is not None and not requirement.complement and len(requirement.values) == 1


def _offering_sort_key(offering: Offering) -> tuple[str, str]:
    return (offering.capacity_type, offering.zone)
