"""Comparisons of policies: means over seeds, their confidence, and the sentence at the end."""

from __future__ import annotations

import pytest

from karpenter.simulator.policy_comparison import Estimate, PolicyDifference, estimate, recommendation


def test_a_mean_has_the_confidence_interval_of_students_t() -> None:
    """For 1, 2, 3: standard deviation 1, so 4.303 / sqrt(3)."""
    assert estimate([1.0, 2.0, 3.0]) == Estimate(2.0, pytest.approx(2.4843, abs=1e-3))
    assert estimate([5.0]) == Estimate(5.0, None)


@pytest.mark.parametrize(
    ("dollars", "sentence"),
    [
        (Estimate(-120.0, 20.0), "calm saves $120 per month against lean, with -3.0 restarts per day."),
        (
            Estimate(-120.0, None),
            "calm saves $120 per month against lean, with -3.0 restarts per day. One seed only: repeat with --seeds 5.",
        ),
        (Estimate(-120.0, 130.0), "No policy differs from lean in cost by more than chance; lean can stay."),
        (Estimate(60.0, 5.0), "lean is the cheapest."),
    ],
)
def test_the_recommendation_names_the_saving_and_its_price_in_restarts(dollars: Estimate, sentence: str) -> None:
    assert recommendation("lean", [PolicyDifference("calm", dollars, Estimate(-3.0, None))]) == sentence
