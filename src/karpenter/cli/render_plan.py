"""A plan as a page for people: what to buy and how full it gets, what fits already, what stays waiting and why, what it costs
and where the waste is.

Machines that would be bought alike share an entry of two lines; pods that wait for the same reasons share a sentence. The page
is made for 80 columns: terminals have them, and so do mails. Colour only adds to what the words say, and is left out where the
output is no terminal. What is long is cut: of many entries the dearest are shown, and how many more there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from karpenter.api.core import Pod
from karpenter.cli.nodeclaim_groups import NodeClaimGroup, group_node_claims, total_waste
from karpenter.cli.render_common import (
    PAGE_WIDTH,
    SHOWN_ENTRIES,
    console_for,
    count_text,
    pod_name,
    short_resource_name,
    truncate,
)
from karpenter.cli.render_plan_data import PlanComparison, PlanReport
from karpenter.model import resources as res
from karpenter.scheduling.explain.nearest_fit_messages import nearest_fit_sentence
from karpenter.scheduling.explain.reason_messages import exposure_messages, unschedulable_message
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.waste import accelerators

_BAR_CELLS = 6
_UNICODE_BAR = ("█", "░")
_ASCII_BAR = ("#", ".")
_SHOWN_PODS = 3
_WELL_USED, _HALF_USED = 0.9, 0.5
_SHOWN_WASTE = 5
#: USD per hour; a resource of which less is wasted has no column.
_LEAST_SHOWN = 0.0005
_HEADINGS = ("", "type", "zone", "capacity", "$/h each", "$/h", "pods")
_RIGHT_ALIGNED = frozenset({0, 4, 5, 6})
_TYPE_COLUMN = 1
_NARROWEST_TYPE = 8
_COLUMN_GAP = "  "


def write(report: PlanReport, out: TextIO) -> None:
    """Write the page."""
    console = console_for(out, PAGE_WIDTH)
    plan = report.plan
    groups = group_node_claims(plan, report.index)
    for text in _node_claim_lines(groups, console):
        console.print(text, soft_wrap=True)
    if plan.placed_on_existing:
        console.print(_existing_nodes_table(plan))
    for text in _unschedulable_lines(plan):
        console.print(text, soft_wrap=True)
    for line in exposure_messages(plan):
        console.print(Text(line, style="yellow"), soft_wrap=True)
    for text in _waste_lines(groups):
        console.print(text, soft_wrap=True)
    if not (plan.new_claims or plan.placed_on_existing or plan.unschedulable):
        console.print("No pod waits for a machine: nothing to buy.")
    console.print(_summary(report), soft_wrap=True)


# -- machines to buy ----------------------------------------------------------------------------------------------------


def _node_claim_lines(groups: Sequence[NodeClaimGroup], console: Console) -> Iterator[Text]:
    """An entry for every group, NodePool by NodePool, the dearest first."""
    if not groups:
        return
    shown, rest = groups[:SHOWN_ENTRIES], groups[SHOWN_ENTRIES:]
    rows = {id(group): _row(group) for group in shown}
    widths = _widths([_HEADINGS, *rows.values()], console.width)
    cells = _UNICODE_BAR if console.encoding.startswith("utf") else _ASCII_BAR
    yield Text("Machines to buy", style="bold")
    yield Text(_line(_HEADINGS, widths), style="dim")
    for pool, members in _by_pool(shown, groups).items():
        yield Text(_pool_line(pool, groups), style="italic")
        for group in members:
            yield Text(_line(rows[id(group)], widths))
            yield Text.assemble(" " * (widths[0] + len(_COLUMN_GAP)), *_usage_bars(group, cells))
    if rest:
        count, price = sum(len(group.claims) for group in rest), sum(group.price_per_hour for group in rest)
        yield Text(f"... and {len(rest)} more groups: {count_text(count, 'machine')}, ${price:.3f} per hour")
    yield Text("")


def _by_pool(shown: Sequence[NodeClaimGroup], groups: Sequence[NodeClaimGroup]) -> dict[str, list[NodeClaimGroup]]:
    """The groups shown by NodePool, the pool that costs most first."""
    price: dict[str, float] = defaultdict(float)
    for group in groups:
        price[group.sample.node_pool] += group.price_per_hour
    found: dict[str, list[NodeClaimGroup]] = {pool: [] for pool in sorted(price, key=lambda pool: (-price[pool], pool))}
    for group in shown:
        found[group.sample.node_pool].append(group)
    return {pool: members for pool, members in found.items() if members}


def _pool_line(pool: str, groups: Sequence[NodeClaimGroup]) -> str:
    own = [group for group in groups if group.sample.node_pool == pool]
    count = sum(len(group.claims) for group in own)
    return (
        f"NodePool {pool}: {count_text(count, 'machine')}, ${sum(group.price_per_hour for group in own):.3f} per hour"
    )


def _row(group: NodeClaimGroup) -> tuple[str, ...]:
    offering = group.sample.cheapest_offering
    return (
        str(len(group.claims)),
        group.instance_type,
        offering.zone or "-",
        offering.capacity_type or "-",
        f"{group.sample.price_per_hour:.4f}",
        f"{group.price_per_hour:.3f}",
        _range_text(len(claim.pods) for claim in group.claims),
    )


def _widths(rows: Sequence[Sequence[str]], most: int) -> list[int]:
    """Width of each column; the names of types give way where that is too much."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    widths[0] = max(3, widths[0])
    over = sum(widths) + len(_COLUMN_GAP) * (len(widths) - 1) - most
    widths[_TYPE_COLUMN] = max(_NARROWEST_TYPE, widths[_TYPE_COLUMN] - max(0, over))
    return widths


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.rjust(width) if column in _RIGHT_ALIGNED else truncate(cell, width).ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return _COLUMN_GAP.join(cells).rstrip()


