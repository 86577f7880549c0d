"""Cron schedules as disruption budgets write them: five fields or a descriptor (API-082, DIS-142).

A parsed schedule is five sets of numbers; the next hit is found by walking over days, of which months that do not match are
skipped at once. Hits fall on full minutes. A schedule knows no time zone: it says what a clock shows when it hits. One that
names a day no calendar has (30 February) parses and never hits; looking ahead ends after five years, so that asking always ends.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from karpenter.model.texts import shorten

if TYPE_CHECKING:
    import zoneinfo

#: How far ahead a next hit is looked for (API-082a).
SEARCH_HORIZON_YEARS = 5
#: From here on five years hold a leap day, so that whether a schedule ever hits needs no clock.
_ANY_DAY = datetime(2024, 1, 1, tzinfo=UTC)

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_MAX_SHOWN = 80


class CronScheduleError(ValueError):
    """A text that is not a schedule. ``text`` is what was given, the message says which part is wrong and what would do."""

    def __init__(self, text: str, why: str) -> None:
        shown = shorten(text, _MAX_SHOWN)
        super().__init__(f"schedule {shown!r} cannot be read: {why}")
        self.text = text


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """When a schedule hits. ``any_day_field``: both day fields are restricted, so that matching one is enough."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days_of_month: frozenset[int]
    months: frozenset[int]
    days_of_week: frozenset[int]
    any_day_field: bool

    def next_after(self, moment: datetime) -> datetime | None:
        """The first hit strictly after an aware moment, in UTC; None when there is none within ``SEARCH_HORIZON_YEARS``."""
        local = self.next_local(moment.astimezone(UTC).replace(tzinfo=None))
        return None if local is None else local.replace(tzinfo=UTC)

    def next_local(self, local_time: datetime) -> datetime | None:
        """The first hit strictly after a time that a clock on some wall shows, as that clock shows it; None as above."""
        earliest = local_time.replace(second=0, microsecond=0) + timedelta(minutes=1)
        for day in self._matching_days(earliest.date()):
            first = self._first_time(earliest.time() if day == earliest.date() else time.min)
            if first is not None:
                return datetime.combine(day, first)
        return None

    def times_of_day(self) -> tuple[timedelta, ...]:
        """When it hits on the days it hits on, counted from midnight, in order."""
        minutes = sorted(hour * 60 + minute for hour in self.hours for minute in self.minutes)
        return tuple(timedelta(minutes=minute) for minute in minutes)

    def matches_day(self, day: date) -> bool:
        """Whether it hits on a day."""
        by_month, by_week = day.day in self.days_of_month, day.isoweekday() % 7 in self.days_of_week
        return day.month in self.months and (by_month or by_week if self.any_day_field else by_month and by_week)

    def _matching_days(self, first: date) -> Iterator[date]:
        day = first
        while day.year <= first.year + SEARCH_HORIZON_YEARS:
            if day.month not in self.months:
                day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
                continue
            if self.matches_day(day):
                yield day
            day += timedelta(days=1)

    def _first_time(self, earliest: time) -> time | None:
        """The first hit of a day from a full minute on."""
        for hour in sorted(hour for hour in self.hours if hour >= earliest.hour):
            least = earliest.minute if hour == earliest.hour else 0
            minute = min((minute for minute in self.minutes if minute >= least), default=None)
            if minute is not None:
                return time(hour, minute)
        return None


@dataclass(frozen=True, slots=True)
class _CronField:
    """One of the five fields: what it is called, its range, and the names it knows."""

    name: str
    minimum: int
    maximum: int
    names: Mapping[str, int]


