"""What a comment beside a schedule says in words: hours, days, a length, a time zone.

Comments are free text, so only what is unmistakable counts: ``9am-5pm``, ``22:00 to 06:00``, ``weekends``, ``mon-fri``,
``for 8h``, ``KST``, ``Europe/Berlin``. What is not understood says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_HOUR = r"(\d{1,2})(?::(\d\d))?\s*(am|pm|h\b|o'clock)?"
_RANGE = re.compile(rf"(?<![\d*/,.-]){_HOUR}\s*(?:-|\u2013|to|until|till)\s*{_HOUR}(?![\d*%,/])", re.IGNORECASE)
_LENGTH = re.compile(r"\b(?:for|lasts?)\s+(\d{1,3})\s*(?:h|hours?|hrs?)\b", re.IGNORECASE)
_ZONE_NAME = re.compile(r"\b(?:Africa|America|Asia|Atlantic|Australia|Europe|Indian|Pacific)/[A-Z]\w+(?:/[A-Z]\w+)?")
_WORD = re.compile(r"[A-Za-z]+")
_DAY_RANGE = re.compile(
    r"\b(sun|mon|tue|wed|thu|fri|sat)[a-z]*\s*(?:-|\u2013|to|through)\s*(sun|mon|tue|wed|thu|fri|sat)", re.I
)
_DAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_DAY_GROUPS: Mapping[str, frozenset[int]] = {
    "weekend": frozenset({0, 6}),
    "weekday": frozenset(range(1, 6)),
    "workday": frozenset(range(1, 6)),
    "working day": frozenset(range(1, 6)),
    "business day": frozenset(range(1, 6)),
}
_MINUTES_PER_HOUR = 60
_NOON = 12
_HOURS_PER_DAY = 24
#: What people call the time zones they live in. In summer the same place has another name.
ZONES_BY_ABBREVIATION: Mapping[str, str] = {
    "KST": "Asia/Seoul",
    "JST": "Asia/Tokyo",
    "SGT": "Asia/Singapore",
    "HKT": "Asia/Hong_Kong",
    "IST": "Asia/Kolkata",
    "CET": "Europe/Berlin",
    "CEST": "Europe/Berlin",
    "BST": "Europe/London",
    "PST": "America/Los_Angeles",
    "PDT": "America/Los_Angeles",
    "EST": "America/New_York",
    "EDT": "America/New_York",
    "CST": "America/Chicago",
    "CDT": "America/Chicago",
    "AEST": "Australia/Sydney",
    "AEDT": "Australia/Sydney",
    "BRT": "America/Sao_Paulo",
}
_UTC_WORDS = frozenset({"UTC", "GMT", "ZULU"})


@dataclass(frozen=True, slots=True)
class StatedHours:
    """A time of day from which and one until which, in minutes since midnight; the latter may be the earlier one."""

    begin: int
    end: int

    @property
    def text(self) -> str:
        """As a clock shows it."""
        return f"{clock_text(self.begin)} to {clock_text(self.end)}"


@dataclass(frozen=True, slots=True)
class ScheduleComment:
    """What a comment says. ``weekdays`` count from Sunday, 0; empty where none are named. ``zone`` is an IANA name."""

    hours: tuple[StatedHours, ...] = ()
    weekdays: frozenset[int] = frozenset()
    length_minutes: int = 0
    zone: str = ""
    names_utc: bool = False
    means_local_time: bool = False


def clock_text(minutes: int) -> str:
    """Minutes since midnight as a clock shows them."""
    return f"{minutes // _MINUTES_PER_HOUR % _HOURS_PER_DAY:02}:{minutes % _MINUTES_PER_HOUR:02}"


def parse_comment(text: str) -> ScheduleComment:
    """What the text says about when something holds."""
    words = set(_WORD.findall(text))
    length = _LENGTH.search(text)
    zones = [*_ZONE_NAME.findall(text), *(zone for short, zone in ZONES_BY_ABBREVIATION.items() if short in words)]
    return ScheduleComment(
        hours=tuple(hours for match in _RANGE.finditer(text) if (hours := _hours(match)) is not None),
        weekdays=_weekdays(text.lower()),
        length_minutes=int(length[1]) * _MINUTES_PER_HOUR if length else 0,
        zone=zones[0] if zones else "",
        names_utc=bool(_UTC_WORDS & words),
        means_local_time="local time" in text.lower(),
    )


def _hours(match: re.Match[str]) -> StatedHours | None:
    """The hours, unless the numbers may be others: a count of nodes has neither a colon nor ``am``."""
    is_clock_time = any(match[group] for group in (2, 3, 5, 6))
    is_same_half = match[6] and not match[3] and int(match[1]) < int(match[4])
    half = match[6] if is_same_half else match[3] or ("am" if match[6] else None)
    begin, end = _minutes(match[1], match[2], half), _minutes(match[4], match[5], match[6])
    if not is_clock_time or begin is None or end is None:
        return None
    return StatedHours(begin, end)


def _minutes(hour_text: str, minute_text: str | None, half: str | None) -> int | None:
    hour, minute = int(hour_text), int(minute_text or 0)
    half_word = (half or "").lower()
    if half_word in ("am", "pm"):
        if not 1 <= hour <= _NOON:
            return None
        hour = hour % _NOON + (_NOON if half_word == "pm" else 0)
    if hour > _HOURS_PER_DAY or minute >= _MINUTES_PER_HOUR:
        return None
    return (hour * _MINUTES_PER_HOUR + minute) % (_HOURS_PER_DAY * _MINUTES_PER_HOUR)


def _weekdays(text: str) -> frozenset[int]:
    """The days that are named as a group; of several groups none is sure to be meant."""
    groups = {days for word, days in _DAY_GROUPS.items() if word in text}
    for first, last in _DAY_RANGE.findall(text):
        begin, end = _DAY_NAMES.index(first.lower()), _DAY_NAMES.index(last.lower())
        span = range(begin, end + 1 if begin <= end else end + 1 + len(_DAY_NAMES))
        groups.add(frozenset(day % len(_DAY_NAMES) for day in span))
    return next(iter(groups)) if len(groups) == 1 else frozenset()