def _range_text(counts: Iterable[int]) -> str:
    found = sorted(counts)
    return str(found[0]) if found[0] == found[-1] else f"{found[0]}-{found[-1]}"


def _usage_bars(group: NodeClaimGroup, cells: tuple[str, str]) -> Iterator[Text]:
    """How much of each resource is requested; of several kinds of accelerators the one requested most."""
    devices = sorted(accelerators(group.allocatable), key=lambda name: (-group.requested_share(name), name))[:1]
    for number, name in enumerate((res.CPU, res.MEMORY, res.PODS, *devices)):
        yield Text(f"{_COLUMN_GAP if number else ''}{short_resource_name(name)} ")
        yield _usage_bar(group.requested_share(name), cells)


def _usage_bar(share: float, cells: tuple[str, str]) -> Text:
    filled = min(_BAR_CELLS, round(share * _BAR_CELLS))
    style = "green" if share >= _WELL_USED else "yellow" if share >= _HALF_USED else "red"
    return Text.assemble((cells[0] * filled, style), (cells[1] * (_BAR_CELLS - filled), "dim"), f" {share:4.0%}")


# -- machines that exist, pods that wait --------------------------------------------------------------------------------


def _existing_nodes_table(plan: Solution) -> Table:
    table = Table(
        title="Pods that fit on machines there are",
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 1),
        header_style="dim",
    )
    table.add_column("node")
    table.add_column("pods", justify="right")
    table.add_column("which")
    for item in plan.placed_on_existing[:SHOWN_ENTRIES]:
        table.add_row(item.node_name, str(len(item.pods)), _some_pods(item.pods))
    rest = plan.placed_on_existing[SHOWN_ENTRIES:]
    if rest:
        table.add_row(f"... and {len(rest)} more", str(sum(len(item.pods) for item in rest)), "")
    return table