_FIELDS = (
    _CronField("minute", 0, 59, {}),
    _CronField("hour", 0, 23, {}),
    _CronField("day of month", 1, 31, {}),
    _CronField("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _CronField("day of week", 0, 6, {name: number for number, name in enumerate(_WEEKDAYS)}),
)


@lru_cache(maxsize=1024)
def is_valid_schedule(text: str) -> bool:
    """Whether a text is a schedule that names a day which comes (API-082a, API-086)."""
    try:
        return parse_schedule(text).next_after(_ANY_DAY) is not None
    except CronScheduleError:
        return False


@lru_cache(maxsize=1024)
def parse_schedule(text: str) -> CronSchedule:
    """The schedule a text spells. Raises ``CronScheduleError``."""
    parts = _parse_fields(text)
    values = [_parse_field(field, part, text) for field, part in zip(_FIELDS, parts, strict=True)]
    minutes, hours, days_of_month, months, days_of_week = values
    either_day = not (_is_unrestricted(parts[2]) or _is_unrestricted(parts[4]))
    return CronSchedule(minutes, hours, days_of_month, months, days_of_week, either_day)


_NO_TIME_ZONE = "schedules take no time zone; name it in the annotation karpenter.sh/budget-windows"


def _parse_fields(text: str) -> list[str]:
    stripped = text.strip()
    if stripped.startswith("@"):
        if stripped not in _DESCRIPTORS:
            raise CronScheduleError(text, f"use one of {', '.join(sorted(_DESCRIPTORS))}, or five fields")
        stripped = _DESCRIPTORS[stripped]
    if stripped.startswith(("TZ=", "CRON_TZ=")):
        raise CronScheduleError(text, _NO_TIME_ZONE)
    parts = stripped.split()
    if len(parts) != len(_FIELDS):
        wanted = " ".join(field.name.replace(" ", "-") for field in _FIELDS)
        raise CronScheduleError(text, f"it has {len(parts)} fields instead of five ({wanted})")
    return parts


def _parse_field(field: _CronField, part: str, text: str) -> frozenset[int]:
    entries = [entry for entry in part.split(",") if entry]
    if not entries:
        raise CronScheduleError(text, f"{field.name} is empty")
    return frozenset(number for entry in entries for number in _parse_range(field, entry, text))


def _parse_range(field: _CronField, entry: str, text: str) -> range:
    """A value, ``*`` or ``?``, or a range, each with an optional step; a single value with a step runs to the maximum."""
    body, slash, step_text = entry.partition("/")
    first, dash, last = body.partition("-")
    if body in ("*", "?"):
        least, most = field.minimum, field.maximum
    else:
        least = _number(field, first, text)
        most = _number(field, last, text) if dash else field.maximum if slash else least
    step = _step(field, step_text, text) if slash else 1
    if least > most:
        raise CronScheduleError(text, f"{field.name} range {body!r} starts after its end")
    return range(least, most + 1, step)


def _number(field: _CronField, word: str, text: str) -> int:
    number = field.names.get(word.lower())
    if number is None and _NUMBER.fullmatch(word):
        number = int(word)
    if number is None or not field.minimum <= number <= field.maximum:
        named = " or its name" if field.names else ""
        raise CronScheduleError(
            text, f"{field.name} {word!r} is not a number from {field.minimum} to {field.maximum}{named}"
        )
    return number


def _step(field: _CronField, word: str, text: str) -> int:
    step = int(word) if _NUMBER.fullmatch(word) else 0
    if step == 0:
        raise CronScheduleError(text, f"{field.name} has the step {word!r}, which is not a positive number")
    return step


def _is_unrestricted(part: str) -> bool:
    """Whether a day field is unrestricted: a star is, a star with steps is not (API-082)."""
    return any(entry in ("*", "?", "*/1", "?/1") for entry in part.split(","))


#: Names whose meaning depends on the host, or that mean nothing.
_EXCLUDED_NAMES = frozenset({"localtime", "Factory"})
_MAX_ZONE_SHOWN = 60


class TimeZoneError(ValueError):
    """A text that names no time zone. ``text`` is what was given, the message says what would do."""

    def __init__(self, text: str) -> None:
        shown = shorten(text, _MAX_ZONE_SHOWN)
        near = _nearest_time_zone(text)
        hint = f"did you mean {near!r}?" if near else "expected an IANA name such as 'Europe/Berlin'"
        super().__init__(f"{shown!r} is not a time zone; {hint}")
        self.text = text


@lru_cache(maxsize=256)
def _nearest_time_zone(text: str) -> str:
    """The most similar name, or nothing. Every pass over a NodePool with such a text asks, and comparing takes milliseconds."""
    return next(iter(difflib.get_close_matches(text, _time_zone_names(), n=1)), "")


@lru_cache(maxsize=256)
def find_time_zone(name: str) -> zoneinfo.ZoneInfo:
    """The time zone of a name, in exactly this spelling. Raises ``TimeZoneError``."""
    import zoneinfo  # takes 3 ms, and few NodePools name a time zone

    if name not in _time_zone_names():
        raise TimeZoneError(name)
    return zoneinfo.ZoneInfo(name)


@lru_cache(maxsize=1)
def _time_zone_names() -> frozenset[str]:
    import zoneinfo

    return frozenset(zoneinfo.available_timezones() - _EXCLUDED_NAMES)
