"""The ledger in the forms of other tools: CSV, the JSON of OpenCost's allocation API, and FOCUS rows.

Only what the ledger knows is filled in. OpenCost splits costs by resource; here a namespace has one total. FOCUS is about bills;
these rows are estimates at list prices, so they have a ``ListCost`` and no ``BilledCost``.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from io import StringIO
from typing import assert_never

from karpenter.console.spending import SpendDimension
from karpenter.history.history_records import PartSpending
from karpenter.history.savings_ledger import SavingsLedger
from karpenter.model.clock import rfc3339


class LedgerExport(StrEnum):
    """A form of another tool."""

    CSV = "csv"
    OPENCOST = "opencost"
    FOCUS = "focus"


#: Keys of tags in FOCUS rows, by dimension; labels have their own key.
_TAG_KEYS = {
    SpendDimension.NODE_POOL.value: "karpenter.sh/nodepool",
    SpendDimension.NAMESPACE.value: "k8s_namespace",
    SpendDimension.INSTANCE_TYPE.value: "node.kubernetes.io/instance-type",
    SpendDimension.CAPACITY_TYPE.value: "karpenter.sh/capacity-type",
}


def exported(ledger: SavingsLedger, export: LedgerExport, cluster: str) -> str:
    """The ledger as text. ``cluster`` names the cluster where the form has a place for it."""
    match export:
        case LedgerExport.CSV:
            return _csv(_ledger_rows(ledger))
        case LedgerExport.OPENCOST:
            return json.dumps(_opencost(ledger, cluster), indent=2) + "\n"
        case LedgerExport.FOCUS:
            return _csv(_focus_rows(ledger, cluster))
        case _ as unreachable:
            assert_never(unreachable)


def _csv(rows: Iterable[Mapping[str, object]]) -> str:
    out = StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(out, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow({name: _without_formula(value) for name, value in row.items()})
    return out.getvalue()


def _without_formula(value: object) -> object:
    """Spreadsheets take a text that begins with these signs for a formula, and names come from users."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value


def _ledger_rows(ledger: SavingsLedger) -> Iterable[Mapping[str, object]]:
    for day in ledger.days:
        figures = {"total": day.total, "bound": day.bound, "classic": day.classic, "managed": day.managed}
        for name, usd in figures.items():
            yield {"kind": "day", "name": day.day.isoformat(), "figure": name, "usd": f"{usd:.6f}"}
    for part in (*ledger.parts, *ledger.unused):
        yield {"kind": part.dimension, "name": part.name, "figure": "total", "usd": f"{part.total:.6f}"}
    for saving in ledger.decisions:
        decision = saving.decision
        yield {"kind": "decision", "name": decision.decision_id, "figure": "saved", "usd": f"{saving.realized:.6f}"}


def _opencost(ledger: SavingsLedger, cluster: str) -> Mapping[str, object]:
    window = {"start": rfc3339(ledger.period.begin), "end": rfc3339(ledger.period.end)}
    allocations = {
        part.name: {
            "name": part.name,
            "properties": {"cluster": cluster, "namespace": part.name},
            "window": window,
            **window,
            "minutes": round(ledger.known_hours * 60, 3),
            "totalCost": round(part.total, 6),
        }
        for part in _parts_of(ledger, SpendDimension.NAMESPACE)
    }
    return {"code": 200, "data": [allocations]}


def _focus_rows(ledger: SavingsLedger, cluster: str) -> Iterable[Mapping[str, object]]:
    """One row per part: each dimension adds up to the whole, so take the rows of one ``x_Dimension`` at a time."""
    for part in ledger.parts:
        key = _TAG_KEYS.get(part.dimension, part.dimension.removeprefix("label "))
        yield {
            "ChargePeriodStart": rfc3339(ledger.period.begin),
            "ChargePeriodEnd": rfc3339(ledger.period.end),
            "ChargeCategory": "Usage",
            "ServiceCategory": "Compute",
            "ListCost": f"{part.total:.6f}",
            "BillingCurrency": "USD",
            "SubAccountName": cluster,
            "Tags": json.dumps({key: part.name}),
            "x_Dimension": part.dimension,
        }


def _parts_of(ledger: SavingsLedger, dimension: SpendDimension) -> Iterable[PartSpending]:
    return (part for part in ledger.parts if part.dimension == dimension.value)
