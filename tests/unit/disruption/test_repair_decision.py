"""The node repair decision: which nodes are repaired, how, and what prevents it (K15-222 ff.)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from karpenter.api.core import Node
from karpenter.api.karpenter import Budget, NodeClaim
from karpenter.api.meta import Condition, Wire
from karpenter.disruption.decide.command import Decision, DisruptionReason
from karpenter.disruption.decide.disruption_problem import DisruptionOptions, DisruptionSolution
from karpenter.disruption.decide.failed_moves import FailedMoves, moves_by_node
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets, pool_node_counts
from karpenter.disruption.node_marking import is_stale_mark
from karpenter.model import conditions, labels
from karpenter.model.repair_policies import RepairAction, RepairPolicy, repair_policies
from support.applied_commands import QUIET
from support.builders import NOW, budget, node_pool, pool_taint, replaced, snapshot, taint, wanted
from support.disruption_cases import (
    claimed,
    decide,
    drifted,
    gone,
    on,
    pool,
    replacement_types,
    running,
    why,
    with_annotation,
)

MINUTE = timedelta(minutes=1)
READY = RepairPolicy("Ready", "False", 10 * MINUTE)
DISK = RepairPolicy("DiskReady", "False", 5 * MINUTE, ".*", drain_bound=2 * MINUTE, priority=50)
GPU = RepairPolicy("GpuReady", "False", 5 * MINUTE, "XID48", drain_bound=3 * MINUTE, action=RepairAction.REBOOT)
REPAIRING = DisruptionOptions(repair=repair_policies((READY, DISK, GPU)))
HELD = {"annotations": {labels.DO_NOT_DISRUPT: "true"}}


def sick(
    objects: Sequence[Wire], kind: str = "DiskReady", status: str = "False", minutes: float = 6, reason: str = "r"
) -> list[Wire]:
    """The same objects, their Nodes with a condition since so many minutes."""
    found = Condition(type=kind, status=status, reason=reason, last_transition_time=NOW - minutes * MINUTE)
    return [
        replaced(
            wire,
            status=replaced(
                wire.status, conditions=(*(old for old in wire.status.conditions if old.type != kind), found)
            ),
        )
        if isinstance(wire, Node)
        else wire
        for wire in objects
    ]


def rebooting(objects: Sequence[Wire], status: str = "True", minutes: float = 1) -> list[Wire]:
    """The same objects, their claims with the condition Rebooting."""
    found = Condition(type="Rebooting", status=status, reason="R", last_transition_time=NOW - minutes * MINUTE)
    return [
        replaced(wire, status=replaced(wire.status, conditions=(*wire.status.conditions, found)))
        if isinstance(wire, NodeClaim)
        else wire
        for wire in objects
    ]


def healthy(count: int = 4, **fields: object) -> list[list[Wire]]:
    """Nodes full of pods that are not consolidated."""
    return [running(f"h{number}", "m", 4, conditions=(), **fields) for number in range(count)]


def repaired(
    *objects: object, circumstances: object = QUIET, options: DisruptionOptions = REPAIRING
) -> DisruptionSolution:
    return decide(*objects, circumstances=circumstances, options=options)


def test_one_of_five_is_replaced_first() -> None:
    """K15-S01, K15-200, K15-231, K15-234: at any price; K15-210, K15-455: the decision is replace, the reason Unhealthy."""
    solution = repaired(pool("np", Budget(nodes="10%")), healthy(), sick(running("a", "m", 4)))
    (command,) = solution.commands
    assert (command.reason, command.decision) == (DisruptionReason.UNHEALTHY, Decision.REPLACE)
    assert gone(solution) == ["a"]
    assert replacement_types(solution) == ["m"]
    assert solution.eligible_nodes[DisruptionReason.UNHEALTHY] == 1


def test_a_node_without_pods_goes_without_replacement() -> None:
    """K15-231"""
    solution = repaired(pool(), healthy(), sick(running("a", "m")))
    assert [command.decision for command in solution.commands] == [Decision.DELETE]


def test_repair_goes_before_everything_else() -> None:
    """K15-229: while a repair can be started, drift, emptiness and consolidation wait."""
    solution = repaired(
        pool(), healthy(), sick(running("a", "m", 4)), running("d", "m", 4, conditions=drifted()), running("e", "m")
    )
    assert gone(solution) == ["a"]


@pytest.mark.parametrize(("broken", "others", "repairs"), [(2, 3, 0), (1, 2, 1), (1, 4, 1), (2, 5, 2)])
def test_the_breaker_counts_a_fifth_rounded_up(broken: int, others: int, repairs: int) -> None:
    """K15-228, K15-S02, K15-S03: of five at most one may be unhealthy, for any duration."""
    fresh = [sick(running(f"b{number}", "m", 4), minutes=6) for number in range(broken)]
    solution = repaired(pool(), healthy(others), fresh)
    assert len(gone(solution)) == repairs
    if not repairs:
        assert 'more than 20% of nodes in nodepool "np" are unhealthy' in why(solution, "b0")


def test_nodes_that_only_begin_to_be_unhealthy_open_the_breaker() -> None:
    """K15-228: tolerations are ignored."""
    fresh = sick(running("b", "m", 4), minutes=1)
    assert gone(repaired(pool(), healthy(3), sick(running("a", "m", 4)), fresh)) == []


def test_the_breaker_looks_at_the_whole_cluster_too() -> None:
    """Many small NodePools do not replace their nodes when the network fails."""
    pools = [pool(f"p{number}") for number in range(6)]
    nodes = [
        sick(running(f"n{number}", "m", 4, pool=f"p{number}"))
        if number < 3
        else running(f"n{number}", "m", 4, pool=f"p{number}", conditions=())
        for number in range(6)
    ]
    solution = repaired(pools, nodes)
    assert gone(solution) == []
    assert "more than 20% of nodes in the cluster are unhealthy" in why(solution, "n0")


def test_budgets_hold_repair_back() -> None:
    """K15-208, K15-S04: a budget of the reason Unhealthy, and one without reasons."""
    for closed in (Budget(nodes="0", reasons=("Unhealthy",)), Budget(nodes="0")):
        assert gone(repaired(pool("np", closed), healthy(), sick(running("a", "m", 4)))) == []
    other = Budget(nodes="0", reasons=("Drifted",))
    assert gone(repaired(pool("np", other), healthy(), sick(running("a", "m", 4)))) == ["a"]


def test_nodes_that_are_down_use_no_budget_of_repair() -> None:
    """K15-S05, K15-206: three of twenty nodes are not ready, and the budget is two."""
    nodes = [*healthy(17), *[sick(running(f"b{number}", "m", 4), "Ready", minutes=11) for number in range(3)]]
    taken = snapshot([pool("np", Budget(nodes="10%")), *[wire for pair in nodes for wire in pair]])
    budgets = RemainingBudgets(taken, NOW)
    assert budgets.remaining("np", DisruptionReason.DRIFTED) == 0
    assert budgets.remaining("np", DisruptionReason.UNHEALTHY) == 2
    assert len(gone(repaired(pool("np", Budget(nodes="10%")), nodes))) == 2


def test_a_node_that_never_became_ready_needs_no_budget() -> None:
    """K15-208, K15-223: registered and never initialized, also while pods are nominated to it."""
    broken = sick(running("a", "m", initialized=False))
    nominated = replace(QUIET, nominated=frozenset({"claim-a"}))
    solution = repaired(pool("np", Budget(nodes="0")), healthy(), broken, circumstances=nominated)
    assert gone(solution) == ["a"]


def test_a_nominated_node_waits() -> None:
    """K15-224"""
    nominated = replace(QUIET, nominated=frozenset({"claim-a"}))
    solution = repaired(pool(), healthy(), sick(running("a", "m", 4)), circumstances=nominated)
    assert gone(solution) == []
    assert "Node is nominated for a pending pod" in why(solution, "a")


def test_the_annotation_of_repair_is_a_veto_and_that_of_disruption_is_none() -> None:
    """K15-008, K15-012, K15-225: said only once a policy is eligible."""
    protected = [with_annotation(wire, labels.DO_NOT_DISRUPT, "true") for wire in sick(running("a", "m", 4))]
    assert gone(repaired(pool(), healthy(), protected)) == ["a"]
    vetoed = [with_annotation(wire, labels.DO_NOT_REPAIR, "true") for wire in sick(running("a", "m", 4))]
    solution = repaired(pool(), healthy(), vetoed)
    assert gone(solution) == []
    assert 'Repair is blocked through the "karpenter.sh/do-not-repair" annotation' in why(solution, "a")
    early = [
        with_annotation(wire, labels.DO_NOT_REPAIR, "true")
        for wire in sick(running("a", "m", 4, conditions=()), minutes=1)
    ]
    assert "annotation" not in why(repaired(pool(), healthy(), early), "a")
    odd = [with_annotation(wire, labels.DO_NOT_REPAIR, "yes") for wire in sick(running("a", "m", 4))]
    assert gone(repaired(pool(), healthy(), odd)) == ["a"]


@pytest.mark.parametrize("is_budget", [True, False])
def test_blocking_pods_need_an_end_of_the_drain(is_budget: bool) -> None:
    """K15-226, K15-S06: the bound of a policy, or the grace period of the NodeClaim; K15-231: the replacement holds that pod."""
    meta = {"labels": {"app": "x"}} if is_budget else HELD
    pods = on("a", 4, meta=meta)
    closed = [budget("closed", {"app": "x"})] if is_budget else []
    unbounded = sick(running("a", "m"), "Ready", minutes=11)
    solution = repaired(pool(), healthy(), unbounded, pods, closed)
    assert gone(solution) == []
    assert "Repair requires a termination grace period to bypass blocking pods" in why(solution, "a")
    granted = claimed(unbounded, termination_grace_period="2m")
    assert gone(repaired(pool(), healthy(), granted, pods, closed)) == ["a"]
    bounded = repaired(pool(), healthy(), sick(running("a", "m")), pods, closed)
    assert [pod.metadata.name for command in bounded.commands for one in command.replacements for pod in one.pods] == [
        "a-0"
    ]


@pytest.mark.parametrize(("own", "bound"), [(None, 2), ("1m", 1), ("10m", 2)])
def test_the_bound_of_a_policy_is_cut_to_that_of_the_claim(own: str | None, bound: int) -> None:
    """K15-230, K15-S07"""
    node = claimed(sick(running("a", "m", 4)), termination_grace_period=own)
    (command,) = repaired(pool(), healthy(), node).commands
    assert command.repair is not None
    assert command.repair.drain_bound == bound * MINUTE


def test_the_most_urgent_goes_first() -> None:
    """K15-227: score, then cost, then name."""
    high, low = sick(running("z", "m", 4)), sick(running("a", "m", 4), "GpuReady", reason="other", minutes=11)
    solution = repaired(pool("np", Budget(nodes="1")), healthy(8), low, high)
    assert gone(solution) == ["z"]
    cheap, dear = sick(running("y", "m", 1)), sick(running("x", "m", 1, 1, 1))
    assert gone(repaired(pool("np", Budget(nodes="1")), healthy(8), dear, cheap)) == ["y"]
    assert gone(
        repaired(pool("np", Budget(nodes="1")), healthy(8), sick(running("y", "m", 1)), sick(running("x", "m", 1)))
    ) == ["x"]


def test_what_cannot_be_replaced_lets_others_go_first() -> None:
    """K15-231: the scheduling text says why it stays."""
    stuck = sick(running("stuck", "l", 150), minutes=60)
    solution = repaired(pool(), healthy(8), stuck, sick(running("a", "m", 4)))
    assert gone(solution) == ["a"]
    assert why(solution, "stuck").startswith("Pods can't be rescheduled: ")


def test_a_reboot_needs_no_replacement_and_two_reboots_are_enough() -> None:
    """K15-235, K15-236, K15-S10: then the node is replaced."""
    node = sick(running("a", "m", 4), "GpuReady", reason="NvidiaXID48Error")
    (command,) = repaired(pool(), healthy(), node).commands
    assert (command.decision, command.replacements, command.saving_per_hour) == (Decision.REBOOT, (), 0.0)
    twice = replace(QUIET, reboots_exhausted=frozenset({"claim-a"}))
    (command,) = repaired(pool(), healthy(), node, circumstances=twice).commands
    assert command.decision is Decision.REPLACE
    assert command.repair is not None
    assert command.repair.has_escalated


def test_a_node_that_reboots_is_left_alone_and_counts() -> None:
    """K15-202, K15-207, K15-294: for every reason, also while it is not initialized."""
    node = rebooting(sick(running("a", "m", 4, initialized=False)))
    solution = repaired(pool(), healthy(), node)
    assert gone(solution) == []
    assert "Node is rebooting" in why(solution, "a")
    counts = pool_node_counts(snapshot([wire for pair in (*healthy(), node) for wire in pair]).nodes)["np"]
    assert counts.initialized == 5
    assert counts.consuming(DisruptionReason.UNHEALTHY) == 1
    assert counts.consuming(DisruptionReason.EMPTY) == 1


def test_tolerations_start_again_after_a_reboot() -> None:
    """K15-216, K15-295"""
    node = sick(running("a", "m", 4), minutes=60)
    assert gone(repaired(pool(), healthy(), rebooting(node, conditions.FALSE, minutes=4))) == []
    assert gone(repaired(pool(), healthy(), rebooting(node, conditions.FALSE, minutes=6))) == ["a"]


def test_before_kubelets_have_reported_no_condition_from_before_the_start_is_trusted() -> None:
    """A restored etcd shows conditions of the day of the backup."""
    for started, changed, expected in ((5.5, 6, []), (5.5, 5.2, ["a"]), (7, 8, ["a"])):
        node, early = sick(running("a", "m", 4), minutes=changed), replace(QUIET, started_at=NOW - started * MINUTE)
        assert gone(repaired(pool(), healthy(), node, circumstances=early)) == expected
    assert gone(repaired(pool(), healthy(), sick(running("a", "m", 4)), options=DisruptionOptions())) == []


@pytest.mark.parametrize(("limits", "repairs"), [({"nodes": "6"}, 1), ({"nodes": "5"}, 0), ({}, 1)])
def test_a_static_pool_needs_a_slot_for_the_replacement(limits: dict[str, str], repairs: int) -> None:
    """K15-233"""
    static = node_pool("np", [wanted(labels.CAPACITY_TYPE, "In", "on-demand")], replicas=5, limits=limits)
    solution = repaired(static, healthy(), sick(running("a", "m", 4)))
    assert len(replacement_types(solution)) == len(gone(solution)) == repairs
    if not repairs:
        assert "Static NodePool is at its node limit and cannot stage a replacement" in why(solution, "a")


def test_a_repair_in_backoff_takes_no_slot_of_its_static_pool() -> None:
    """K15-212, K15-233: the slot is free for a drifted node, whose replacement is in no backoff."""
    static = node_pool("np", [wanted(labels.CAPACITY_TYPE, "In", "on-demand")], replicas=5, limits={"nodes": "6"})
    cluster = [static, healthy(3), running("d", "m", 4, conditions=drifted()), sick(running("a", "m", 4))]
    (repair,) = repaired(*cluster).commands
    moves = {repair.reason: moves_by_node(repair)}
    waiting = replace(QUIET, failed_moves=FailedMoves(in_backoff=moves))
    assert gone(repaired(*cluster, circumstances=waiting)) == ["d"]


def test_a_static_pool_with_more_nodes_than_it_wants_is_left_alone() -> None:
    """K15-233"""
    static = node_pool("np", [wanted(labels.CAPACITY_TYPE, "In", "on-demand")], replicas=4)
    assert gone(repaired(static, healthy(), sick(running("a", "m", 4)))) == []


def test_a_drifted_node_of_a_full_static_pool_says_so() -> None:
    """K15-214"""
    static = node_pool("np", [wanted(labels.CAPACITY_TYPE, "In", "on-demand")], replicas=2, limits={"nodes": "2"})
    solution = decide(static, running("a", "m", 4, conditions=drifted()), running("b", "m", 4))
    assert "Static NodePool is at its node limit and cannot stage a replacement" in why(solution, "a")


def test_a_node_that_reboots_keeps_its_marks_and_is_capacity_that_returns() -> None:
    """K15-205, K15-107: no clean-up touches it, and what only its reboot brings keeps no pod from it."""
    fence, startup = labels.REBOOTING_TAINT, taint("example.com/startup")
    objects = running("a", "m", taints=(fence, startup, taint("other")))
    marked = [
        replaced(wire, spec=replaced(wire.spec, startup_taints=(pool_taint("example.com/startup"),)))
        if isinstance(wire, NodeClaim)
        else wire
        for wire in rebooting(objects)
    ]
    (view,) = snapshot(pool(), *marked).nodes
    assert view.rebooting
    assert [each.key for each in view.taints] == ["other"]
    assert not is_stale_mark(view)
    (after,) = snapshot(pool(), *rebooting(objects, status="False")).nodes
    assert fence in after.taints
