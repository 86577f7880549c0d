"""Windows against what a clock on the wall shows, minute by minute, and above all where clocks are changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from karpenter.api.core import ConfigMap
from karpenter.api.karpenter import Budget, Disruption
from karpenter.model import clock, cron, freezes, labels, nodepool_budgets
from karpenter.model.budget_windows import ActiveWindow, RecurringWindow, TimeSpan
from karpenter.model.disruption_rules import disruption_rules, unparseable_settings
from support.builders import annotated, node_pool
from support.examples import examples

MINUTE = timedelta(minutes=1)
#: Places, and a day near a change of their clocks.
_CHANGES = st.sampled_from(
    [
        ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
        ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
        ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
        ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
        ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
        ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
        ("America/Sao_Paulo", datetime(2018, 2, 18, 2, tzinfo=UTC)),
        ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
        ("Asia/Kathmandu", datetime(2026, 5, 1, tzinfo=UTC)),
        ("UTC", datetime(2026, 12, 31, 23, tzinfo=UTC)),
    ]
)
_minutes = st.sampled_from(["0", "30", "59", "*/20", "*", "15,45"])
_hours = st.sampled_from(["*", "0", "1", "2", "3", "22", "23", "*/5", "1-3", "9-17"])
_weekdays = st.sampled_from(["*", "sun", "mon-fri", "6"])
_schedules = st.tuples(_minutes, _hours, st.just("*"), st.just("*"), _weekdays).map(" ".join)
_durations = st.integers(1, 30 * 60).map(lambda minutes: timedelta(minutes=minutes))


@st.composite
def recurrences(draw: st.DrawFn) -> tuple[RecurringWindow, datetime]:
    """A recurrence, and a full minute less than half a day from a change of its clocks."""
    zone, change = draw(_CHANGES)
    recurring_window = RecurringWindow(
        cron.parse_schedule(draw(_schedules)), draw(_durations), cron.find_time_zone(zone)
    )
    return recurring_window, change + draw(st.integers(-700, 700)) * MINUTE


def shows_a_window(window: RecurringWindow, now: datetime) -> bool:
    """The rule as it reads: some minute, not longer ago on this clock than the duration, is a hit."""
    wall = now.astimezone(window.zone).replace(tzinfo=None)
    minute = wall.replace(second=0, microsecond=0)
    while wall - minute < window.duration:
        if _is_hit(window, minute):
            return True
        minute -= MINUTE
    return False


def _is_hit(window: RecurringWindow, wall: datetime) -> bool:
    """All schedules here leave the day of the month open."""
    schedule = window.schedule
    return (
        wall.minute in schedule.minutes
        and wall.hour in schedule.hours
        and wall.isoweekday() % 7 in schedule.days_of_week
    )


@given(recurrences(), st.integers(0, 59_999))
def test_a_window_is_open_when_a_clock_on_the_wall_shows_it(
    drawn: tuple[RecurringWindow, datetime], milliseconds: int
) -> None:
    """API-081, DIS-141"""
    recurring_window, moment = drawn
    now = moment + timedelta(milliseconds=milliseconds)
    assert recurring_window.is_active(now) == shows_a_window(recurring_window, now)


@settings(max_examples=examples(60), deadline=None)
@given(recurrences(), st.integers(1, 1500))
def test_spans_are_the_minutes_in_which_the_window_is_open(
    drawn: tuple[RecurringWindow, datetime], minutes: int
) -> None:
    """The timeline says of every minute what a decision in it would find."""
    recurring_window, begin = drawn
    period = TimeSpan(begin, begin + minutes * MINUTE)
    spans = ActiveWindow(recurring_window).spans(period)
    assert all(a.end < b.begin for a, b in pairwise(spans))
    for moment in _minutes_of(period):
        assert any(span.begin <= moment < span.end for span in spans) == recurring_window.is_active(moment), moment


def _minutes_of(period: TimeSpan) -> Iterator[datetime]:
    moment = period.begin
    while moment < period.end:
        yield moment
        moment += MINUTE


_budgets = st.builds(
    Budget,
    nodes=st.sampled_from(["0", "1", "3", "20%", "100%"]),
    reasons=st.sampled_from([None, ("Empty",), ("Drifted", "Underutilized")]),
    schedule=_schedules,
    duration=st.sampled_from(["10m", "1h", "8h", "26h"]),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(_budgets, max_size=4), st.sampled_from(["Empty", "Drifted"]), st.integers(0, 40))
def test_between_two_edges_an_allowance_stays_what_it_is(given: list[Budget], reason: str, nodes: int) -> None:
    budgets = nodepool_budgets.nodepool_budgets(node_pool(disruption=Disruption(budgets=tuple(given))))
    period = TimeSpan(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))
    edges = budgets.transitions(period)
    last = None
    for moment in _minutes_of(period):
        allowance = budgets.allowance(nodes, reason, moment)
        assert last is None or allowance == last or moment in edges
        last = allowance


_texts = st.one_of(
    st.text(max_size=40),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.sampled_from(["Asia/Seoul", "@daily"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["timeZone", "from", "until", "x"]), inner, max_size=3)
        ),
        max_leaves=6,
    ).map(json.dumps),
)


@given(_texts, st.sampled_from(labels.POOL_SETTINGS))
def test_whatever_an_annotation_holds_it_is_read_or_holds_things_back(text: str, key: str) -> None:
    """API-086: nothing that can be written into an annotation stops us, or opens a pool by being unreadable."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    plain = node_pool(disruption=Disruption(budgets=(Budget(nodes="2"),)))
    pool = annotated(plain, {key: text})
    actual = disruption_rules(pool, None)
    allowance = actual.allowance(9, "Empty", now)
    assert allowance.nodes in (0, 2) or key == labels.BUDGET_WINDOWS
    if unparseable_settings(pool):
        settings_of_moves = (labels.MINIMUM_SAVING_RATIO, labels.MINIMUM_NODE_AGE)
        assert allowance.nodes == (2 if key in settings_of_moves else 0)
    assert freezes.cluster_freeze(ConfigMap(data={"until": text})).is_active(now) or clock.parse_timestamp(text) <= now
