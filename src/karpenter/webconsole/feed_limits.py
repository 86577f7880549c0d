"""Limits on the load that viewers cause: audiences with a feed of their own, and streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

#: Audiences: each costs a view every second, and a scheduling pass now and then.
MAX_FEEDS = 32
#: Streams of all viewers, and of one.
MAX_STREAMS, MAX_STREAMS_OF_ONE = 200, 20


class TooManyViewers(Exception):
    """No further viewer is admitted now; the message says why, and what to do."""


class StreamSlots:
    """The streams that are open, by viewer."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def check(self, viewer: str) -> None:
        """Raises ``TooManyViewers`` where this viewer can open no further stream."""
        if self._open[viewer] >= MAX_STREAMS_OF_ONE:
            raise TooManyViewers(f"{viewer} has {MAX_STREAMS_OF_ONE} pages open; close some of them")
        if self._open.total() >= MAX_STREAMS:
            raise TooManyViewers(f"{MAX_STREAMS} pages are open, and no more are served; try again later")

    @contextmanager
    def taken(self, viewer: str) -> Iterator[None]:
        """A stream of this viewer is open as long as the context lasts."""
        self._open[viewer] += 1
        try:
            yield
        finally:
            self._open[viewer] -= 1
            if not self._open[viewer]:
                del self._open[viewer]
