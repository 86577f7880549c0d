"""What may be disrupted when: as a table for people, as JSON or YAML for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import TextIO

from rich.table import Table
from rich.text import Text

from karpenter.api.karpenter import NodePool
from karpenter.cli import render
from karpenter.cli.render_reasons import Json
from karpenter.cli.render_table import console_on
from karpenter.model import budget_advice, moments
from karpenter.model.budgets import PATH, UNLIMITED, Allowance
from karpenter.model.freezes import Freeze
from karpenter.model.pool_rules import PoolRules, unreadable
from karpenter.model.timeline import Stretch

#: The reasons budgets speak of, in the order they are tried (DIS-055).
DISRUPTION_REASONS = ("Empty", "Drifted", "Underutilized")
#: Where the output is no terminal every stretch has one line, so that it can be searched.
_WIDTH_ELSEWHERE = 4096
_TIME = "%a %d %b %Y %H:%M"
_ALL = "all"


@dataclass(frozen=True, slots=True)
class Preview:
    """What there is to show. ``unavailable`` of the pool's ``nodes`` are down or on their way out now."""

    pool: NodePool
    nodes: int
    unavailable: int
    rules: PoolRules
    stretches: tuple[Stretch, ...]
    zone: tzinfo


def write(preview: Preview, out: TextIO) -> None:
    """Write the page."""
    console = console_on(out, _WIDTH_ELSEWHERE)
    console.print(_headline(preview), soft_wrap=True)
    for finding in unreadable(preview.pool):
        console.print(Text(str(finding), style="red"), soft_wrap=True)
    for finding in budget_advice.advise(preview.pool):
        console.print(Text(str(finding), style="yellow"), soft_wrap=True)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("from", no_wrap=True)
    table.add_column("until", no_wrap=True)
    for reason in DISRUPTION_REASONS:
        table.add_column(reason, justify="right", no_wrap=True)
    table.add_column("limited by")
    for stretch in preview.stretches:
        counts = (_cell(stretch.allowances[reason]) for reason in DISRUPTION_REASONS)
        begin, end = (_shown(moment, preview.zone) for moment in (stretch.span.begin, stretch.span.end))
        table.add_row(begin, end, *counts, _because(stretch))
    console.print(table)


def _headline(preview: Preview) -> Text:
    nodes = f"{preview.nodes} node{'' if preview.nodes == 1 else 's'}"
    text = Text.assemble((f"NodePool {preview.pool.metadata.name}", "bold"), f": how many of {nodes} may go at a time")
    if preview.unavailable:
        text.append(f", less the {preview.unavailable} that are unavailable now", style="yellow")
    text.append(f" (times: {preview.zone})", style="dim")
    return text


def _shown(moment: datetime, zone: tzinfo) -> str:
    return moment.astimezone(zone).strftime(_TIME)


def _cell(allowance: Allowance) -> Text:
    if allowance.nodes == UNLIMITED:
        return Text(_ALL, style="green")
    return Text(str(allowance.nodes), style="" if allowance.nodes else "red")


def _because(stretch: Stretch) -> Text:
    if stretch.freeze is not None:
        return Text(str(stretch.freeze), style="yellow")
    sources = {reason: _short(allowance.source) for reason, allowance in stretch.allowances.items()}
    if len(set(sources.values())) == 1:
        return Text(next(iter(sources.values())))
    return Text(", ".join(f"{reason}: {source}" for reason, source in sources.items() if source))


def _short(path: str) -> str:
    return path.replace(PATH, "budgets")


# -- for programs -------------------------------------------------------------------------------------------------------------


def document(preview: Preview) -> Json:
    """The preview as plain data. Times are in UTC; ``nodes`` of an allowance is null where nothing limits it."""
    return {
        "nodePool": preview.pool.metadata.name,
        "nodes": preview.nodes,
        "unavailable": preview.unavailable,
        "problems": [str(finding) for finding in unreadable(preview.pool)],
        "advice": [str(finding) for finding in budget_advice.advise(preview.pool)],
        "stretches": [_stretch(stretch) for stretch in preview.stretches],
    }


def _stretch(stretch: Stretch) -> Json:
    found: Json = {
        "from": moments.text(stretch.span.begin),
        "until": moments.text(stretch.span.end),
        "allowed": _allowed(stretch.allowances),
    }
    return found if stretch.freeze is None else found | {"frozen": _frozen(stretch.freeze)}


def _allowed(allowances: Mapping[str, Allowance]) -> Json:
    return {
        reason: {"nodes": None if item.nodes == UNLIMITED else item.nodes, "limitedBy": item.source or None}
        for reason, item in allowances.items()
    }


def _frozen(freeze: Freeze) -> Json:
    return {
        "by": freeze.source,
        "reason": freeze.reason,
        "until": moments.text(freeze.until) if freeze.until is not None else None,
    }


def as_json(preview: Preview) -> str:
    """Indented JSON, ending in a newline."""
    return render.to_json(document(preview))


def as_yaml(preview: Preview) -> str:
    """YAML with members in the same order."""
    return render.to_yaml(document(preview))
