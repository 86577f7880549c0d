"""What may be disrupted when: as a table for people, as JSON or YAML for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import TextIO

from rich.table import Table
from rich.text import Text

from karpenter.api.karpenter import NodePool
from karpenter.cli.render_common import SEARCHABLE_WIDTH, Json, console_for, count_text
from karpenter.model import budget_advice, clock
from karpenter.model.disruption_rules import DisruptionRules, TimelineSegment, unparseable_settings
from karpenter.model.freezes import Freeze
from karpenter.model.nodepool_budgets import BUDGETS_PATH, UNLIMITED_DISRUPTIONS, DisruptionAllowance

#: The reasons budgets speak of, in the order they are tried (DIS-055).
DISRUPTION_REASONS = ("Empty", "Drifted", "Underutilized")
_TIME = "%a %d %b %Y %H:%M"
_ALL = "all"


@dataclass(frozen=True, slots=True)
class BudgetPreview:
    """What there is to show. ``unavailable`` of the pool's ``nodes`` are down or on their way out now."""

    pool: NodePool
    nodes: int
    unavailable: int
    rules: DisruptionRules
    stretches: tuple[TimelineSegment, ...]
    zone: tzinfo


def write(preview: BudgetPreview, out: TextIO) -> None:
    """Write the page."""
    console = console_for(out, SEARCHABLE_WIDTH)
    console.print(_headline(preview), soft_wrap=True)
    for finding in unparseable_settings(preview.pool):
        console.print(Text(str(finding), style="red"), soft_wrap=True)
    for finding in budget_advice.advise_budgets(preview.pool):
        console.print(Text(str(finding), style="yellow"), soft_wrap=True)
    if not preview.nodes:
        console.print("no node of this NodePool is known: --nodes N shows what N nodes would allow", soft_wrap=True)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("from", no_wrap=True)
    table.add_column("until", no_wrap=True)
    for reason in DISRUPTION_REASONS:
        table.add_column(reason, justify="right", no_wrap=True)
    table.add_column("limited by")
    for stretch in preview.stretches:
        counts = (_allowance_cell(stretch.allowance_by_reason[reason]) for reason in DISRUPTION_REASONS)
        begin, end = (_time_text(moment, preview.zone) for moment in (stretch.span.begin, stretch.span.end))
        table.add_row(begin, end, *counts, _limited_by(stretch))
    console.print(table)


def _headline(preview: BudgetPreview) -> Text:
    nodes = count_text(preview.nodes, "node")
    text = Text.assemble((f"NodePool {preview.pool.metadata.name}", "bold"), f": how many of {nodes} may go at a time")
    if preview.unavailable:
        text.append(f", less the {preview.unavailable} that are unavailable now", style="yellow")
    text.append(f" (times: {preview.zone})", style="dim")
    return text


def _time_text(moment: datetime, zone: tzinfo) -> str:
    return moment.astimezone(zone).strftime(_TIME)


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
