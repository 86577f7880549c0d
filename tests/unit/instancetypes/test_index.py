"""Every query of the index answers as a plain loop over the types would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import AmountIndex, TypeSet, members
from karpenter.instancetypes.well_known_labels import label_absent, label_in
from karpenter.model import labels
from karpenter.model.requirements import Requirement, Requirements, compatible, intersects, requirement
from karpenter.model.resources import Resources, fits, subtract
from support.examples import examples

FAMILY, CORES, GPU = "family", "cores", "a/gpu"
WELL_KNOWN = frozenset({FAMILY, CORES, GPU, labels.ZONE, labels.CAPACITY_TYPE})
_QUICK = settings(max_examples=examples(120), deadline=None)

amounts = st.fixed_dictionaries(
    {"cpu": st.sampled_from([1000, 2000, 4000])},
    optional={"memory": st.sampled_from([1, 2]), GPU: st.sampled_from([0, 1000])},
)
forms = {
    FAMILY: st.sampled_from(
        [label_in(FAMILY, "a"), label_in(FAMILY, "b"), label_in(FAMILY, "a", "c"), label_absent(FAMILY)]
    ),
    CORES: st.sampled_from(
        [label_in(CORES, "1"), label_in(CORES, "4"), Requirement(CORES, True, gte=3), Requirement(CORES, True)]
    ),
    GPU: st.sampled_from([label_absent(GPU), label_in(GPU, "x")]),
}
offerings = st.lists(
    st.builds(
        lambda zone, kind, price, available, larger, leaner: Offering(
            Requirements((label_in(labels.ZONE, zone), label_in(labels.CAPACITY_TYPE, kind))),
            price,
            available,
            capacity_override=larger,
            overhead_override=leaner,
        ),
        st.sampled_from(["z1", "z2"]),
        st.sampled_from(["spot", "on-demand"]),
        st.sampled_from([1.0, 2.0, 3.0]),
        st.booleans(),
        st.sampled_from([{}, {}, {"cpu": 8000}, {"memory": 2, GPU: 1000}]),
        st.sampled_from([{}, {}, {"cpu": 100}, {"memory": 1}]),
    ),
    max_size=3,
)
shapes = st.tuples(
    st.fixed_dictionaries({}, optional=forms), amounts, st.dictionaries(st.just("cpu"), st.just(500)), offerings
)
type_lists = st.lists(shapes, max_size=6).map(
    lambda answer: [
        InstanceType(f"t{n}", Requirements(own.values()), capacity, overhead, tuple(sold))
        for n, (own, capacity, overhead, sold) in enumerate(answer)
    ]
)
asked = st.builds(
    requirement,
    st.sampled_from([FAMILY, CORES, GPU, labels.ZONE, labels.CAPACITY_TYPE, "elsewhere"]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte"]),
    st.sampled_from([("a",), ("a", "b"), ("1",), ("3",), ("z1",), ("spot",), ("x",)]),
)
requirement_sets = st.lists(asked, max_size=3).map(Requirements)
resources = st.dictionaries(
    st.sampled_from(["cpu", "memory", GPU, "other"]), st.sampled_from([-1, 0, 1, 500, 1000, 2000, 3500])
)


def chosen(index: TypeIndex, keep: Callable[[InstanceType], bool]) -> TypeSet:
    return sum(1 << position for position, instance_type in enumerate(index.types) if keep(instance_type))


def offered(instance_type: InstanceType, wanted: Requirements) -> list[Offering]:
    return [o for o in instance_type.offerings if o.available and compatible(wanted, o.requirements, WELL_KNOWN)]


def rank(offering: Offering) -> tuple[float, str, str]:
    return (offering.price_per_hour, offering.capacity_type, offering.zone)


@_QUICK
@given(type_lists, requirement_sets)
def test_matching_types_are_those_whose_labels_intersect(types: list[InstanceType], wanted: Requirements) -> None:
    """SCH-165, SCH-331 R"""
    index = TypeIndex(types, WELL_KNOWN)
    expected = chosen(index, lambda instance_type: intersects(instance_type.requirements, wanted))
    assert index.matching(wanted) == expected
    assert index.matching(wanted) == expected, "a remembered answer is the same answer"


@_QUICK
@given(type_lists, requirement_sets)
def test_prices_are_of_the_cheapest_accepted_available_offering(
    types: list[InstanceType], wanted: Requirements
) -> None:
    """SCH-331 O, SCH-616"""
    index = TypeIndex(types, WELL_KNOWN)
    cheapest = {i: min(actual, key=rank) for i, t in enumerate(index.types) if (actual := offered(t, wanted))}
    prices = index.prices(wanted)
    assert {i: rank(o) for i, o in prices.cheapest_offering.items()} == {i: rank(o) for i, o in cheapest.items()}
    assert list(prices.order) == sorted(cheapest, key=lambda i: (cheapest[i].price_per_hour, i))
    assert index.with_available_offering(wanted) == prices.available_types == sum(1 << i for i in cheapest)


@_QUICK
@given(type_lists, st.integers(0, 63))
def test_members_come_in_price_order(types: list[InstanceType], some: int) -> None:
    """SCH-616, OPS-239, OPS-P4: types are ordered by their cheapest available offering."""
    index = TypeIndex(types, WELL_KNOWN)
    prices, some = index.prices(Requirements()), some & index.all_types
    inside = [position for position in prices.order if position in set(members(some))]
    assert prices.cheapest_first(some) == inside
    assert prices.cheapest(some) == (inside[0] if inside else -1)


@_QUICK
@given(type_lists, resources)
def test_holding_types_have_all_that_is_requested(types: list[InstanceType], requests: Resources) -> None:
    """SCH-198, SCH-331 F"""
    index = TypeIndex(types, WELL_KNOWN)
    assert index.fitting(requests) == chosen(index, lambda instance_type: fits(requests, instance_type.allocatable))


@_QUICK
@given(type_lists, resources)
def test_types_within_limits_need_no_more_capacity_than_is_left(types: list[InstanceType], left: Resources) -> None:
    """SCH-382"""
    index = TypeIndex(types, WELL_KNOWN)
    expected = chosen(
        index, lambda instance_type: all(instance_type.capacity.get(name, 0) <= amount for name, amount in left.items())
    )
    assert index.within_limits(left) == expected


def values_to_be_had(instance_type: InstanceType, key: str, wanted: Requirements) -> set[str]:
    """Values the type may end up with under the requirements."""
    own = instance_type.requirements.requirement_for(key)
    possible = {v for v in own.values if wanted[key].allows(v)} if not own.complement else set()
    if not any(key in o.requirements for t in [instance_type] for o in t.offerings):
        return possible
    return {v for v in possible if any(o.requirements[key].allows(v) for o in offered(instance_type, wanted))}


@_QUICK
@given(type_lists, requirement_sets, st.sampled_from([*forms, labels.ZONE, "elsewhere"]), st.integers(0, 63))
def test_values_count_where_they_can_be_had(
    types: list[InstanceType], others: Requirements, key: str, some: int
) -> None:
    """SCH-360 Beyond: allowed by the requirements, reached by an accepted available offering."""
    types = [with_zones(instance_type) for instance_type in types]
    index = TypeIndex(types, WELL_KNOWN)
    wanted = others.intersect(Requirements((Requirement(key, True, min_values=4),)))
    some &= index.all_types
    actual = {v for at in members(some) for v in values_to_be_had(index.types[at], key, wanted)}
    assert index.min_values_shortages(wanted, some) == {key: len(actual)}
    assert index.satisfies_min_values(wanted, some) == (len(actual) >= 4)


def with_zones(instance_type: InstanceType) -> InstanceType:
    """The type with a zone label of all its offerings, as real types have it."""
    zones = sorted({offering.zone for offering in instance_type.offerings})
    own = (label_in(labels.ZONE, *zones),) if zones else ()
    return InstanceType(
        instance_type.name,
        Requirements((*instance_type.requirements.values(), *own)),
        instance_type.capacity,
        {},
        instance_type.offerings,
    )


@_QUICK
@given(type_lists, st.integers(0, 63), st.sets(st.sampled_from(["cpu", "memory", GPU, "other"])))
def test_efficient_types_are_beaten_by_none(types: list[InstanceType], some: int, names: set[str]) -> None:
    index = TypeIndex(types, WELL_KNOWN)
    some &= index.all_types
    prices = index.prices(Requirements())
    candidates = prices.cheapest_first(some)

    def beaten(loser: int, place: int) -> bool:
        own = index.types[loser].allocatable
        return any(
            all(index.types[winner].allocatable.get(name, 0) >= own.get(name, 0) for name in names)
            for winner in candidates[:place]
        )

    assert list(index.pareto_front(some, prices, names)) == [
        c for place, c in enumerate(candidates) if not beaten(c, place)
    ]


@_QUICK
@given(type_lists, st.integers(1, 3), st.integers(1, 6))
def test_a_cut_to_the_cheapest_types_keeps_min_values_where_it_can(
    types: list[InstanceType], least: int, most: int
) -> None:
    """SCH-617.

    SCH-361, OPS-241: of types sorted by price, minValues need a prefix of their own; no more are kept than they ask
    for.
    """
    index = TypeIndex(types, WELL_KNOWN)
    wanted = Requirements((Requirement(FAMILY, True, min_values=least),))
    kept = index.cheapest(wanted, index.all_types, most)
    everything = index.prices(wanted).cheapest_first(index.all_types)
    assert kept == [position for position in everything if position in kept]
    if index.satisfies_min_values(wanted, sum(1 << position for position in everything)):
        assert index.satisfies_min_values(wanted, sum(1 << position for position in kept))
    if len(kept) > most:
        assert most < least, "only minValues may ask for more than was wanted"
    assert len(kept) >= min(most, len(everything))


@_QUICK
@given(type_lists)
def test_the_order_types_are_given_in_does_not_matter(types: list[InstanceType]) -> None:
    forwards, backwards = TypeIndex(types, WELL_KNOWN), TypeIndex(reversed(types), WELL_KNOWN)
    assert forwards.types == backwards.types
    assert vars(forwards.prices(Requirements())) == vars(backwards.prices(Requirements()))


@_QUICK
@given(type_lists)
def test_every_offering_is_sold_once_by_an_entry_of_its_amounts(types: list[InstanceType]) -> None:
    """SCH-117, OPS-238: an override replaces or adds amounts of capacity, and amounts of the total overhead."""
    index = TypeIndex(types, WELL_KNOWN)
    for instance_type in types:
        groups = [index.types[position] for position in members(index.named(instance_type.name))]
        sold = [(rank(offer), group.allocatable) for group in groups for offer in group.offerings]
        expected = [
            (rank(offer), subtract(instance_type.capacity | offer.capacity_override, overhead))
            for offer in instance_type.offerings
            for overhead in [instance_type.overhead | offer.overhead_override]
        ]
        assert sorted(sold, key=_by_content) == sorted(expected, key=_by_content)
        assert len(groups) == 1 or all(group.offerings for group in groups)


def _by_content(entry: tuple[tuple[float, str, str], Resources]) -> object:
    return (entry[0], sorted(entry[1].items()))


def test_the_entry_that_sells_an_offering_is_found_by_name() -> None:
    """SCH-117: the base group is the first, and stands for an offering that nobody sells."""
    here, there = (
        Offering(Requirements((label_in(labels.ZONE, zone), label_in(labels.CAPACITY_TYPE, "spot"))), 1.0)
        for zone in ("z1", "z2")
    )
    large = replace(there, capacity_override={"cpu": 8000})
    index = TypeIndex([InstanceType("t", Requirements(), {"cpu": 4000}, {}, (large, here))], WELL_KNOWN)
    assert [entry.allocatable["cpu"] for entry in index.types] == [4000, 8000]
    assert index.selling("t", there).allocatable["cpu"] == 8000
    assert index.selling("t", here).allocatable["cpu"] == 4000
    assert index.selling("t", replace(here, price_per_hour=9.0)).allocatable["cpu"] == 4000
    assert index.named("t", "elsewhere").bit_count() == 2


def test_an_offering_that_is_unavailable_adds_no_value() -> None:
    """SCH-360 Beyond: the only zone of the type cannot be launched."""
    sold = Offering(Requirements((label_in(labels.ZONE, "z1"), label_in(labels.CAPACITY_TYPE, "spot"))), 1.0, False)
    types = [with_zones(InstanceType("t0", Requirements(), {"cpu": 1000}, {}, (sold,)))]
    wanted = Requirements((Requirement(labels.ZONE, True, min_values=4),))
    assert TypeIndex(types, WELL_KNOWN).min_values_shortages(wanted, 1) == {labels.ZONE: 0}


@_QUICK
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.dictionaries(st.integers(0, 11), st.integers(0, 9)))
def test_an_index_after_a_change_is_the_one_made_of_the_changed_amounts(
    before: list[int], change: dict[int, int]
) -> None:
    """Bases of what-if questions follow the moves that were decided on them."""
    changed = {position: amount for position, amount in change.items() if position < len(before)}
    updated = AmountIndex(before).with_changed(changed)
    made_anew = AmountIndex([changed.get(position, amount) for position, amount in enumerate(before)])
    everything = (1 << len(before)) - 1
    for amount in range(-1, 11):
        assert updated.at_least(amount) == made_anew.at_least(amount)
        assert updated.at_most(amount) == made_anew.at_most(amount) == everything & ~updated.at_least(amount + 1)
