"""A plan as a page for people: the nodes to launch and how full they get, pods on existing nodes, unschedulable pods and why,
cost and unrequested capacity.

Nodes launched alike share an entry of two lines; pods that are unschedulable for the same reasons share a sentence. The page is
made for 80 columns. Colour only adds to the words, and is left out where the output is no terminal. Of many entries the dearest
are shown, and how many more there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TextIO

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from karpenter.api.core import Pod
from karpenter.cli.nodeclaim_groups import NodeClaimGroup, group_node_claims, total_waste
from karpenter.cli.render_common import (
    PAGE_WIDTH,
    SHOWN_ENTRIES,
    console_for,
    names_text,
    pod_name,
    print_line,
    short_resource_name,
    truncate,
)
from karpenter.cli.render_plan_data import PlanComparison, PlanReport, planned_buffers
from karpenter.cli.render_prices import price_lines
from karpenter.model import resources as res
from karpenter.model.texts import count_text
from karpenter.scheduling.explain.nearest_fit_messages import format_amount, nearest_fit_sentence
from karpenter.scheduling.explain.reason_messages import (
    exposure_messages,
    packing_fallback_message,
    placed_when_message,
    reason_message,
    short_reason_message,
    unschedulable_message,
)
from karpenter.scheduling.solution import GangOutcome, Solution
from karpenter.scheduling.waste import accelerators

_BAR_CELLS = 6
_UNICODE_BAR = ("█", "░")
_ASCII_BAR = ("#", ".")
_WELL_USED, _HALF_USED = 0.9, 0.5
_SHOWN_WASTE = 5
#: USD per hour; a resource of which less is wasted has no column.
_LEAST_SHOWN = 0.0005
_HEADINGS = ("", "type", "zone", "capacity", "$/h each", "$/h", "pods")
_RIGHT_ALIGNED = frozenset({"", "$/h each", "$/h", "pods"})
_TYPE_COLUMN = 1
_MIN_TYPE_WIDTH = 18
_NO_VALUE = "-"


def write(report: PlanReport, out: TextIO) -> None:
    """Write the page."""
    console = console_for(out, PAGE_WIDTH)
    plan = report.plan
    groups = group_node_claims(plan, report.indexes)
    for part in _node_claim_parts(groups, console):
        print_line(console, part) if isinstance(part, Text) else console.print(part)
    if plan.placed_on_existing:
        console.print(_existing_nodes_table(plan))
    for text in (*_unschedulable_lines(plan, long_reasons=report.long_reasons), *_limit_increase_lines(report)):
        print_line(console, text)
    fallback = packing_fallback_message(plan)
    for line in (*exposure_messages(plan), *([] if fallback is None else [fallback])):
        print_line(console, Text(line, style="yellow"))
    for part in _waste_parts(groups):
        console.print(part)
    if not (plan.new_claims or plan.placed_on_existing or plan.unschedulable):
        console.print("No pending pods: nothing to launch.")
    print_line(console, _summary(report))


# -- nodes to launch ----------------------------------------------------------------------------------------------------


def _node_claim_parts(groups: Sequence[NodeClaimGroup], console: Console) -> Iterator[Text | Table]:
    """A table for every NodePool with a row for every group, the dearest first."""
    if not groups:
        return
    shown, rest = groups[:SHOWN_ENTRIES], groups[SHOWN_ENTRIES:]
    cells = _UNICODE_BAR if console.encoding.startswith("utf") else _ASCII_BAR
    yield Text("Nodes to launch", style="bold")
    for number, (pool, members) in enumerate(_by_pool(shown, groups).items()):
        yield Text(_pool_line(pool, groups), style="italic")
        table = _node_claims_table(_MIN_TYPE_WIDTH + max(0, console.width - PAGE_WIDTH), show_header=not number)
        for group in members:
            table.add_row(*_row(group, cells, table.columns[_TYPE_COLUMN].min_width or 0))
        yield table
    if rest:
        count, price = sum(len(group.claims) for group in rest), sum(group.price_per_hour for group in rest)
        yield Text(f"... and {len(rest)} more groups: {count_text(count, 'node')}, ${price:.3f} per hour")
    yield Text("")


def _node_claims_table(type_width: int, *, show_header: bool) -> Table:
    """Columns of the same widths for all NodePools."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", show_header=show_header)
    for heading, width in zip(_HEADINGS, (3, type_width, 18, 16, 8, 7, 4), strict=True):
        justify: JustifyMethod = "right" if heading in _RIGHT_ALIGNED else "left"
        table.add_column(heading, justify=justify, min_width=width, no_wrap=True)
    return table


