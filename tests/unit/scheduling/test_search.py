"""The search for cheap nodes: the lower bound, its proposals, and the plans made of them."""

from __future__ import annotations

import pytest

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, Objective
from karpenter.scheduling.packing import exact_packing
from karpenter.scheduling.scheduling_options import ArrivalForecast, SchedulingOptions
from karpenter.scheduling.search import packing_problem
from karpenter.scheduling.solution import Solution
from support.builders import left, new_types, node_pool, plan, pod, pods, sizes, wanted, where
from support.instance_types import offering, shape

#: By price alone, and of the pods there are.
PLAIN = SchedulingOptions(objective=Objective(0.0, exposure=NO_EXPOSURE_LIMITS), arrival_forecast=ArrivalForecast.NONE)


def of_cores(*prices: tuple[int, float]) -> list[InstanceType]:
    """Types of so many cores, a gigabyte each, at these prices in two zones."""
    return [
        shape(
            f"c{cores}",
            {"cpu": cores, "memory": f"{cores}Gi", "pods": 50},
            [offering("on-demand", z, price) for z in ("z1", "z2")],
            overhead={},
        )
        for cores, price in prices
    ]


def priced(*objects: object, types: list[InstanceType]) -> Solution:
    return plan(*objects, types=types, options=PLAIN)


def test_nodes_that_fit_are_launched_instead_of_one_large_one() -> None:
    """Six cores fit on nodes of four and two; classic packing takes one node of eight that holds all pods."""
    types = of_cores((2, 0.2), (4, 0.4), (8, 0.8))
    solution = priced(node_pool(), pods(6, {"cpu": "1", "memory": "1Gi"}), types=types)
    assert solution.price_per_hour == pytest.approx(0.6)
    assert solution.lower_bound_per_hour == pytest.approx(0.6)


def test_pods_that_waste_what_the_other_kind_needs_share_nodes() -> None:
    """Pods of much CPU and pods of much memory fill nodes together; apart each kind would need twice as many."""
    types = of_cores((4, 1.0))
    cpu, memory = (
        pods(4, {"cpu": "3", "memory": "512Mi"}, prefix="c"),
        pods(4, {"cpu": "500m", "memory": "3Gi"}, prefix="m"),
    )
    assert sizes(priced(node_pool(), cpu, memory, types=types)) == [2, 2, 2, 2]


def test_the_lower_bound_is_what_parts_of_nodes_would_cost() -> None:
    """The lower bound for three cores of a node of four is three quarters of its price, though no such offering exists."""
    solution = priced(node_pool(), pods(3, {"cpu": "1", "memory": "1Gi"}), types=of_cores((4, 0.4)))
    assert solution.price_per_hour == pytest.approx(0.4)
    assert solution.lower_bound_per_hour == pytest.approx(0.3)


def test_the_lower_bound_takes_all_of_a_pod_from_one_kind_of_node() -> None:
    """One pod cannot take its CPU from one node and its memory from another."""
    rich_in_cpu = shape(
        "cpu", {"cpu": 8, "memory": "1Gi", "pods": 50}, overhead={}, offerings=[offering("on-demand", "z1", 1.0)]
    )
    rich_in_memory = shape(
        "memory", {"cpu": 1, "memory": "8Gi", "pods": 50}, overhead={}, offerings=[offering("on-demand", "z1", 1.0)]
    )
    solution = priced(node_pool(), pod("p", {"cpu": "1", "memory": "1Gi"}), types=[rich_in_cpu, rich_in_memory])
    assert solution.lower_bound_per_hour == pytest.approx(1.0)


def test_a_zone_of_its_own_price_counts_in_the_bound() -> None:
    """The lower bound of pods that select the more expensive zone uses its prices."""
    types = [
        shape(
            "c4",
            {"cpu": 4, "memory": "4Gi", "pods": 50},
            [offering("on-demand", "z1", 0.4), offering("on-demand", "z2", 0.8)],
            overhead={},
        )
    ]
    there = [
        pod(f"p{n}", {"cpu": "1", "memory": "1Gi"}, affinity=where("topology.kubernetes.io/zone", "In", "z2"))
        for n in range(4)
    ]
    assert priced(node_pool(), *there, types=types).lower_bound_per_hour == pytest.approx(0.8)
    anywhere = pods(4, {"cpu": "1", "memory": "1Gi"}, prefix="q")
    assert priced(node_pool(), *there, anywhere, types=types).lower_bound_per_hour == pytest.approx(1.2)