def _unschedulable_lines(plan: Solution) -> list[Text]:
    """One paragraph per set of reasons, the one most pods have first."""
    by_reason: dict[tuple[str, str], list[Pod]] = defaultdict(list)
    for item in plan.unschedulable:
        by_reason[
            unschedulable_message(item.reasons), nearest_fit_sentence(item.nearest_fit, item.nearest_node)
        ].append(item.pod)
    if not by_reason:
        return []
    paragraphs = [Text("Pods that stay waiting", style="bold")]
    ordered = sorted(by_reason.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    for (reason, near), pods in ordered[:SHOWN_ENTRIES]:
        paragraphs.append(Text.assemble("  ", (count_text(len(pods), "pod"), "red"), f" ({_some_pods(pods)})"))
        paragraphs.append(Text(f"    {reason}"))
        if near:
            paragraphs.append(Text(f"    {near}", style="yellow"))
    rest = ordered[SHOWN_ENTRIES:]
    if rest:
        count = sum(len(pods) for _, pods in rest)
        paragraphs.append(
            Text(f"  ... and {count_text(count, 'pod')} more for {count_text(len(rest), 'other reason')}")
        )
    return [*paragraphs, Text("")]


def _some_pods(pods: Sequence[Pod]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(pod_name(pod) for pod in pods[:_SHOWN_PODS])
    rest = len(pods) - _SHOWN_PODS
    return shown + (f" and {rest} more" if rest > 0 else "")


# -- where the waste is -------------------------------------------------------------------------------------------------


def _waste_lines(groups: Sequence[NodeClaimGroup]) -> Iterator[Text]:
    """What is paid for and requested by nobody, by group and by resource, the groups that waste most first."""
    total = total_waste(groups)
    wasted, price = sum(total.values()), sum(group.price_per_hour for group in groups)
    if not price:
        return
    names = [name for name in total if total[name] >= _LEAST_SHOWN] or [res.CPU]
    ordered = sorted(groups, key=lambda group: (-group.wasted_per_hour, group.instance_type, group.sample.node_pool))
    worst = [(f"{len(group.claims)} {group.instance_type}", group.wasted) for group in ordered[:_SHOWN_WASTE]]
    rest = ordered[_SHOWN_WASTE:]
    more = [(f"... and {len(rest)} more", total_waste(rest))] if rest else []
    share = wasted / price
    yield Text.assemble(
        ("Where the waste is", "bold"), f"  $/h paid for and requested by nobody: {wasted:.3f} ({share:.1%})"
    )
    yield from _waste_table([*worst, *more, *([("all", total)] if len(groups) > 1 else [])], names)
    yield Text("")


def _waste_table(lines: Sequence[tuple[str, Mapping[str, float]]], names: Sequence[str]) -> Iterator[Text]:
    """A column for each resource and one for all together."""
    heading = ("", *(short_resource_name(name) for name in names), "all")
    rows = [(label, *(f"{each:.3f}" for each in _amounts(wasted, names))) for label, wasted in lines]
    widths = [max(len(row[column]) for row in (heading, *rows)) for column in range(len(heading))]
    for number, row in enumerate((heading, *rows)):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield Text(("  " + _COLUMN_GAP.join(cells)).rstrip(), style="" if number else "dim")


def _amounts(wasted: Mapping[str, float], names: Sequence[str]) -> Iterator[float]:
    yield from (wasted.get(name, 0.0) for name in names)
    yield sum(wasted.values())


# -- the last lines -----------------------------------------------------------------------------------------------------


def _summary(report: PlanReport) -> Text:
    plan, timing = report.plan, report.timing
    new = sum(len(claim.pods) for claim in plan.new_claims)
    there = sum(len(item.pods) for item in plan.placed_on_existing)
    text = Text.assemble(
        (f"${plan.price_per_hour:.3f} per hour", "bold"),
        f" for {count_text(len(plan.new_claims), 'new machine')} with {count_text(new, 'pod')}",
    )
    if there:
        text.append(f"; {count_text(there, 'pod')} on machines there are")
    if plan.unschedulable:
        text.append(f"; {count_text(len(plan.unschedulable), 'pod')} waiting", style="red")
    if plan.new_claims:
        text.append(f"\n{_lower_bound_text(plan)}")
    text.append(
        f"\ndecided in {timing.decision_seconds:.3f} s"
        f" (catalogue {timing.catalog_seconds:.3f} s, {timing.wall_seconds:.2f} s in all)",
        style="dim",
    )
    return text


def _lower_bound_text(plan: Solution) -> str:
    bound, gap = plan.lower_bound_per_hour, plan.optimality_gap
    if bound is None:
        return "no lower bound is known for these pods"
    shown = f" (gap {gap:.1%})" if gap is not None else ""
    return f"no machines for them could cost less than ${bound:.3f} per hour{shown}"


_LABEL_WIDTH = 24
_FIGURE_WIDTH = 25
_GROUPS_WIDTH = 38
#: Hours of a month as clouds count them.
_HOURS_PER_MONTH = 730
_NO_VALUE = "-"


@dataclass(frozen=True, slots=True)
class _ComparedPlan:
    """One of the plans, with its machines by how they are bought."""

    name: str
    report: PlanReport
    groups: list[NodeClaimGroup]


def write_comparison(comparison: PlanComparison, out: TextIO) -> None:
    """Write the page."""
    console = console_for(out, PAGE_WIDTH)
    sides = tuple(
        _ComparedPlan(name, report, group_node_claims(report.plan, report.index))
        for name, report in (("chosen", comparison.chosen), ("classic", comparison.classic))
    )
    for text in (*_figures(sides), Text(""), *_compared_groups(sides), Text(""), _savings_line(comparison)):
        console.print(text, soft_wrap=True)


def _figures(sides: Sequence[_ComparedPlan]) -> Iterator[Text]:
    yield Text(_figure_row("", [side.name for side in sides]), style="bold")
    plans = [side.report.plan for side in sides]
    yield Text(_figure_row("price, $/h", [f"{plan.price_per_hour:.3f}" for plan in plans]))
    bounds = [plan.lower_bound_per_hour for plan in plans]
    yield Text(_figure_row("lower bound, $/h", [_NO_VALUE if bound is None else f"{bound:.3f}" for bound in bounds]))
    yield Text(
        _figure_row(
            "gap", [_NO_VALUE if plan.optimality_gap is None else f"{plan.optimality_gap:.1%}" for plan in plans]
        )
    )
    wastes = [sum(total_waste(side.groups).values()) for side in sides]
    yield Text(_figure_row("requested by nobody, $/h", [f"{wasted:.3f}" for wasted in wastes]))
    yield Text(_figure_row("new machines", [str(len(plan.new_claims)) for plan in plans]))
    yield Text(_figure_row("pods on them", [str(sum(len(claim.pods) for claim in plan.new_claims)) for plan in plans]))
    yield Text(
        _figure_row(
            "pods on machines there", [str(sum(len(each.pods) for each in p.placed_on_existing)) for p in plans]
        )
    )
    yield Text(_figure_row("pods waiting", [str(len(plan.unschedulable)) for plan in plans]))
    seconds = [side.report.timing.decision_seconds for side in sides]
    yield Text(_figure_row("decided in, s", [f"{each:.3f}" for each in seconds]), style="dim")


def _figure_row(label: str, values: Sequence[str]) -> str:
    return (label.ljust(_LABEL_WIDTH) + "".join(value.rjust(_FIGURE_WIDTH) for value in values)).rstrip()


def _compared_groups(sides: Sequence[_ComparedPlan]) -> Iterator[Text]:
    """What each would buy, the dearest first."""
    if not any(side.groups for side in sides):
        return
    yield Text("  ".join(f"{side.name} buys".ljust(_GROUPS_WIDTH) for side in sides).rstrip(), style="bold")
    for lines in zip_longest(*(_group_lines(side.groups) for side in sides), fillvalue=""):
        yield Text("  ".join(line.ljust(_GROUPS_WIDTH) for line in lines).rstrip())


def _group_lines(groups: Sequence[NodeClaimGroup]) -> Iterator[str]:
    for group in groups[:SHOWN_ENTRIES]:
        price = f"{group.price_per_hour:.3f}"
        what = f"{len(group.claims):>4} {group.instance_type} {group.sample.cheapest_offering.capacity_type}"
        yield f"{truncate(what, _GROUPS_WIDTH - len(price) - 1).ljust(_GROUPS_WIDTH - len(price))}{price}"
    rest = groups[SHOWN_ENTRIES:]
    if rest:
        price = f"{sum(group.price_per_hour for group in rest):.3f}"
        yield f"     ... and {len(rest)} more".ljust(_GROUPS_WIDTH - len(price)) + price


def _savings_line(comparison: PlanComparison) -> Text:
    """What the choice saves, in price alone."""
    chosen, classic = comparison.chosen.plan, comparison.classic.plan
    fewer = len(classic.unschedulable) - len(chosen.unschedulable)
    beside = f"; it has a place for {count_text(fewer, 'more pod')}" if fewer > 0 else ""
    saved, share = comparison.saved_per_hour, comparison.saved_share
    if saved > 0 and share is not None:
        month = saved * _HOURS_PER_MONTH
        return Text(f"The chosen plan saves ${saved:.3f} per hour ({share:.1%}), ${month:,.0f} a month{beside}.")
    if saved < 0:
        why = "machines' fees and room for pods to come are not counted"
        return Text(f"The chosen plan costs ${-saved:.3f} per hour more ({why}){beside}.")
    return Text(f"Both cost the same{beside}.")
