"""How many nodes of each pool one pass may disrupt (DIS §6, scenarios 26.4). Budgets themselves: tests of ``model.budgets``."""

from __future__ import annotations

import pytest

from karpenter.api.karpenter import Budget
from karpenter.api.meta import Condition
from karpenter.disruption.decide.command import ConsolidationType, Decision, DisruptionReason
from karpenter.disruption.decide.disruption_preview import budgets_allow_all, decide_without_budgets
from karpenter.disruption.decide.disruption_problem import DisruptionProblem
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets
from karpenter.model import labels
from support.applied_commands import CONSOLIDATABLE, QUIET, USUAL
from support.builders import NOW, flatten, indexes, node, replaced, snapshot
from support.disruption_cases import KINDS, decide, drifted, gone, pool, running, with_annotation

EMPTY = DisruptionReason.EMPTY


def empties(number: int, prefix: str = "e", **fields: object) -> list[object]:
    return [running(f"{prefix}{n}", **fields) for n in range(number)]


@pytest.mark.parametrize(("nodes", "goes"), [("30%", 3), ("100%", 10), ("5%", 1)])
def test_as_many_empty_nodes_as_the_budget_allows_go_in_one_command(nodes: str, goes: int) -> None:
    """DIS-S080, DIS-S082, DIS-S084, DIS-220: all of them in one delete."""
    solution = decide(pool("np", Budget(nodes=nodes)), empties(10))
    assert [len(command.candidates) for command in solution.commands] == [goes]
    assert solution.commands[0].reason is EMPTY
    assert solution.commands[0].consolidation_type is ConsolidationType.EMPTY
    assert solution.eligible_nodes[EMPTY] == 10


def test_a_pool_whose_budget_is_exhausted_gets_an_event() -> None:
    """DIS-S081"""
    solution = decide(pool("np", Budget(nodes="0%")), empties(10))
    assert gone(solution) == []
    assert solution.closed_pools == {EMPTY: {"np": "spec.disruption.budgets[0]"}}


def test_every_pool_has_its_own_budget() -> None:
    """DIS-S083"""
    pools = [pool(name, Budget(nodes="2")) for name in "abc"]
    solution = decide(pools, [empties(3, name, pool=name) for name in "abc"])
    assert [len(command.candidates) for command in solution.commands] == [6]
    assert solution.commands[0].node_pools == ("a", "b", "c")


def allowances(budget: str, *objects: object) -> RemainingBudgets:
    return RemainingBudgets(snapshot(pool("np", Budget(nodes=budget)), *objects), NOW)


def test_nodes_that_are_not_ours_or_still_start_are_no_part_of_the_whole() -> None:
    """DIS-S094, DIS-S095"""
    remaining_budgets = allowances("100%", empties(9), running("young", initialized=False), node("foreign", {"cpu": 1}))
    assert remaining_budgets.allowed("np", EMPTY) == 9


def test_a_node_whose_instance_ends_neither_counts_nor_uses_up() -> None:
    """DIS-S096"""
    ending = running("ending", conditions=(Condition(type="InstanceTerminating", status="True"),))
    remaining_budgets = allowances("100%", empties(9), ending)
    assert remaining_budgets.remaining("np", EMPTY) == 9


def test_nodes_that_are_leaving_or_down_use_the_budget_up() -> None:
    """DIS-S097. DIS-377, DIS-150: whatever removes a node, it consumes the budget."""
    host, behind = running("down")
    down = replaced(host, status=replaced(host.status, conditions=()))  # type: ignore[attr-defined]
    cluster = [empties(7), running("x", deleted=True), running("y", deleted=True), down, behind]
    solution = decide(pool("np", Budget(nodes="3")), cluster)
    assert gone(solution) == []
    assert solution.closed_pools == {}


def test_what_is_left_is_never_negative() -> None:
    """DIS-S098"""
    leaving = [running(f"x{n}", deleted=True) for n in range(5)]
    assert allowances("2", empties(5), leaving).remaining("np", EMPTY) == 0


def test_all_methods_share_a_budget() -> None:
    """DIS-S004, DIS-147: the empty node uses it up, the drifted one waits."""
    old = running("old", "m", 1, conditions=drifted())
    solution = decide(pool("np", Budget(nodes="1")), running("idle"), old, running("room", "m", 1, conditions=()))
    assert [(command.reason, gone([command])) for command in solution.commands] == [(EMPTY, ["idle"])]


def test_consolidation_keeps_to_the_budget_too() -> None:
    """DIS-S100"""
    solution = decide(pool("np", Budget(nodes="3")), [running(f"n{n}", "l", 1) for n in range(10)])
    assert len(gone(solution)) == 3
    assert all(command.decision is Decision.DELETE for command in solution.commands)


def test_a_reason_may_have_a_budget_of_its_own() -> None:
    """DIS-S085, DIS-132: other reasons are not limited by it."""
    budgets = (Budget(nodes="10"), Budget(nodes="5", reasons=("Drifted",)), Budget(nodes="4", reasons=("Empty",)))
    remaining_budgets = RemainingBudgets(snapshot(pool("np", *budgets), empties(100)), NOW)
    assert [remaining_budgets.allowed("np", reason) for reason in DisruptionReason] == [4, 5, 10, 10, 10]


def test_an_empty_and_drifted_node_goes_once_as_empty() -> None:
    """DIS-S005"""
    solution = decide(pool(), running("n", conditions=(CONSOLIDATABLE, *drifted())))
    assert [(command.reason, gone([command])) for command in solution.commands] == [(EMPTY, ["n"])]


def test_where_consolidation_is_off_an_empty_node_still_drifts() -> None:
    """DIS-S006"""
    solution = decide(pool(consolidate_after="Never"), running("n", conditions=drifted()))
    assert [(command.reason, command.decision) for command in solution.commands] == [
        (DisruptionReason.DRIFTED, Decision.DELETE)
    ]


def test_a_preview_shows_what_waits_behind_budgets_and_freezes() -> None:
    """DIS-494"""
    frozen = with_annotation(pool("np", Budget(nodes="1")), labels.FREEZE, "release week")
    cluster = flatten([frozen, empties(3)])
    assert gone(decide(cluster)) == []
    solution = decide_without_budgets(DisruptionProblem(snapshot(cluster), QUIET, USUAL), indexes(cluster, KINDS))
    assert gone(solution) == ["e0", "e1", "e2"]


@pytest.mark.parametrize(
    ("budgets", "nodes", "allow_all"),
    [
        ((), empties(2), True),
        (("100%",), empties(2), True),
        (("2",), empties(2), True),
        (("100%", "1"), empties(2), False),
        (("100%",), [*empties(2), running("leaving", deleted=True)], True),
        (("100%",), [*empties(2), running("young", initialized=False)], False),
    ],
)
def test_budgets_allow_all_where_every_node_could_go_at_once(
    budgets: tuple[str, ...], nodes: list[object], allow_all: bool
) -> None:
    own = pool("np", *(Budget(nodes=each) for each in budgets))
    assert budgets_allow_all(DisruptionProblem(snapshot(own, *nodes), QUIET, USUAL)) == allow_all
    frozen = with_annotation(own, labels.FREEZE, "release week")
    assert not budgets_allow_all(DisruptionProblem(snapshot(frozen, *nodes), QUIET, USUAL))
