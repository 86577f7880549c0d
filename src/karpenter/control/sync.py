"""Saying that the picture of the cluster is not complete, and what it lacks (OPS-111).

Half a minute passes first: a watch that is opened anew is no news. After that it is an error every ten seconds, as users know it,
and it names what is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import structlog

from karpenter.model import durations

_LONG_SECONDS = 30.0
_EVERY_SECONDS = 10.0
_log = structlog.get_logger()


class SyncReporter:
    """Reports a picture that stays incomplete. ``lacking`` says what it lacks, an empty text when it lacks nothing."""

    def __init__(self, lacking: Callable[[], str]) -> None:
        self._lacking = lacking
        self._since: float | None = None

    async def run(self) -> None:
        """Look every ten seconds, until cancelled."""
        while True:
            self._look()
            await asyncio.sleep(_EVERY_SECONDS)

    def _look(self) -> None:
        lacking = self._lacking()
        now = asyncio.get_running_loop().time()
        if not lacking:
            self._since = None
            return
        self._since = now if self._since is None else self._since
        lasted = now - self._since
        if lasted > _LONG_SECONDS:
            duration = durations.text(timedelta(seconds=round(lasted)))
            _log.error(
                "cluster is waiting on sync for extended duration",
                error="waiting on cluster sync",
                duration=duration,
                lacking=lacking,
            )
