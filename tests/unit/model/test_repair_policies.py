"""Node repair policies: valid sets, what they match, and how several of them merge (K15-203 ff.)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from karpenter.api.core import Node, NodeStatus
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.model.repair_policies import InvalidRepairPolicies, RepairAction, RepairPolicy, repair_policies
from support.builders import NOW

MINUTE = timedelta(minutes=1)
FALLBACK = RepairPolicy("Ready", "False", 10 * MINUTE)
REBOOT = RepairPolicy("GpuReady", "False", 5 * MINUTE, "XID(48|54)", 2 * MINUTE, 50, RepairAction.REBOOT)
REPLACE = RepairPolicy("GpuReady", "False", 20 * MINUTE, "XID79", 7 * MINUTE)
SET = repair_policies((FALLBACK, REBOOT, REPLACE))


def sick(*found: tuple[str, str, str, float], created: datetime = NOW) -> Node:
    """A Node with conditions: type, status, reason, minutes after NOW at which it changed."""
    conditions = tuple(
        Condition(type=kind, status=status, reason=reason, last_transition_time=NOW + minutes * MINUTE)
        for kind, status, reason, minutes in found
    )
    return Node(metadata=ObjectMeta(name="n", creation_timestamp=created), status=NodeStatus(conditions=conditions))


def test_a_condition_matches_the_policies_of_its_reason_and_else_the_fallback() -> None:
    """K15-215, K15-217: a waiting specific policy keeps the fallback from acting on its condition."""
    now = NOW + 12 * MINUTE
    chosen = SET.decision(sick(("GpuReady", "False", "NvidiaXID48Error", 0)), now)
    assert chosen is not None
    assert chosen.policy is REBOOT
    unknown = SET.decision(sick(("GpuReady", "False", "Other", 0)), now)
    assert unknown is not None
    assert unknown.policy is FALLBACK
    assert SET.decision(sick(("GpuReady", "False", "NvidiaXID79Error", 0)), now) is None
    assert SET.decision(sick(("GpuReady", "Unknown", "Other", 0)), now) is None


@pytest.mark.parametrize(
    ("created", "changed", "rebooted", "due"), [(0, 3, None, 8), (4, 3, None, 9), (0, 3, 6, 11), (7, 3, 6, 12)]
)
def test_a_policy_is_eligible_from_the_last_of_three_moments(
    created: int, changed: int, rebooted: int | None, due: int
) -> None:
    """K15-216: change of the condition, creation of the Node, end of the last reboot; K15-221: the clock alone makes it so."""
    node = sick(("GpuReady", "False", "XID48", changed), created=NOW + created * MINUTE)
    ended = None if rebooted is None else NOW + rebooted * MINUTE
    eligible = NOW + due * MINUTE
    assert SET.decision(node, eligible - timedelta(seconds=1), ended) is None
    assert SET.next_eligible(node, eligible - timedelta(seconds=1), ended) == eligible
    assert SET.decision(node, eligible, ended) is not None
    assert SET.next_eligible(node, eligible, ended) is None


def test_a_condition_without_transition_time_counts_from_the_creation_of_the_node() -> None:
    """K15-216"""
    node = sick(("Ready", "False", "", 0))
    node = replace_conditions(node, Condition(type="Ready", status="False"))
    assert SET.next_eligible(node, NOW) == NOW + 10 * MINUTE


def replace_conditions(node: Node, *conditions: Condition) -> Node:
    return Node(metadata=node.metadata, status=NodeStatus(conditions=conditions))


def test_the_most_disruptive_action_wins_and_the_shortest_bound_stays() -> None:
    """K15-218, K15-219, K15-S09: a reboot policy and a replace policy are eligible together."""
    node = sick(("GpuReady", "False", "XID48,XID79", 0))
    decision = SET.decision(node, NOW + 30 * MINUTE)
    assert decision is not None
    assert (decision.action, decision.policy, decision.drain_bound) == (RepairAction.REPLACE, REPLACE, 2 * MINUTE)
    assert decision.drain_bound_condition == "GpuReady"


def test_priority_then_time_then_name_decide_which_condition_governs() -> None:
    """K15-218"""
    low = RepairPolicy("A", "True", MINUTE, ".*")
    high = replace(low, condition_type="Z", priority=10)
    policies = repair_policies((FALLBACK, low, high, replace(low, condition_type="B")))

    def governing(*found: tuple[str, str, str, float]) -> str:
        decision = policies.decision(sick(*found), NOW + 60 * MINUTE)
        assert decision is not None
        return decision.condition.type

    assert governing(("A", "True", "", 0), ("Z", "True", "", 9)) == "Z"
    assert governing(("A", "True", "", 5), ("B", "True", "", 0)) == "B"
    assert governing(("B", "True", "", 0), ("A", "True", "", 0)) == "A"


def test_thirty_minutes_of_waiting_equal_a_step_of_priority() -> None:
    """K15-220, K15-S08: ranks are dense, and the longest wait wins over two steps after 61 minutes."""
    zero = RepairPolicy("Zero", "True", timedelta(), ".*")
    policies = repair_policies(
        (
            FALLBACK,
            zero,
            replace(zero, condition_type="Fifty", priority=50),
            replace(zero, condition_type="Top", priority=100),
        )
    )
    fresh = policies.decision(sick(("Top", "True", "", 61)), NOW + 61 * MINUTE)
    old = policies.decision(sick(("Zero", "True", "", 0)), NOW + 61 * MINUTE)
    assert fresh is not None
    assert old is not None
    assert fresh.score == 2.0
    assert old.score == pytest.approx(61 / 30)


def test_covered_means_any_reason_and_duration() -> None:
    """K15-228: the breaker counts covered conditions."""
    assert SET.is_unhealthy(sick(("GpuReady", "False", "anything", 0)))
    assert not SET.is_unhealthy(sick(("GpuReady", "True", "", 0), ("Ready", "Unknown", "", 0)))


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (replace(FALLBACK, condition_type=""), "the condition type is empty"),
        (replace(FALLBACK, condition_status="no"), "condition status 'no' is none of"),
        (replace(FALLBACK, toleration=-MINUTE), "the toleration is negative"),
        (replace(FALLBACK, drain_bound=-MINUTE), "the drain bound is negative"),
        (replace(FALLBACK, priority=101), "priority 101 is not between"),
        (replace(FALLBACK, reason_pattern="("), "is no regular expression"),
        (replace(FALLBACK, reason_pattern=".*"), "exactly one policy must have no reason pattern, 0 have none"),
        (replace(FALLBACK, action=RepairAction.REBOOT), "must have action ReplaceNode"),
    ],
)
def test_a_set_that_is_not_valid_names_every_error(policy: RepairPolicy, error: str) -> None:
    """K15-204"""
    with pytest.raises(InvalidRepairPolicies, match="node repair requires valid RepairPolicies, ") as raised:
        repair_policies((policy,))
    assert error in str(raised.value)


def test_two_fallbacks_are_refused_and_so_is_an_empty_set() -> None:
    """K15-204, K15-051"""
    with pytest.raises(InvalidRepairPolicies, match="2 have none"):
        repair_policies((FALLBACK, FALLBACK))
    with pytest.raises(InvalidRepairPolicies, match="but it defines none"):
        repair_policies(())
