"""A claim offers the provider every type that holds its pods, ordered by price (issue of price, point 4; SCH-616, 617)."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from karpenter.instancetypes import ec2_packaged_types
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import members
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements, compatible, requirements_from_wire
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, Objective
from karpenter.scheduling.planned_nodeclaims import MAX_INSTANCE_TYPES
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import NewNodeClaim, Solution
from karpenter.scheduling.solver import solve
from support.builders import ANY_CAPACITY, NOW, daemon_set, node_pool, plan, pods, snapshot, wanted
from support.examples import examples
from support.instance_types import offering, shape

#: What is near the cheapest price, and how many types should be there where there are so many.
NEAR, ENOUGH = 1.15, 15
LINUX = wanted(labels.OS, "In", "linux")
ON_DEMAND = wanted(labels.CAPACITY_TYPE, "In", "on-demand")
OFF = SchedulingOptions(objective=Objective(exposure=NO_EXPOSURE_LIMITS))


@cache
def real() -> TypeIndex:
    """All current EC2 types, with prices of us-east-1."""
    return TypeIndex(ec2_packaged_types.packaged_instance_types(), labels.WELL_KNOWN)


def planned(*objects: object, options: SchedulingOptions = OFF) -> Solution:
    cluster_snapshot = snapshot(*objects)
    return solve(
        build_problem(cluster_snapshot, {pool.metadata.name: real() for pool in cluster_snapshot.pools}, NOW, options)
    )


def holding(claim: NewNodeClaim) -> dict[str, float]:
    """Types that hold what the claim asks for and can be launched as it demands, with the price of each: worked out one by one.

    ``requests`` of a claim has what its DaemonSets take on the type where that is least. Burstable types hold their baseline:
    CPU beyond it costs more than the offering says, which only the type that the plan pays it for may need.
    """
    requests = res.parse_resources(claim.claim.spec.resources.requests)
    sold = _sold(requirements_from_wire(claim.claim.spec.requirements).without((labels.INSTANCE_TYPE,)))
    planned_beyond_baseline = claim.instance_types[0] if claim.cpu_surplus_per_hour else ""
    return {
        instance_type.name: sold[instance_type.name]
        for instance_type in real().types
        if instance_type.name in sold
        and all(instance_type.allocatable.get(name, 0) >= amount for name, amount in requests.items())
        and (_is_within_baseline(instance_type, requests[res.CPU]) or instance_type.name == planned_beyond_baseline)
    }


def _is_within_baseline(instance_type: InstanceType, cpu_millis: int) -> bool:
    return instance_type.burstable_cpu is None or cpu_millis <= instance_type.burstable_cpu.baseline_millis


@cache
def _sold(asked: Requirements) -> dict[str, float]:
    """Types that can be launched as demanded, with the price of each."""
    return {
        instance_type.name: price
        for instance_type in real().types
        if compatible(instance_type.requirements, _shared(asked, instance_type), labels.WELL_KNOWN)
        and (price := _price(instance_type, asked)) is not None
    }


def _shared(asked: Requirements, instance_type: InstanceType) -> Requirements:
    return Requirements(one for key, one in asked.items() if key in instance_type.requirements)


def _price(instance_type: InstanceType, asked: Requirements) -> float | None:
    """The cheapest offering to be had that the requirements accept."""
    accepted = (
        offer.price_per_hour
        for offer in instance_type.offerings
        if offer.available and compatible(offer.requirements, _of_offer(asked, instance_type), labels.WELL_KNOWN)
    )
    return min(accepted, default=None)


def _of_offer(asked: Requirements, instance_type: InstanceType) -> Requirements:
    keys = instance_type.offerings[0].requirements.keys() if instance_type.offerings else ()
    return Requirements(one for key, one in asked.items() if key in keys)


def check(claim: NewNodeClaim) -> None:
    """The claim names the cheapest types that hold its pods, all of them up to the cap, by price; wire and plan agree."""
    prices = holding(claim)
    assert set(claim.instance_types) <= set(prices), "what is sent holds the pods"
    sent = [prices[name] for name in claim.instance_types]
    assert sent == sorted(sent)
    assert len(claim.instance_types) == min(MAX_INSTANCE_TYPES, len(prices)), (
        "nothing that holds the pods is left out below the cap"
    )
    assert sent == sorted(prices.values())[: len(sent)]
    near = [price for price in prices.values() if price <= NEAR * min(prices.values())]
    assert sum(price <= NEAR * sent[0] for price in sent) >= min(ENOUGH, len(near))
    (types,) = (requirement for requirement in claim.claim.spec.requirements if requirement.key == labels.INSTANCE_TYPE)
    assert (types.operator, set(types.values)) == ("In", set(claim.instance_types))


@pytest.mark.parametrize(
    ("count", "requests"),
    [
        (1, {"cpu": "100m", "memory": "128Mi"}),
        (40, {"cpu": "900m", "memory": "3Gi"}),
        (7, {"cpu": "15", "memory": "20Gi"}),
        (3, {"cpu": "2", "memory": "200Gi"}),
        (4, {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}),
    ],
)
def test_claims_offer_every_type_that_holds_their_pods(count: int, requests: dict[str, str]) -> None:
    """SCH-616, SCH-617: price-aware packing chooses which pods share a node, not its instance type."""
    solution = planned(node_pool("np", [LINUX]), pods(count, requests))
    assert solution.new_claims
    for claim in solution.new_claims:
        check(claim)


def test_common_pods_have_fifteen_types_near_the_cheapest() -> None:
    """Where the table has them within 15 %, so has the claim: a stock-out does not mean a new round."""
    solution = planned(node_pool("np", [LINUX, ON_DEMAND]), pods(30, {"cpu": "1", "memory": "3Gi"}))
    for claim in solution.new_claims:
        prices = holding(claim)
        near = {name for name, price in prices.items() if price <= NEAR * min(prices.values())}
        assert len(near & set(claim.instance_types)) >= min(ENOUGH, len(near))
        assert len(claim.instance_types) >= ENOUGH


def test_daemons_count_where_they_run() -> None:
    """SCH-216: a type that holds the pods, and not the DaemonSet beside them, is not offered."""
    agent = daemon_set("agent", {"cpu": "1500m"})
    (claim,) = planned(node_pool("np", [LINUX]), agent, pods(1, {"cpu": "1"})).new_claims
    assert min(real().types[at].allocatable["cpu"] for at in members(real().named(*claim.instance_types))) >= 2500
    check(claim)


def test_min_values_survive_the_cap() -> None:
    """SCH-360, SCH-617: more expensive types stay where diversity needs them, and the order is still by price.

    SCH-366: they hold again after the cut.
    API-416, OPS-731.
    """
    family = "karpenter.k8s.aws/instance-family"
    (claim,) = planned(node_pool("np", [LINUX, wanted(family, "Exists", least=60)]), pods(1, {"cpu": "1"})).new_claims
    families = {name.partition(".")[0] for name in claim.instance_types}
    assert len(families) >= 60
    assert len(claim.instance_types) <= MAX_INSTANCE_TYPES
    prices = holding(claim)
    sent = [prices[name] for name in claim.instance_types]
    assert sent == sorted(sent)


def test_a_type_that_another_one_beats_counts_for_min_values() -> None:
    """SCH-360: the search left t5 out because t6 is better, and t6 because no other type was left that holds as much."""
    kinds = (
        (32, 64, 15, 1.92),
        (2, 4, 110, 0.15),
        (8, 16, 15, 0.36),
        (2, 4, 15, 0.11),
        (1, 2, 30, 0.055),
        (32, 64, 30, 1.44),
        (16, 32, 110, 1.2),
    )
    types = tuple(
        shape(f"t{number}", {"cpu": cpu, "memory": f"{gib}Gi", "pods": most}, [offering("on-demand", "z1", price)])
        for number, (cpu, gib, most, price) in enumerate(kinds)
    )
    amounts = (("100m", "1Gi", 19), ("100m", "6Gi", 37), ("500m", "100Mi", 39), ("1", "500Mi", 15))
    waiting = [
        pods(count, {"cpu": cpu, "memory": memory}, prefix=f"{cpu}-{memory.lower()}") for cpu, memory, count in amounts
    ]
    solution = plan(
        node_pool("p", [ANY_CAPACITY, wanted(labels.INSTANCE_TYPE, "Exists", least=2)]), waiting, types=types
    )
    assert not solution.unschedulable
    assert solution.price_per_hour < 6.5


def test_limits_far_from_reached_keep_the_cheapest_types_and_all_that_are_no_larger() -> None:
    """SCH-384: a claim keeps its sixty cheapest types, and those that take no more of the limit than its cheapest."""
    (claim,) = planned(node_pool("np", [LINUX], limits={"cpu": "1000"}), pods(1, {"cpu": "1"})).new_claims
    prices, index = holding(claim), real()
    cores = {index.types[at].name: index.types[at].capacity["cpu"] for at in members(index.named(*prices))}
    cheapest = sorted(prices, key=lambda name: prices[name])
    no_larger = {name for name in prices if cores[name] <= cores[cheapest[0]]}
    sixty_cheapest = {name for name in prices if prices[name] < prices[cheapest[60]]}
    assert no_larger | sixty_cheapest <= set(claim.instance_types)


amounts = st.tuples(
    st.integers(1, 30),
    st.sampled_from([50, 250, 900, 1700, 4000, 9000, 31000]),
    st.sampled_from([64, 700, 3000, 17000, 90000]),
)


@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(amounts, min_size=1, max_size=4))
@example([(4, 250, 17000), (4, 1700, 64), (27, 250, 700), (13, 9000, 64)])
@example([(9, 50, 64)])
def test_no_plan_is_tightened_to_few_types(groups: list[tuple[int, int, int]]) -> None:
    """Whatever goes together: every claim offers all types that hold it, those near the cheapest among them."""
    waiting = [
        pods(count, {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}, prefix=f"g{number}")
        for number, (count, cpu, memory) in enumerate(groups)
    ]
    solution = planned(node_pool("np", [LINUX]), waiting)
    assert solution.new_claims
    for claim in solution.new_claims:
        check(claim)