def test_no_pod_is_left_out_where_no_node_meets_two_selectors_at_once() -> None:
    """Pods that select a zone and pods without a selector share nodes as far as they can."""
    types = of_cores((2, 0.2), (8, 0.7))
    preferences = [
        pod(f"{zone}{n}", {"cpu": "900m", "memory": "500Mi"}, affinity=where("topology.kubernetes.io/zone", "In", zone))
        for zone in ("z1", "z2")
        for n in range(5)
    ]
    solution = priced(node_pool(), *preferences, pods(7, {"cpu": "300m", "memory": "300Mi"}), types=types)
    assert left(solution) == []
    assert sum(sizes(solution)) == 17
    assert solution.lower_bound_per_hour is not None
    assert solution.lower_bound_per_hour <= solution.price_per_hour


def test_a_fee_for_nodes_makes_them_fewer() -> None:
    """Two small nodes are slightly cheaper than one large, but not with the fee per node."""
    types = of_cores((2, 0.200), (4, 0.401))
    waiting = (node_pool(), pods(4, {"cpu": "1", "memory": "1Gi"}))
    assert new_types(priced(*waiting, types=types)) == ["c2", "c2"]
    frugal = SchedulingOptions(
        objective=Objective(0.01, exposure=NO_EXPOSURE_LIMITS), arrival_forecast=ArrivalForecast.NONE
    )
    assert new_types(plan(*waiting, types=types, options=frugal)) == ["c4"]


def test_without_pods_nothing_costs_anything() -> None:
    """An empty plan is at its bound."""
    assert priced(node_pool(), types=of_cores((2, 0.2))).lower_bound_per_hour == 0.0


def test_tenants_with_pools_of_their_own_are_solved_one_by_one() -> None:
    """What one of them needs changes nothing for the others, nor does it cost them anything."""
    types = of_cores((2, 0.2), (4, 0.4), (8, 0.8))
    pools = [node_pool(f"np{n}", [wanted("tenant", "In", f"t{n}")]) for n in range(3)]
    of_tenant = [
        pods(6, {"cpu": "1", "memory": "1Gi"}, prefix=f"t{n}", node_selector={"tenant": f"t{n}"}) for n in range(3)
    ]
    alone = priced(pools[0], of_tenant[0], types=types)
    together = priced(*pools, *of_tenant, types=types)
    assert together.price_per_hour == pytest.approx(3 * alone.price_per_hour)
    assert together.lower_bound_per_hour == pytest.approx(3 * 0.6)


def narrowing(*asked: tuple[str, ...], each: int) -> list[Pod]:
    """So many pods for each requirement on a label, no two of which request the same."""
    return [
        pod(f"p{kind}-{n}", {"cpu": f"{1000 - 10 * kind - n}m", "memory": "500Mi"}, affinity=where(*requirement))
        for kind, requirement in enumerate(asked)
        for n in range(each)
    ]


def test_pods_that_narrow_different_labels_share_nodes_in_larger_plans() -> None:
    """SCH-865: five pods for each of a zone, a capacity type and an architecture: four nodes, not two for each."""
    asked = [(labels.ZONE, "In", "z1"), (labels.CAPACITY_TYPE, "In", "on-demand"), (labels.ARCH, "In", "amd64")]
    solution = priced(node_pool(), narrowing(*asked, each=5), types=of_cores((4, 0.4)))
    assert (left(solution), len(sizes(solution)), solution.is_optimal) == ([], 4, True)


