"""A ceiling on how fast machines are bought: the last brake when something drives us to buy without end.

Counted are creations, not what exists: a claim that is created, refused by the cloud and deleted again and again is just what the
ceiling is for. It is counted in memory; a restart begins a new minute.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta

_MINUTE = timedelta(minutes=1)


class Ceiling:
    """At most ``per_minute`` claims created within any sixty seconds."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._created_at: deque[datetime] = deque()

    def room(self, now: datetime) -> int:
        """How many claims may be created now."""
        while self._created_at and now - self._created_at[0] >= _MINUTE:
            self._created_at.popleft()
        return self.per_minute - len(self._created_at)

    def take(self, count: int, now: datetime) -> None:
        """So many are being created, whatever becomes of them."""
        self._created_at.extend([now] * count)

    def opens_in_seconds(self, now: datetime) -> float:
        """How long until there is room for one more; zero when there is."""
        if self.room(now) > 0:
            return 0.0
        return (self._created_at[0] + _MINUTE - now).total_seconds()


@dataclass(frozen=True)
class Pace:
    """How long planned pods are expected on a machine (SCH-640), and how many claims may be created in a minute, by whomever."""

    nomination_window: timedelta
    ceiling: Ceiling
