"""The calendar of a CapacitySchedule: whether capacity is awake or asleep at a moment, and when that changes.

The state is a function of the wall clock in the schedule's time zone alone. So a window from 22:00 until 07:00 is as long as
clocks there make it when they are changed; a wall time that occurs twice has the same state both times.

On a holiday with a state of its own, windows that begin on that day do not count. Windows that began on the day before go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import StrEnum
from itertools import pairwise

from karpenter.api.capacity_schedule import CapacityScheduleSpec, ScheduleWindow
from karpenter.model import cron
from karpenter.model.budget_windows import TimeSpan, constant_offset_spans, merged_spans
from karpenter.model.holiday_calendars import Holidays, HolidaysError, holidays_of

_DAY = timedelta(days=1)
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class CapacityState(StrEnum):
    """Whether NodePools have capacity."""

    AWAKE = "Awake"
    ASLEEP = "Asleep"


class CapacityScheduleError(ValueError):
    """A schedule cannot be used; the message names the field."""


@dataclass(frozen=True, slots=True)
class CalendarWindow:
    """A window in wall time: it begins on the given weekdays (0: Monday), both ends counted from that day's midnight."""

    weekdays: frozenset[int]
    begin: timedelta
    end: timedelta
    state: CapacityState

    def covers(self, day: date, since_midnight: timedelta) -> bool:
        """Whether the occurrence that begins on ``day`` covers a time, counted from that day's midnight."""
        return day.weekday() in self.weekdays and self.begin <= since_midnight < self.end


@dataclass(frozen=True)
class CapacityCalendar:
    """The calendar of one schedule. ``on_holidays``: the state of whole holidays, None where they are ordinary days."""

    zone: tzinfo
    windows: tuple[CalendarWindow, ...]
    otherwise: CapacityState
    on_holidays: CapacityState | None = None
    holidays: Holidays = field(default_factory=Holidays)

    def state(self, moment: datetime) -> CapacityState:
        """The state at an aware moment."""
        return self._state_on_wall(moment.astimezone(self.zone).replace(tzinfo=None))

    def _state_on_wall(self, wall: datetime) -> CapacityState:
        states = set(self._open_windows(wall))
        if states:
            return CapacityState.AWAKE if CapacityState.AWAKE in states else CapacityState.ASLEEP
        if self.on_holidays is not None and self.holidays.name(wall.date()) is not None:
            return self.on_holidays
        return self.otherwise

    def _open_windows(self, wall: datetime) -> Iterator[CapacityState]:
        since_midnight = wall - datetime.combine(wall.date(), time.min)
        for day, offset in ((wall.date(), since_midnight), (wall.date() - _DAY, since_midnight + _DAY)):
            if self.on_holidays is None or self.holidays.name(day) is None:
                yield from (window.state for window in self.windows if window.covers(day, offset))

    def awake_spans(self, period: TimeSpan) -> tuple[TimeSpan, ...]:
        """When capacity is awake within a period of aware moments, in UTC, in order, with pauses between."""
        within = TimeSpan(period.begin.astimezone(UTC), period.end.astimezone(UTC))
        return tuple(merged_spans(self._awake_pieces(within)))

    def _awake_pieces(self, period: TimeSpan) -> Iterator[TimeSpan]:
        for piece in constant_offset_spans(self.zone, period):
            offset = piece.begin.astimezone(self.zone).utcoffset() or timedelta()
            begin, end = ((moment + offset).replace(tzinfo=None) for moment in (piece.begin, piece.end))
            edges = sorted({begin, end, *(edge for edge in self._wall_edges(begin, end) if begin < edge < end)})
            for opens, closes in pairwise(edges):
                if self._state_on_wall(opens) is CapacityState.AWAKE:
                    yield TimeSpan((opens - offset).replace(tzinfo=UTC), (closes - offset).replace(tzinfo=UTC))

    def _wall_edges(self, begin: datetime, end: datetime) -> Iterator[datetime]:
        """Every wall time between two others at which the state may change, and some more."""
        day = begin.date() - _DAY
        while day <= end.date():
            midnight = datetime.combine(day, time.min)
            yield midnight
            for window in self.windows:
                yield from (midnight + window.begin, midnight + window.end)
            day += _DAY

    def holidays_between(self, begin: date, end: date) -> Mapping[date, str]:
        """Holidays of the days from ``begin`` until before ``end``, with their names."""
        days = (begin + timedelta(days=number) for number in range((end - begin).days))
        return {day: name for day in days if (name := self.holidays.name(day)) is not None}


def capacity_calendar(spec: CapacityScheduleSpec) -> CapacityCalendar:
    """The calendar of a schedule. Raises ``CapacityScheduleError``."""
    try:
        zone = cron.find_time_zone(spec.time_zone)
    except cron.TimeZoneError as error:
        raise CapacityScheduleError(f"spec.timeZone: {error}") from None
    try:
        holidays = holidays_of(spec.holidays)
    except HolidaysError as error:
        raise CapacityScheduleError(str(error)) from None
    windows = tuple(_window(window) for window in spec.windows)
    on_holidays = CapacityState(spec.on_holidays) if spec.on_holidays is not None else None
    return CapacityCalendar(zone, windows, CapacityState(spec.otherwise), on_holidays, holidays)


def _window(window: ScheduleWindow) -> CalendarWindow:
    begin, end = _since_midnight(window.begin), _since_midnight(window.until)
    end += _DAY if end <= begin else timedelta()
    return CalendarWindow(frozenset(_weekdays(window.days)), begin, end, CapacityState(window.state))


def _since_midnight(text: str) -> timedelta:
    hours, _, minutes = text.partition(":")
    return timedelta(hours=int(hours), minutes=int(minutes))


def _weekdays(text: str) -> Iterable[int]:
    if text == "daily":
        yield from range(7)
        return
    for part in text.split(","):
        first, _, last = part.partition("-")
        begin, end = _WEEKDAYS.index(first), _WEEKDAYS.index(last or first)
        yield from (day % 7 for day in range(begin, end + 1 if end >= begin else end + 8))
