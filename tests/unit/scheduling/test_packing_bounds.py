"""Bounds on the work of packing: limits, equal NodePools, step budgets, free nodes and tiny price differences."""

from __future__ import annotations

import time

import pytest

from karpenter.api.karpenter import NodePool
from karpenter.instancetypes import ec2_packaged_types
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels
from karpenter.model.resources import Resources
from karpenter.scheduling.node_filling import NodeFill
from karpenter.scheduling.objective import NODE_FEE_PER_HOUR
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.packing import packing_state
from karpenter.scheduling.packing.pod_values import PodValues
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from support.builders import NOW, left, new_types, node_pool, plan, pod, pods, sizes, snapshot, wanted
from support.instance_types import inc, offering, shape

ON_DEMAND = [wanted(labels.CAPACITY_TYPE, "In", "on-demand")]


def many_pod_groups(count: int, each: int) -> list[object]:
    return [
        pods(each, {"cpu": f"{100 + 37 * i % 1500}m", "memory": f"{128 + 91 * i % 4000}Mi"}, prefix=f"c{i}")
        for i in range(count)
    ]


def planned_on_ec2(pools: list[NodePool], waiting: list[object]) -> Solution:
    """A plan with real shapes: hundreds of types worth considering."""
    index = TypeIndex(ec2_packaged_types.packaged_instance_types(), labels.WELL_KNOWN)
    return solve(build_problem(snapshot(pools, waiting), {pool.metadata.name: index for pool in pools}, NOW))


def test_a_node_may_be_free() -> None:
    """An instance-type file may give the price 0."""
    free = shape("free", {"cpu": 4, "memory": "4Gi", "pods": 5}, [offering("on-demand", "z1", 0.0)])
    assert new_types(plan(node_pool(), pods(9, {"cpu": "1"}), types=[free])) == ["free"] * 3


def test_a_tiny_saving_does_not_launch_many_small_nodes() -> None:
    """Two nodes cost more than one, if only for the fee of each node."""
    small = shape("small", {"cpu": 2, "memory": "4Gi", "pods": 20}, [offering("on-demand", "z1", 0.0499)])
    large = shape("large", {"cpu": 20, "memory": "40Gi", "pods": 200}, [offering("on-demand", "z1", 0.5)])
    waiting = pods(19, {"cpu": "1"})
    assert new_types(plan(node_pool(), waiting, types=[small, large])) == ["large"]
    assert plan(node_pool(), waiting, types=[small, large]).price_per_hour == 0.5, "the fee is not part of the price"


def test_a_real_saving_still_launches_small_nodes() -> None:
    small = shape("small", {"cpu": 2, "memory": "4Gi", "pods": 20}, [offering("on-demand", "z1", 0.03)])
    large = shape("large", {"cpu": 20, "memory": "40Gi", "pods": 200}, [offering("on-demand", "z1", 0.9)])
    assert set(new_types(plan(node_pool(), pods(19, {"cpu": "1"}), types=[small, large]))) == {"small"}


def test_limits_that_do_not_bind_change_no_plan() -> None:
    """SCH-382: a filled node is repeated under limits as without them, as long as the limits rule out no further type."""
    waiting = many_pod_groups(12, 40)
    free, limited = (plan(node_pool(limits=limits), waiting, types=inc(20)) for limits in ({}, {"cpu": "90000"}))
    assert (new_types(limited), sizes(limited), left(limited)) == (new_types(free), sizes(free), [])


