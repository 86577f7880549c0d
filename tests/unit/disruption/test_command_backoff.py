"""Failed commands are in backoff, longer after each failure, but not forever."""

from __future__ import annotations

import pytest

from karpenter.disruption.command_backoff import CommandBackoff, NodeMove
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.disruption.decide.failed_moves import DELETION

DRIFTED = DisruptionReason.DRIFTED


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _deletions(*nodes: str) -> list[NodeMove]:
    return [NodeMove(node, DELETION) for node in nodes]


def _nodes_in_backoff(backoff: CommandBackoff, clock: Clock, reason: DisruptionReason = DRIFTED) -> set[str]:
    return set(backoff.failed_moves(clock.now).in_backoff.get(reason, {}))


def _seconds_to_next_expiry(backoff: CommandBackoff, clock: Clock) -> float:
    return (backoff.next_expiry() or clock.now) - clock.now


def test_pauses_double_up_to_an_hour_with_a_little_more_that_depends_on_the_name() -> None:
    clock = Clock()
    backoff = CommandBackoff(clock)
    for least in (60, 120, 240, 480, 960, 1920, 3600, 3600):
        backoff.record_failure(DRIFTED, _deletions("a"), "no capacity")
        pause = _seconds_to_next_expiry(backoff, clock)
        assert least <= pause <= 1.2 * least
        assert _nodes_in_backoff(backoff, clock) == {"a"}
        clock.now += pause
    assert _nodes_in_backoff(backoff, clock) == set()
    assert backoff.next_expiry() is None


def test_nodes_that_failed_together_come_back_one_after_the_other() -> None:
    clock = Clock()
    backoff = CommandBackoff(clock)
    names = [f"n{number}" for number in range(20)]
    backoff.record_failure(DRIFTED, _deletions(*names), "no capacity")
    for remaining in range(20, 0, -1):
        assert len(_nodes_in_backoff(backoff, clock)) == remaining
        clock.now += _seconds_to_next_expiry(backoff, clock)
    assert _nodes_in_backoff(backoff, clock) == set()


def test_backoff_is_kept_for_one_reason_and_one_node() -> None:
    """K15-361: repair backs off like drift. Other nodes of the NodePool may have capacity."""
    clock = Clock()
    backoff = CommandBackoff(clock)
    backoff.record_failure(DRIFTED, _deletions("a"), "no capacity")
    assert _nodes_in_backoff(backoff, clock) == {"a"}
    assert _nodes_in_backoff(backoff, clock, DisruptionReason.UNDERUTILIZED) == set()


def test_a_nodepool_is_in_backoff_up_to_ten_minutes_where_replacements_do_not_become_ready() -> None:
    """K15-360, DIS §9.3 Beyond. Between pauses one replacement is tried; what fails within a pause counts once."""
    clock = Clock()
    backoff = CommandBackoff(clock)
    for least in (60, 120, 240, 480, 600, 600):
        for _ in range(3):
            backoff.record_unready_pools(["np"], "it did not register")
        pause = _seconds_to_next_expiry(backoff, clock)
        assert least <= pause <= 1.2 * least
        assert backoff.failed_moves(clock.now).closed_pools == {"np"}
        clock.now += pause
        assert backoff.failed_moves(clock.now).trial_pools == {"np"}
        assert backoff.failed_moves(clock.now, ["np"]).closed_pools == {"np"}
    backoff.reset_pools(["np"])
    assert backoff.failed_moves(clock.now) == CommandBackoff(clock).failed_moves(clock.now)


def test_a_nodepool_that_failed_long_ago_is_as_any_other() -> None:
    clock = Clock()
    backoff = CommandBackoff(clock)
    backoff.record_unready_pools(["np"], "x")
    clock.now = 7 * 3600
    assert backoff.failed_moves(clock.now) == CommandBackoff(clock).failed_moves(clock.now)


def test_a_success_ends_the_backoff() -> None:
    clock = Clock()
    backoff = CommandBackoff(clock)
    backoff.record_failure(DRIFTED, _deletions("a"), "x")
    backoff.record_failure(DRIFTED, _deletions("a"), "x")
    backoff.reset(DRIFTED, _deletions("a"))
    assert _nodes_in_backoff(backoff, clock) == set()
    backoff.record_failure(DRIFTED, _deletions("a"), "x")
    assert 60 <= _seconds_to_next_expiry(backoff, clock) <= 72


def test_what_failed_long_ago_counts_as_the_first_failure_again() -> None:
    clock = Clock()
    backoff = CommandBackoff(clock)
    for _ in range(5):
        backoff.record_failure(DRIFTED, _deletions("a"), "x")
    clock.now += 7 * 3600
    backoff.record_failure(DRIFTED, _deletions("a"), "x")
    assert 60 <= _seconds_to_next_expiry(backoff, clock) <= 72


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    clock = Clock()
    backoff = CommandBackoff(clock, max_entries=3)
    for name in "abcd":
        backoff.record_failure(DRIFTED, _deletions(name), "x")
    assert _nodes_in_backoff(backoff, clock) == {"b", "c", "d"}


@pytest.mark.parametrize("later", [0.0, 30.0])
def test_the_next_backoff_to_end_is_known(later: float) -> None:
    clock = Clock()
    backoff, alone_a, alone_b = (CommandBackoff(clock) for _ in range(3))
    assert backoff.next_expiry() is None
    for each in (backoff, alone_a):
        each.record_failure(DRIFTED, _deletions("a"), "x")
    clock.now = later
    for each in (backoff, alone_b):
        each.record_failure(DRIFTED, _deletions("b"), "x")
    ends = alone_a.next_expiry(), alone_b.next_expiry()
    assert backoff.next_expiry() == min(end for end in ends if end is not None)
