"""The journal of disruption decisions: the latest ones with their reasons and outcomes, bounded, in memory, on a debug page.

The log has a line per decision, and NodeClaims carry its ID (``labels.DISRUPTION_DECISION``), so that a deleted node can be
traced to the decision, its reason and its replacement.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

_MAX_ENTRIES = 500


class DecisionOutcome(StrEnum):
    """How a decision ended, or that it has not yet."""

    IN_PROGRESS = "under way"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True)
class JournalEntry:
    """One decision. ``saving_per_hour`` in USD, None where a price is not known; ``nodes`` are Node and NodeClaim."""

    command_id: str
    decided_at: datetime
    reason: str
    decision: str
    consolidation_type: str
    pools: tuple[str, ...]
    nodes: tuple[tuple[str, str], ...]
    replacements: tuple[str, ...]
    pods: int
    saving_per_hour: float | None
    outcome: DecisionOutcome = DecisionOutcome.IN_PROGRESS
    cause: str = ""
    ended_at: datetime | None = None


class DecisionJournal:
    """The latest decisions, oldest first."""

    def __init__(self, max_entries: int = _MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._entries: OrderedDict[str, JournalEntry] = OrderedDict()

    def begin(self, entry: JournalEntry) -> None:
        """A decision is being carried out."""
        self._entries[entry.command_id] = entry
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def end(self, command_id: str, outcome: DecisionOutcome, ended_at: datetime, cause: str = "") -> None:
        """It ended so."""
        journal_entry = self._entries.get(command_id)
        if journal_entry is not None:
            self._entries[command_id] = replace(journal_entry, outcome=outcome, cause=cause, ended_at=ended_at)

    def entries(self) -> tuple[JournalEntry, ...]:
        """All that are remembered, oldest first."""
        return tuple(self._entries.values())
