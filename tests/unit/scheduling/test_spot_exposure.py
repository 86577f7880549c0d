"""Exposure: not all spot nodes of a NodePool in one type and zone: a preference that can be relaxed (issue of price, point 3)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from karpenter.api.meta import ObjectMeta
from karpenter.instancetypes import ec2_packaged_types
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels
from karpenter.model.requirements import requirements_from_wire
from karpenter.scheduling.explain.reason_messages import exposure_messages
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, Objective
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import Solution, ViolationCause
from karpenter.scheduling.solver import solve
from support.builders import (
    NOW,
    claim,
    left,
    node_and_claim,
    node_pool,
    plan,
    pods,
    pool_taint,
    replaced,
    snapshot,
    wanted,
    where,
)
from support.instance_types import offering, shape

SPOT = [wanted(labels.CAPACITY_TYPE, "In", "spot")]
OFF = SchedulingOptions(objective=Objective(exposure=NO_EXPOSURE_LIMITS))
ALONE = {"cpu": "3"}


def sold(name: str, *prices: float, kind: str = "spot") -> InstanceType:
    """A type of four cores, sold in as many zones as there are prices."""
    offerings = [offering(kind, f"z{number}", price) for number, price in enumerate(prices, start=1)]
    return shape(name, {"cpu": 4, "memory": "16Gi", "pods": 10}, offerings)


def places(result: Solution) -> Counter[tuple[str, str]]:
    """Where the planned claims would be launched."""
    return Counter(
        (new_nodeclaim.instance_types[0], new_nodeclaim.cheapest_offering.zone) for new_nodeclaim in result.new_claims
    )


def test_half_of_the_spot_nodes_go_elsewhere() -> None:
    """The zone with the next price takes what is too much for the cheapest one."""
    types = [sold("a", 0.10, 0.11, 0.12)]
    assert places(plan(node_pool("np", SPOT), pods(8, ALONE), types=types, options=OFF)) == {("a", "z1"): 8}
    solution = plan(node_pool("np", SPOT), pods(8, ALONE), types=types)
    assert places(solution) == {("a", "z1"): 4, ("a", "z2"): 4}
    assert solution.exposure_violations == ()


def test_another_type_in_the_same_zone_will_do_as_well() -> None:
    types = [sold("a", 0.10), sold("b", 0.11)]
    solution = plan(node_pool("np", SPOT), pods(6, ALONE), types=types)
    assert places(solution) == {("a", "z1"): 3, ("b", "z1"): 3}
    assert [new_nodeclaim.instance_types for new_nodeclaim in solution.new_claims].count(("a", "b")) == 3, (
        "who stays keeps all types"
    )


def test_what_is_moved_cannot_be_launched_where_it_came_from() -> None:
    """The claim itself rules it out: the cloud reads nothing else."""
    solution = plan(node_pool("np", SPOT), pods(4, ALONE), types=[sold("a", 0.10, 0.11)])
    for new_nodeclaim in solution.new_claims:
        zones = requirements_from_wire(new_nodeclaim.claim.spec.requirements).requirement_for(labels.ZONE)
        assert zones.allows("z2")
        assert zones.allows("z1") == (new_nodeclaim.cheapest_offering.zone == "z1")


def test_few_nodes_may_be_in_one_place() -> None:
    assert places(plan(node_pool("np", SPOT), pods(3, ALONE), types=[sold("a", 0.10, 0.11)])) == {("a", "z1"): 3}


def test_on_demand_nodes_may_be_in_one_place() -> None:
    solution = plan(node_pool(), pods(8, ALONE), types=[sold("a", 0.10, 0.11, kind="on-demand")])
    assert places(solution) == {("a", "z1"): 8}


@pytest.mark.parametrize("share", ["off", "0.25"])
def test_a_node_pool_may_ask_for_another_share(share: str) -> None:
    made = node_pool("np", SPOT)
    pool = replaced(made, metadata=ObjectMeta(name="np", uid="uid-np", annotations={labels.EXPOSURE: share}))
    solution = plan(pool, pods(8, ALONE), types=[sold("a", 0.10, 0.11, 0.12, 0.121)])
    assert max(places(solution).values()) == (8 if share == "off" else 2)


def test_nodes_that_exist_count() -> None:
    """Four are there in the cheapest place: of eight that is enough, so that all new ones go elsewhere."""
    own = {labels.CAPACITY_TYPE: "spot", labels.INSTANCE_TYPE: "a", labels.ZONE: "z1"}
    there = [node_and_claim(f"n{number}", {"cpu": "1"}, labels=own) for number in range(4)]
    solution = plan(node_pool("np", SPOT), there, pods(4, ALONE), types=[sold("a", 0.10, 0.11)])
    assert places(solution) == {("a", "z2"): 4}


def test_a_claim_on_its_way_counts_where_it_is_going_to_be_launched() -> None:
    asked = [*SPOT, wanted(labels.INSTANCE_TYPE, "In", "a")]
    coming = [claim(f"c{number}", None, asked, taints=(pool_taint("other"),)) for number in range(3)]
    solution = plan(node_pool("np", SPOT), coming, pods(3, ALONE), types=[sold("a", 0.10, 0.11)])
    assert places(solution) == {("a", "z2"): 3}


def test_nodes_of_other_pools_and_those_leaving_do_not_count() -> None:
    own = {labels.CAPACITY_TYPE: "spot", labels.INSTANCE_TYPE: "a", labels.ZONE: "z1"}
    leaving = [node_and_claim(f"n{number}", {"cpu": "1"}, labels=own, deleted=True) for number in range(4)]
    others = [node_and_claim(f"o{number}", {"cpu": "1"}, labels=own, pool="other") for number in range(4)]
    solution = plan(node_pool("np", SPOT), leaving, others, pods(3, ALONE), types=[sold("a", 0.10, 0.11)])
    assert places(solution) == {("a", "z1"): 3}


def test_pods_bound_to_a_zone_stay_there_and_the_plan_says_so() -> None:
    """No other type, no other zone: the preference is relaxed."""
    waiting = pods(6, ALONE, affinity=where(labels.ZONE, "In", "z1"))
    solution = plan(node_pool("np", SPOT), waiting, types=[sold("a", 0.10, 0.11)])
    assert places(solution) == {("a", "z1"): 6}
    assert left(solution) == []
    (concession,) = solution.exposure_violations
    assert (concession.subject, concession.place) == ("NodePool np", "a in z1")
    assert (concession.actual, concession.limit, concession.cause) == (6, 3, ViolationCause.NOTHING_ELSE)
    (line,) = exposure_messages(solution)
    assert "6 spot nodes of NodePool np in a in z1, preferred at most 3" in line


def test_the_preference_is_not_worth_any_price() -> None:
    """One and a half times the price is too much."""
    solution = plan(node_pool("np", SPOT), pods(6, ALONE), types=[sold("a", 0.10, 0.15)])
    assert places(solution) == {("a", "z1"): 6}
    assert [violation.cause for violation in solution.exposure_violations] == [ViolationCause.NOTHING_ELSE]


def test_spot_does_not_become_on_demand() -> None:
    both = node_pool()
    types = [sold("a", 0.10), sold("b", 0.11, kind="on-demand")]
    solution = plan(both, pods(6, ALONE), types=types)
    assert {new_nodeclaim.cheapest_offering.capacity_type for new_nodeclaim in solution.new_claims} == {"spot"}


def test_min_values_are_kept() -> None:
    """SCH-360: a pool that asks for two types gets them on every claim, so that no type may be given away."""
    asking = [*SPOT, wanted(labels.INSTANCE_TYPE, "Exists", least=2)]
    solution = plan(node_pool("np", asking), pods(6, ALONE), types=[sold("a", 0.10), sold("b", 0.11)])
    assert all(set(new_nodeclaim.instance_types) == {"a", "b"} for new_nodeclaim in solution.new_claims)
    assert len(solution.exposure_violations) == 1


def test_real_spot_nodes_keep_many_types() -> None:
    """On the real table nothing is conceded, every claim keeps at least fifteen types, and it costs little."""
    types = [
        replace(instance_type, offerings=tuple(_with_spot(instance_type)))
        for instance_type in ec2_packaged_types.packaged_instance_types()
    ]
    index = TypeIndex(types, labels.WELL_KNOWN)
    waiting = pods(120, {"cpu": "15", "memory": "50Gi"}, prefix="big")
    picture = snapshot(node_pool("np", SPOT), waiting)
    solution, without = (
        solve(build_problem(picture, {"np": index}, NOW, options)) for options in (SchedulingOptions(), OFF)
    )
    assert solution.exposure_violations == ()
    assert max(places(solution).values()) <= -(-len(solution.new_claims) // 2)
    assert all(len(new_nodeclaim.instance_types) >= 15 for new_nodeclaim in solution.new_claims)
    assert solution.price_per_hour <= 1.05 * without.price_per_hour


def _with_spot(instance_type: InstanceType) -> list[Offering]:
    own = [offer for offer in instance_type.offerings if offer.capacity_type == "spot"]
    return own or list(instance_type.offerings)
