"""Disruption cost, node price, and the order of candidates that follows (DIS §5, scenarios 26.3)."""

from __future__ import annotations

import math

import pytest

from karpenter.api.core import Pod
from karpenter.disruption.decide.candidates import CandidateChecks, DisruptionContext
from karpenter.disruption.decide.command import Candidate, DisruptionReason
from karpenter.disruption.decide.costs import NodePrices, candidate_order, disruption_cost
from karpenter.model import pod_disruption
from karpenter.model.pod_disruption import DELETION_COST_ANNOTATION
from karpenter.state.state_node import StateNode
from support.builders import NOW, flatten, indexes, pod, snapshot
from support.disruption_cases import KINDS, decide, gone, kind, pool, running
from support.instance_types import offering


def cost(annotation: str = "", priority: int | None = None) -> float:
    meta = {"annotations": {DELETION_COST_ANNOTATION: annotation}} if annotation else {}
    return pod_disruption.eviction_cost(pod("p", meta=meta, priority=priority))


def test_a_higher_deletion_cost_makes_a_pod_more_expensive_to_evict() -> None:
    """DIS-S060"""
    assert 1.0 < cost("99") < cost("100") < cost("101") < 1.001


def test_priority_moves_the_cost_both_ways() -> None:
    """DIS-S061"""
    assert cost(priority=-1) < 1.0 < cost(priority=1)


@pytest.mark.parametrize(
    ("annotation", "priority", "expected"),
    [
        ("abc", None, 1.0),
        ("2147483647", 1_000_000_000, 10.0),
        ("-2147483647", None, -10.0),
        ("134217728", None, 2.0),
        ("-134217728", None, 0.0),
        ("", -(2**25), 0.0),
        ("", 2_000_000_000, 10.0),
    ],
)
def test_costs_are_those_of_the_table(annotation: str, priority: int | None, expected: float) -> None:
    """DIS-110, DIS-S062, DIS-S063, DIS-047: costs are clamped to -10 and 10."""
    assert cost(annotation, priority) == pytest.approx(expected)


def test_a_node_costs_one_more_than_its_pods_and_no_pod_makes_it_cheaper() -> None:
    """DIS-114, DIS-S064, DIS-046: the base cost of a node is 1."""
    least = pod("a", meta={"annotations": {DELETION_COST_ANNOTATION: "-2147483647"}}, node_name="n")
    assert disruption_cost(_node_with()) == 1.0
    assert disruption_cost(_node_with(*(pod(name, node_name="n") for name in "abc"))) == 4.0
    assert disruption_cost(_node_with(least)) == 1.0
    assert _node_with(least).is_empty


def _node_with(*pods: Pod) -> StateNode:
    return snapshot(flatten([pool(), running("n", "l"), pods])).nodes[0]


def price(kind_name: str, types: object = KINDS, zone: str = "z1") -> float | None:
    wires = flatten([pool(), running("n", kind_name, zone=zone)])
    return NodePrices(indexes(wires, types)).price_per_hour(snapshot(wires).nodes[0])


def test_a_node_costs_what_its_offering_costs() -> None:
    """DIS-115, DIS-S064"""
    assert price("l") == 4.0
    assert price("unheard-of") is None


def test_a_node_costs_the_same_when_its_offering_is_sold_out() -> None:
    """DIS-S067"""
    dear = kind("m", 4, [offering("on-demand", "z1", 1.0, available=False), offering("on-demand", "z2", 5.0)])
    assert price("m", (dear,)) == 1.0


def test_a_price_that_is_no_number_is_not_known() -> None:
    """DIS-S068"""
    assert price("m", (kind("m", 4, [offering("on-demand", "z1", math.nan)]),)) is None


def test_of_two_nodes_the_one_with_fewer_pods_goes() -> None:
    """DIS-S065"""
    solution = decide(pool(), running("two", "m", 1, 1), running("one", "m", 2))
    assert gone(solution) == ["one"]
    assert solution.commands[0].pod_restarts == 1


def test_the_most_expensive_per_disruption_goes_first() -> None:
    """DIS-117, DIS-S153, DIS-116: 8 with one pod before 16 with ten before 1.2 with eight."""
    sold = {"a": (16.0, 10), "b": (8.0, 1), "c": (1.2, 8)}
    types = tuple(
        kind(name, 20, [offering("on-demand", "z1", price), offering("on-demand", "z2", price)])
        for name, (price, _) in sold.items()
    )
    nodes = [running(name, name, *[0.1] * number) for name, (_, number) in sold.items()]
    wires = flatten([pool(), nodes])
    judge = CandidateChecks(snapshot(wires), indexes(wires, types), DisruptionContext(NOW))
    judged = [judge.candidate_or_blocker(view, DisruptionReason.UNDERUTILIZED) for view in snapshot(wires).nodes]
    ordered = sorted((element for element in judged if isinstance(element, Candidate)), key=candidate_order)
    assert [candidate.state_node.name for candidate in ordered] == ["b", "a", "c"]
