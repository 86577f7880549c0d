"""One open watch: a position in a resource's log, filtered by a query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
        """Start after ``version``, which may lie in the future: then what comes before it is not told. Raises ``Gone``.

        ``bookmark_due`` answers a version worth a bookmark, given the last one told.
        """
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
            seen = next(self.ready(), None)
            if seen is not None:
                return seen
            await self._log.changed()
        return None

    def ready(self) -> Iterator[Seen]:
        """What can be told without waiting, a bookmark at the end when one is due. Raises ``Gone`` as ``next`` does."""
        while self._open and self._position < self._log.end:
            change = self._log.at(self._position)
            self._position += 1
            seen = visible(change, self._query) if change.version > self._last else None
            if seen is not None:
                self._last = seen.version
                yield seen
        due = self._bookmark_due(self._last)
        if self._open and due is not None:
            self._last = due
            yield Seen(EventType.BOOKMARK, due)

    def caught_up(self, version: int) -> Seen | None:
        """A bookmark of ``version``, the latest there is; None when there is something else to tell or nothing has moved."""
        if not self._open or self._position < self._log.end or version <= self._last:
            return None
        self._last = version
        return Seen(EventType.BOOKMARK, version)


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
