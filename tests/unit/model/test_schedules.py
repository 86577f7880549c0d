"""Schedules of disruption budgets: which texts are one, and when they hit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpenter.model import cron
from karpenter.model.cron import CronScheduleError

#: A Thursday (API §19.3).
NOW = datetime(2000, 6, 15, 12, 30, 30, tzinfo=UTC)


def next_hit(text: str, after: datetime = NOW) -> str:
    result = cron.parse_schedule(text).next_after(after)
    return "never" if result is None else result.strftime("%a %Y-%m-%d %H:%M:%S")


def is_open(text: str, hours: float, now: datetime = NOW) -> bool:
    """API-081, as budgets ask it."""
    hit = cron.parse_schedule(text).next_after(now - timedelta(hours=hours))
    return hit is not None and hit <= now


@pytest.mark.parametrize(
    ("text", "hit"),
    [
        ("* * * * *", "Thu 2000-06-15 12:31:00"),
        ("? ? ? ? ?", "Thu 2000-06-15 12:31:00"),
        ("*/5 * * * *", "Thu 2000-06-15 12:35:00"),
        ("30 12 * * *", "Fri 2000-06-16 12:30:00"),
        ("5/20 * * * *", "Thu 2000-06-15 12:45:00"),
        ("0-10/5 * * * *", "Thu 2000-06-15 13:00:00"),
        ("10,50,40 * * * *", "Thu 2000-06-15 12:40:00"),
        ("0 9 * * mon-fri", "Fri 2000-06-16 09:00:00"),
        ("0 9 * * MON-Fri", "Fri 2000-06-16 09:00:00"),
        ("0 9 * * 0", "Sun 2000-06-18 09:00:00"),
        ("0 0 1 JAN *", "Mon 2001-01-01 00:00:00"),
        ("1 1 1 1 1", "Mon 2001-01-01 01:01:00"),
        ("0 0 31 * *", "Mon 2000-07-31 00:00:00"),
        ("0 0 29 2 *", "Sun 2004-02-29 00:00:00"),
        ("  0   9\t* * *  ", "Fri 2000-06-16 09:00:00"),
        ("@hourly", "Thu 2000-06-15 13:00:00"),
        ("@daily", "Fri 2000-06-16 00:00:00"),
        ("@midnight", "Fri 2000-06-16 00:00:00"),
        ("@weekly", "Sun 2000-06-18 00:00:00"),
        ("@monthly", "Sat 2000-07-01 00:00:00"),
        ("@yearly", "Mon 2001-01-01 00:00:00"),
        ("@annually", "Mon 2001-01-01 00:00:00"),
    ],
)
def test_the_next_hit_is_the_first_full_minute_that_matches(text: str, hit: str) -> None:
    """API-082, API-S015"""
    assert next_hit(text) == hit


@pytest.mark.parametrize(
    ("text", "hit"),
    [
        ("0 0 20 * fri", "Fri 2000-06-16 00:00:00"),  # both restricted: either will do
        ("0 0 16 * mon", "Fri 2000-06-16 00:00:00"),
        ("0 0 * * mon", "Mon 2000-06-19 00:00:00"),  # a star says nothing
        ("0 0 20 * ?", "Tue 2000-06-20 00:00:00"),
        (
            "0 0 */10 * mon",
            "Mon 2000-06-19 00:00:00",
        ),  # a stepped star is a restriction: Monday the 19th before the 21st
        ("0 0 */1 * mon", "Mon 2000-06-19 00:00:00"),
        ("0 0 16 * */6", "Fri 2000-06-16 00:00:00"),
    ],
)
def test_two_restricted_day_fields_are_alternatives(text: str, hit: str) -> None:
    """API-082"""
    assert next_hit(text) == hit


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 31 apr,jun,sep,nov *"])
def test_a_day_no_calendar_has_never_comes(text: str) -> None:
    """API-082a"""
    assert next_hit(text) == "never"


def test_a_leap_day_further_away_than_five_years_does_not_count() -> None:
    """API-082a: 2100 is no leap year."""
    assert next_hit("0 0 29 2 *", datetime(2097, 1, 1, tzinfo=UTC)) == "never"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("99 99 99 99 99", "minute '99' is not a number from 0 to 59"),
        ("0 24 * * *", "hour '24'"),
        ("0 0 0 * *", "day of month '0'"),
        ("0 0 * 13 *", "month '13' is not a number from 1 to 12 or its name"),
        ("0 0 * * 7", "day of week '7' is not a number from 0 to 6"),
        ("0 0 * * fritag", "day of week 'fritag'"),
        ("0 17-9 * * *", "hour range '17-9' starts after its end"),
        ("0 0 * * tue-mon", "starts after its end"),
        ("0 0 * * sat-sun", "starts after its end"),
        ("0 9-12-15 * * *", "hour '12-15'"),
        ("*/0 * * * *", "step '0'"),
        ("*/x * * * *", "step 'x'"),
        ("1/2/3 * * * *", "step '2/3'"),
        ("-1 * * * *", "minute ''"),
        ("1.5 * * * *", "minute '1.5'"),
        (", * * * *", "minute is empty"),
        ("* * * *", "4 fields instead of five"),
        ("0 * * * * *", "6 fields instead of five"),
        ("", "0 fields"),
        ("@Daily", "use one of @annually"),
        ("@dailyXYZ", "use one of @annually"),
        ("@every 1h", "use one of @annually"),
        ("TZ=Asia/Seoul 0 9 * * mon-fri", "take no time zone"),
        ("CRON_TZ=Asia/Seoul 0 9 * * mon-fri", "take no time zone"),
        ("٣ * * * *", "minute"),
    ],
)
def test_what_is_no_schedule_is_refused_with_the_part_that_is_wrong(text: str, words: str) -> None:
    """API-082, API-083, API-S016, API-S073, DIS-142: seven is not Sunday, and ranges do not descend."""
    with pytest.raises(CronScheduleError) as refusal:
        cron.parse_schedule(text)
    assert words in str(refusal.value)
    assert refusal.value.text == text


@pytest.mark.parametrize(
    ("text", "hours", "now", "is_active"),
    [
        ("@weekly", 0.5, NOW, False),  # API-S067
        ("* * * * *", 1, NOW, True),  # API-S068
        ("0 12 * * *", 1, NOW, True),  # API-S069
        ("0 12 * * *", 1, NOW + timedelta(hours=1), False),
        ("@hourly", 1 / 6, NOW.replace(minute=5), True),  # API-S070
        ("@hourly", 1 / 6, NOW, False),
        ("@daily", 24, NOW, True),  # API-S072
        ("@daily", 24, NOW.replace(hour=0, minute=0, second=0), True),
        ("1 1 1 1 1", 24, NOW, False),  # API-S073
        ("0 12 * * *", 1, NOW.replace(minute=0, second=0), True),  # at the very hit
        ("0 12 * * *", 1, NOW.replace(hour=13, minute=0, second=0), False),  # at its end
        ("0 12 * * *", 1, NOW.replace(hour=12, minute=59, second=59, microsecond=999999), True),
        ("0 12 * * *", 1, NOW.replace(hour=11, minute=59, second=59, microsecond=999999), False),
        ("0 12,13 * * *", 2, NOW.replace(hour=14), True),  # overlapping windows merge
    ],
)
def test_each_hit_opens_a_window_that_excludes_its_end(text: str, hours: float, now: datetime, is_active: bool) -> None:
    """API-081, DIS-141"""
    assert is_open(text, hours, now) is is_active


def test_moments_of_any_zone_are_read_and_hits_are_utc() -> None:
    """API-082"""
    seoul = timezone(timedelta(hours=9))
    actual = cron.parse_schedule("0 9 * * *").next_after(datetime(2000, 6, 15, 18, 0, tzinfo=seoul))
    assert actual == datetime(2000, 6, 16, 9, tzinfo=UTC)
    assert actual.tzinfo is UTC


_numbers = st.one_of(st.just("*"), st.integers(0, 6).map(str), st.sampled_from(["*/2", "1-4", "2,5", "1/3"]))
_texts = st.tuples(
    _numbers, _numbers, st.sampled_from(["*", "1", "10-20", "*/7"]), st.sampled_from(["*", "2", "6-8"]), _numbers
).map(" ".join)
_moments = st.integers(0, 31 * 365 * 86_400 * 1000).map(lambda ms: NOW + timedelta(milliseconds=ms))


@given(_texts, _moments)
def test_the_next_hit_matches_and_nothing_before_it_does(text: str, moment: datetime) -> None:
    """API-082: judged minute by minute, for as long as that takes no time."""
    schedule = cron.parse_schedule(text)
    actual = schedule.next_after(moment)
    assert actual is not None
    assert actual > moment
    assert schedule.next_after(actual - timedelta(microseconds=1)) == actual
    minutes, hours, days, months, weekdays = text.split()
    earlier = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
    for _ in range(200):
        if earlier >= actual:
            break
        assert not _matches(earlier, (minutes, hours, days, months, weekdays))
        earlier += timedelta(minutes=1)
    assert _matches(actual, (minutes, hours, days, months, weekdays))


def _matches(moment: datetime, fields: tuple[str, ...]) -> bool:
    minutes, hours, days, months, weekdays = fields
    by_month = _holds(days, moment.day, 1, 31)
    by_week = _holds(weekdays, moment.isoweekday() % 7, 0, 6)
    day = by_month and by_week if "*" in (days, weekdays) else by_month or by_week
    return (
        _holds(minutes, moment.minute, 0, 59)
        and _holds(hours, moment.hour, 0, 23)
        and _holds(months, moment.month, 1, 12)
        and day
    )


def _holds(field: str, value: int, least: int, most: int) -> bool:
    values = {
        "*": range(least, most + 1),
        "*/2": range(least, most + 1, 2),
        "*/7": range(least, most + 1, 7),
        "1-4": (1, 2, 3, 4),
        "2,5": (2, 5),
        "1/3": range(1, most + 1, 3),
        "10-20": range(10, 21),
        "6-8": (6, 7, 8),
    }
    return value in (values[field] if field in values else (int(field),))
