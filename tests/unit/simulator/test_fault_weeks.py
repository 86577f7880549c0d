"""Faulty hours, days and weeks: crashes at any write, lost leases and watches, refusals, lost answers, stock-outs, interruptions,
clocks that are wrong, processes that stand still.

At every change and every minute: no instance is ended under running pods and no pod evicted from a node that stays, no claim has
two instances, nothing is without its counterpart for long, budgets and limits hold. In the end everything runs and nothing is
written for an hour. A run that breaks this is shrunk: faults are left out as long as it still fails, and the failure ends with
the line that repeats it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest
import structlog

from support.examples import series
from support.fault_list import KINDS, Fault, drawn_faults, shrunk
from support.fault_week import Outcome, run_week

#: What `make test` has time for, and the runs of `make soak`.
SHORT, DAY, WEEK = 1, 24, 7 * 24
#: A run takes two CPU seconds for a short one, half a minute for a day and some minutes for a week: what shrinking has time for.
MOST_RUNS_TO_SHRINK = {SHORT: 30, DAY: 16, WEEK: 6}
#: Cost over the classic policy's under the same faults.
MOST_COST_RATIO = Fraction(105, 100)


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.reset_defaults()


def repeated_by(seed: int, hours: int, faults: Sequence[Fault]) -> str:
    """The line that repeats a run."""
    text = f"{seed} {hours} {' '.join(map(str, faults))}"
    return f"FAULTS='{text}' pytest {__name__.rpartition('.')[2]}.py -k given_in_FAULTS"


def checked(seed: int, hours: int, faults_per_hour: float, policy: str = "lean") -> Outcome:
    """A run that breaks nothing; one that does is shrunk and fails."""
    faults = drawn_faults(seed, hours * 60, faults_per_hour)
    outcome = run_week(seed, hours, faults, policy)
    if outcome.broken:
        few = shrunk(
            faults, lambda fewer: bool(run_week(seed, hours, fewer, policy).broken), MOST_RUNS_TO_SHRINK[hours]
        )
        pytest.fail(f"{outcome.broken}\nrepeat it with {repeated_by(seed, hours, few)}")
    assert outcome.struck == len(faults) > 0
    assert outcome.launches > 0
    return outcome


@pytest.mark.parametrize("seed", series(range(1, 201), 1))
def test_short_faulty_hours_break_nothing(seed: int) -> None:
    outcome = checked(seed, SHORT, 6)
    assert outcome.endings, "a process ended"


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("policy", ["lean", "karpenter"])
@pytest.mark.parametrize("seed", range(1, 201))
def test_a_faulty_day_breaks_nothing(seed: int, policy: str) -> None:
    checked(seed, DAY, 3, policy)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1, 201))
def test_a_faulty_week_breaks_nothing_and_costs_at_most_5_percent_more_than_the_classic_policy(seed: int) -> None:
    outcome = checked(seed, WEEK, 1)
    classic = checked(seed, WEEK, 1, "karpenter")
    assert Fraction(outcome.cost_usd) <= MOST_COST_RATIO * Fraction(classic.cost_usd)


@pytest.mark.skipif("FAULTS" not in os.environ, reason="repeats a run that failed")
def test_the_run_given_in_FAULTS() -> None:  # noqa: N802
    seed, hours, *faults = os.environ["FAULTS"].split()
    assert run_week(int(seed), int(hours), list(map(Fault.parse, faults))).broken == ()


# -- the faults themselves ----------------------------------------------------------------------------------------------------


def test_a_failing_run_is_shrunk_to_the_faults_that_matter_and_its_line_gives_them_again() -> None:
    faults = drawn_faults(1, 600, 6)
    culprits = {faults[3], faults[-2]}
    few = shrunk(faults, lambda fewer: culprits <= set(fewer))
    assert set(few) == culprits
    text = repeated_by(1, 10, few).split("'")[1].split()[2:]
    assert [Fault.parse(each) for each in text] == few


def test_a_week_has_faults_of_every_kind() -> None:
    assert {fault.kind for fault in drawn_faults(1, WEEK * 60, 1)} == set(KINDS)


@pytest.mark.soak
def test_the_same_seed_and_faults_give_the_same_run() -> None:
    faults = drawn_faults(1, SHORT * 60, 6)
    assert run_week(1, SHORT, faults) == run_week(1, SHORT, faults)
