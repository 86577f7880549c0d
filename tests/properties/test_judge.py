"""The judge itself is judged: it accepts a lawful plan, and complains once the plan is broken in one way."""

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
from support.judge import problems
from support.judge_cases import Case, about, buy, placement_cases, plan_of, put, shunning, spreading, standing, web
from support.judge_places import room
from support.judge_topology_cases import topology_cases

CASES = [*placement_cases(), *topology_cases()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_a_planted_fault_is_found_and_a_lawful_plan_passes(case: Case) -> None:
    assert problems(case.world(case.lawful), case.lawful) == []
    actual = problems(case.world(case.broken), case.broken)
    assert any(case.word in problem for problem in actual), actual


def test_pods_of_another_namespace_do_not_count_for_a_spread() -> None:
    old = [web(f"old{number}", node_name="n1", space="other") for number in range(2)]
    solution = plan_of(put("n1", spreading("p")))
    case = Case("", solution, solution, "", [standing("n1"), standing("n2", "z2"), *old])
    assert problems(case.world(solution), solution) == []


def test_a_forgotten_pod_is_missed() -> None:
    world = Case("", Solution(), Solution(), "").world(plan_of(buy("c", web("p"))))
    assert any("exactly once" in problem for problem in problems(world, Solution()))


def test_an_order_is_found_where_only_one_will_do() -> None:
    """Pods that spread have to be bound before those that merely match: then, and only then, all of them pass."""
    there = [standing("n1"), standing("n2", "z2")]
    solution = plan_of(put("n1", web("a"), web("b"), web("c"), spreading("s")))
    assert problems(Case("", solution, solution, "", there).world(solution), solution) == []


def test_a_pod_left_out_is_shown_the_place_it_could_have() -> None:
    why = (UnschedulableReason(NoRoom()),)
    lone = web("p", affinity=shunning(about()))
    barred = [web(f"old-{zone}", node_name=zone) for zone in ("z1", "z2", "z3")]
    nodes = [standing(zone, zone) for zone in ("z1", "z2", "z3")]
    left = plan_of(UnschedulablePod(lone, why))
    case = Case("", left, left, "", [*nodes, *barred])
    assert room(case.world(left), left, lone) is None
    assert "z3" in (room(replace(case, there=[*nodes, *barred[:2]]).world(left), left, lone) or "")


def test_a_claim_in_flight_is_judged_as_every_type_it_may_become() -> None:
    coming: NodeClaim = claim("old", None, [wanted(labels.INSTANCE_TYPE, "In", "small", "large")])
    small, large = plan_of(put("old", web("p", "1"))), plan_of(put("old", web("p", "4")))
    case = Case("", small, large, "", [coming])
    assert problems(case.world(small), small) == []
    assert problems(case.world(large), large)
