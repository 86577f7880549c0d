"""Exponential backoff: one schedule as a value, and a bounded table of when each key may be tried again.

All callers share the schedule and differ in its numbers only. A delay is a pure function of the number of failures in a row, so
a caller keeps a counter (or a ``BackoffTable``) and nothing else. For jitter, multiply the delay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_MAX_DOUBLINGS = 40
_MAX_ENTRIES = 100_000


@dataclass(frozen=True)
class Backoff:
    """Delays that start at ``base_seconds`` and double up to ``max_seconds``."""

    base_seconds: float
    max_seconds: float

    def delay(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row (at least 1)."""
        return min(self.max_seconds, self.base_seconds * 2.0 ** min(max(failures - 1, 0), _MAX_DOUBLINGS))

    def after(self, delay_seconds: float) -> float:
        """The delay that follows one of ``delay_seconds``; 0 stands for no delay yet."""
        return min(self.max_seconds, delay_seconds * 2) or self.base_seconds


#: The schedule of reconcilers and of whatever else has no reason for another one (OPS-008).
DEFAULT_BACKOFF = Backoff(1.0, 60.0)


@dataclass(frozen=True)
class _Entry:
    failures: int
    retry_at: float


class BackoffTable(Generic[K]):
    """Failures in a row per key, and when the key may be tried again. ``now`` gives seconds that never go back.

    The table is bounded: beyond ``max_entries`` the keys that failed longest ago are forgotten.
    """

    def __init__(self, backoff: Backoff, now: Callable[[], float], max_entries: int = _MAX_ENTRIES) -> None:
        self._backoff = backoff
        self._now = now
        self._max_entries = max_entries
        self._entries: OrderedDict[K, _Entry] = OrderedDict()

    def record_failure(self, key: K) -> float:
        """Count a failure; the delay that begins now."""
        last = self._entries.pop(key, None)
        failures = last.failures + 1 if last is not None else 1
        delay = self._backoff.delay(failures)
        self._entries[key] = _Entry(failures, self._now() + delay)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
        return delay

    def remaining_seconds(self, key: K) -> float:
        """How much of the key's delay is left; 0 when it may be tried."""
        entry = self._entries.get(key)
        return max(0.0, entry.retry_at - self._now()) if entry is not None else 0.0

    def forget(self, key: K) -> None:
        """The key succeeded, or is gone."""
        self._entries.pop(key, None)
