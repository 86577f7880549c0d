"""A soak run draws its cases by its seed, so that the seed repeats them."""

from __future__ import annotations

from support.examples import left_out

TESTS = {"long": list(range(100)), "short": ["a", "b"]}


def test_a_soak_run_keeps_a_few_cases_of_a_long_series_and_all_of_a_short_one() -> None:
    skipped = left_out(TESTS, "7", most=6)
    assert len(skipped) == 94
    assert not {"a", "b"} & set(skipped)


def test_a_seed_draws_the_same_cases_again_and_another_seed_draws_others() -> None:
    assert left_out(TESTS, "7") == left_out(TESTS, "7") != left_out(TESTS, "8")
