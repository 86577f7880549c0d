"""Where time comes from: everything that needs the wall clock is handed a ``Clock``."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Protocol

from karpenter.model.texts import shorten


class Clock(Protocol):
    """Source of the current time. Waiting is done with ``asyncio.sleep``: a virtual event loop makes both jump."""

    def now(self) -> datetime:
        """The current time, in UTC."""


class SystemClock:
    """The clock of the operating system."""

    def now(self) -> datetime:
        """The current time, in UTC."""
        return datetime.now(UTC)


def rfc3339(timestamp: datetime) -> str:
    """A time as annotations and messages carry it: UTC, whole seconds."""
    return timestamp.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(timestamp: datetime) -> str:
    """A time as leases carry it: UTC, six decimals."""
    return timestamp.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


#: The clocks may drift apart by so much between two readings; more is a jump.
_JUMP_TOLERANCE_SECONDS = 30.0
#: So long after a jump nothing is decided by the time of day: it may be set back, and watches may have missed something.
_DISTRUST_SECONDS = 300.0


class ClockJumpDetector:
    """Notices jumps of the time of day."""

    def __init__(self) -> None:
        self._last_reading: tuple[datetime, float] | None = None
        self._distrusted_until = 0.0

    def jump_seconds(self, now: datetime, monotonic: float) -> float:
        """By how much the time of day jumped since the last call, 0 where it did not. ``monotonic``: seconds that only grow."""
        last, self._last_reading = self._last_reading, (now, monotonic)
        if last is None:
            return 0.0
        jump = (now - last[0]).total_seconds() - (monotonic - last[1])
        if abs(jump) <= _JUMP_TOLERANCE_SECONDS:
            return 0.0
        self._distrusted_until = monotonic + _DISTRUST_SECONDS
        return jump

    def is_trusted(self, monotonic: float) -> bool:
        """Whether it has not jumped for a while."""
        return monotonic >= self._distrusted_until


#: Stamps of the API server are whole seconds, and its answers take some.
_OFFSET_TOLERANCE = timedelta(seconds=30)


class ServerClockOffset:
    """How far this process's clock is ahead of the API server's now, as the latest object that it created shows.

    Seconds that never go back carry the server's time on from there, so a jump of the time of day is seen at once.
    """

    def __init__(self) -> None:
        self._server_time: tuple[datetime, float] | None = None

    def observe(self, created: datetime | None, monotonic: float) -> None:
        """An object was created just now: its stamp of the API server."""
        if created is not None:
            self._server_time = created, monotonic

    def local_time(self, stamp: datetime, now: datetime, monotonic: float) -> datetime | None:
        """A stamp of the API server as a time of this process's clock, which says ``now``; None before any object."""
        if self._server_time is None:
            return None
        seen, at = self._server_time
        offset = now - seen - timedelta(seconds=monotonic - at)
        return stamp + offset if abs(offset) > _OFFSET_TOLERANCE else stamp


_TIMESTAMP_GRAMMAR = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_MAX_SHOWN = 60


class TimestampError(ValueError):
    """A text that is not a moment. ``text`` is what was given."""

    def __init__(self, text: str) -> None:
        shown = shorten(text, _MAX_SHOWN)
        super().__init__(f"{shown!r} is not a date and time with a UTC offset, such as 2026-12-24T18:00:00+01:00")
        self.text = text


def parse_timestamp(text: str) -> datetime:
    """The time a text names, in UTC. A UTC offset is required. Raises ``TimestampError``."""
    if _TIMESTAMP_GRAMMAR.fullmatch(text) is None:
        raise TimestampError(text)
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise TimestampError(text) from error


def parse_annotation_time(text: str) -> datetime | None:
    """The time in an annotation Karpenter writes, in any ISO 8601 form with a UTC offset; None for anything else."""
    try:
        timestamp = datetime.fromisoformat(text)
    except ValueError:
        return None
    return timestamp if timestamp.tzinfo is not None else None
