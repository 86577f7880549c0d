"""What may be disrupted when: as a table for people, as JSON or YAML for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo
from typing import TextIO

from rich.table import Table
from rich.text import Text

from karpenter.api.karpenter import NodePool
from karpenter.cli.render_common import SEARCHABLE_WIDTH, Json, console_for, print_line
from karpenter.model import budget_advice, clock
from karpenter.model.disruption_rules import DisruptionRules, TimelineSegment, unparseable_settings
from karpenter.model.freezes import Freeze
from karpenter.model.nodepool_budgets import BUDGETS_PATH, UNLIMITED_DISRUPTIONS, DisruptionAllowance
from karpenter.model.texts import count_text

#: The reasons budgets speak of, in the order they are tried (K15-200).
DISRUPTION_REASONS = ("Unhealthy", "Empty", "Drifted", "Underutilized")
_TIME, _SHORT_TIME = "%a %d %b %Y %H:%M", "%d %b %H:%M"
#: Columns below which times are short and long headings take several lines.
_NARROW = 100
_NARROW_HEADINGS = {
    "Unhealthy": "Un-\nheal-\nthy",
    "Empty": "Emp-\nty",
    "Drifted": "Drif-\nted",
    "Underutilized": "Under-\nutil-\nized",
}
_ALL = "all"


@dataclass(frozen=True, slots=True)
class BudgetPreview:
    """What there is to show. ``unavailable`` of the pool's ``nodes`` are down or on their way out now.

    ``leaving``: the same without those that are only down, which repair does not count (K15-206).
    """

    pool: NodePool
    nodes: int
    unavailable: int
    leaving: int
    rules: DisruptionRules
    stretches: tuple[TimelineSegment, ...]
    zone: tzinfo


def write(preview: BudgetPreview, out: TextIO) -> None:
    """Write the page."""
    console = console_for(out, SEARCHABLE_WIDTH)
    print_line(console, _headline(preview))
    for finding in unparseable_settings(preview.pool):
        print_line(console, Text(str(finding), style="red"))
    for finding in budget_advice.advise_budgets(preview.pool):
        print_line(console, Text(str(finding), style="yellow"))
    if not preview.nodes:
        print_line(console, "no node of this NodePool is known: --nodes N shows what N nodes would allow")
    is_narrow = console.width < _NARROW
    table = Table(box=None, padding=(0, 1, 0, 0) if is_narrow else (0, 1), pad_edge=not is_narrow, header_style="dim")
    table.add_column("from", no_wrap=True)
    table.add_column("until", no_wrap=True)
    for reason in DISRUPTION_REASONS:
        table.add_column(_NARROW_HEADINGS.get(reason, reason) if is_narrow else reason, justify="right", no_wrap=True)
    table.add_column("limited by", overflow="fold")
    for stretch in preview.stretches:
        counts = (_allowance_cell(stretch.allowance_by_reason[reason]) for reason in DISRUPTION_REASONS)
        form = _SHORT_TIME if is_narrow else _TIME
        begin, end = (
            moment.astimezone(preview.zone).strftime(form) for moment in (stretch.span.begin, stretch.span.end)
        )
        table.add_row(begin, end, *counts, _limited_by(stretch))
    console.print(table)


def _headline(preview: BudgetPreview) -> Text:
    nodes = count_text(preview.nodes, "node")
    text = Text.assemble((f"NodePool {preview.pool.metadata.name}", "bold"), f": how many of {nodes} may go at a time")
    if preview.unavailable:
        text.append(f", less the {preview.unavailable} that are unavailable now", style="yellow")
        if preview.leaving != preview.unavailable:
            text.append(f" (Unhealthy: less {preview.leaving})", style="yellow")
    text.append(f" (times: {preview.zone})", style="dim")
    return text


def _allowance_cell(allowance: DisruptionAllowance) -> Text:
    if allowance.nodes == UNLIMITED_DISRUPTIONS:
        return Text(_ALL, style="green")
    return Text(str(allowance.nodes), style="" if allowance.nodes else "red")


def _limited_by(stretch: TimelineSegment) -> Text:
    if stretch.freeze is not None:
        return Text(str(stretch.freeze), style="yellow")
    sources = {
        reason: _short_path(allowance.limiting_path) for reason, allowance in stretch.allowance_by_reason.items()
    }
    if len(set(sources.values())) == 1:
        return Text(next(iter(sources.values())))
    return Text(", ".join(f"{reason}: {source}" for reason, source in sources.items() if source))


def _short_path(path: str) -> str:
    return path.replace(BUDGETS_PATH, "budgets")


# -- for programs -------------------------------------------------------------------------------------------------------------


def document(preview: BudgetPreview) -> Json:
    """The preview as plain data. Times are in UTC; ``nodes`` of an allowance is null where nothing limits it."""
    return {
        "nodePool": preview.pool.metadata.name,
        "nodes": preview.nodes,
        "unavailable": preview.unavailable,
        "leaving": preview.leaving,
        "problems": [str(finding) for finding in unparseable_settings(preview.pool)],
        "advice": [str(finding) for finding in budget_advice.advise_budgets(preview.pool)],
        "stretches": [_stretch_data(stretch) for stretch in preview.stretches],
    }


def _stretch_data(stretch: TimelineSegment) -> Json:
    data: Json = {
        "from": clock.rfc3339(stretch.span.begin),
        "until": clock.rfc3339(stretch.span.end),
        "allowed": _allowance_data(stretch.allowance_by_reason),
    }
    return data if stretch.freeze is None else data | {"frozen": _freeze_data(stretch.freeze)}


def _allowance_data(allowances: Mapping[str, DisruptionAllowance]) -> Json:
    return {
        reason: {
            "nodes": None if allowance.nodes == UNLIMITED_DISRUPTIONS else allowance.nodes,
            "limitedBy": allowance.limiting_path or None,
        }
        for reason, allowance in allowances.items()
    }


def _freeze_data(freeze: Freeze) -> Json:
    return {
        "by": freeze.source,
        "reason": freeze.reason,
        "until": clock.rfc3339(freeze.until) if freeze.until is not None else None,
    }
