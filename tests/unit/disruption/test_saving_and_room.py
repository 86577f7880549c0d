"""Reasons of nodes whose moves save too little, or whose pods fit only on nodes within consolidateAfter."""

from __future__ import annotations

from datetime import timedelta

from karpenter.api.meta import Condition
from karpenter.disruption.decide.blocker_messages import blocker_message
from karpenter.disruption.decide.move_blockers import NotCheaper
from karpenter.model import labels
from support.builders import NOW
from support.disruption_cases import (
    decide,
    drifted,
    gone,
    kind,
    pool,
    running,
    sold,
    why,
    with_annotation,
)


def test_pods_are_not_moved_for_pennies() -> None:
    """DIS-487: less than three tenths of what the node's share of the pool would justify (`consolidation_thresholds`)."""
    types = (kind("m", 4, sold(1.0)), kind("x", 4, sold(0.95)))
    solution = decide(pool(), running("a", "m", 3), types=types)
    assert gone(solution) == []
    assert why(solution, "a") == (
        "Consolidation would save too little for what it disrupts: at most $0.0500/h, $0.3000/h are required"
    )
    eager = with_annotation(pool(), labels.MINIMUM_SAVING_RATIO, "0")
    assert gone(decide(eager, running("a", "m", 3), types=types)) == ["a"]


def test_a_node_without_a_cheaper_type_is_not_reported_as_saving_too_little() -> None:
    """DIS-487: no node for the pods costs less than this one, whatever the required saving."""
    solution = decide(pool(), running("a", "m", 3), types=(kind("m", 4, sold(1.0)), kind("x", 4, sold(1.2))))
    assert gone(solution) == []
    assert why(solution, "a") == (
        "Can't replace with a cheaper node, other nodes have no room for all of its pods and new nodes for the rest cost at "
        "least $1.0000/h, this one costs $1.0000/h"
    )


def test_a_node_whose_pods_fit_where_consolidate_after_is_not_over_says_where_and_until_when() -> None:
    """DIS-241: the saving is not what is in the way. A node that drifts takes no pods later either."""
    initialized = Condition(type="Initialized", status="True", last_transition_time=NOW - timedelta(seconds=30))
    restless = running("b", "m", 3, conditions=(initialized,))
    cluster = (pool(consolidate_after="1m"), running("a", "s", 1))
    solution = decide(cluster, restless)
    [blocked] = [node for node in solution.blocked_nodes if node.state_node.name == "a"]
    assert blocked.blocker.until == NOW + timedelta(seconds=30)
    assert blocker_message(blocked.blocker) == "Pods fit on other nodes only once consolidateAfter of these is over: b"
    full = running("b", "m", 3.5, conditions=(initialized,))
    leaving = running("b", "m", 3, conditions=(initialized, *drifted()))
    for other in (full, leaving):
        assert "Can't replace with a cheaper node" in why(decide(cluster, other), "a")


def test_the_same_cause_with_other_figures_is_the_same_blocker() -> None:
    """DIS-398: a price that changes makes no other event."""
    first, second = NotCheaper(1.0, 1.1), NotCheaper(1.00001, 1.2)
    assert first.identity == second.identity == ("not-cheaper",)
