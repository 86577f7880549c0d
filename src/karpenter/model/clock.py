"""Where time comes from: everything that needs the wall clock is handed a ``Clock``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Source of the current time. Waiting is done with ``asyncio.sleep``: a virtual event loop makes both jump."""

    def now(self) -> datetime:
        """The current time, in UTC."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The current time, in UTC."""
        return datetime.now(UTC)
