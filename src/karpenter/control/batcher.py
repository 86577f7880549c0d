"""Waiting for a batch: a decision over many pods is cheaper and better than many decisions over one (SCH-005 to SCH-007)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """A batch closes after ``idle_seconds`` without news, at the latest ``longest_seconds`` after its first trigger."""

    idle_seconds: float = 1.0
    longest_seconds: float = 10.0


class Batcher:
    """Collects triggers into windows. Triggers are a level, not a queue: what is planned is read afresh afterwards."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._seen: set[str] = set()
        self._news = asyncio.Event()

    def trigger(self, uid: str) -> None:
        """Something waits. A uid already seen in this window changes nothing (SCH-006)."""
        if uid not in self._seen:
            self._seen.add(uid)
            self._news.set()

    async def wait(self) -> None:
        """Return when a window closes. Triggers that come afterwards open the next one."""
        await self._news.wait()
        loop = asyncio.get_running_loop()
        end = loop.time() + self._window.longest_seconds
        while True:
            self._news.clear()
            left = min(self._window.idle_seconds, end - loop.time())
            if left <= 0:
                break
            try:
                # Not ``wait_for``, which forgets that it was cancelled when news come at the same moment.
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                break
        self._seen.clear()
        self._news.clear()
