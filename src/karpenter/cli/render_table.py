"""A plan as a page for people: what to buy and how full it gets, what fits already, what stays waiting and why, what it costs
and where the waste is.

Machines that would be bought alike share an entry of two lines; pods that wait for the same reasons share a sentence. The page
is made for 80 columns: terminals have them, and so do mails. Colour only adds to what the words say, and is left out where the
output is no terminal. What is long is cut: of many entries the dearest are shown, and how many more there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from karpenter.api.core import Pod
from karpenter.cli.machines import Machines, grouped, summed
from karpenter.cli.render import Report, pod_name
from karpenter.decide.explain import exposure_lines, pod_message, sentence
from karpenter.decide.plan import Plan
from karpenter.decide.waste import accelerators
from karpenter.model import resources as res

#: Columns of a page that goes to no terminal.
PAGE_WIDTH = 80
_BAR_CELLS = 6
_BLOCKS = ("█", "░")
_ASCII = ("#", ".")
_SHOWN_PODS = 3
_FULL, _HALF = 0.9, 0.5
#: Entries shown of each part of the page.
SHOWN = 20
_SHOWN_WASTE = 5
#: USD per hour; a resource of which less is wasted has no column.
_LEAST_SHOWN = 0.0005
_HEADINGS = ("", "type", "zone", "capacity", "$/h each", "$/h", "pods")
_RIGHT = frozenset({0, 4, 5, 6})
_TYPE = 1
_NARROWEST_TYPE = 8
_BESIDE = "  "


def write(report: Report, out: TextIO) -> None:
    """Write the page."""
    console = console_on(out, PAGE_WIDTH)
    plan = report.plan
    groups = grouped(plan, report.index)
    for text in _machines(groups, console):
        console.print(text, soft_wrap=True)
    if plan.existing:
        console.print(_existing(plan))
    for text in _waiting(plan):
        console.print(text, soft_wrap=True)
    for line in exposure_lines(plan):
        console.print(Text(line, style="yellow"), soft_wrap=True)
    for text in _waste(groups):
        console.print(text, soft_wrap=True)
    if not (plan.claims or plan.existing or plan.unplaced):
        console.print("No pod waits for a machine: nothing to buy.")
    console.print(_summary(report), soft_wrap=True)


def console_on(out: TextIO, width_elsewhere: int) -> Console:
    """Where pages are written: plain and of a fixed width unless it is a terminal."""
    terminal = out.isatty()
    return Console(
        file=out,
        force_terminal=terminal,
        no_color=None if terminal else True,
        width=None if terminal else width_elsewhere,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )


# -- machines to buy ----------------------------------------------------------------------------------------------------


def _machines(groups: Sequence[Machines], console: Console) -> Iterator[Text]:
    """An entry for every group, NodePool by NodePool, the dearest first."""
    if not groups:
        return
    shown, rest = groups[:SHOWN], groups[SHOWN:]
    rows = {id(group): _row(group) for group in shown}
    widths = _widths([_HEADINGS, *rows.values()], console.width)
    cells = _BLOCKS if console.encoding.startswith("utf") else _ASCII
    yield Text("Machines to buy", style="bold")
    yield Text(_line(_HEADINGS, widths), style="dim")
    for pool, members in _by_pool(shown, groups).items():
        yield Text(_pool_line(pool, groups), style="italic")
        for group in members:
            yield Text(_line(rows[id(group)], widths))
            yield Text.assemble(" " * (widths[0] + len(_BESIDE)), *_bars(group, cells))
    if rest:
        count, price = sum(len(group.claims) for group in rest), sum(group.price_per_hour for group in rest)
        yield Text(f"... and {len(rest)} more groups: {counted(count, 'machine')}, ${price:.3f} per hour")
    yield Text("")


def _by_pool(shown: Sequence[Machines], groups: Sequence[Machines]) -> dict[str, list[Machines]]:
    """The groups shown by NodePool, the pool that costs most first."""
    price: dict[str, float] = defaultdict(float)
    for group in groups:
        price[group.first.node_pool] += group.price_per_hour
    found: dict[str, list[Machines]] = {pool: [] for pool in sorted(price, key=lambda pool: (-price[pool], pool))}
    for group in shown:
        found[group.first.node_pool].append(group)
    return {pool: members for pool, members in found.items() if members}


def _pool_line(pool: str, groups: Sequence[Machines]) -> str:
    own = [group for group in groups if group.first.node_pool == pool]
    count = sum(len(group.claims) for group in own)
    return f"NodePool {pool}: {counted(count, 'machine')}, ${sum(group.price_per_hour for group in own):.3f} per hour"


def _row(group: Machines) -> tuple[str, ...]:
    offering = group.first.cheapest
    return (
        str(len(group.claims)),
        group.instance_type,
        offering.zone or "-",
        offering.capacity_type or "-",
        f"{group.first.price_per_hour:.4f}",
        f"{group.price_per_hour:.3f}",
        _span(len(claim.pods) for claim in group.claims),
    )


def _widths(rows: Sequence[Sequence[str]], most: int) -> list[int]:
    """Width of each column; the names of types give way where that is too much."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    widths[0] = max(3, widths[0])
    over = sum(widths) + len(_BESIDE) * (len(widths) - 1) - most
    widths[_TYPE] = max(_NARROWEST_TYPE, widths[_TYPE] - max(0, over))
    return widths


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.rjust(width) if column in _RIGHT else shortened(cell, width).ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return _BESIDE.join(cells).rstrip()


