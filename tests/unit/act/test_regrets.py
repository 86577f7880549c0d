"""What failed is barred, longer each time, and not for ever."""

from __future__ import annotations

import pytest

from karpenter.act.regrets import Regrets


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def bar_seconds(regrets: Regrets, clock: Clock, name: str = "a") -> float:
    regret = regrets.barred("Drifted", [name], clock.now)
    return 0.0 if regret is None else regret.until - clock.now


def test_pauses_double_up_to_an_hour_with_a_little_more_that_depends_on_the_name() -> None:
    clock = Clock()
    regrets = Regrets(clock)
    for least in (60, 120, 240, 480, 960, 1920, 3600, 3600):
        regrets.note("Drifted", ["a"], "no capacity")
        pause = bar_seconds(regrets, clock)
        assert least <= pause <= 1.2 * least
        clock.now += pause
    assert bar_seconds(regrets, clock) == 0


def test_machines_that_failed_together_come_back_one_after_the_other() -> None:
    clock = Clock()
    regrets = Regrets(clock)
    names = [f"n{number}" for number in range(20)]
    regrets.note("Drifted", names, "no capacity")
    assert len({bar_seconds(regrets, clock, name) for name in names}) == 20


def test_a_bar_is_for_one_reason_and_any_of_the_names() -> None:
    clock = Clock()
    regrets = Regrets(clock)
    regrets.note("Drifted", ["pool"], "no capacity")
    assert regrets.barred("Drifted", ["a", "pool"], 0.0) is not None
    assert regrets.barred("Drifted", ["a"], 0.0) is None
    assert regrets.barred("Underutilized", ["pool"], 0.0) is None


def test_success_is_forgiveness() -> None:
    clock = Clock()
    regrets = Regrets(clock)
    regrets.note("Drifted", ["a"], "x")
    regrets.note("Drifted", ["a"], "x")
    regrets.forgive("Drifted", ["a"])
    assert regrets.barred("Drifted", ["a"], 0.0) is None
    regrets.note("Drifted", ["a"], "x")
    assert bar_seconds(regrets, clock) <= 72


def test_what_failed_long_ago_counts_as_the_first_failure_again() -> None:
    clock = Clock()
    regrets = Regrets(clock)
    for _ in range(5):
        regrets.note("Drifted", ["a"], "x")
    clock.now += 7 * 3600
    regrets.note("Drifted", ["a"], "x")
    assert bar_seconds(regrets, clock) <= 72


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    clock = Clock()
    regrets = Regrets(clock, most=3)
    for name in "abcd":
        regrets.note("Drifted", [name], "x")
    assert [regrets.barred("Drifted", [name], 0.0) is not None for name in "abcd"] == [False, True, True, True]


@pytest.mark.parametrize("later", [0.0, 30.0])
def test_the_next_bar_to_fall_is_known(later: float) -> None:
    clock = Clock()
    regrets = Regrets(clock)
    assert regrets.next_end() is None
    regrets.note("Drifted", ["a"], "x")
    clock.now = later
    regrets.note("Drifted", ["b"], "x")
    first = regrets.barred("Drifted", ["a"], later)
    assert first is not None
    assert regrets.next_end() == min(first.until, later + bar_seconds(regrets, clock, "b"))
