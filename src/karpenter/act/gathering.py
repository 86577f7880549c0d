"""Going on together: who comes within moments of others waits for them."""

from __future__ import annotations

import asyncio


class Gathering:
    """Those who come go on together: when nobody has come for ``quiet_seconds``, ``longest_seconds`` after the first at most."""

    def __init__(self, quiet_seconds: float, longest_seconds: float) -> None:
        self._quiet = quiet_seconds
        self._longest = longest_seconds
        self._gate = asyncio.Event()
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def join(self) -> None:
        """Wait for the others."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._timer is None:
            self._until = now + self._longest
        else:
            self._timer.cancel()
        self._timer = loop.call_at(min(now + self._quiet, self._until), self._go_on)
        await self._gate.wait()

    def _go_on(self) -> None:
        self._gate.set()
        self._gate = asyncio.Event()
        self._timer = None