def test_columns_prove_the_optimum_of_more_different_pods_than_dynamic_programming_takes() -> None:
    """SCH-865: sixteen different pods with eight different requirements; the same plan again."""
    asked = [
        (labels.ZONE, "In", "z1"),
        (labels.ZONE, "In", "z2"),
        (labels.ZONE, "NotIn", "z3"),
        (labels.CAPACITY_TYPE, "In", "on-demand"),
        (labels.CAPACITY_TYPE, "NotIn", "spot"),
        (labels.ARCH, "In", "amd64"),
        (labels.OS, "In", "linux"),
        (labels.INSTANCE_TYPE, "In", "c4"),
    ]
    waiting = [
        pod(f"p{kind}-{cpu}", {"cpu": f"{cpu}m", "memory": "500Mi"}, affinity=where(*requirement))
        for kind, requirement in enumerate(asked)
        for cpu in (1900 + 7 * kind, 2050 - 7 * kind)
    ]
    first, second = (priced(node_pool(), waiting, types=of_cores((4, 0.4), (2, 0.3))) for _ in range(2))
    assert (left(first), first.price_per_hour, first.is_optimal) == ([], pytest.approx(3.2), True)
    assert first.new_claims == second.new_claims


def test_pods_that_want_different_values_of_a_custom_label_are_on_different_nodes() -> None:
    """Neither types nor offerings fix the label; pods that do not ask for it share nodes with either."""
    pool = node_pool("default", [wanted("team", "In", "a", "b")])
    asked = [("team", "In", "a"), ("team", "In", "b"), (labels.ARCH, "In", "amd64")]
    solution = priced(pool, narrowing(*asked, each=6), types=of_cores((4, 0.4)))
    assert (left(solution), len(sizes(solution))) == ([], 5)


def equal_pools(number: int, **spec: object) -> list[NodePool]:
    return [node_pool(f"np{n}", **spec) for n in range(number)]


def contents(solution: Solution) -> list[tuple[str, list[str]]]:
    """The types that are launched and the pods on them, the names of NodePools aside."""
    return [
        (types, sorted(waiting.metadata.name for waiting in claim.pods))
        for types, claim in zip(new_types(solution), solution.new_claims, strict=True)
    ]


@pytest.mark.parametrize("pod_count", [20, 61])
def test_equal_nodepools_change_nothing_about_the_plan(pod_count: int) -> None:
    """SCH-865: their candidate nodes are the same ones; copies would displace others and change what the search draws."""
    types = of_cores(*((cores, 0.1 * cores**0.9) for cores in range(2, 40)))
    zones = (("z1",), ("z2",), ("z1", "z2"))
    waiting = [
        pod(
            f"p{n}",
            {"cpu": f"{150 + n * 37}m", "memory": f"{300 + n * 103}Mi"},
            affinity=where(labels.ZONE, "In", *zones[n % 3]),
        )
        for n in range(pod_count)
    ]
    assert contents(priced(*equal_pools(3), waiting, types=types)) == contents(
        priced(node_pool("np0"), waiting, types=types)
    )


def test_equal_nodepools_with_limits_each_sell_what_their_own_limits_leave() -> None:
    """SCH-384: a NodePool with limits is like no other: two with two cores each take four of seven different pods."""
    waiting = [pod(f"p{n}", {"cpu": f"{500 + 170 * n}m", "memory": "300Mi"}) for n in range(7)]
    solution = priced(*equal_pools(2, limits={"cpu": "2"}), waiting, types=of_cores((2, 0.2), (4, 0.4)))
    assert (len(left(solution)), solution.packing_heuristic) == (3, "exact")


def test_equal_nodepools_are_enumerated_once_and_different_ones_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """SCH-865: six different pods have 64 sets in one NodePool, in ten equal ones, and in each of two different ones."""
    monkeypatch.setattr(exact_packing, "MAX_COLUMNS", 64)
    monkeypatch.setattr(packing_problem, "cheapest_nodes", lambda *_: None)
    waiting = [pod(f"p{n}", {"cpu": f"{500 + n}m", "memory": "500Mi"}) for n in range(6)]
    types = of_cores((2, 0.2), (4, 0.4))
    other = node_pool("other", [wanted("team", "In", "a")])
    assert not priced(node_pool(), other, waiting, types=types).is_optimal
    assert priced(node_pool(), waiting, types=types).is_optimal
    assert priced(*equal_pools(10), waiting, types=types).is_optimal
