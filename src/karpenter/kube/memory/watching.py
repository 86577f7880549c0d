"""One open watch: a position in a resource's log, filtered by a query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from karpenter.kube.memory.query import Query
from karpenter.kube.memory.store import Change, Entry, Log
from karpenter.kube.protocol import EventType


@dataclass(frozen=True, slots=True)
class Seen:
    """What a watcher is told. A bookmark has no entry."""

    type: EventType
    version: int
    entry: Entry | None = None


class Watch:
    """An open watch. ``next`` waits for what comes next and answers None once the server has closed the stream."""

    def __init__(self, log: Log, query: Query, version: int, bookmark_due: Callable[[int], int | None]) -> None:
        """Start after ``version``. Raises ``Gone``. ``bookmark_due`` answers a version worth a bookmark, given the last one."""
        self._log = log
        self._query = query
        self._position = log.position(version)
        self._last = version
        self._bookmark_due = bookmark_due
        self._open = True

    def close(self) -> None:
        """End the stream; what was not read yet is not delivered."""
        self._open = False

    async def next(self) -> Seen | None:
        """The next change or bookmark, None at the end of the stream. Raises ``Gone`` when the reader fell too far behind."""
        while self._open:
            seen = self._read()
            if seen is not None:
                self._last = seen.version
                return seen
            await self._log.changed()
        return None

    def _read(self) -> Seen | None:
        while self._position < self._log.end:
            change = self._log.at(self._position)
            self._position += 1
            seen = visible(change, self._query)
            if seen is not None:
                return seen
        due = self._bookmark_due(self._last)
        return Seen(EventType.BOOKMARK, due) if due is not None else None


def visible(change: Change, query: Query) -> Seen | None:
    """How a change looks through a query: entering is ADDED, leaving is DELETED, and the rest is not seen."""
    now = query.matches(change.entry)
    before = change.previous is not None and query.matches(change.previous)
    match change.type:
        case EventType.ADDED:
            return Seen(EventType.ADDED, change.version, change.entry) if now else None
        case EventType.DELETED:
            return Seen(EventType.DELETED, change.version, change.entry) if before else None
        case _ if now:
            return Seen(EventType.MODIFIED if before else EventType.ADDED, change.version, change.entry)
        case _:
            return Seen(EventType.DELETED, change.version, change.left()) if before else None
