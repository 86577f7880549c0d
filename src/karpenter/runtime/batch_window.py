"""The one batching window: work that comes in bursts is cheaper and better done together.

A window opens with the first event. It closes when no event came for ``idle_seconds``, at the latest ``max_seconds`` after the
first. ``WindowTimer`` is that clock and does not know what is collected. Provisioning, opening nodes and requests to AWS
use it. An event costs a comparison, not a timer: the timer looks again when it fires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchWindow:
    """How long a window stays open: after the last event, and at most."""

    idle_seconds: float = 1.0
    max_seconds: float = 10.0


class WindowTimer:
    """Calls ``on_close`` when a window closes; the next event opens the next one."""

    def __init__(self, window: BatchWindow, on_close: Callable[[], None]) -> None:
        self._window = window
        self._on_close = on_close
        self._timer: asyncio.TimerHandle | None = None
        self._latest_close = 0.0
        self._close_at = 0.0

    def extend(self) -> None:
        """An event: open a window, or keep the open one open for longer."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._timer is None:
            self._latest_close = now + self._window.max_seconds
        self._close_at = min(now + self._window.idle_seconds, self._latest_close)
        if self._timer is None:
            self._timer = loop.call_at(self._close_at, self._on_timer)

    def close(self) -> None:
        """Close the window now."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._on_close()

    def _on_timer(self) -> None:
        if self._timer is not None and self._timer.when() < self._close_at:
            self._timer = asyncio.get_running_loop().call_at(self._close_at, self._on_timer)
        else:
            self.close()
