"""Whether a decision is being computed now, so that work that can wait does not share the interpreter with it.

Threads of one Python process take turns: a document of the console that is made beside a decision slows both. Only long decisions
run in a thread; during the others the event loop stands still, and nothing new starts anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class DecisionsInProgress:
    """Counts the decisions that threads compute. Used on the event loop alone."""

    def __init__(self) -> None:
        self._count = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def are_in_progress(self) -> bool:
        """Whether one is being computed."""
        return not self._is_idle.is_set()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A decision is being computed."""
        self._count += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._is_idle.set()

    async def until_idle(self, at_most_seconds: float) -> None:
        """Wait until no decision is being computed; not longer than ``at_most_seconds``."""
        try:
            async with asyncio.timeout(at_most_seconds):
                await self._is_idle.wait()
        except TimeoutError:
            return