def _by_pool(shown: Sequence[NodeClaimGroup], groups: Sequence[NodeClaimGroup]) -> dict[str, list[NodeClaimGroup]]:
    """The groups shown by NodePool, the pool that costs most first."""
    price: dict[str, float] = defaultdict(float)
    for group in groups:
        price[group.sample.node_pool] += group.price_per_hour
    by_pool: dict[str, list[NodeClaimGroup]] = {
        pool: [] for pool in sorted(price, key=lambda pool: (-price[pool], pool))
    }
    for group in shown:
        by_pool[group.sample.node_pool].append(group)
    return {pool: members for pool, members in by_pool.items() if members}


def _pool_line(pool: str, groups: Sequence[NodeClaimGroup]) -> str:
    own = [group for group in groups if group.sample.node_pool == pool]
    count = sum(len(group.claims) for group in own)
    return f"NodePool {pool}: {count_text(count, 'node')}, ${sum(group.price_per_hour for group in own):.3f} per hour"


def _row(group: NodeClaimGroup, cells: tuple[str, str], type_width: int) -> Iterator[Text]:
    """The cells of a group; below type, zone and capacity how much of CPU, memory and pods is requested."""
    offering, bars = group.sample.cheapest_offering, _usage_bars(group, cells)
    yield Text(str(len(group.claims)))
    yield Text("\n").join([Text(truncate(group.instance_type, type_width)), bars[0], *bars[3:]])
    yield Text("\n").join([Text(offering.zone or _NO_VALUE), bars[1]])
    yield Text("\n").join([Text(offering.capacity_type or _NO_VALUE), bars[2]])
    yield Text(f"{group.sample.price_per_hour:.4f}")
    yield Text(f"{group.price_per_hour:.3f}")
    yield Text(_range_text(len(claim.pods) for claim in group.claims))


def _range_text(counts: Iterable[int]) -> str:
    ordered = sorted(counts)
    return str(ordered[0]) if ordered[0] == ordered[-1] else f"{ordered[0]}-{ordered[-1]}"


def _usage_bars(group: NodeClaimGroup, cells: tuple[str, str]) -> list[Text]:
    """How much of each resource is requested; of several kinds of accelerators the one requested most."""
    devices = sorted(accelerators(group.allocatable), key=lambda name: (-group.requested_share(name), name))[:1]
    return [
        Text(f"{short_resource_name(name)} ").append_text(_usage_bar(group.requested_share(name), cells))
        for name in (res.CPU, res.MEMORY, res.PODS, *devices)
    ]


def _usage_bar(share: float, cells: tuple[str, str]) -> Text:
    filled = min(_BAR_CELLS, round(share * _BAR_CELLS))
    style = "green" if share >= _WELL_USED else "yellow" if share >= _HALF_USED else "red"
    return Text.assemble((cells[0] * filled, style), (cells[1] * (_BAR_CELLS - filled), "dim"), f" {share:4.0%}")


# -- existing nodes, unschedulable pods ----------------------------------------------------------------------------------


