"""The difference of two plans: a page for people, Markdown for a comment on a pull request, data for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from rich.table import Table
from rich.text import Text

from karpenter.cli.plan_difference import HOURS_PER_MONTH, LostPod, NodeDifference, PlanDifference
from karpenter.cli.render_common import (
    PAGE_WIDTH,
    Json,
    console_for,
    markdown_cell,
    markdown_row,
    names_text,
    print_line,
)
from karpenter.cli.render_plan_data import FORMAT_VERSION
from karpenter.model.texts import count_text

_PRICE_DIGITS = 6
_HEADINGS = ("NodePool", "type", "zone", "capacity", "$/h each", "old", "new", "")
_FIRST_FIGURE = 4


def write(difference: PlanDifference, out: TextIO) -> None:
    """Write the page."""
    console = console_for(out, PAGE_WIDTH)
    if difference.is_empty:
        console.print("No difference: the same nodes, and the same pods wait.")
    if difference.nodes:
        console.print(_table(difference.nodes))
        console.print()
    for line in _pod_lines(difference):
        print_line(console, Text(line))
    for name, *cells in _totals(difference):
        print_line(console, Text(f"{name:<16}" + "".join(f"{cell:>14}" for cell in cells).rstrip()))


def _table(nodes: Sequence[NodeDifference]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for number, heading in enumerate(_HEADINGS):
        is_figure = number >= _FIRST_FIGURE
        table.add_column(heading, justify="right" if is_figure else "left", no_wrap=is_figure, overflow="fold")
    for cells in _rows(nodes):
        table.add_row(*cells)
    return table


def _rows(nodes: Iterable[NodeDifference]) -> Iterator[tuple[str, ...]]:
    for node in nodes:
        offer = node.offer
        place = (offer.node_pool, offer.instance_type, offer.zone or "-", offer.capacity_type or "-")
        yield (*place, f"{offer.price_per_hour:.4f}", str(node.old), str(node.new), f"{node.new - node.old:+d}")


def _totals(difference: PlanDifference) -> Iterator[tuple[str, str, str, str]]:
    """Name, old, new and change of each figure, below a heading."""
    old, new = difference.old_price_per_hour, difference.new_price_per_hour
    change = difference.price_change_per_hour
    nodes, waiting = difference.new_nodes - difference.old_nodes, difference.new_waiting - difference.old_waiting
    yield "", "old", "new", "change"
    yield "nodes", str(difference.old_nodes), str(difference.new_nodes), f"{nodes:+d}"
    yield "$ per hour", f"{old:.3f}", f"{new:.3f}", f"{change:+.3f}"
    monthly = [price * HOURS_PER_MONTH for price in (old, new, change)]
    yield "$ per month", f"{monthly[0]:.0f}", f"{monthly[1]:.0f}", f"{monthly[2]:+.0f}"
    yield "pods that wait", str(difference.old_waiting), str(difference.new_waiting), f"{waiting:+d}"


def _pod_lines(difference: PlanDifference) -> Iterator[str]:
    if difference.lost:
        yield f"{count_text(len(difference.lost), 'pod')} would lose {_pronoun(difference.lost)} place:"
        names_by_reason: dict[str, list[str]] = {}
        for pod in difference.lost:
            names_by_reason.setdefault(pod.why, []).append(pod.name)
        yield from (f"  {names_text(names)}: {why}" for why, names in names_by_reason.items())
    if difference.placed:
        yield f"{count_text(len(difference.placed), 'pod')} would get a place: {names_text(difference.placed)}"


def _pronoun(pods: Sequence[LostPod]) -> str:
    return "its" if len(pods) == 1 else "their"


def markdown(difference: PlanDifference) -> str:
    """The difference as Markdown. Names cannot break out of the tables: vertical bars and line breaks are escaped."""
    lines = ["### Karpenter plan", ""]
    if difference.is_empty:
        lines += ["No difference: the same nodes, and the same pods wait.", ""]
    heading, *figures = _totals(difference)
    lines += _markdown_table(heading, figures, 1)
    if difference.nodes:
        lines += ["", *_markdown_table((*_HEADINGS[:-1], "change"), _rows(difference.nodes), _FIRST_FIGURE)]
    if difference.lost or difference.placed:
        lines += ["", *(f"- {markdown_cell(line.strip())}" for line in _pod_lines(difference))]
    return "\n".join(lines) + "\n"


def _markdown_table(heading: Sequence[str], rows: Iterable[Sequence[str]], first_figure: int) -> Iterator[str]:
    yield markdown_row(heading)
    yield markdown_row([":---" if number < first_figure else "---:" for number in range(len(heading))])
    for row in rows:
        yield markdown_row(row)


def document(difference: PlanDifference) -> Json:
    """The difference as plain data; `karpenter schema plan-difference` describes it. Prices are USD per hour."""
    return {
        "formatVersion": FORMAT_VERSION,
        "old": _side(difference.old_nodes, difference.old_price_per_hour, difference.old_waiting),
        "new": _side(difference.new_nodes, difference.new_price_per_hour, difference.new_waiting),
        "changePerHour": round(difference.price_change_per_hour, _PRICE_DIGITS),
        "changePerMonth": round(difference.price_change_per_hour * HOURS_PER_MONTH, 2),
        "nodes": [_node_data(node) for node in difference.nodes],
        "losePlace": [{"pod": pod.name, "message": pod.why} for pod in difference.lost],
        "getPlace": list(difference.placed),
    }


def _side(nodes: int, price_per_hour: float, waiting: int) -> Json:
    return {"nodes": nodes, "perHour": round(price_per_hour, _PRICE_DIGITS), "unschedulable": waiting}


def _node_data(node: NodeDifference) -> Json:
    offer = node.offer
    return {
        "nodePool": offer.node_pool,
        "instanceType": offer.instance_type,
        "zone": offer.zone,
        "capacityType": offer.capacity_type,
        "price": offer.price_per_hour,
        "old": node.old,
        "new": node.new,
    }
