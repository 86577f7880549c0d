"""Burstable types: CPU requests beyond their baseline cost the surplus price, or exclude the type."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from karpenter.instancetypes import ec2_packaged_types
from karpenter.instancetypes.instance_type import BurstableCpu, InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels
from karpenter.scheduling.cpu_surplus import CpuSurplus
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, NODE_FEE_PER_HOUR, Objective
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import ArrivalForecast, SchedulingOptions
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from support.builders import (
    NOW,
    daemon_set,
    left,
    new_types,
    node_pool,
    plan,
    pod,
    pods,
    sizes,
    snapshot,
    tolerating,
    wanted,
)
from support.instance_types import offering, shape

PRICE, SURPLUS_PRICE = 0.04, 0.05


def sold(name: str, cores: int, price: float, burstable_cpu: BurstableCpu | None = None) -> InstanceType:
    capacity = {"cpu": cores, "memory": f"{4 * cores}Gi", "pods": 50}
    instance_type = shape(name, capacity, [offering("on-demand", "z1", price)], overhead={})
    return replace(instance_type, burstable_cpu=burstable_cpu)


#: Two cores of which 0.4 are guaranteed, and two whole cores for twice as much.
BURSTABLE = sold("t3.medium", 2, PRICE, BurstableCpu(400, SURPLUS_PRICE))
STANDARD = sold("t2.medium", 2, PRICE, BurstableCpu(400))
WHOLE = sold("whole", 2, 2 * PRICE)


def planned(types: list[InstanceType], *objects: object, fee: float = 0.0, counted: bool = True) -> Solution:
    objective = Objective(fee, 0.0, NO_EXPOSURE_LIMITS, counts_cpu_surplus=counted)
    options = SchedulingOptions(objective=objective, arrival_forecast=ArrivalForecast.NONE)
    return plan(node_pool(), *objects, types=types, options=options)


@pytest.mark.parametrize(("millis", "price"), [(0, 0.0), (400, 0.0), (401, 0.00005), (1500, 0.055)])
def test_cpu_beyond_the_baseline_costs_the_surplus_price(millis: int, price: float) -> None:
    """A t3.medium earns 0.4 vCPU: requests of 1.5 vCPU use 1.1 vCPU of surplus credits at 0.05 USD."""
    surplus = CpuSurplus.of_type(BurstableCpu(400, SURPLUS_PRICE), {})
    assert surplus.price_per_hour({"cpu": millis}) == pytest.approx(price)


def test_daemon_sets_use_the_baseline_too() -> None:
    surplus = CpuSurplus.of_type(BurstableCpu(400, SURPLUS_PRICE), {"cpu": 500})
    assert surplus.price_per_hour({}) == pytest.approx(0.005)
    assert surplus.price_per_hour({"cpu": 100}) == pytest.approx(0.01)


def test_pods_within_the_baseline_get_the_burstable_type() -> None:
    solution = planned([BURSTABLE, WHOLE], pod("idle", {"cpu": "400m", "memory": "1Gi"}))
    assert new_types(solution) == ["t3.medium"]
    assert (solution.price_per_hour, solution.cpu_surplus_per_hour) == (PRICE, 0.0)


def test_pods_beyond_the_baseline_get_whole_cores_where_those_cost_less() -> None:
    """1.9 vCPU on the burstable type would cost 0.04 + 1.5 * 0.05 USD, on whole cores 0.08."""
    solution = planned([BURSTABLE, WHOLE], pod("busy", {"cpu": "1900m", "memory": "1Gi"}))
    assert new_types(solution) == ["whole"]


def test_a_little_beyond_the_baseline_is_paid_for_where_that_costs_less() -> None:
    """0.6 vCPU on the burstable type cost 0.04 + 0.2 * 0.05 USD; the plan says so."""
    solution = planned([BURSTABLE, WHOLE], pod("busy", {"cpu": "600m", "memory": "1Gi"}))
    assert new_types(solution) == ["t3.medium"]
    assert solution.cpu_surplus_per_hour == pytest.approx(0.01)
    assert solution.optimality_gap is not None
    assert solution.optimality_gap >= 0


def test_a_claim_does_not_offer_types_that_cost_more_than_their_offering_says() -> None:
    """The cloud launches the type with the lowest offering price. So the burstable type must not be among them."""
    (claim,) = planned([BURSTABLE, WHOLE], pod("busy", {"cpu": "1900m", "memory": "1Gi"})).new_claims
    assert claim.instance_types == ("whole",)
    (claim,) = planned([BURSTABLE, WHOLE], pod("idle", {"cpu": "300m", "memory": "1Gi"})).new_claims
    assert claim.instance_types == ("t3.medium", "whole")


def test_min_values_keep_the_types_they_need() -> None:
    """SCH-360: diversity is law, also where a type costs more than its offering says."""
    pool = node_pool("np", [wanted(labels.INSTANCE_TYPE, "Exists", least=2)])
    (claim,) = plan(pool, pod("busy", {"cpu": "1900m"}), types=[BURSTABLE, WHOLE]).new_claims
    assert set(claim.instance_types) == {"t3.medium", "whole"}


def test_in_mode_standard_the_baseline_is_the_capacity() -> None:
    """Four pods of 0.2 vCPU fit on one t2.medium by its two vCPUs, but it has no more than 0.4."""
    solution = planned([STANDARD], pods(4, {"cpu": "200m", "memory": "100Mi"}))
    assert (new_types(solution), sizes(solution)) == (["t2.medium"] * 2, [2, 2])


def test_in_mode_standard_a_pod_that_fits_nowhere_else_still_gets_a_node() -> None:
    solution = planned([STANDARD], pod("busy", {"cpu": "1"}))
    assert (new_types(solution), left(solution)) == (["t2.medium"], [])


def test_off_types_cost_what_their_offering_says() -> None:
    """As Karpenter counts (profile karpenter): all four pods on one burstable node."""
    solution = planned([BURSTABLE, WHOLE], pods(4, {"cpu": "450m", "memory": "1Gi"}), counted=False)
    assert (new_types(solution), solution.cpu_surplus_per_hour) == (["t3.medium"], 0.0)


@pytest.mark.parametrize("count", [7, 80, 700])
@pytest.mark.parametrize("cpu", ["90m", "130m", "700m"])
def test_small_and_large_plans_count_the_same_cost(count: int, cpu: str) -> None:
    """Exact packing, heuristics and search all compare prices with the CPU beyond the baseline: none costs more than either type
    alone, and none less than the lower bound."""
    waiting = pods(count, {"cpu": cpu, "memory": "300Mi"})
    costs = []
    for types in ([BURSTABLE, WHOLE], [BURSTABLE], [WHOLE]):
        solution = planned(types, waiting)
        costs.append(solution.price_per_hour + solution.cpu_surplus_per_hour)
        assert solution.lower_bound_per_hour is not None
        assert costs[-1] >= solution.lower_bound_per_hour - 1e-9
    assert costs[0] <= min(costs[1:]) + 1e-9


# -- the types of EC2 ------------------------------------------------------------------------------------------------------

#: CPU in thousandths and memory in MiB of five DaemonSets of a usual cluster, containers added up. Source: the requests in
#: zalando-incubator/kubernetes-on-aws (MIT), October 2024.
DAEMON_SETS = {
    "kube-proxy": (50, 200),
    "flannel": (26, 125),
    "coredns-local": (160, 195),
    "node-monitor": (171, 255),
    "ebs-csi-node": (30, 120),
}
#: Requests of ordinary services.
SERVICES = (
    ("50m", "64Mi"),
    ("100m", "128Mi"),
    ("100m", "256Mi"),
    ("100m", "512Mi"),
    ("150m", "200Mi"),
    ("200m", "256Mi"),
    ("250m", "512Mi"),
    ("250m", "1Gi"),
    ("300m", "768Mi"),
    ("500m", "512Mi"),
    ("500m", "1Gi"),
    ("500m", "2Gi"),
    ("750m", "1536Mi"),
    ("1", "1Gi"),
    ("1", "2Gi"),
    ("1", "4Gi"),
    ("2", "4Gi"),
)
REPLICAS = 30


@cache
def _ec2() -> TypeIndex:
    return TypeIndex(ec2_packaged_types.packaged_instance_types(), labels.WELL_KNOWN)


@cache
def ordinary_pods_planned(daemons: bool, capacity_type: str, fee: float = NODE_FEE_PER_HOUR) -> Solution:
    """510 pods of seventeen services for a NodePool without restrictions but for the capacity type."""
    pool = node_pool("np", [wanted(labels.CAPACITY_TYPE, "In", capacity_type)])
    waiting = [
        pods(REPLICAS, {"cpu": cpu, "memory": memory}, prefix=f"service-{number}")
        for number, (cpu, memory) in enumerate(SERVICES)
    ]
    agents = [
        daemon_set(name, {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}, tolerations=(tolerating(""),))
        for name, (cpu, memory) in DAEMON_SETS.items()
    ]
    options = SchedulingOptions(objective=Objective(fee))
    problem = build_problem(snapshot(pool, waiting, agents if daemons else []), {"np": _ec2()}, NOW, options)
    return solve(problem, {"np": _ec2()})


@pytest.mark.parametrize(("daemons", "capacity_type"), [(False, "on-demand"), (True, "on-demand"), (True, "spot")])
def test_ordinary_pods_do_not_get_many_small_nodes(daemons: bool, capacity_type: str) -> None:
    """Without this, 510 pods got 87 nodes on demand, 76 of them t4g.medium that sell eight times the CPU they guarantee."""
    solution = ordinary_pods_planned(daemons, capacity_type)
    families = Counter(name.partition(".")[0] for name in new_types(solution))
    assert not left(solution)
    assert sum(families[family] for family in ("t2", "t3", "t3a", "t4g")) <= 1
    assert solution.cpu_surplus_per_hour < 0.01 * solution.price_per_hour
    tenth, half, ninetieth = percentiles(sizes(solution))
    assert tenth >= 8
    assert half >= 15
    assert ninetieth <= (110 if daemons else 60)
    # Larger nodes are chosen by price: without a fee for each node the plan is at most 1 % cheaper.
    assert cost(solution) <= 1.01 * cost(ordinary_pods_planned(daemons, capacity_type, 0.0))


def cost(solution: Solution) -> float:
    """USD per hour, CPU beyond the baseline of burstable types included."""
    return solution.price_per_hour + solution.cpu_surplus_per_hour


def percentiles(pods_per_node: list[int]) -> tuple[int, int, int]:
    """The 10th, 50th and 90th."""
    ordered = sorted(pods_per_node)
    tenth, half, ninetieth = (ordered[round(share * (len(ordered) - 1))] for share in (0.1, 0.5, 0.9))
    return tenth, half, ninetieth


def test_daemon_sets_count_more_than_any_fee() -> None:
    """Five usual DaemonSets request 0.44 vCPU and 0.9 GiB of every node. So a plan that counts them has fewer and larger nodes,
    whatever the fee: twice the default changes its price by less than 2 %."""
    without, beside = (ordinary_pods_planned(daemons, "on-demand") for daemons in (False, True))
    assert len(beside.new_claims) < len(without.new_claims)
    dearer = ordinary_pods_planned(True, "on-demand", 2 * NODE_FEE_PER_HOUR)
    assert dearer.price_per_hour == pytest.approx(beside.price_per_hour, rel=0.02)


def test_free_cpu_beyond_the_baseline_is_no_bound_on_the_price() -> None:
    """A surplus price of 0: the type with such CPU is the cheapest, and the lower bound is no higher than its price."""
    free = sold("t9.medium", 2, PRICE, BurstableCpu(400, 0.0))
    solution = planned([free, BURSTABLE, WHOLE], pods(4, {"cpu": "900m"}))
    assert new_types(solution) == ["t9.medium", "t9.medium"]
    assert solution.lower_bound_per_hour is not None
    assert solution.lower_bound_per_hour <= solution.price_per_hour == pytest.approx(2 * PRICE)