def _existing_nodes_table(plan: Solution) -> Table:
    table = Table(
        title="Pods that fit on existing nodes",
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 1),
        header_style="dim",
    )
    table.add_column("node")
    table.add_column("pods", justify="right")
    table.add_column("which")
    for placed_pods in plan.placed_on_existing[:SHOWN_ENTRIES]:
        which = f"{_some_pods(placed_pods.pods)}{placed_when_message(placed_pods)}"
        table.add_row(placed_pods.node_name, str(len(placed_pods.pods)), which)
    rest = plan.placed_on_existing[SHOWN_ENTRIES:]
    if rest:
        table.add_row(f"... and {len(rest)} more", str(sum(len(placed.pods) for placed in rest)), "")
    return table


def _unschedulable_lines(plan: Solution, *, long_reasons: bool) -> list[Text]:
    """One paragraph per set of reasons, the one most pods have first; in it the nearest fit first."""
    message = reason_message if long_reasons else short_reason_message
    by_reason: dict[tuple[str, str], list[Pod]] = defaultdict(list)
    for unschedulable_pod in plan.unschedulable:
        by_reason[
            unschedulable_message(unschedulable_pod.reasons, message),
            nearest_fit_sentence(unschedulable_pod.nearest_fit, unschedulable_pod.nearest_node),
        ].append(unschedulable_pod.pod)
    if not by_reason:
        return []
    paragraphs = [Text("Unschedulable pods", style="bold")]
    ordered = sorted(by_reason.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    for (reason, near), pods in ordered[:SHOWN_ENTRIES]:
        paragraphs.append(Text.assemble("  ", (count_text(len(pods), "pod"), "red"), f" ({_some_pods(pods)})"))
        if near:
            paragraphs.append(Text(f"    {near}", style="yellow"))
        paragraphs.append(Text(f"    {reason}"))
    rest = ordered[SHOWN_ENTRIES:]
    if rest:
        count = sum(len(pods) for _, pods in rest)
        paragraphs.append(
            Text(f"  ... and {count_text(count, 'pod')} more for {count_text(len(rest), 'other reason')}")
        )
    return [*paragraphs, Text("")]


def _limit_increase_lines(report: PlanReport) -> list[Text]:
    """What pods lack together; what one lacks is said with its reason."""
    lines = [
        Text(
            f"With a limit of {each.resource} {format_amount(each.resource, each.amount)} higher, NodePool {each.node_pool} has"
            f" nodes for all {each.pods} pods that it leaves out.",
            style="yellow",
        )
        for each in report.limit_increases
        if each.pods > 1
    ]
    return [*lines, Text("")] if lines else []


def _some_pods(pods: Sequence[Pod]) -> str:
    return names_text([pod_name(pod) for pod in pods])


# -- unrequested capacity -------------------------------------------------------------------------------------------------


def _waste_parts(groups: Sequence[NodeClaimGroup]) -> Iterator[Text | Table]:
    """Unrequested capacity in USD per hour, by group and by resource, the groups that waste most first."""
    total = total_waste(groups)
    wasted, price = sum(total.values()), sum(group.price_per_hour for group in groups)
    if not price:
        return
    names = [name for name in total if total[name] >= _LEAST_SHOWN] or [res.CPU]
    ordered = sorted(groups, key=lambda group: (-group.wasted_per_hour, group.instance_type, group.sample.node_pool))
    worst = [(f"{len(group.claims)} {group.instance_type}", group.wasted) for group in ordered[:_SHOWN_WASTE]]
    rest = ordered[_SHOWN_WASTE:]
    more = [(f"... and {len(rest)} more", total_waste(rest))] if rest else []
    yield Text.assemble(("Unrequested capacity, $/h", "bold"), f": {wasted:.3f} ({wasted / price:.1%})")
    yield _waste_table([*worst, *more, *([("all", total)] if len(groups) > 1 else [])], names)
    yield Text("")


def _waste_table(rows: Sequence[tuple[str, Mapping[str, float]]], names: Sequence[str]) -> Table:
    """A column for each resource and one for all together."""
    table = _plain_table()
    table.add_column("", no_wrap=True)
    for heading in (*(short_resource_name(name) for name in names), "all"):
        table.add_column(heading, justify="right", no_wrap=True)
    for label, wasted in rows:
        amounts = (*(wasted.get(name, 0.0) for name in names), sum(wasted.values()))
        table.add_row(Text(label), *(f"{amount:.3f}" for amount in amounts))
    return table


def _plain_table(header_style: str = "dim") -> Table:
    return Table(box=None, padding=(0, 1), header_style=header_style)


# -- the last lines -----------------------------------------------------------------------------------------------------


def _summary(report: PlanReport) -> Text:
    plan, timing = report.plan, report.timing
    new = sum(len(claim.pods) for claim in plan.new_claims)
    there = sum(len(placed_pods.pods) for placed_pods in plan.placed_on_existing)
    text = Text.assemble(
        (f"${plan.price_per_hour:.3f} per hour", "bold"),
        f" for {count_text(len(plan.new_claims), 'new node')} with {count_text(new, 'pod')}",
    )
    if there:
        text.append(f"; {count_text(there, 'pod')} on existing nodes")
    if plan.unschedulable:
        text.append(f"; {count_text(len(plan.unschedulable), 'pod')} unschedulable", style="red")
    if plan.new_claims:
        if plan.cpu_surplus_per_hour:
            text.append(f"\n{_cpu_surplus_text(plan)}")
        text.append(f"\n{_lower_bound_text(plan)}")
        if plan.node_share_cost_per_hour:
            text.append(f"\n{_node_share_text(plan)}")
        if plan.node_share_saving_per_hour:
            text.append(
                f"\n${plan.node_share_saving_per_hour:.3f} saved because a new node may have more than its share of the pods"
            )
    for name, room in planned_buffers(plan).items():
        text.append(
            f"\nCapacityBuffer {name}: room for {count_text(room.on_ready_nodes, 'pod')} on existing nodes,"
            f" {room.on_new_nodes} on new nodes; {room.unschedulable} unschedulable"
        )
    for outcome in plan.gangs:
        text.append(f"\n{_gang_text(outcome)}")
    for line in price_lines(report.prices, plan) if report.prices is not None else ():
        text.append(f"\n{line}", style="dim")
    text.append(
        f"\ndecided in {timing.decision_seconds:.3f} s"
        f" (instance types {timing.load_seconds:.3f} s, {timing.wall_seconds:.2f} s in all)",
        style="dim",
    )
    return text


def _gang_text(outcome: GangOutcome) -> str:
    if not outcome.is_complete:
        return f"{outcome.gang}: no places, because not enough of its pods would have one"
    domain = f", all in {outcome.domain}" if outcome.domain else ""
    pods = count_text(outcome.placed + outcome.running, "pod")
    return f"{outcome.gang}: {pods} with a place, it needs {outcome.minimum}{domain}"


def _cpu_surplus_text(plan: Solution) -> str:
    burstable = sum(claim.cpu_surplus_per_hour > 0 for claim in plan.new_claims)
    return (
        f"CPU requests beyond the baseline of {count_text(burstable, 'burstable node')} count as "
        f"${plan.cpu_surplus_per_hour:.3f} per hour more"
    )


def _node_share_text(plan: Solution) -> str:
    share = plan.node_share_cost_per_hour / plan.price_per_hour if plan.price_per_hour else 0.0
    return (
        f"${plan.node_share_cost_per_hour:.3f} of it ({share:.1%}) because no node has more than its share of the pods"
    )


def _lower_bound_text(plan: Solution) -> str:
    bound, gap = plan.lower_bound_per_hour, plan.optimality_gap
    if bound is None:
        return "no lower bound is known for these pods"
    if plan.is_optimal:
        return "optimal: no other nodes for them cost less, node fees included"
    if gap == 0.0:
        return "no nodes for them could cost less"
    shown = f" (gap {gap:.1%})" if gap is not None else ""
    return f"no nodes for them could cost less than ${bound:.3f} per hour{shown}"


#: Hours of a month as clouds count them.
_HOURS_PER_MONTH = 730


@dataclass(frozen=True, slots=True)
class _ComparedPlan:
    """One of the plans, with its NodeClaims in groups."""

    name: str
    report: PlanReport
    groups: list[NodeClaimGroup]


def write_comparison(comparison: PlanComparison, out: TextIO) -> None:
    """Write the page."""
    console = console_for(out, PAGE_WIDTH)
    sides = tuple(
        _ComparedPlan(name, report, group_node_claims(report.plan, report.indexes))
        for name, report in (("chosen", comparison.chosen), ("classic", comparison.classic))
    )
    console.print(_figures_table(sides))
    if any(side.groups for side in sides):
        console.print(Text(""), _groups_table(sides), sep="\n")
    print_line(console, Text("\n").append_text(_savings_line(comparison)))
    if comparison.chosen.prices is not None:
        for line in price_lines(comparison.chosen.prices, comparison.chosen.plan):
            print_line(console, Text(line, style="dim"))


def _figures_table(sides: Sequence[_ComparedPlan]) -> Table:
    """A row for each figure, a column for each plan."""
    table = _plain_table("bold")
    table.add_column("", no_wrap=True)
    for side in sides:
        table.add_column(side.name, justify="right", no_wrap=True)
    for row in zip(_FIGURE_LABELS, *(_figures(side) for side in sides), strict=True):
        table.add_row(*row)
    return table


_FIGURE_LABELS = (
    "price, $/h",
    "lower bound, $/h",
    "gap",
    "unrequested, $/h",
    "new nodes",
    "pods on them",
    "pods on existing nodes",
    "unschedulable pods",
    "decided in, s",
)


def _figures(side: _ComparedPlan) -> Iterator[str]:
    plan = side.report.plan
    bound, gap = plan.lower_bound_per_hour, plan.optimality_gap
    yield f"{plan.price_per_hour:.3f}"
    yield _NO_VALUE if bound is None else f"{bound:.3f}"
    yield "optimal" if plan.is_optimal else _NO_VALUE if gap is None else f"{gap:.1%}"
    yield f"{sum(total_waste(side.groups).values()):.3f}"
    yield str(len(plan.new_claims))
    yield str(sum(len(claim.pods) for claim in plan.new_claims))
    yield str(sum(len(placed.pods) for placed in plan.placed_on_existing))
    yield str(len(plan.unschedulable))
    yield f"{side.report.timing.decision_seconds:.3f}"


def _groups_table(sides: Sequence[_ComparedPlan]) -> Table:
    """The nodes each plan launches, the dearest first."""
    table = _plain_table("bold")
    for side in sides:
        table.add_column(f"{side.name} launches", no_wrap=True, overflow="ellipsis")
        table.add_column("$/h", justify="right", no_wrap=True)
    for cells in zip_longest(*(_group_cells(side.groups) for side in sides), fillvalue=("", "")):
        table.add_row(*(Text(cell) for pair in cells for cell in pair))
    return table


def _group_cells(groups: Sequence[NodeClaimGroup]) -> Iterator[tuple[str, str]]:
    for group in groups[:SHOWN_ENTRIES]:
        what = f"{len(group.claims)} {group.instance_type} {group.sample.cheapest_offering.capacity_type}"
        yield what, f"{group.price_per_hour:.3f}"
    rest = groups[SHOWN_ENTRIES:]
    if rest:
        yield f"... and {len(rest)} more", f"{sum(group.price_per_hour for group in rest):.3f}"


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
        why = "node fees and room for expected pods are not counted"
        return Text(f"The chosen plan costs ${-saved:.3f} per hour more ({why}){beside}.")
    return Text(f"Both cost the same{beside}.")
