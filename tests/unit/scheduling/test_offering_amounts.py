"""Offerings with a capacity or overhead of their own (SCH-117, OPS-238, K15-101)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.well_known_labels import label_in
from karpenter.model import labels
from karpenter.model.requirements import Requirements
from support.builders import ANY_CAPACITY, details, left, new_types, node_pool, plan, pods, sizes
from support.examples import examples
from support.instance_types import offering, shape

SMALL = offering("spot", "z1", 1.0)
LARGE = replace(offering("spot", "z2", 1.5), capacity_override={"cpu": 8_000})
POOL = node_pool(requirements=[ANY_CAPACITY])
CORE = {"cpu": "1"}


def sold(*offerings: Offering, name: str = "t") -> InstanceType:
    """A type of four cores without overhead."""
    return shape(name, {"cpu": 4, "memory": "64Gi", "pods": 100}, offerings, overhead={})


def test_pods_are_packed_by_what_the_offering_holds() -> None:
    """Eight cores in one larger offering are cheaper than two smaller ones."""
    solution = plan(POOL, pods(8, CORE), types=[sold(SMALL, LARGE)])
    assert (new_types(solution), sizes(solution), solution.price_per_hour) == (["t"], [8], 1.5)
    assert solution.new_claims[0].cheapest_offering.zone == "z2"
    assert solution.lower_bound_per_hour == pytest.approx(1.5)


def test_a_pod_that_only_one_offering_holds_gets_it() -> None:
    """F of SCH-331: in some group that contains an accepted offering."""
    waiting = pods(1, {"cpu": "6"})
    assert new_types(plan(POOL, waiting, types=[sold(SMALL, LARGE)])) == ["t"]
    assert len(left(plan(POOL, waiting, types=[sold(SMALL, replace(LARGE, available=False))]))) == 1
    in_zone = pods(1, {"cpu": "6"}, node_selector={labels.ZONE: "z1"})
    solution = plan(POOL, in_zone, types=[sold(SMALL, LARGE)])
    assert len(left(solution)) == 1
    assert "cpu" in details(solution)


def test_an_offering_may_leave_less_or_more_to_pods() -> None:
    """The overhead of an offering replaces that of the type, resource by resource."""
    burdened = replace(SMALL, overhead_override={"cpu": 1_000})
    assert sorted(sizes(plan(POOL, pods(4, CORE), types=[sold(burdened)]))) == [1, 3]
    elsewhere = offering("spot", "z2", 1.1)
    assert sizes(plan(POOL, pods(4, CORE), types=[sold(burdened, elsewhere)])) == [4]


def test_pods_keep_their_place_on_a_claim_that_launches_into_a_larger_offering() -> None:
    """A claim in flight is what holds its requests: nothing is launched again (SCH-071)."""
    waiting, types = pods(8, CORE), [sold(SMALL, LARGE)]
    first = plan(POOL, waiting, types=types)
    again = plan(POOL, waiting, [planned.claim for planned in first.new_claims], types=types)
    assert (left(again), sizes(again)) == ([], [])


def test_a_limit_counts_what_the_offering_brings() -> None:
    """SCH-382"""
    pool = node_pool(requirements=[ANY_CAPACITY], limits={"cpu": "7"})
    solution = plan(pool, pods(4, CORE), types=[sold(replace(SMALL, price_per_hour=2.0), LARGE)])
    assert (new_types(solution), solution.price_per_hour) == (["t"], 2.0)


amounts = st.sampled_from([{}, {}, {"cpu": 2_000}, {"cpu": 8_000}, {"cpu": 16_000, "memory": 2**33 * 1_000}])
overheads = st.sampled_from([{}, {}, {"cpu": 500}, {"memory": 2**32 * 1_000}])
offered = st.lists(
    st.builds(
        lambda kind, zone, price, capacity, overhead: replace(
            offering(kind, zone, price), capacity_override=capacity, overhead_override=overhead
        ),
        st.sampled_from(["spot", "on-demand"]),
        st.sampled_from(["z1", "z2"]),
        st.sampled_from([0.5, 0.9, 1.0, 1.6]),
        amounts,
        overheads,
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda each: (each.capacity_type, each.zone),
)
waiting_pods = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["500m", "1", "3", "6"])), min_size=1, max_size=3)


def allocatable_groups_as_types(instance_type: InstanceType) -> list[InstanceType]:
    """Each allocatable group as a type with a name of its own."""
    groups = instance_type.allocatable_groups()
    names = [f"{instance_type.name}-{number}" for number in range(len(groups))]
    return [
        replace(
            group,
            name=name,
            requirements=Requirements(
                {**group.requirements, labels.INSTANCE_TYPE: label_in(labels.INSTANCE_TYPE, name)}.values()
            ),
        )
        for name, group in zip(names, groups, strict=True)
    ]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(offered, min_size=1, max_size=3), waiting_pods)
def test_a_plan_costs_what_it_would_if_each_group_were_a_type(
    sales: list[list[Offering]], asked: list[tuple[int, str]]
) -> None:
    """SCH-117: packing, search and bound know nothing of names."""
    types = [sold(*offerings, name=f"t{number}") for number, offerings in enumerate(sales)]
    waiting = [
        pod for number, (count, cpu) in enumerate(asked) for pod in pods(count, {"cpu": cpu}, prefix=f"p{number}")
    ]
    together = plan(POOL, waiting, types=types)
    separate = plan(
        POOL, waiting, types=[group for instance_type in types for group in allocatable_groups_as_types(instance_type)]
    )
    assert len(left(together)) == len(left(separate))
    assert together.price_per_hour == pytest.approx(separate.price_per_hour)
    assert together.lower_bound_per_hour == pytest.approx(separate.lower_bound_per_hour)
