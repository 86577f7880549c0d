"""What failed is in backoff, longer each time, and not for ever."""

from __future__ import annotations

import pytest

from karpenter.disruption.command_backoff import CommandBackoff


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _remaining_seconds(backoff: CommandBackoff, clock: Clock, name: str = "a") -> float:
    entry = backoff.active_entry("Drifted", [name], clock.now)
    return 0.0 if entry is None else entry.until - clock.now


def test_pauses_double_up_to_an_hour_with_a_little_more_that_depends_on_the_name() -> None:
    clock = Clock()
    backoff = CommandBackoff(clock)
    for least in (60, 120, 240, 480, 960, 1920, 3600, 3600):
        backoff.record_failure("Drifted", ["a"], "no capacity")
        pause = _remaining_seconds(backoff, clock)
        assert least <= pause <= 1.2 * least
        clock.now += pause
    assert _remaining_seconds(backoff, clock) == 0


def test_nodes_that_failed_together_come_back_one_after_the_other() -> None:
    clock = Clock()
    backoff = CommandBackoff(clock)
    names = [f"n{number}" for number in range(20)]
    backoff.record_failure("Drifted", names, "no capacity")
    assert len({_remaining_seconds(backoff, clock, name) for name in names}) == 20


def test_backoff_is_kept_for_one_reason_and_any_of_the_names() -> None:
    clock = Clock()
    backoff = CommandBackoff(clock)
    backoff.record_failure("Drifted", ["pool"], "no capacity")
    assert backoff.active_entry("Drifted", ["a", "pool"], 0.0) is not None
    assert backoff.active_entry("Drifted", ["a"], 0.0) is None
    assert backoff.active_entry("Underutilized", ["pool"], 0.0) is None


def test_a_success_ends_the_backoff() -> None:
    clock = Clock()
    backoff = CommandBackoff(clock)
    backoff.record_failure("Drifted", ["a"], "x")
    backoff.record_failure("Drifted", ["a"], "x")
    backoff.reset("Drifted", ["a"])
    assert backoff.active_entry("Drifted", ["a"], 0.0) is None
    backoff.record_failure("Drifted", ["a"], "x")
    assert _remaining_seconds(backoff, clock) <= 72


def test_what_failed_long_ago_counts_as_the_first_failure_again() -> None:
    clock = Clock()
    backoff = CommandBackoff(clock)
    for _ in range(5):
        backoff.record_failure("Drifted", ["a"], "x")
    clock.now += 7 * 3600
    backoff.record_failure("Drifted", ["a"], "x")
    assert _remaining_seconds(backoff, clock) <= 72


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    clock = Clock()
    backoff = CommandBackoff(clock, max_entries=3)
    for name in "abcd":
        backoff.record_failure("Drifted", [name], "x")
    assert [backoff.active_entry("Drifted", [name], 0.0) is not None for name in "abcd"] == [False, True, True, True]


@pytest.mark.parametrize("later", [0.0, 30.0])
def test_the_next_backoff_to_end_is_known(later: float) -> None:
    clock = Clock()
    backoff = CommandBackoff(clock)
    assert backoff.next_expiry() is None
    backoff.record_failure("Drifted", ["a"], "x")
    clock.now = later
    backoff.record_failure("Drifted", ["b"], "x")
    first = backoff.active_entry("Drifted", ["a"], later)
    assert first is not None
    assert backoff.next_expiry() == min(first.until, later + _remaining_seconds(backoff, clock, "b"))
