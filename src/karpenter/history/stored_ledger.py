"""The savings ledger from a history, and as JSON for programs and for the console. Money is USD, times are RFC 3339 in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from karpenter.history.history_records import PartSpending
from karpenter.history.history_store import HistoryStore
from karpenter.history.savings_ledger import DecisionSaving, LedgerInput, SavingsLedger, savings_ledger
from karpenter.model import clock
from karpenter.model.budget_windows import TimeSpan


@dataclass(frozen=True)
class LedgerBounds:
    """How much of a history a ledger reads at most.

    ``samples``: evenly left out beyond that. ``names``: of each dimension, the dearest. ``decisions``: the latest.
    """

    samples: int
    names: int
    decisions: int


def stored_ledger(store: HistoryStore, period: TimeSpan, bounds: LedgerBounds) -> SavingsLedger:
    """The ledger of a period of a history."""
    return savings_ledger(
        LedgerInput(
            period,
            store.samples(period.begin, bounds.samples),
            store.spent(period, bounds.names),
            store.decisions(period.begin, bounds.decisions),
        )
    )


def ledger_document(ledger: SavingsLedger) -> dict[str, object]:
    """The ledger as JSON."""
    return {
        "formatVersion": 1,
        "from": clock.rfc3339(ledger.period.begin),
        "until": clock.rfc3339(ledger.period.end),
        "knownHours": round(ledger.known_hours, 3),
        "spent": round(ledger.total, 6),
        "savedByDecisions": round(ledger.saved_by_decisions, 6),
        "savedByPacking": round(ledger.saved_by_packing, 6),
        "days": [
            {
                "day": day.day.isoformat(),
                "knownHours": round(day.known_hours, 3),
                "spent": round(day.total, 6),
                "nodePools": round(day.managed, 6),
                "lowerBound": round(day.bound, 6),
                "classicPacking": round(day.classic, 6),
            }
            for day in ledger.days
        ],
        "parts": [_part_document(part) for part in ledger.parts],
        "unused": [_part_document(part) for part in ledger.unused],
        "decisions": [_decision_document(saving) for saving in ledger.decisions],
    }


def _part_document(part: PartSpending) -> Mapping[str, object]:
    return {"by": part.dimension, "name": part.name, "spent": round(part.total, 6)}


def _decision_document(saving: DecisionSaving) -> Mapping[str, object]:
    decision = saving.decision
    return {
        "id": decision.decision_id,
        "at": clock.rfc3339(decision.at),
        "reason": decision.reason,
        "text": decision.text,
        "outcome": decision.outcome,
        "pods": decision.pods,
        "estimatedSavingPerHour": saving.estimated_per_hour,
        "realizedSavingPerHour": saving.realized_per_hour,
        "saved": round(saving.realized, 6),
    }
