"""The cluster that a viewer follows, wherever it comes from."""

from __future__ import annotations

from typing import Protocol

from karpenter.console.console_input import ConsoleInput


class ViewerSource(Protocol):
    """The cluster to show."""

    @property
    def title(self) -> str:
        """Which cluster it is."""

    def current(self) -> ConsoleInput | None:
        """The cluster now; None before the first objects came."""

    def fault(self) -> str:
        """Why it may be stale or incomplete, in one line; empty while all is well."""

    async def run(self) -> None:
        """Keep it current until cancelled."""
