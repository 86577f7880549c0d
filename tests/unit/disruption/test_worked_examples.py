"""Worked examples of the disruption specification, and rules about candidates, simulations and scores that stand alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from karpenter.api.core import PodDisruptionBudgetStatus
from karpenter.api.karpenter import Budget, NodeClaim
from karpenter.api.meta import Condition, Wire
from karpenter.disruption.decide.balanced import PoolTotals, move_score
from karpenter.disruption.decide.command import ConsolidationType, Decision, DisruptionReason
from karpenter.disruption.decide.disruption_problem import DisruptionOptions
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.planned_nodeclaims import MAX_INSTANCE_TYPES
from support.builders import NOW, budget, flatten, replaced, wanted
from support.disruption_cases import (
    ANY,
    KINDS,
    ON_DEMAND,
    claimed,
    decide,
    drifted,
    gone,
    kind,
    on,
    pool,
    replacement_types,
    running,
    sold,
    verdict,
    why,
)
from support.instance_types import offering

DEFAULT_BUDGET = Budget(nodes="10%")
BALANCED = pool(consolidation_policy="Balanced")


def not_ready(objects: list[Wire]) -> list[Wire]:
    """The same node, whose kubelet is silent."""
    return [
        wire
        if isinstance(wire, NodeClaim)
        else replaced(wire, status=replaced(wire.status, conditions=(Condition(type="Ready", status="Unknown"),)))  # type: ignore[attr-defined]
        for wire in objects
    ]


def busy(name: str) -> list[Wire]:
    """A node of the cheapest type that its pod fills."""
    return running(name, "s", 2)


def test_a_default_budget_less_a_silent_node_leaves_room_for_the_most_expensive_empty_node() -> None:
    """DIS-E1: ten percent of twelve are two, one node is NotReady, so one of four empty nodes goes: one at 0.40."""
    prices = {"p10": 0.10, "p20": 0.20, "p40": 0.40}
    types = (*KINDS, *(kind(name, 4, sold(price)) for name, price in prices.items()))
    empty = [running(name, of_type) for name, of_type in (("a", "p10"), ("b", "p20"), ("c", "p40"), ("d", "p40"))]
    others = [not_ready(busy("down")), *(busy(f"n{number}") for number in range(7))]
    solution = decide(pool("np", DEFAULT_BUDGET), empty, others, types=types)
    assert gone(solution) in (["c"], ["d"])
    assert {command.reason for command in solution.commands} == {DisruptionReason.EMPTY}


def test_empty_drifted_nodes_go_first_and_then_the_one_that_drifted_first_with_two_replacements() -> None:
    """DIS-E3 with all commands of a pass that budgets allow: d2 and d3 at once, d1 when budgets allow it again."""
    only_drift = pool("np", DEFAULT_BUDGET, consolidate_after="Never")
    old = [NOW - timedelta(hours=hours) for hours in (9, 2, 1)]
    filled = [busy(f"n{number}") for number in range(14)]
    later = [running(f"e{number}", "l", 5, conditions=drifted(NOW)) for number in range(3)]
    d1 = running("d1", "l", *([2] * 4), conditions=drifted(old[0]))
    empty = [running(f"d{number}", "m", conditions=drifted(old[number - 1])) for number in (2, 3)]
    assert gone(decide(only_drift, d1, empty, filled, later, types=KINDS[:2])) == ["d2", "d3"]
    solution = decide(pool("np", Budget(nodes="1"), consolidate_after="Never"), d1, filled, types=KINDS[:2])
    assert gone(solution) == ["d1"]
    assert [len(command.replacements) for command in solution.commands] == [2]


def test_without_nodes_nothing_is_decided() -> None:
    """DIS-S001"""
    assert decide(pool()).commands == ()


def test_the_lifetime_of_a_node_does_not_matter() -> None:
    """DIS-S066: the younger node has one pod, so it goes, though the other has spent two thirds of its life."""
    old, young = running("a", "m", 1, 1), running("b", "m", 2)
    created = NOW - timedelta(hours=20)
    aged = [
        replaced(wire, metadata=replaced(wire.metadata, creation_timestamp=created))  # type: ignore[attr-defined]
        for wire in flatten([claimed(old, expire_after="30h")])
    ]
    assert gone(decide(pool(), aged, claimed(young, expire_after="30h"))) == ["b"]


def test_a_budget_that_is_raised_lets_the_same_node_go() -> None:
    """DIS-S101: the decision remembers nothing."""
    cluster = [running("a", "m", 1), running("b", "m", 2)]
    assert gone(decide(pool("np", Budget(nodes="0")), cluster)) == []
    assert gone(decide(pool("np", Budget(nodes="1")), cluster)) == ["a"]


# -- candidates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("allowed", "kept"), [(1, False), (0, True)])
def test_a_budget_that_lets_one_pod_go_keeps_no_node_with_two(allowed: int, kept: bool) -> None:
    """DIS-086: the check asks for one eviction now, not whether all pods could go at once."""
    over_both = budget("b", {"app": "web"}, min_available=1)
    now = replaced(over_both, status=PodDisruptionBudgetStatus(disruptions_allowed=allowed))
    node = [running("n"), on("n", 1, 1, meta={"labels": {"app": "web"}})]
    assert bool(verdict("n", pool(), node, now)) is kept


# -- simulations ----------------------------------------------------------------------------------------------------------


def test_a_reason_names_five_pods_and_counts_the_others() -> None:
    """DIS-168, SCH-825: each with its namespace and its own reason."""
    stuck = on("a", *([0.5] * 7), node_selector={"only": "here"})
    reason = why(decide(pool(), running("a", "m"), stuck), "a")
    assert "not all pods would schedule, default/a-0 => " in reason
    assert [name for name in (f"default/a-{number} => " for number in range(7)) if name in reason] == [
        f"default/a-{number} => " for number in range(5)
    ]
    assert "and 2 other(s)" in reason


def test_a_replacement_keeps_at_most_six_hundred_types() -> None:
    """DIS-028, DIS-164: the cheapest ones."""
    many = tuple(kind(f"t{number:03}", 2, sold(0.5 + number / 10_000)) for number in range(MAX_INSTANCE_TYPES + 20))
    (command,) = decide(pool(), running("a", "l", 1), types=(*KINDS, *many)).commands
    (replacement,) = command.replacements
    assert MAX_INSTANCE_TYPES == 600
    assert len(replacement.instance_types) == 600
    assert set(replacement.instance_types) <= {instance_type.name for instance_type in many[:600]}


def test_a_node_may_be_replaced_by_its_own_type_where_that_is_strictly_cheaper() -> None:
    """DIS-194: in another zone; at the same price it stays."""
    cheaper: InstanceType = kind("m", 4, [offering("on-demand", "z1", 2.0), offering("on-demand", "z2", 1.0)])
    equal = kind("m", 4, [offering("on-demand", "z1", 2.0), offering("on-demand", "z2", 2.0)])
    in_z2 = pool(requirements=[ON_DEMAND, wanted(labels.ZONE, "In", "z2")])
    assert replacement_types(decide(in_z2, running("a", "m", 4), types=(cheaper,))) == ["m"]
    assert replacement_types(decide(in_z2, running("a", "m", 4), types=(equal,))) == []


def test_two_spot_nodes_become_one_without_fifteen_types_to_choose_from() -> None:
    """DIS-202, DIS-201: the requirement of flexibility is for single nodes; the claim asks for spot."""
    types = (*KINDS, kind("x", 8, [offering("spot", "z1", 1.2)]))
    cluster = [running("a", "m", 3, capacity_type="spot"), running("b", "m", 3, capacity_type="spot")]
    solution = decide(pool(requirements=[ANY]), cluster, types=types, options=DisruptionOptions(spot_to_spot=True))
    assert gone(solution) == ["a", "b"]
    (command,) = solution.commands
    assert command.consolidation_type is ConsolidationType.MULTI
    asked = {requirement.key: requirement.values for requirement in command.replacements[0].claim.spec.requirements}
    assert asked[labels.CAPACITY_TYPE] == ("spot",)


def test_a_simulation_creates_and_records_nothing() -> None:
    """SCH-822: the same cluster leads to the same decision again, and the commands are all there is."""
    cluster = [pool(), running("a", "m", 1), running("b", "m", 2)]
    assert decide(cluster) == decide(cluster)
    assert gone(decide(cluster)) == ["a"]


# -- scores ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saving", "score", "approved"),
    [
        pytest.param(2.0, 1.0, True, id="delete"),
        pytest.param(1.0, 0.5, True, id="replace-at-half"),
        pytest.param(0.98, 0.49, False, id="replace-above-half"),
    ],
)
def test_a_node_alone_in_its_pool_scores_the_share_of_its_price_that_is_saved(
    saving: float, score: float, approved: bool
) -> None:
    """DIS-256, DIS-045: deleting it scores 1; a replacement is approved if it costs at most half."""
    actual = move_score(BALANCED, PoolTotals(2.0, 3.0), saving, 3.0)
    assert (actual.score, actual.approved) == (pytest.approx(score), approved)


def test_the_totals_of_a_pool_count_nodes_that_no_method_may_take() -> None:
    """DIS-063, DIS-251: a saves 1 of 4 $/h and has 2 of 7 of the disruption; b is not consolidatable and counts all the same."""
    cluster = [running("a", "m", 1), running("b", "m", 1, 1, 1, 1, conditions=())]
    (command,) = decide(pool(consolidation_policy="Balanced"), cluster).commands
    (score,) = command.scores
    assert gone([command]) == ["a"]
    assert score.score == pytest.approx((1 / 4) / (2 / 7))


def test_policy_and_budgets_of_the_pool_that_takes_the_pods_are_irrelevant() -> None:
    """DIS-255"""
    closed = pool("strict", Budget(nodes="0"), consolidation_policy="Balanced")
    cluster = [running("a", "s", 1, pool="easy"), running("b", "m", 2, pool="strict")]
    assert gone(decide([pool("easy"), closed], cluster)) == ["a"]


def test_reasons_and_decisions_have_the_names_of_the_api() -> None:
    """DIS-016, DIS-017, DIS-429, K15-002, K15-210, K15-466: as budgets, conditions and metrics spell them."""
    assert [reason.value for reason in DisruptionReason] == [
        "Empty",
        "Drifted",
        "Underutilized",
        "Unhealthy",
        "Sleep",
    ]
    assert [decision.value for decision in Decision] == ["delete", "replace", "terminate-first", "reboot"]


def test_consolidation_types_are_those_of_the_metrics() -> None:
    """DIS-427: drift has the empty one."""
    assert {kind.value for kind in ConsolidationType} == {"", "empty", "multi", "single"}
    cluster = [running("a", "m", 1, conditions=drifted())]
    assert [command.consolidation_type.value for command in decide(pool(), cluster).commands] == [""]
    assert [command.consolidation_type.value for command in decide(pool(), running("a", "m")).commands] == ["empty"]
