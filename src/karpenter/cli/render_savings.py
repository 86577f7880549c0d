"""The savings ledger: as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from karpenter.cli.render_common import SEARCHABLE_WIDTH, console_for, print_line
from karpenter.history.history_records import PartSpending
from karpenter.history.savings_ledger import DaySpending, DecisionSaving, SavingsLedger, by_dimension
from karpenter.model.texts import count_text

_SHOWN_PARTS = 10
_SHOWN_DECISIONS = 20
#: From so many on hours have no decimals.
_WHOLE_HOURS = 10
_LIMITS = "Estimates from listed prices: no discounts, volumes, traffic or control plane. docs/how-to/savings.md"


def write(ledger: SavingsLedger, out: TextIO) -> None:
    """Write the page."""
    console = console_for(out, SEARCHABLE_WIDTH)
    begin, end = (moment.strftime("%Y-%m-%d %H:%M") for moment in (ledger.period.begin, ledger.period.end))
    print_line(console, Text(f"{begin} to {end} UTC, {_hours(ledger.known_hours)} hours known"))
    if not ledger.days:
        print_line(console, Text("no samples in this period", style="yellow"))
        return
    print_line(console, Text.assemble("spent ", (_usd(ledger.total), "bold")))
    print_line(console, Text.assemble(_packing_line(ledger)))
    print_line(console, Text(f"decisions saved {_usd(ledger.saved_by_decisions)}"))
    _write_days(console, ledger.days)
    for dimension, parts in by_dimension(ledger.parts).items():
        _write_parts(console, dimension, parts)
    _write_parts(console, "not requested by pods", ledger.unused)
    _write_decisions(console, ledger.decisions)
    print_line(console, Text(_LIMITS, style="dim"))


def _hours(hours: float) -> str:
    return f"{hours:.1f}" if hours < _WHOLE_HOURS else f"{hours:.0f}"


def _packing_line(ledger: SavingsLedger) -> str:
    paid = sum(day.managed for day in ledger.days)
    bound, classic = (sum(getattr(day, name) for day in ledger.days) for name in ("bound", "classic"))
    if not classic:
        return "classic packing: not known for these samples"
    ratio = f", {paid / bound:.2f} times the lower bound" if bound else ""
    known = "in the hours for which all of these are known"
    return f"nodes of NodePools {_usd(paid)}{ratio}; classic packing would have paid {_usd(classic)}, {known}"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(columns[0], overflow="fold")
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _write_days(console: Console, days: Iterable[DaySpending]) -> None:
    table = _table("day", "hours", "spent", "NodePools", "bound", "classic")
    for day in days:
        prices = (_usd(day.managed), _usd(day.bound), _usd(day.classic)) if day.classic else ("-", "-", "-")
        table.add_row(day.day.isoformat(), f"{day.known_hours:.1f}", _usd(day.total), *prices)
    console.print()
    console.print(table)


def _write_parts(console: Console, title: str, parts: tuple[PartSpending, ...]) -> None:
    if not parts:
        return
    table = _table(title, "spent")
    for part in parts[:_SHOWN_PARTS]:
        table.add_row(part.name, _usd(part.total))
    if others := parts[_SHOWN_PARTS:]:
        table.add_row(f"({len(others)} more)", _usd(sum(part.total for part in others)))
    console.print()
    console.print(table)


def _write_decisions(console: Console, savings: tuple[DecisionSaving, ...]) -> None:
    if not savings:
        return
    table = _table("decision", "estimated/h", "realized/h", "saved", "pods")
    for saving in savings[:_SHOWN_DECISIONS]:
        decision = saving.decision
        said = f"{decision.at.strftime('%m-%d %H:%M')} {decision.text}"
        said += f", {decision.outcome}" if decision.outcome != "succeeded" else ""
        rates = (_rate(saving.estimated_per_hour), _rate(saving.realized_per_hour))
        table.add_row(said, *rates, _usd(saving.realized), str(decision.pods))
    console.print()
    console.print(table)
    if (left := len(savings) - _SHOWN_DECISIONS) > 0:
        print_line(console, Text(f"and {count_text(left, 'decision')} more: -o json", style="dim"))


def _usd(amount: float) -> str:
    sign = "-" if amount < -0.0005 else ""
    return f"{sign}${abs(amount):,.2f}" if abs(amount) >= 1 else f"{sign}${abs(amount):.3f}"


def _rate(per_hour: float | None) -> str:
    return "-" if per_hour is None else f"${per_hour:.3f}"
