"""Validation of commands, and the cluster state while commands wait for it (DIS §11)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from karpenter.api.karpenter import Budget, Disruption
from karpenter.disruption.decide.command import Candidate, Command, ConsolidationType, DisruptionReason
from karpenter.disruption.decide.command_validation import (
    ValidationFailure,
    empty_validation_failures,
    validate_command,
)
from karpenter.disruption.decide.consolidation_delays import time_driven_changes
from karpenter.disruption.decide.projected_snapshot import with_started_commands
from karpenter.model import labels
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods
from karpenter.state.snapshot import ClusterSnapshot
from support.builders import NOW, claim, node_and_claim, node_pool, pod, replaced, snapshot
from support.instance_types import STD

NAMES = ("a", "b", "c")


def three_nodes(**fields: object) -> ClusterSnapshot:
    parts = [node_and_claim(name, {"cpu": "4"}) for name in NAMES]
    running = [pod(f"p-{name}", {"cpu": "1"}, node_name=name) for name in NAMES]
    return snapshot(node_pool(**fields), *parts, *running)


def candidates(seen: ClusterSnapshot, *names: str) -> tuple[Candidate, ...]:
    views = {view.name: view for view in seen.nodes}
    return tuple(Candidate(views[name], "np", views[name].pods, 1.0, 2.0) for name in names)


def new_claim(name: str, *types: str) -> NewNodeClaim:
    return NewNodeClaim(claim(name), "np", types, STD[0].offerings[0], ())


def move(seen: ClusterSnapshot, *names: str, to: tuple[NewNodeClaim, ...] = ()) -> Command:
    return Command(
        DisruptionReason.UNDERUTILIZED, candidates(seen, *names), to, consolidation_type=ConsolidationType.MULTI
    )


def emptied(seen: ClusterSnapshot, *names: str) -> Command:
    return Command(DisruptionReason.EMPTY, candidates(seen, *names), consolidation_type=ConsolidationType.EMPTY)


def test_what_is_chosen_again_stands() -> None:
    """DIS-S186: with its nodes as they are now."""
    before, now = three_nodes(), three_nodes()
    actual = validate_command(move(before, "a", "b"), [move(now, "c"), move(now, "b", "a")], ())
    assert isinstance(actual, Command)
    assert all(any(candidate.state_node is view for view in now.nodes) for candidate in actual.candidates)


@pytest.mark.parametrize(
    ("blocked", "refusal"),
    [(("claim-a",), ValidationFailure.CHURN), ((), ValidationFailure.SCHEDULING)],
    ids=["churn", "scheduling"],
)
def test_what_is_not_chosen_again_is_refused(blocked: tuple[str, ...], refusal: ValidationFailure) -> None:
    """DIS-270, DIS-272: also where only a part of it, or the same for another reason, is chosen."""
    seen = three_nodes()
    again = [move(seen, "a"), replace(move(seen, "a", "b"), reason=DisruptionReason.DRIFTED)]
    assert validate_command(move(seen, "a", "b"), again, blocked) is refusal


@pytest.mark.parametrize(
    ("then", "now", "stands"),
    [
        ((("x", "y"),), (("x", "y", "z"),), True),
        ((("x", "y"),), (("x",),), False),
        ((), (("x",),), False),
        ((("x",),), (), False),
        ((("x",), ("y",)), (("y",), ("x", "z")), True),
        ((("x",), ("x",)), (("x",), ("y",)), False),
    ],
    ids=["wider", "DIS-S184", "expected-none", "DIS-S185", "two", "two-alike"],
)
def test_what_was_to_be_launched_must_still_be_what_would_be(
    then: tuple[tuple[str, ...], ...], now: tuple[tuple[str, ...], ...], stands: bool
) -> None:
    """DIS-272, DIS-S184, DIS-S185"""
    seen = three_nodes()
    chosen = move(seen, "a", to=tuple(new_claim(f"r{number}", *types) for number, types in enumerate(then)))
    again = move(seen, "a", to=tuple(new_claim(f"s{number}", *types) for number, types in enumerate(now)))
    actual = validate_command(chosen, [again], ())
    assert (actual is again) is stands
    assert stands or actual is ValidationFailure.SCHEDULING


def test_of_empty_nodes_those_go_that_are_empty_still() -> None:
    """DIS-275"""
    seen = three_nodes()
    actual = validate_command(emptied(seen, "a", "b"), [emptied(seen, "b", "c")], ("claim-a",))
    assert isinstance(actual, Command)
    assert [candidate.state_node.name for candidate in actual.candidates] == ["b"]


@pytest.mark.parametrize(
    ("blocked", "refusal"),
    [(("claim-a",), ValidationFailure.CHURN), ((), ValidationFailure.BUDGET)],
    ids=["churn", "budget"],
)
def test_empty_nodes_that_are_not_chosen_again_are_refused(
    blocked: tuple[str, ...], refusal: ValidationFailure
) -> None:
    """DIS-275"""
    seen = three_nodes()
    assert validate_command(emptied(seen, "a"), [emptied(seen, "c")], blocked) is refusal


@pytest.mark.parametrize(
    ("kept", "churned", "failures"),
    [("b", ("claim-a",), 0), ("b", (), 1), ("", ("claim-a", "claim-b"), 2), ("", ("claim-a",), 1), ("", (), 2)],
    ids=["pods came to one", "budget for one", "pods came to both", "pods came, and no budget", "no budget"],
)
def test_failed_validations_of_empty_nodes_count_churn_only_where_none_is_left(
    kept: str, churned: tuple[str, ...], failures: int
) -> None:
    """DIS-275, DIS-416: nodes over budget count each; nodes that got pods count if no node of the command stays empty."""
    seen = three_nodes()
    pending = emptied(seen, "a", "b")
    validated = validate_command(pending, [emptied(seen, kept)] if kept else [], churned)
    assert empty_validation_failures(pending, validated, churned) == failures


def test_while_a_command_waits_its_nodes_are_leaving_and_what_it_launches_is_coming() -> None:
    seen = three_nodes()
    chosen = replace(
        move(seen, "a", to=(replace(new_claim("r0", "small"), pods=seen.nodes[0].pods),)),
        placed_on_existing=(PlacedPods("claim-b", "b", seen.nodes[2].pods),),
    )
    cluster_snapshot = with_started_commands(seen, [chosen])
    by_key = {view.key: view for view in cluster_snapshot.nodes}
    assert {key for key, view in by_key.items() if view.marked_for_deletion} == {"claim-a"}
    assert (by_key["r0"].launched, by_key["r0"].managed, by_key["r0"].pool) == (False, True, "np")
    assert cluster_snapshot.planned_nodes == {"uid-p-a": "r0", "uid-p-c": "claim-b"}
    assert [view.name for view in cluster_snapshot.nodes] == sorted(view.name for view in cluster_snapshot.nodes)
    assert not any(view.marked_for_deletion for view in seen.nodes)


def test_without_commands_the_snapshot_is_the_same() -> None:
    seen = three_nodes()
    assert with_started_commands(seen, []) is seen


def test_budgets_freezes_ages_and_protections_change_decisions_by_themselves() -> None:
    """Moments within the time asked for, none of them now or past."""
    note = {labels.DO_NOT_DISRUPT: "2m"}
    guarded = pod("g", {"cpu": "1"}, node_name="a", meta={"annotations": note}, status={"start_time": NOW})
    opening = Budget(nodes="1", schedule="1 0 * * *", duration="2m")
    pool = node_pool(disruption=Disruption(budgets=(opening,)))
    frozen = {labels.FREEZE: "true", labels.FREEZE_UNTIL: "2026-01-01T00:04:00Z"}
    pool = replaced(pool, metadata=replaced(pool.metadata, annotations=frozen))
    node, owner = node_and_claim("a", {"cpu": "4"})
    young = replaced(owner, metadata=replaced(owner.metadata, creation_timestamp=NOW - timedelta(seconds=30)))
    seen = snapshot(pool, node, young, guarded)
    after = sorted((moment - NOW).total_seconds() for moment in time_driven_changes(seen, NOW, 300))
    assert after == [60, 120, 180, 240, 270]
    assert sorted(time_driven_changes(seen, NOW, 30)) == [NOW + timedelta(minutes=2)]


def test_the_end_of_a_nodes_own_protection_changes_decisions_by_itself() -> None:
    """API-451: a duration in the Node's annotation counts from the creation of the Node."""
    node, owner = node_and_claim("a", {"cpu": "4"})
    note = {labels.DO_NOT_DISRUPT: "2m"}
    node = replaced(node, metadata=replaced(node.metadata, annotations=note, creation_timestamp=NOW))
    seen = snapshot(node_pool(disruption=Disruption()), node, owner)
    assert NOW + timedelta(minutes=2) in set(time_driven_changes(seen, NOW, 300))
