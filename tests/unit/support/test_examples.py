"""A soak run draws its cases by its seed, so that the seed repeats them."""

from __future__ import annotations

import re
from pathlib import Path

from support.examples import left_out

TESTS_FOLDER = Path(__file__).resolve().parents[2]
#: What a soak run may give a property without asking SOAK_EXAMPLES.
FEW = 100

TESTS = {"long": list(range(100)), "short": ["a", "b"]}


def test_a_soak_run_keeps_a_few_cases_of_a_long_series_and_all_of_a_short_one() -> None:
    skipped = left_out(TESTS, "7", most=6)
    assert len(skipped) == 94
    assert not {"a", "b"} & set(skipped)


def test_a_seed_draws_the_same_cases_again_and_another_seed_draws_others() -> None:
    assert left_out(TESTS, "7") == left_out(TESTS, "7") != left_out(TESTS, "8")


def test_a_soak_run_bounds_the_examples_of_every_property() -> None:
    """A number of examples in a test wins over the profile, so SOAK_EXAMPLES bounds only what ``examples`` counts."""
    unbounded = [
        f"{path.relative_to(TESTS_FOLDER)}: {number}"
        for path in sorted(TESTS_FOLDER.rglob("test_*.py"))
        for number in re.findall(r"max_examples=([\d_]+)", path.read_text(encoding="utf-8"))
        if int(number) > FEW
    ]
    assert unbounded == []