def shortened(text: str, width: int) -> str:
    """The text, its end left out where it is wider than that."""
    return text if len(text) <= width else text[: width - 2] + ".."


def _span(counts: Iterable[int]) -> str:
    found = sorted(counts)
    return str(found[0]) if found[0] == found[-1] else f"{found[0]}-{found[-1]}"


def _bars(group: Machines, cells: tuple[str, str]) -> Iterator[Text]:
    """How much of each resource is requested; of several kinds of accelerators the one requested most."""
    devices = sorted(accelerators(group.offered), key=lambda name: (-group.share(name), name))[:1]
    for number, name in enumerate((res.CPU, res.MEMORY, res.PODS, *devices)):
        yield Text(f"{_BESIDE if number else ''}{short(name)} ")
        yield _bar(group.share(name), cells)


def short(resource: str) -> str:
    """A resource's name without its domain."""
    return resource.rpartition("/")[2]


def _bar(share: float, cells: tuple[str, str]) -> Text:
    filled = min(_BAR_CELLS, round(share * _BAR_CELLS))
    style = "green" if share >= _FULL else "yellow" if share >= _HALF else "red"
    return Text.assemble((cells[0] * filled, style), (cells[1] * (_BAR_CELLS - filled), "dim"), f" {share:4.0%}")


# -- machines that exist, pods that wait --------------------------------------------------------------------------------


def _existing(plan: Plan) -> Table:
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
    for item in plan.existing[:SHOWN]:
        table.add_row(item.node, str(len(item.pods)), _some(item.pods))
    rest = plan.existing[SHOWN:]
    if rest:
        table.add_row(f"... and {len(rest)} more", str(sum(len(item.pods) for item in rest)), "")
    return table


