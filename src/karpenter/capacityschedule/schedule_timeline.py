"""What a schedule means ahead of time: stretches awake and asleep, the holidays in them, and the share of time asleep (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from karpenter.model.budget_windows import TimeSpan, merged_spans
from karpenter.model.capacity_calendar import CapacityCalendar, CapacityState

#: Hours of an average month.
MONTH_HOURS = 730.0


@dataclass(frozen=True)
class ScheduleSegment:
    """A stretch of one state. ``holidays``: names by date, of the days on which some of it lies."""

    span: TimeSpan
    state: CapacityState
    holidays: Mapping[date, str]


def schedule_timeline(calendar: CapacityCalendar, period: TimeSpan) -> tuple[ScheduleSegment, ...]:
    """The stretches of a period (UTC), in order and without gaps."""
    return tuple(_segments(calendar, period))


def _segments(calendar: CapacityCalendar, period: TimeSpan) -> Iterator[ScheduleSegment]:
    at = period.begin
    for span in calendar.awake_spans(period):
        if at < span.begin:
            yield _segment(calendar, TimeSpan(at, span.begin), CapacityState.ASLEEP)
        yield _segment(calendar, span, CapacityState.AWAKE)
        at = span.end
    if at < period.end:
        yield _segment(calendar, TimeSpan(at, period.end), CapacityState.ASLEEP)


def _segment(calendar: CapacityCalendar, span: TimeSpan, state: CapacityState) -> ScheduleSegment:
    first = span.begin.astimezone(calendar.zone).date()
    last = (span.end - timedelta(seconds=1)).astimezone(calendar.zone).date()
    return ScheduleSegment(span, state, calendar.holidays_between(first, last + timedelta(days=1)))


def asleep_fraction(calendars: Iterable[CapacityCalendar], period: TimeSpan) -> float:
    """The share of a period in which all schedules of a NodePool have it asleep: it is awake while one of them is."""
    spans = [span for calendar in calendars for span in calendar.awake_spans(period)]
    awake = merged_spans(sorted(spans, key=lambda span: span.begin))
    return 1.0 - sum((span.end - span.begin for span in awake), timedelta()) / (period.end - period.begin)
