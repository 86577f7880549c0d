"""The plan checker accepts a valid plan, and reports each fault that is put into one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from karpenter.api.karpenter import NodeClaim
from karpenter.model import labels
from karpenter.scheduling.solution import Solution, UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import NoRoom, UnschedulableReason
from support.builders import (
    claim,
    wanted,
)
from support.missed_placements import missed_placement
from support.plan_checker import violations
from support.plan_checker_cases import (
    Case,
    affinity_term,
    new_nodeclaim_of,
    node_in_zone,
    placed_on,
    placement_cases,
    plan_of,
    pod_anti_affinity,
    spread_pod,
    web_pod,
)
from support.plan_checker_topology_cases import topology_cases

CASES = [*placement_cases(), *topology_cases()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_each_fault_is_reported_and_a_valid_plan_passes(case: Case) -> None:
    assert violations(case.cluster(case.valid), case.valid) == []
    actual = violations(case.cluster(case.invalid), case.invalid)
    assert any(case.word in problem for problem in actual), actual


def test_pods_of_another_namespace_do_not_count_for_a_spread() -> None:
    old = [web_pod(f"old{number}", node_name="n1", space="other") for number in range(2)]
    solution = plan_of(placed_on("n1", spread_pod("p")))
    case = Case("", solution, solution, "", [node_in_zone("n1"), node_in_zone("n2", "z2"), *old])
    assert violations(case.cluster(solution), solution) == []


def test_a_pod_missing_from_the_plan_is_reported() -> None:
    cluster = Case("", Solution(), Solution(), "").cluster(plan_of(new_nodeclaim_of("c", web_pod("p"))))
    assert any("exactly once" in problem for problem in violations(cluster, Solution()))


def test_the_only_binding_order_that_works_is_found() -> None:
    """Pods that spread have to be bound before those that merely match: then, and only then, all of them pass."""
    there = [node_in_zone("n1"), node_in_zone("n2", "z2")]
    solution = plan_of(placed_on("n1", web_pod("a"), web_pod("b"), web_pod("c"), spread_pod("s")))
    assert violations(Case("", solution, solution, "", there).cluster(solution), solution) == []


def test_a_node_that_could_take_a_pod_left_out_is_found() -> None:
    why = (UnschedulableReason(NoRoom()),)
    lone = web_pod("p", affinity=pod_anti_affinity(affinity_term()))
    barred = [web_pod(f"old-{zone}", node_name=zone) for zone in ("z1", "z2", "z3")]
    nodes = [node_in_zone(zone, zone) for zone in ("z1", "z2", "z3")]
    left = plan_of(UnschedulablePod(lone, why))
    case = Case("", left, left, "", [*nodes, *barred])
    assert missed_placement(case.cluster(left), left, lone) is None
    assert "z3" in (missed_placement(replace(case, there=[*nodes, *barred[:2]]).cluster(left), left, lone) or "")


def test_an_in_flight_claim_is_checked_as_every_type_it_may_become() -> None:
    coming: NodeClaim = claim("old", None, [wanted(labels.INSTANCE_TYPE, "In", "small", "large")])
    small, large = plan_of(placed_on("old", web_pod("p", "1"))), plan_of(placed_on("old", web_pod("p", "4")))
    case = Case("", small, large, "", [coming])
    assert violations(case.cluster(small), small) == []
    assert violations(case.cluster(large), large)
