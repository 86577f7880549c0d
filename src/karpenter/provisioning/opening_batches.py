"""Which nodes open for pods together: those that join within one window, once each of them is prepared.

Whenever a node opens, the scheduler tries all waiting pods, also those that are meant for nodes which are still closed. So nodes
that can be ready together should open in one go. A window decides which nodes belong together, so a node that joins early does
not wait for one that joins a minute later. The preparation of the nodes has a time limit of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from karpenter.runtime.batch_window import BatchWindow, WindowTimer


class OpeningBatch:
    """Nodes that open together: those that joined within one window."""

    def __init__(self) -> None:
        self._unprepared = 0
        self._is_complete = False
        self._gate = asyncio.Event()

    def add(self) -> None:
        """A node has joined."""
        self._unprepared += 1

    def prepared(self) -> None:
        """The pods of one more of its nodes are nominated."""
        self._unprepared -= 1
        self._open_if_ready()

    def complete(self) -> None:
        """No more nodes join it."""
        self._is_complete = True
        self._open_if_ready()

    def open(self) -> None:
        """Do not wait for further nodes."""
        self._gate.set()

    async def opens(self) -> None:
        """Return when its nodes are to be opened."""
        await self._gate.wait()

    def _open_if_ready(self) -> None:
        if self._is_complete and not self._unprepared:
            self.open()


class OpeningBatches:
    """Gathers nodes that join within one window, and opens them when each is prepared, or after so many seconds."""

    def __init__(self, window: BatchWindow, longest_preparation_seconds: float) -> None:
        self._timer = WindowTimer(window, self._on_close)
        self._longest_preparation_seconds = longest_preparation_seconds
        self._batch = OpeningBatch()

    @contextmanager
    def joined(self) -> Iterator[OpeningBatch]:
        """The batch of a node that has joined, and is prepared inside."""
        batch = self._batch
        batch.add()
        self._timer.extend()
        try:
            yield batch
        finally:
            batch.prepared()

    def complete(self) -> None:
        """No other node will join soon."""
        self._timer.close()

    def _on_close(self) -> None:
        batch, self._batch = self._batch, OpeningBatch()
        asyncio.get_running_loop().call_later(self._longest_preparation_seconds, batch.open)
        batch.complete()