def _waiting(plan: Plan) -> list[Text]:
    """One paragraph per set of reasons, the one most pods have first."""
    by_reason: dict[tuple[str, str], list[Pod]] = defaultdict(list)
    for item in plan.unplaced:
        by_reason[pod_message(item.reasons), sentence(item.nearest, item.beside)].append(item.pod)
    if not by_reason:
        return []
    paragraphs = [Text("Pods that stay waiting", style="bold")]
    ordered = sorted(by_reason.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    for (reason, near), pods in ordered[:SHOWN]:
        paragraphs.append(Text.assemble("  ", (counted(len(pods), "pod"), "red"), f" ({_some(pods)})"))
        paragraphs.append(Text(f"    {reason}"))
        if near:
            paragraphs.append(Text(f"    {near}", style="yellow"))
    rest = ordered[SHOWN:]
    if rest:
        count = sum(len(pods) for _, pods in rest)
        paragraphs.append(Text(f"  ... and {counted(count, 'pod')} more for {counted(len(rest), 'other reason')}"))
    return [*paragraphs, Text("")]


def _some(pods: Sequence[Pod]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(pod_name(pod) for pod in pods[:_SHOWN_PODS])
    rest = len(pods) - _SHOWN_PODS
    return shown + (f" and {rest} more" if rest > 0 else "")


# -- where the waste is -------------------------------------------------------------------------------------------------


def _waste(groups: Sequence[Machines]) -> Iterator[Text]:
    """What is paid for and requested by nobody, by group and by resource, the groups that waste most first."""
    total = summed(groups)
    wasted, price = sum(total.values()), sum(group.price_per_hour for group in groups)
    if not price:
        return
    names = [name for name in total if total[name] >= _LEAST_SHOWN] or [res.CPU]
    ordered = sorted(groups, key=lambda group: (-group.wasted_per_hour, group.instance_type, group.first.node_pool))
    worst = [(f"{len(group.claims)} {group.instance_type}", group.wasted) for group in ordered[:_SHOWN_WASTE]]
    rest = ordered[_SHOWN_WASTE:]
    more = [(f"... and {len(rest)} more", summed(rest))] if rest else []
    share = wasted / price
    yield Text.assemble(
        ("Where the waste is", "bold"), f"  $/h paid for and requested by nobody: {wasted:.3f} ({share:.1%})"
    )
    yield from _waste_table([*worst, *more, *([("all", total)] if len(groups) > 1 else [])], names)
    yield Text("")


def _waste_table(lines: Sequence[tuple[str, Mapping[str, float]]], names: Sequence[str]) -> Iterator[Text]:
    """A column for each resource and one for all together."""
    heading = ("", *(short(name) for name in names), "all")
    rows = [(label, *(f"{each:.3f}" for each in _amounts(wasted, names))) for label, wasted in lines]
    widths = [max(len(row[column]) for row in (heading, *rows)) for column in range(len(heading))]
    for number, row in enumerate((heading, *rows)):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield Text(("  " + _BESIDE.join(cells)).rstrip(), style="" if number else "dim")


def _amounts(wasted: Mapping[str, float], names: Sequence[str]) -> Iterator[float]:
    yield from (wasted.get(name, 0.0) for name in names)
    yield sum(wasted.values())


# -- the last lines -----------------------------------------------------------------------------------------------------


def _summary(report: Report) -> Text:
    plan, timing = report.plan, report.timing
    new = sum(len(claim.pods) for claim in plan.claims)
    there = sum(len(item.pods) for item in plan.existing)
    text = Text.assemble(
        (f"${plan.price_per_hour:.3f} per hour", "bold"),
        f" for {counted(len(plan.claims), 'new machine')} with {counted(new, 'pod')}",
    )
    if there:
        text.append(f"; {counted(there, 'pod')} on machines there are")
    if plan.unplaced:
        text.append(f"; {counted(len(plan.unplaced), 'pod')} waiting", style="red")
    if plan.claims:
        text.append(f"\n{_bound(plan)}")
    text.append(
        f"\ndecided in {timing.decision_seconds:.3f} s"
        f" (catalogue {timing.catalogue_seconds:.3f} s, {timing.wall_seconds:.2f} s in all)",
        style="dim",
    )
    return text


def _bound(plan: Plan) -> str:
    bound, gap = plan.lower_bound_per_hour, plan.gap
    if bound is None:
        return "no lower bound is known for these pods"
    shown = f" (gap {gap:.1%})" if gap is not None else ""
    return f"no machines for them could cost less than ${bound:.3f} per hour{shown}"


def counted(count: int, noun: str) -> str:
    """The noun with its number."""
    return f"{count} {noun}" + ("" if count == 1 else "s")
