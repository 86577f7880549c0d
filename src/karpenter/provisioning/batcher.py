"""Waiting for a batch: a decision over many pods is cheaper and better than many decisions over one (SCH-005 to SCH-007)."""

from __future__ import annotations

import asyncio

from karpenter.runtime.batch_window import BatchWindow


class ProvisioningBatcher:
    """Collects triggers into windows. Triggers are a level, not a queue: what is planned is read afresh afterwards."""

    def __init__(self, window: BatchWindow) -> None:
        self._window = window
        self._triggered_uids: set[str] = set()
        self._triggered = asyncio.Event()

    def trigger(self, uid: str) -> None:
        """Something waits. A uid already seen in this window changes nothing (SCH-006)."""
        if uid not in self._triggered_uids:
            self._triggered_uids.add(uid)
            self._triggered.set()

    async def wait(self) -> None:
        """Return when a window closes. Triggers that come afterwards open the next one."""
        await self._triggered.wait()
        loop = asyncio.get_running_loop()
        end = loop.time() + self._window.max_seconds
        while True:
            self._triggered.clear()
            left = min(self._window.idle_seconds, end - loop.time())
            if left <= 0:
                break
            try:
                # Not ``wait_for``, which forgets that it was cancelled when news come at the same moment.
                async with asyncio.timeout(left):
                    await self._triggered.wait()
            except TimeoutError:
                break
        self._triggered_uids.clear()
        self._triggered.clear()
