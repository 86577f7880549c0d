"""The ring of a pool's latest registrations (API-650, OPS-060)."""

from __future__ import annotations

import pytest

from karpenter.state.nodepool_health import RegistrationHistory, history_from_status

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
    """OPS-L45, API-650, OPS-060: counted out of four, whatever else is there."""
    ring = RegistrationHistory()
    for outcome in outcomes:
        ring = ring.with_outcomes(outcome)
    assert ring.condition_status == status
    assert len(ring.outcomes) <= 4


def test_what_a_ring_would_say_changes_nothing_about_it() -> None:
    """OPS §1.7 Beyond: evaluated on a true copy, the oldest outcome goes first."""
    full = RegistrationHistory((BAD, GOOD, GOOD, GOOD))
    assert full.with_outcomes(BAD).outcomes == (GOOD, GOOD, GOOD, BAD)
    assert full.outcomes == (BAD, GOOD, GOOD, GOOD)


@pytest.mark.parametrize(("stored", "outcomes"), [("True", (GOOD,)), ("False", (BAD, BAD)), ("Unknown", ())])
def test_a_new_process_starts_from_what_the_last_one_wrote(stored: str, outcomes: tuple[bool, ...]) -> None:
    """API-651, OPS-063"""
    assert history_from_status(stored).outcomes == outcomes
    assert history_from_status(stored).condition_status == stored
