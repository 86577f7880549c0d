"""The journal of disruption decisions: what was decided last, why, what came of it. Bounded, in memory, shown on a debug page.

The log has each decision as a line, and NodeClaims carry its identity (``labels.DISRUPTION_DECISION``), so that a node that is
gone can be linked to the decision, its reason and its replacement.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

_KEPT = 500


class Outcome(StrEnum):
    """How a decision ended, or that it has not yet."""

    UNDER_WAY = "under way"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True)
class Entry:
    """One decision. ``saving_per_hour`` in USD, None where a price is not known; ``machines`` are Node and NodeClaim."""

    identity: str
    at: datetime
    reason: str
    decision: str
    consolidation_type: str
    pools: tuple[str, ...]
    machines: tuple[tuple[str, str], ...]
    replacements: tuple[str, ...]
    pods: int
    saving_per_hour: float | None
    outcome: Outcome = Outcome.UNDER_WAY
    cause: str = ""
    ended_at: datetime | None = None


class Journal:
    """The latest decisions, oldest first."""

    def __init__(self, most: int = _KEPT) -> None:
        self._most = most
        self._entries: OrderedDict[str, Entry] = OrderedDict()

    def begin(self, entry: Entry) -> None:
        """A decision is being carried out."""
        self._entries[entry.identity] = entry
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def end(self, identity: str, outcome: Outcome, at: datetime, cause: str = "") -> None:
        """It ended so."""
        known = self._entries.get(identity)
        if known is not None:
            self._entries[identity] = replace(known, outcome=outcome, cause=cause, ended_at=at)

    def entries(self) -> tuple[Entry, ...]:
        """All that are remembered, oldest first."""
        return tuple(self._entries.values())
