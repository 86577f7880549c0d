"""Balanced consolidation: the saving of a move against its disruption (DIS §10, scenarios 26.17, examples DIS-E4 to DIS-E7)."""

from __future__ import annotations

import math

import pytest

from karpenter.api.karpenter import Budget
from karpenter.disruption.decide.balanced import PoolTotals, move_score
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.model import labels
from support.disruption_cases import decide, gone, kind, pool, replacement_types, running, sold, with_annotation
from support.instance_types import offering

BALANCED = pool(consolidation_policy="Balanced")


@pytest.mark.parametrize(
    ("cost", "disruption", "saving", "own", "expected", "approved"),
    [
        (58.08, 90, 7.26, 4, 2.81, True),  # DIS-S320
        (58.08, 90, 4.84, 5, 1.50, True),  # DIS-S321
        (58.08, 90, 2.42, 9, 0.42, False),  # DIS-S322
        (58.08, 90, 0, 9, 0, False),  # DIS-S323
        (58.08, 90, -1, 9, 0, False),
        (48.40, 90, 2.42, 9, 0.50, True),  # DIS-S324
        (58.08, 117, 4.84, 5, 1.95, True),  # DIS-S325
        (58.08, 117, 4.84, 32, 0.30, False),
        (580.8, 900, 7.26, 4, 2.81, True),  # DIS-S326
        (0, 90, 1, 1, 0, False),  # DIS-S327
        (58.08, 90, 1, 0, math.inf, True),  # DIS-S328
        (1.20, 36, 0.20, 3, 2.0, True),  # DIS-E7
        (1.20, 36, 0.20, 11, 0.545, True),
        (1.20, 36, 0.08, 11, 0.218, False),
        (1.20, 36, 0.20, 13, 0.46, False),
    ],
)
def test_scores_are_those_of_the_table(
    cost: float, disruption: float, saving: float, own: float, expected: float, approved: bool
) -> None:
    """DIS-S320 to DIS-S328"""
    actual = move_score(BALANCED, PoolTotals(cost, disruption), saving, own)
    assert actual.score == pytest.approx(expected, abs=0.005)
    assert actual.approved is approved


def test_a_pool_that_only_launches_on_demand_is_not_rated_with_spot_prices() -> None:
    """DIS-S329: 0.50 against 0.40 in a pool of 1 $/h, though spot would be 0.10."""
    types = (
        kind("m", 4, sold(0.5)),
        kind("x", 2, [offering("on-demand", "z1", 0.4), offering("spot", "z1", 0.1)]),
    )
    cluster = [running("a", "m", 0.5, 0.5, 0.5), running("b", "m", 1, 1, 1, 1)]
    assert gone(decide(BALANCED, cluster, types=types)) == []
    easy = with_annotation(pool(), labels.MINIMUM_SAVING_RATIO, "0.1")
    assert gone(decide(easy, cluster, types=types)) == ["a"]


def test_a_node_much_too_large_is_replaced() -> None:
    """DIS-S330"""
    solution = decide(BALANCED, running("a", "l", 1))
    assert replacement_types(solution) == ["s"]
    (own,) = solution.commands[0].scores
    assert (own.node_pool, own.balanced, own.threshold) == ("np", True, 0.5)
    assert own.approved


def test_a_full_node_of_the_cheapest_type_stays() -> None:
    """DIS-S331"""
    assert gone(decide(BALANCED, running("a", "s", 2))) == []


def test_a_closed_budget_stops_what_is_worth_it() -> None:
    """DIS-S332"""
    solution = decide(pool("np", Budget(nodes="0%"), consolidation_policy="Balanced"), running("a", "l", 1))
    assert gone(solution) == []
    assert solution.closed_pools == {DisruptionReason.UNDERUTILIZED: {"np": "spec.disruption.budgets[0]"}}


def test_empty_nodes_go_first() -> None:
    """DIS-S333"""
    one = pool("np", Budget(nodes="1"), consolidation_policy="Balanced")
    assert gone(decide(one, running("idle"), running("a", "l", 1))) == ["idle"]


def test_each_pool_goes_by_its_own_policy() -> None:
    """DIS-S334: the one asks for half of what is fair, the other for three tenths."""
    types = (kind("m", 4, sold(1.0)), kind("x", 4, sold(0.6)))
    two = [pool("strict", consolidation_policy="Balanced"), pool("easy")]
    solution = decide(two, running("a", "m", 4, pool="strict"), running("b", "m", 4, pool="easy"), types=types)
    assert gone(solution) == ["b"]


def test_the_threshold_can_be_set() -> None:
    """DIS-250 Beyond: k per pool."""
    types = (kind("m", 4, sold(1.0)), kind("x", 4, sold(0.7)))
    solution = decide(with_annotation(BALANCED, labels.MINIMUM_SAVING_RATIO, "0.25"), running("a", "m", 4), types=types)
    assert gone(solution) == ["a"]


def test_of_several_pools_each_has_to_agree() -> None:
    """DIS-252, DIS-254"""
    types = (kind("m", 4, sold(1.0)), kind("x", 8, sold(1.3)))
    strict = [pool(name, consolidation_policy="Balanced") for name in "pq"]
    nodes = [running("a", "m", 4, pool="p"), running("b", "m", 4, pool="q")]
    assert gone(decide(strict, nodes, types=types)) == []
    assert gone(decide([pool("p"), pool("q")], nodes, types=types)) == ["a", "b"]


@pytest.mark.parametrize(("policy", "approved"), [("WhenEmptyOrUnderutilized", True), ("Balanced", False)])
def test_where_nothing_is_known_of_prices_only_balanced_says_no(policy: str, approved: bool) -> None:
    """DIS-192, DIS-253"""
    actual = move_score(pool(consolidation_policy=policy), PoolTotals(0.0, 10.0), 0.0, 2.0)
    assert actual.score == 0.0
    assert actual.approved is approved
