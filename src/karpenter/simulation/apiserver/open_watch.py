"""One open watch: a position in a resource's log, filtered by a query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from karpenter.kube.protocol import WatchEventType
from karpenter.simulation.apiserver.list_query import ObjectQuery
from karpenter.simulation.apiserver.object_store import ChangeLog, StoredChange, StoredEntry


@dataclass(frozen=True, slots=True)
class WatchNotification:
    """One event of a watch. A bookmark has no entry."""

    type: WatchEventType
    version: int
    entry: StoredEntry | None = None


class OpenWatch:
    """An open watch. ``next`` waits for what comes next and answers None once the server has closed the stream."""

    def __init__(
        self, log: ChangeLog, query: ObjectQuery, version: int, bookmark_due: Callable[[int], int | None]
    ) -> None:
        """Start after ``version``, which may lie in the future: earlier events are left out. Raises ``Gone``.

        ``bookmark_due`` returns the version of a due bookmark, given the last version sent.
        """
        self._log = log
        self._query = query
        self._position = log.position(version)
        self._last_version = version
        self._bookmark_due = bookmark_due
        self._is_open = True

    def close(self) -> None:
        """End the stream; what was not read yet is not delivered."""
        self._is_open = False

    async def next(self) -> WatchNotification | None:
        """The next change or bookmark, None at the end of the stream. Raises ``Gone`` when the reader fell too far behind."""
        while self._is_open:
            seen = next(self.pending(), None)
            if seen is not None:
                return seen
            await self._log.wait_for_change()
        return None

    def pending(self) -> Iterator[WatchNotification]:
        """Events that are ready now, and a bookmark at the end when one is due. Raises ``Gone`` as ``next`` does."""
        while self._is_open and self._position < self._log.end_position:
            change = self._log.change_at(self._position)
            self._position += 1
            seen = notification_for(change, self._query) if change.version > self._last_version else None
            if seen is not None:
                self._last_version = seen.version
                yield seen
        due = self._bookmark_due(self._last_version)
        if self._is_open and due is not None:
            self._last_version = due
            yield WatchNotification(WatchEventType.BOOKMARK, due)

    def progress_bookmark(self, version: int) -> WatchNotification | None:
        """A bookmark of ``version``, the latest there is; None when other events are waiting or the version has not changed."""
        if not self._is_open or self._position < self._log.end_position or version <= self._last_version:
            return None
        self._last_version = version
        return WatchNotification(WatchEventType.BOOKMARK, version)


def notification_for(change: StoredChange, query: ObjectQuery) -> WatchNotification | None:
    """How a change looks through a query: entering is ADDED, leaving is DELETED, and the rest is not seen."""
    now = query.matches(change.entry)
    before = change.previous is not None and query.matches(change.previous)
    match change.type:
        case WatchEventType.ADDED:
            return WatchNotification(WatchEventType.ADDED, change.version, change.entry) if now else None
        case WatchEventType.DELETED:
            return WatchNotification(WatchEventType.DELETED, change.version, change.entry) if before else None
        case _ if now:
            seen_as = WatchEventType.MODIFIED if before else WatchEventType.ADDED
            return WatchNotification(seen_as, change.version, change.entry)
        case _:
            return WatchNotification(WatchEventType.DELETED, change.version, change.as_deletion()) if before else None
