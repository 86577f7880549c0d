"""Nodes of one plan are spread over zones that cost the same, where the plan binds them to a zone."""

from __future__ import annotations

from collections import Counter

import pytest

from karpenter.api.meta import LabelSelector
from karpenter.api.scheduling_constraints import Affinity, PodAffinity, PodAffinityTerm
from karpenter.model import labels
from karpenter.scheduling.solution import Solution
from support.builders import left, node_pool, plan, pods
from support.instance_types import offering, shape
from support.topology_builders import spread_over

ZONES = ("z1", "z2", "z3")


def sold(*prices: float) -> list[object]:
    """One type that holds four pods, in three zones."""
    offerings = [offering("on-demand", zone, price) for zone, price in zip(ZONES, prices, strict=True)]
    return [shape("four", {"cpu": 4, "memory": "16Gi", "pods": 20}, offerings, overhead={})]


def workloads(number: int, replicas: int, *, together: bool = True, cpu: str = "1") -> list[object]:
    """Workloads whose pods share a zone, or are spread over zones."""
    waiting: list[object] = []
    for app in (f"app-{index}" for index in range(number)):
        selector = LabelSelector(match_labels={"app": app})
        pod_affinity_to = PodAffinity(required=(PodAffinityTerm(topology_key=labels.ZONE, label_selector=selector),))
        spec = (
            {"affinity": Affinity(pod_affinity=pod_affinity_to)}
            if together
            else {"topology_spread_constraints": (spread_over(labels.ZONE, 1, selector=selector),)}
        )
        waiting += pods(replicas, {"cpu": cpu, "memory": "1Gi"}, prefix=app, meta={"labels": {"app": app}}, **spec)
    return waiting


def zones(solution: Solution) -> Counter[str]:
    return Counter(claim.cheapest_offering.zone for claim in solution.new_claims)


@pytest.mark.parametrize("number", [3, 6, 30])
def test_workloads_that_each_keep_to_a_zone_are_spread_over_zones(number: int) -> None:
    """Four pods of a workload fill a node: in which zone costs nothing. The first zone got all of them."""
    solution = plan(node_pool(), workloads(number, 4), types=sold(1.0, 1.0, 1.0))
    assert not left(solution)
    assert zones(solution) == dict.fromkeys(ZONES, number // 3)


def test_single_pods_that_are_spread_do_not_all_go_to_the_first_zone() -> None:
    solution = plan(node_pool(), workloads(6, 1, together=False, cpu="4"), types=sold(1.0, 1.0, 1.0))
    assert zones(solution) == dict.fromkeys(ZONES, 2)


def test_a_cheaper_zone_gets_all() -> None:
    assert zones(plan(node_pool(), workloads(6, 4), types=sold(1.0, 0.9, 1.0))) == {"z2": 6}


def test_zones_are_not_balanced_where_that_costs_a_node() -> None:
    """Pods of three workloads share one node of one zone; in three zones they would need three."""
    assert zones(plan(node_pool(), workloads(3, 1), types=sold(1.0, 1.0, 1.0))) == {"z1": 1}


def test_the_same_plan_comes_twice() -> None:
    first, second = (plan(node_pool(), workloads(7, 4), types=sold(1.0, 1.0, 1.0)) for _ in range(2))
    assert [claim.claim for claim in first.new_claims] == [claim.claim for claim in second.new_claims]