@pytest.mark.parametrize(("cpu", "nodes"), [(20, 9), (40, 9), (90, 3), (200, 5)])
def test_repeated_nodes_never_exceed_a_limit(cpu: int, nodes: int) -> None:
    """SCH-384: each claim counts as the largest it may become."""
    types = {instance_type.name: instance_type.capacity["cpu"] // 1000 for instance_type in inc(20)}
    result = plan(node_pool(limits={"cpu": str(cpu), "nodes": str(nodes)}), pods(300, {"cpu": "900m"}), types=inc(20))
    assert 0 < len(result.new_claims) <= nodes
    assert sum(max(types[name] for name in new_nodeclaim.instance_types) for new_nodeclaim in result.new_claims) <= cpu


@pytest.mark.speed
def test_many_equal_limited_pools_cost_no_more_than_one() -> None:
    """Pools that differ only in name are evaluated once; a filled node is repeated under limits as without (33 s otherwise)."""
    pools = [node_pool(f"np{i}", limits={"cpu": "100000"}) for i in range(10)]
    begun = time.thread_time()
    result = planned_on_ec2(pools, many_pod_groups(100, 50))
    assert left(result) == []
    assert time.thread_time() - begun < 8


def team_pools(count: int) -> list[NodePool]:
    """NodePools with the same requirements, each with a label of its own."""
    return [node_pool(f"np{number}", labels={"example.com/team": f"t{number}"}) for number in range(count)]


def test_pools_that_differ_in_a_label_no_pod_asks_for_cost_no_work_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filled: list[int] = []
    original = NodeFill.__init__

    def spy(self: NodeFill, *args: object) -> None:
        filled.append(1)
        original(self, *args)

    monkeypatch.setattr(NodeFill, "__init__", spy)
    waiting = many_pod_groups(12, 40)
    alone = plan(node_pool(), waiting, types=inc(20))
    nodes_filled = len(filled)
    many = plan(team_pools(8), waiting, types=inc(20))
    assert len(filled) == 2 * nodes_filled
    assert (new_types(many), sizes(many), many.price_per_hour) == (new_types(alone), sizes(alone), alone.price_per_hour)


def test_a_pod_that_asks_for_the_label_of_a_pool_is_launched_there() -> None:
    waiting = [pods(3, {"cpu": "1"}), pod("own", {"cpu": "1"}, node_selector={"example.com/team": "t2"})]
    result = plan(team_pools(4), waiting, types=inc(20))
    assert left(result) == []
    assert "np2" in {new.node_pool for new in result.new_claims for each in new.pods if each.metadata.name == "own"}


def test_pools_with_several_values_of_a_label_pods_ask_for_are_not_taken_for_one() -> None:
    """Pods that ask for different values cannot share a node, whatever pool it is of."""
    both = [wanted("example.com/team", "In", "a", "b"), wanted("example.com/team", "In", "b", "c")]
    pools = [node_pool(f"np{number}", [need, ON_DEMAND[0]]) for number, need in enumerate(both)]
    waiting = [
        pods(3, {"cpu": "1"}, prefix=value, node_selector={"example.com/team": value}) for value in ("a", "b", "c")
    ]
    result = plan(pools, waiting, types=inc(20))
    assert left(result) == []
    teams = [{each.spec.node_selector["example.com/team"] for each in new.pods} for new in result.new_claims]
    assert sorted(min(team) for team in teams) == ["a", "b", "c"]
    assert all(len(team) == 1 for team in teams)


@pytest.mark.speed
def test_a_thousand_pods_of_which_no_two_are_alike_are_bounded() -> None:
    begun = time.thread_time()
    result = planned_on_ec2([node_pool(requirements=ON_DEMAND)], many_pod_groups(1000, 1))
    assert left(result) == []
    assert time.thread_time() - begun < 8


def test_when_the_budget_of_steps_is_used_up_the_rest_is_launched_the_largest_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting = many_pod_groups(30, 3)
    cheap = plan(node_pool(), waiting, types=inc(20))
    prices = [cheap.price_per_hour]
    for steps in (500, 0):
        monkeypatch.setattr(packing_state, "MAX_FILL_STEPS", steps)
        result = plan(node_pool(), waiting, types=inc(20))
        assert left(result) == []
        assert plan(node_pool(), waiting, types=inc(20)) == result, "a budget of steps, not of time"
        prices.append(result.price_per_hour)
    assert prices == sorted(prices)
    monkeypatch.undo()
    assert plan(node_pool(), waiting, types=inc(20)) == cheap, "what is replayed after the test has the usual budget"


def test_a_rare_resource_has_its_price_in_the_comparison() -> None:
    """The types worth comparing are sampled among those that hold the pod, not among all: else the pod seems to be free."""
    cheap = [
        shape(f"c{n:03}", {"cpu": n, "memory": f"{200 - n}Gi", "pods": 50}, [offering("on-demand", "z1", n / 10)])
        for n in range(1, 150)
    ]
    dear = shape("dear", {"cpu": 200, "memory": "200Gi", "pods": 50, "x/rare": 1}, [offering("on-demand", "z1", 15.0)])
    waiting = pod("rare", {"cpu": "1", "x/rare": 1})
    seen: list[float] = []
    original = PodValues._of_requests

    def spy(self: PodValues, requests: Resources, option: LaunchOption) -> float:
        seen.append(original(self, requests, option))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PodValues, "_of_requests", spy)
        assert new_types(plan(node_pool(), waiting, types=[*cheap, dear])) == ["dear"]
    assert seen == [pytest.approx(15.0 + NODE_FEE_PER_HOUR)]
