"""Instance types of price 0, as a NodeOverlay may set, with a node fee of 0."""

from __future__ import annotations

import pytest

from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels
from karpenter.model.requirements import requirements_from_labels
from karpenter.scheduling.explain.heavier_pools import passed_node_pools
from karpenter.scheduling.objective import Objective
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solver import solve
from support.builders import NOW, annotated, flatten, indexes, left, node_pool, plan, pod, pods, sizes, snapshot
from support.instance_types import offering, shape


def _type(name: str, cores: int, price: float) -> InstanceType:
    capacity = {"cpu": cores, "memory": f"{2 * cores}Gi", "pods": 500}
    return shape(name, capacity, [offering("on-demand", "z1", price)], overhead={})


@pytest.mark.parametrize("fee", [0.0, 0.005])
@pytest.mark.parametrize("count", [1, 14, 100])
def test_a_free_type_is_planned_without_a_fault(fee: float, count: int) -> None:
    types = [_type("free", 4, 0.0), _type("paid", 8, 0.4)]
    different = [pod(f"p{number}", {"cpu": f"{300 + number * 77 % 1500}m"}) for number in range(count)]
    solution = plan(node_pool(), different, types=types, options=SchedulingOptions(objective=Objective(fee)))
    assert left(solution) == []
    assert solution.price_per_hour == 0


@pytest.mark.parametrize("count", [3, 6])
def test_of_plans_that_cost_nothing_the_one_with_the_fewest_nodes_is_taken(count: int) -> None:
    """Four of the pods have room on a large node."""
    different = [pod(f"p{number}", {"cpu": f"{950 - number}m"}) for number in range(count)]
    types = [_type("small", 2, 0.0), _type("large", 4, 0.0)]
    solution = plan(node_pool(), different, types=types, options=SchedulingOptions(objective=Objective(0.0)))
    assert (len(solution.new_claims), solution.is_optimal) == (-(-count // 4), True)


@pytest.mark.parametrize("price", [0.0, 1e-7])
def test_the_share_of_a_plan_on_one_node_gives_way_where_the_plan_is_free(price: float) -> None:
    """Three more nodes would cost money; a NodePool that asks for the share pays it."""
    marks = {labels.ZONE: "z1", labels.CAPACITY_TYPE: "reserved", labels.RESERVATION_ID: "r1"}
    reserved = Offering(requirements_from_labels(marks), price, available=True, reservation_capacity=1)
    capacity = {"cpu": 32, "memory": "64Gi", "pods": 500}
    types = [shape("reserved", capacity, [reserved], overhead={}), _type("c4", 4, 0.2), _type("c8", 8, 0.41)]
    by_pool = {"np": TypeIndex(types, labels.WELL_KNOWN | {labels.RESERVATION_ID})}
    asking = annotated(node_pool(), {labels.MAX_NODE_SHARE: "0.25"})
    largest = []
    for pool in (node_pool(), asking):
        world = flatten([pool, pods(100, {"cpu": "100m", "memory": "100Mi"})])
        solution = solve(build_problem(snapshot(world), by_pool, NOW, SchedulingOptions()), by_pool)
        largest.append(max(sizes(solution)))
    assert largest == [100, 25]


def test_a_heavier_pool_with_a_limit_that_cannot_be_read_is_explained() -> None:
    world = flatten(
        [node_pool("heavy", weight=10, limits={"cpu": "garbage"}), node_pool("light"), pods(2, {"cpu": "1"})]
    )
    by_pool = indexes(world, [_type("c4", 4, 0.2)])
    problem = build_problem(snapshot(world), by_pool, NOW, SchedulingOptions())
    solution = solve(problem, by_pool)
    claim = solution.new_claims[0]
    (passed,) = passed_node_pools(claim, claim.pods[0], problem, solution, by_pool)
    assert passed.node_pool == "heavy"
    assert passed.refusal is not None
