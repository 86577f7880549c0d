"""When a disruption budget is active: always, in windows that a schedule opens, between two dates, or both (API-081, DIS-141).

A schedule's window is a stretch of *wall time*: it is active whenever a clock in its time zone shows a time from a hit until
the duration later. In UTC that is the rule of the API. Elsewhere it settles what clock changes mean, without exceptions:

* ``0 22 * * *`` for 8h lasts from ten to six as people there see it, on every day of the year: seven hours in the night the
  clocks go forward, nine in the night they go back.
* A hit in the hour that is skipped counts: its window is open from the change on, for what the clock shows of it. A window that
  lies in that hour alone does not occur.
* A time that occurs twice is in the window both times. A window that begins within that hour closes when the clock goes back
  before its beginning, and opens again.
* ``@daily`` for 24h is active without a gap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo

from karpenter.model.cron import CronSchedule

_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A stretch of time, in UTC, that excludes its end."""

    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class RecurringWindow:
    """Windows of a duration that a schedule opens on the wall clocks of a time zone."""

    schedule: CronSchedule
    duration: timedelta
    zone: tzinfo = UTC

    def is_active(self, now: datetime) -> bool:
        """Whether a window is open at an aware moment."""
        wall = now.astimezone(self.zone).replace(tzinfo=None)
        hit = self.schedule.next_local(wall - self.duration)
        return hit is not None and hit <= wall

    def spans(self, period: TimeSpan) -> Iterator[TimeSpan]:
        """The windows within a period, in order; they may touch."""
        for piece in constant_offset_spans(self.zone, period):
            offset = piece.begin.astimezone(self.zone).replace(tzinfo=None) - piece.begin.replace(tzinfo=None)
            begin, end = ((moment + offset).replace(tzinfo=None) for moment in (piece.begin, piece.end))
            for opens, closes in self._local_windows(begin, end):
                yield TimeSpan((opens - offset).replace(tzinfo=UTC), (closes - offset).replace(tzinfo=UTC))

    def _local_windows(self, begin: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
        """Windows between two times of one clock that runs evenly: those of one day, again on every day that has hits."""
        pattern = self.daily_windows()
        day = (begin - self.duration).date()
        while day <= end.date():
            midnight = datetime.combine(day, time.min)
            for opens, closes in pattern if self.schedule.matches_day(day) else ():
                if midnight + closes > begin and midnight + opens < end:
                    yield max(midnight + opens, begin), min(midnight + closes, end)
            day += _DAY

    def daily_windows(self) -> list[tuple[timedelta, timedelta]]:
        """The windows that hits of one day open, counted from its midnight, with pauses between."""
        windows: list[tuple[timedelta, timedelta]] = []
        for hit in self.schedule.times_of_day() if self.duration else ():
            begin = hit
            if windows and hit <= windows[-1][1]:
                begin, _ = windows.pop()
            windows.append((begin, hit + self.duration))
        return windows


@dataclass(frozen=True, slots=True)
class ActiveWindow:
    """When something holds: in a recurrence's windows if there is one, from ``begin`` on, and until before ``end``."""

    recurrence: RecurringWindow | None = None
    begin: datetime | None = None
    end: datetime | None = None

    @property
    def is_always(self) -> bool:
        """Whether there is no moment outside."""
        return self == _ALWAYS

    def is_active(self, now: datetime) -> bool:
        """Whether it holds at an aware moment."""
        if (self.begin is not None and now < self.begin) or (self.end is not None and now >= self.end):
            return False
        return self.recurrence is None or self.recurrence.is_active(now)

    def spans(self, period: TimeSpan) -> tuple[TimeSpan, ...]:
        """When it holds within a period of aware moments, in order, with pauses between."""
        begin = period.begin if self.begin is None else max(self.begin, period.begin)
        end = period.end if self.end is None else min(self.end, period.end)
        if begin >= end:
            return ()
        within = TimeSpan(begin.astimezone(UTC), end.astimezone(UTC))
        return (within,) if self.recurrence is None else tuple(merged_spans(self.recurrence.spans(within)))


_ALWAYS = ActiveWindow()


def merged_spans(spans: Iterable[TimeSpan]) -> Iterator[TimeSpan]:
    """Spans in the order of their beginnings, those that overlap or touch made one."""
    last: TimeSpan | None = None
    for span in spans:
        if last is not None and span.begin <= last.end:
            last = TimeSpan(last.begin, max(last.end, span.end))
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


def constant_offset_spans(zone: tzinfo, period: TimeSpan) -> Iterator[TimeSpan]:
    """The period cut where the zone's clocks are changed: looked for hour by hour, found to the second."""
    begin = at = period.begin
    while at < period.end:
        following = min(at + _HOUR, period.end)
        if _utc_offset(zone, following) != _utc_offset(zone, at):
            change = _offset_change(zone, at, following)
            yield TimeSpan(begin, change)
            begin = change
        at = following
    if begin < period.end:
        yield TimeSpan(begin, period.end)


def _offset_change(zone: tzinfo, before: datetime, after: datetime) -> datetime:
    """The first full second with the later of two offsets."""
    old, new = math.floor(before.timestamp()), math.ceil(after.timestamp())
    while new - old > 1:
        middle = (old + new) // 2
        if _utc_offset(zone, datetime.fromtimestamp(middle, UTC)) == _utc_offset(zone, before):
            old = middle
        else:
            new = middle
    return datetime.fromtimestamp(new, UTC)


def _utc_offset(zone: tzinfo, moment: datetime) -> timedelta | None:
    return moment.astimezone(zone).utcoffset()
