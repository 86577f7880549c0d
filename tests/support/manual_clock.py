"""A clock that a test advances."""

from __future__ import annotations

from datetime import datetime, timedelta


class ManualClock:
    """Shows ``time`` until a test changes it."""

    def __init__(self, time: datetime) -> None:
        self.time = time

    def now(self) -> datetime:
        return self.time

    def advance(self, **by: float) -> None:
        self.time += timedelta(**by)
