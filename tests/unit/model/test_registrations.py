"""The ring of a pool's latest registrations (API-650, OPS-060)."""

from __future__ import annotations

import pytest

from karpenter.model.registrations import Ring, seeded

GOOD, BAD = True, False


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ((), "Unknown"),
        ((GOOD,), "True"),
        ((BAD,), "True"),
        ((BAD, BAD), "False"),
        ((BAD, BAD, GOOD), "False"),
        ((BAD, GOOD, BAD, GOOD), "False"),
        ((BAD, GOOD, GOOD, GOOD), "True"),
        ((BAD, BAD, GOOD, GOOD, GOOD), "True"),
        ((BAD, BAD, GOOD, GOOD, GOOD, BAD), "True"),
        ((BAD, BAD, GOOD, GOOD, GOOD, BAD, BAD), "False"),
        ((BAD,) * 9, "False"),
    ],
)
def test_two_bad_outcomes_among_the_latest_four_are_an_illness(outcomes: tuple[bool, ...], status: str) -> None:
    """L45, API-650, OPS-060: counted out of four, whatever else is there."""
    ring = Ring()
    for outcome in outcomes:
        ring = ring.then(outcome)
    assert ring.status == status
    assert len(ring.outcomes) <= 4


def test_what_a_ring_would_say_changes_nothing_about_it() -> None:
    """OPS §1.7 Beyond: evaluated on a true copy, the oldest outcome goes first."""
    full = Ring((BAD, GOOD, GOOD, GOOD))
    assert full.then(BAD).outcomes == (GOOD, GOOD, GOOD, BAD)
    assert full.outcomes == (BAD, GOOD, GOOD, GOOD)


@pytest.mark.parametrize(("stored", "outcomes"), [("True", (GOOD,)), ("False", (BAD, BAD)), ("Unknown", ())])
def test_a_new_process_starts_from_what_the_last_one_wrote(stored: str, outcomes: tuple[bool, ...]) -> None:
    """API-651, OPS-063"""
    assert seeded(stored).outcomes == outcomes
    assert seeded(stored).status == stored
