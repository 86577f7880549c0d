"""Correlates the events of one object as client-go does: repeats raise a count, similar ones are combined, floods are dropped.

An event that was written before is not created anew: its ``count`` and ``lastTimestamp`` are patched. From the tenth message of a
reason within ten minutes on, all further ones become one event, which begins with "(combined from similar events)". And one
object gets no more than a burst of events and then one in five minutes (OPS-503).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from karpenter.model.token_bucket import TokenBucket

T = TypeVar("T")
EventKey = tuple[str, ...]

#: Events one object may get at once, and how many a second are added to that.
_BURST_PER_OBJECT = 25
_PER_SECOND_PER_OBJECT = 1 / 300
#: From so many messages of one reason within so long on, further ones are combined.
_MIN_COMBINED = 10
_SIMILAR_PERIOD = timedelta(minutes=10)
_COMBINED_PREFIX = "(combined from similar events): "
_MAX_ENTRIES = 4096


@dataclass(frozen=True)
class WrittenEvent:
    """An Event object in the API server and how often it occurred. ``name`` is empty until it is created."""

    message: str
    first_timestamp: datetime
    count: int = 0
    name: str = ""


@dataclass
class _SimilarEvents:
    """The messages of one reason about one object."""

    last_at: datetime
    messages: dict[str, None] = field(default_factory=dict)


class _LatestEntries(Generic[T]):
    """A bounded table, which forgets what was not used for longest."""

    def __init__(self) -> None:
        self._entries: OrderedDict[EventKey, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get_or_add(self, key: EventKey, new: Callable[[], T]) -> T:
        entry = self._entries.pop(key, None)
        self[key] = new() if entry is None else entry
        return self._entries[key]

    def __setitem__(self, key: EventKey, entry: T) -> None:
        self._entries[key] = entry
        self._entries.move_to_end(key)
        if len(self._entries) > _MAX_ENTRIES:
            self._entries.popitem(last=False)


class EventCorrelator:
    """Decides whether an event is published, merged or dropped. Keys consist of the object's identity, type and reason."""

    def __init__(self) -> None:
        self._buckets: _LatestEntries[TokenBucket] = _LatestEntries()
        self._similar: _LatestEntries[_SimilarEvents] = _LatestEntries()
        self._written: _LatestEntries[WrittenEvent] = _LatestEntries()

    def correlate(self, involved: EventKey, reason: EventKey, message: str, now: datetime) -> WrittenEvent | None:
        """The Event object to create or to patch for one more occurrence; None where the object gets too many."""
        similar_key = (*involved, *reason)
        similar = self._similar.get_or_add(similar_key, lambda: _SimilarEvents(now))
        if now - similar.last_at > _SIMILAR_PERIOD:
            similar.messages.clear()
        similar.last_at = now
        similar.messages[message] = None
        is_combined = len(similar.messages) >= _MIN_COMBINED
        if is_combined:
            similar.messages.popitem()  # the newest: those before it stay events of their own, in every run
        bucket = self._buckets.get_or_add(involved, lambda: TokenBucket(_PER_SECOND_PER_OBJECT, _BURST_PER_OBJECT))
        if not bucket.try_take(now.timestamp()):
            return None
        key = similar_key if is_combined else (*similar_key, message)
        text = _COMBINED_PREFIX + message if is_combined else message
        written = self._written.get_or_add(key, lambda: WrittenEvent(text, now))
        occurred = replace(written, message=text, count=written.count + 1)
        self._written[key] = occurred
        return occurred

    def created(self, involved: EventKey, reason: EventKey, event: WrittenEvent, name: str) -> None:
        """The event now exists under this name."""
        is_combined = event.message.startswith(_COMBINED_PREFIX)
        key = (*involved, *reason) if is_combined else (*involved, *reason, event.message)
        self._written[key] = replace(event, name=name)
