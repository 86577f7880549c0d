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


def rfc3339(moment: datetime) -> str:
    """A time as annotations and messages carry it: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(moment: datetime) -> str:
    """A time as leases carry it: UTC, six decimals."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
