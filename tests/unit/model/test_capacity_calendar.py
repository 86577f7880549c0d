"""Calendars of CapacitySchedules, and their agreement with a checker that looks at every minute by itself."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karpenter.api.capacity_schedule import CapacityScheduleSpec, NodePoolSelection, ScheduleHolidays, ScheduleWindow
from karpenter.model.budget_windows import TimeSpan
from karpenter.model.capacity_calendar import CapacityScheduleError, CapacityState, capacity_calendar

_POOLS = NodePoolSelection(names=("dev",))
_WORK = ScheduleWindow(name="work", days="mon-fri", begin="07:00", until="22:00")
_SEOUL = CapacityScheduleSpec(
    node_pools=_POOLS,
    time_zone="Asia/Seoul",
    windows=(_WORK,),
    holidays=ScheduleHolidays(country="KR", extra=("2026-12-24",), excluded=("2026-10-09",)),
    on_holidays="Asleep",
)
_MINUTE = timedelta(minutes=1)
#: Days around clock changes of zones that change them at midnight, by half an hour, on both hemispheres, and never.
_ZONED_DAYS = (
    ("Europe/Berlin", date(2026, 3, 28)),
    ("Europe/Berlin", date(2026, 10, 24)),
    ("America/New_York", date(2026, 11, 1)),
    ("Australia/Lord_Howe", date(2026, 4, 4)),
    ("America/Havana", date(2026, 3, 7)),
    ("Asia/Seoul", date(2026, 10, 2)),
)
_WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def _spans(spec: CapacityScheduleSpec, begin: datetime, days: int) -> list[tuple[str, str]]:
    zone = ZoneInfo(spec.time_zone)
    period = TimeSpan(begin, begin + timedelta(days=days))
    spans = capacity_calendar(spec).awake_spans(period)
    return [
        (span.begin.astimezone(zone).strftime("%m-%d %H:%M"), span.end.astimezone(zone).strftime("%m-%d %H:%M"))
        for span in spans
    ]


def test_a_week_in_seoul_skips_public_and_extra_holidays_and_keeps_the_excluded_one() -> None:
    """Foundation Day is on a Saturday in 2026, so Monday is its substitute. Hangul Day is excluded from the calendar."""
    begin = datetime(2026, 10, 5, tzinfo=ZoneInfo("Asia/Seoul"))
    days = [opens[:5] for opens, _ in _spans(_SEOUL, begin, 7)]
    assert days == ["10-06", "10-07", "10-08", "10-09"]
    calendar = capacity_calendar(_SEOUL)
    assert calendar.holidays_between(date(2026, 10, 3), date(2026, 10, 10)) == {
        date(2026, 10, 3): "National Foundation Day",
        date(2026, 10, 5): "Alternative holiday for National Foundation Day",
    }
    assert calendar.holidays.name(date(2026, 12, 24)) == "extra holiday"


def test_a_night_window_is_as_long_as_the_clocks_there_make_it() -> None:
    """The night of the change in spring has nine hours between 22:00 and 08:00, the one in autumn eleven."""
    spec = CapacityScheduleSpec(
        node_pools=_POOLS,
        time_zone="Europe/Berlin",
        windows=(ScheduleWindow(days="sat", begin="22:00", until="08:00"),),
    )
    calendar = capacity_calendar(spec)
    hours = []
    for day in (datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)):
        (span,) = calendar.awake_spans(TimeSpan(day, day + timedelta(days=1)))
        hours.append((span.end - span.begin) / timedelta(hours=1))
    assert hours == [9, 11]


def test_awake_wins_where_windows_overlap() -> None:
    asleep = ScheduleWindow(days="daily", begin="12:00", until="13:00", state="Asleep")
    spec = CapacityScheduleSpec(node_pools=_POOLS, windows=(_WORK, asleep), otherwise="Awake")
    calendar = capacity_calendar(spec)
    assert calendar.state(datetime(2026, 10, 6, 12, 30, tzinfo=UTC)) is CapacityState.AWAKE
    assert calendar.state(datetime(2026, 10, 10, 12, 30, tzinfo=UTC)) is CapacityState.ASLEEP


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (CapacityScheduleSpec(node_pools=_POOLS, time_zone="Asia/Soul"), "did you mean 'Asia/Seoul'?"),
        (
            CapacityScheduleSpec(node_pools=_POOLS, holidays=ScheduleHolidays(country="QQ")),
            "spec.holidays.country: no calendar is known for QQ",
        ),
        (
            CapacityScheduleSpec(node_pools=_POOLS, holidays=ScheduleHolidays(country="DE", subdivision="XX")),
            "spec.holidays.subdivision: no calendar is known for DE-XX",
        ),
        (
            CapacityScheduleSpec(node_pools=_POOLS, holidays=ScheduleHolidays(extra=("2026-02-30",))),
            "spec.holidays.extra: day",
        ),
    ],
)
def test_a_schedule_that_cannot_be_used_says_which_field_is_wrong(spec: CapacityScheduleSpec, message: str) -> None:
    with pytest.raises(CapacityScheduleError, match=r"spec[.]") as raised:
        capacity_calendar(spec)
    assert message in str(raised.value)


_TIMES = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.sampled_from((0, 15, 30, 59)))
_DAYS = st.one_of(
    st.just("daily"),
    st.builds("{}-{}".format, st.sampled_from(_WEEK), st.sampled_from(_WEEK)),
    st.lists(st.sampled_from(_WEEK), min_size=1, max_size=3).map(",".join),
)
_WINDOWS = st.lists(
    st.builds(
        ScheduleWindow,
        days=_DAYS,
        begin=_TIMES,
        until=st.one_of(_TIMES, st.just("24:00")),
        state=st.sampled_from(("Awake", "Asleep")),
    ),
    max_size=3,
).map(tuple)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(_ZONED_DAYS),
    _WINDOWS,
    st.sampled_from(("Awake", "Asleep")),
    st.sampled_from(("Awake", "Asleep", None)),
    st.booleans(),
)
def test_spans_agree_with_a_check_of_every_minute(
    place: tuple[str, date],
    windows: tuple[ScheduleWindow, ...],
    otherwise: str,
    on_holidays: str | None,
    has_holiday: bool,
) -> None:
    zone, day = place
    holiday = (day + timedelta(days=1)).isoformat()
    spec = CapacityScheduleSpec(
        node_pools=_POOLS,
        time_zone=zone,
        windows=windows,
        otherwise=otherwise,
        on_holidays=on_holidays,
        holidays=ScheduleHolidays(extra=(holiday,) if has_holiday else ()),
    )
    begin = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    calendar = capacity_calendar(spec)
    spans = calendar.awake_spans(TimeSpan(begin, begin + timedelta(days=3)))
    for number in range(3 * 24 * 60):
        moment = begin + number * _MINUTE
        expected = _is_awake(spec, moment)
        assert any(span.begin <= moment < span.end for span in spans) == expected, moment
        assert (calendar.state(moment) is CapacityState.AWAKE) == expected, moment


def _is_awake(spec: CapacityScheduleSpec, moment: datetime) -> bool:
    """The state of one minute, from what a clock and a calendar on the wall show."""
    wall = moment.astimezone(ZoneInfo(spec.time_zone))
    now, today, yesterday = wall.strftime("%H:%M"), wall.date(), wall.date() - timedelta(days=1)
    states = []
    for window in spec.windows:
        over_midnight = window.until <= window.begin
        if _begins(spec, window, today) and window.begin <= now and (over_midnight or now < window.until):
            states.append(window.state)
        if over_midnight and _begins(spec, window, yesterday) and now < window.until:
            states.append(window.state)
    if states:
        return "Awake" in states
    is_special = spec.on_holidays is not None and today.isoformat() in spec.holidays.extra
    return (spec.on_holidays if is_special else spec.otherwise) == "Awake"


def _begins(spec: CapacityScheduleSpec, window: ScheduleWindow, day: date) -> bool:
    if spec.on_holidays is not None and day.isoformat() in spec.holidays.extra:
        return False
    if window.days == "daily":
        return True
    named: set[str] = set()
    for part in window.days.split(","):
        first, _, last = part.partition("-")
        named.add(first)
        while last and first != last:
            first = _WEEK[(_WEEK.index(first) + 1) % 7]
            named.add(first)
    return day.strftime("%a").lower() in named
