"""Windows of schedules: wall time in a zone, and what clock changes do to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from karpenter.model import cron
from karpenter.model.budget_windows import ActiveWindow, RecurringWindow, TimeSpan

#: Clocks go forward at two on 8 March 2026 and back at two on 1 November.
NEW_YORK = "America/New_York"
#: Clocks go forward by half an hour at two on 4 October 2026 and back at two on 5 April.
LORD_HOWE = "Australia/Lord_Howe"
#: Clocks went back at midnight in October 2018, so that days began with 23:00 to 24:00 a second time.
SAO_PAULO = "America/Sao_Paulo"
#: The whole 30 December 2011 was left out.
APIA = "Pacific/Apia"


def window(schedule: str, hours: float, zone: str = "UTC") -> ActiveWindow:
    return ActiveWindow(
        RecurringWindow(cron.parse_schedule(schedule), timedelta(hours=hours), cron.find_time_zone(zone))
    )


def at(text: str, zone: str = "UTC", fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=cron.find_time_zone(zone), fold=fold)


def spans(active_window: ActiveWindow, begin: str, end: str, zone: str) -> list[tuple[str, str]]:
    """The windows as clocks of the zone show them, with their distance to UTC."""
    period = TimeSpan(at(begin, zone).astimezone(UTC), at(end, zone).astimezone(UTC))
    return [(_shown(span.begin, zone), _shown(span.end, zone)) for span in active_window.spans(period)]


def _shown(moment: datetime, zone: str) -> str:
    return moment.astimezone(cron.find_time_zone(zone)).strftime("%d %H:%M%z")


def test_a_night_is_as_long_as_the_clocks_make_it() -> None:
    """Seven hours when they go forward, nine when they go back."""
    night = window("0 22 * * *", 8, NEW_YORK)
    assert spans(night, "2026-03-07T12:00", "2026-03-08T12:00", NEW_YORK) == [("07 22:00-0500", "08 06:00-0400")]
    assert spans(night, "2026-10-31T12:00", "2026-11-01T12:00", NEW_YORK) == [("31 22:00-0400", "01 06:00-0500")]


def test_a_hit_in_the_hour_that_is_skipped_opens_its_window_at_the_change() -> None:
    early = window("30 2 * * *", 2, NEW_YORK)
    assert spans(early, "2026-03-08T00:00", "2026-03-09T00:00", NEW_YORK) == [("08 03:00-0400", "08 04:30-0400")]
    assert spans(early, "2026-03-09T00:00", "2026-03-10T00:00", NEW_YORK) == [("09 02:30-0400", "09 04:30-0400")]


def test_a_window_within_the_hour_that_is_skipped_does_not_occur() -> None:
    assert spans(window("15 2 * * *", 0.5, NEW_YORK), "2026-03-08T00:00", "2026-03-09T00:00", NEW_YORK) == []


def test_a_time_that_occurs_twice_is_in_the_window_both_times() -> None:
    twice = window("0 1 * * *", 0.5, NEW_YORK)
    first, second = spans(twice, "2026-11-01T00:00", "2026-11-02T00:00", NEW_YORK)
    assert first == ("01 01:00-0400", "01 01:30-0400")
    assert second == ("01 01:00-0500", "01 01:30-0500")


def test_a_window_that_begins_in_the_repeated_hour_closes_while_clocks_show_the_time_before() -> None:
    late = window("30 1 * * *", 2, NEW_YORK)
    assert spans(late, "2026-11-01T00:00", "2026-11-02T00:00", NEW_YORK) == [
        ("01 01:30-0400", "01 01:00-0500"),
        ("01 01:30-0500", "01 03:30-0500"),
    ]


@pytest.mark.parametrize("zone", [NEW_YORK, LORD_HOWE, SAO_PAULO])
@pytest.mark.parametrize("year", [2018, 2026])
def test_a_day_long_window_of_every_day_has_no_gap(zone: str, year: int) -> None:
    """API-S072, with clock changes"""
    begin, end = datetime(year, 1, 1, tzinfo=UTC), datetime(year + 1, 1, 1, tzinfo=UTC)
    assert window("@daily", 24, zone).spans(TimeSpan(begin, end)) == (TimeSpan(begin, end),)


def test_changes_of_half_an_hour_are_followed() -> None:
    early = window("0 2 * * *", 1, LORD_HOWE)
    assert spans(early, "2026-10-04T00:00", "2026-10-05T00:00", LORD_HOWE) == [("04 02:30+1100", "04 03:00+1100")]


def test_a_day_that_is_left_out_has_no_windows() -> None:
    noon = window("0 12 * * *", 1, APIA)
    actual = spans(noon, "2011-12-29T00:00", "2012-01-01T00:00", APIA)
    assert [begin[:2] for begin, _ in actual] == ["29", "31"]


def test_windows_that_overlap_or_touch_are_one() -> None:
    """API-081"""
    assert spans(window("0 9-17 * * thu", 8), "2026-01-01T00:00", "2026-01-03T00:00", "UTC") == [
        ("01 09:00+0000", "02 01:00+0000")
    ]
    assert len(spans(window("0 * * * *", 1), "2026-01-01T00:00", "2026-01-03T00:00", "UTC")) == 1


def test_a_period_cuts_windows_at_both_ends() -> None:
    night = window("0 22 * * *", 8)
    assert spans(night, "2026-01-01T23:30", "2026-01-02T05:15", "UTC") == [("01 23:30+0000", "02 05:15+0000")]


def test_dates_alone_are_one_window() -> None:
    begin, end = at("2026-01-05T00:00"), at("2026-01-07T00:00")
    active_window = ActiveWindow(begin=begin, end=end)
    assert not active_window.is_always
    assert ActiveWindow().is_always
    assert (active_window.is_active(begin), active_window.is_active(end)) == (True, False)
    assert spans(active_window, "2026-01-01T00:00", "2026-01-31T00:00", "UTC") == [("05 00:00+0000", "07 00:00+0000")]
    assert spans(active_window, "2026-02-01T00:00", "2026-02-28T00:00", "UTC") == []


def test_windows_that_last_for_years_are_seen_from_within() -> None:
    """Admission sets no bound to durations; the timeline must neither miss their windows nor walk through all hits before."""
    begin, end = at("2026-01-05T00:00"), at("2026-01-06T00:00")
    assert window("* * * * *", 100 * 8766).spans(TimeSpan(begin, end)) == (TimeSpan(begin, end),)
    assert window("0 0 1 1 *", 24 * 400).spans(TimeSpan(begin, end)) == (TimeSpan(begin, end),)


def test_windows_without_length_are_none() -> None:
    assert spans(window("* * * * *", 0), "2026-01-01T00:00", "2026-01-03T00:00", "UTC") == []
