"""Events that wait for one destination, and when they are due.

Equal events are one with a count. The queue is bounded: beyond its length the oldest are dropped and counted, because the newest
say how things stand. Adding an event costs the same however many wait: it happens where decisions are published.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from itertools import islice

from karpenter.notifications.notification_config import Destination
from karpenter.notifications.notification_rules import Notification

#: Most events that wait for one destination.
MAX_WAITING = 1000


class WaitingEvents:
    """The events of one destination that were not posted yet, oldest first. Times are seconds of a clock that never goes back."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._notifications: dict[tuple[str, ...], Notification] = {}
        self._opened_at = 0.0

    def __len__(self) -> int:
        return len(self._notifications)

    def add(self, notification: Notification, now_seconds: float) -> int:
        """One more event; returns how many were dropped for it."""
        if not self._notifications:
            self._opened_at = now_seconds
        waiting = self._notifications.get(notification.key)
        count = notification.count + (waiting.count if waiting is not None else 0)
        self._notifications[notification.key] = replace(notification, count=count)
        if len(self._notifications) <= MAX_WAITING:
            return 0
        dropped = self._notifications.pop(next(iter(self._notifications)))
        return dropped.count

    def batch(self, now: datetime, now_seconds: float) -> tuple[Notification, ...]:
        """What is to be posted now, empty while events are still collected or wait for quiet hours to end."""
        limits = self._destination.batch
        ready = tuple(islice(self._ready(now), limits.max_events))
        is_due = len(ready) == limits.max_events or now_seconds >= self._opened_at + limits.window_seconds
        return ready if is_due else ()

    def remove(self, posted: Iterable[Notification], now_seconds: float) -> None:
        """A batch was posted or given up. What came meanwhile stays and begins a window of its own."""
        for notification in posted:
            waiting = self._notifications.pop(notification.key, None)
            if waiting is not None and waiting.count > notification.count:
                self._notifications[notification.key] = replace(waiting, count=waiting.count - notification.count)
        self._opened_at = now_seconds

    def _ready(self, now: datetime) -> Iterable[Notification]:
        quiet = self._destination.quiet_hours
        if not self._notifications or quiet is None or not quiet.are_on(now):
            return self._notifications.values()
        return (waiting for waiting in self._notifications.values() if waiting.severity in quiet.excepted)
