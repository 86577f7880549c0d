"""A plan as a page for people: what to buy, what fits already, what stays waiting and why, and what it costs.

Machines that would be bought the same way share a line; pods that wait for the same reasons share a sentence. Colour only adds to
what the words say, and is left out where the output is no terminal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from karpenter.api.core import Pod
from karpenter.cli.render import Report, pod_name
from karpenter.decide.explain import exposure_lines, pod_message, sentence
from karpenter.decide.plan import Plan, PlannedClaim
from karpenter.model import resources as res

_WIDTH_ELSEWHERE = 140
_BAR_CELLS = 10
_BLOCKS = ("█", "░")
_ASCII = ("#", ".")
_SHOWN_PODS = 3
_FULL, _HALF = 0.9, 0.5


@dataclass(frozen=True, slots=True)
class _Line:
    """Machines bought the same way. ``used`` and ``offered`` sum over all of them, by resource."""

    claims: tuple[PlannedClaim, ...]
    used: res.Resources
    offered: res.Resources

    @property
    def first(self) -> PlannedClaim:
        return self.claims[0]

    @property
    def price_per_hour(self) -> float:
        return sum(claim.price_per_hour for claim in self.claims)

    def share(self, resource: str) -> float:
        """Part of the resource that is requested, 0 to 1."""
        offered = self.offered.get(resource, 0)
        return self.used.get(resource, 0) / offered if offered else 0.0


def write(report: Report, out: TextIO) -> None:
    """Write the page."""
    console = console_on(out)
    plan = report.plan
    if plan.claims:
        console.print(_machines(report, ascii_only=not console.encoding.startswith("utf")))
    if plan.existing:
        console.print(_existing(plan))
    for text in _waiting(plan):
        console.print(text, soft_wrap=True)
    for line in exposure_lines(plan):
        console.print(Text(line, style="yellow"), soft_wrap=True)
    if not (plan.claims or plan.existing or plan.unplaced):
        console.print("No pod waits for a machine: nothing to buy.")
    console.print(_summary(report), soft_wrap=True)


def console_on(out: TextIO, width_elsewhere: int = _WIDTH_ELSEWHERE) -> Console:
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


def _machines(report: Report, *, ascii_only: bool) -> Table:
    table = _table("Machines to buy")
    for heading in ("count", "instance type", "NodePool", "zone", "capacity", "$/h each", "$/h", "pods"):
        table.add_column(heading, justify="right" if heading in ("count", "$/h each", "$/h", "pods") else "left")
    table.add_column("cpu", no_wrap=True)
    table.add_column("memory", no_wrap=True)
    cells = _ASCII if ascii_only else _BLOCKS
    for line in _lines(report):
        first = line.first
        table.add_row(
            str(len(line.claims)),
            first.instance_types[0],
            first.node_pool,
            first.cheapest.zone,
            first.cheapest.capacity_type,
            f"{first.price_per_hour:.4f}",
            f"{line.price_per_hour:.3f}",
            _span(len(claim.pods) for claim in line.claims),
            _bar(line.share(res.CPU), cells),
            _bar(line.share(res.MEMORY), cells),
        )
    return table


def _lines(report: Report) -> list[_Line]:
    """Machines grouped by how they are bought, the dearest line first."""
    groups: dict[tuple[str, str, str, str, float], list[PlannedClaim]] = defaultdict(list)
    for claim in report.plan.claims:
        offering = claim.cheapest
        where = (claim.node_pool, claim.instance_types[0], offering.zone, offering.capacity_type)
        groups[(*where, claim.price_per_hour)].append(claim)
    lines = [_line(claims, report) for claims in groups.values()]
    return sorted(lines, key=lambda line: (-line.price_per_hour, line.first.instance_types[0], line.first.node_pool))


def _line(claims: Sequence[PlannedClaim], report: Report) -> _Line:
    allocatable = report.index.types[report.index.position[claims[0].instance_types[0]]].allocatable
    used = res.add(*(res.parse(claim.claim.spec.resources.requests) for claim in claims))
    return _Line(tuple(claims), used, {name: amount * len(claims) for name, amount in allocatable.items()})


def _span(counts: Iterable[int]) -> str:
    found = sorted(counts)
    return str(found[0]) if found[0] == found[-1] else f"{found[0]}-{found[-1]}"


def _bar(share: float, cells: tuple[str, str]) -> Text:
    filled = min(_BAR_CELLS, round(share * _BAR_CELLS))
    style = "green" if share >= _FULL else "yellow" if share >= _HALF else "red"
    return Text.assemble((cells[0] * filled, style), (cells[1] * (_BAR_CELLS - filled), "dim"), f" {share:4.0%}")


# -- machines that exist, pods that wait --------------------------------------------------------------------------------


def _existing(plan: Plan) -> Table:
    table = _table("Pods that fit on machines there are")
    table.add_column("node")
    table.add_column("pods", justify="right")
    table.add_column("which")
    for item in plan.existing:
        table.add_row(item.node, str(len(item.pods)), _some(item.pods))
    return table


def _waiting(plan: Plan) -> list[Text]:
    """One paragraph per set of reasons, the one most pods have first."""
    by_reason: dict[tuple[str, str], list[Pod]] = defaultdict(list)
    for item in plan.unplaced:
        by_reason[pod_message(item.reasons), sentence(item.nearest, item.beside)].append(item.pod)
    if not by_reason:
        return []
    paragraphs = [Text("Pods that stay waiting", style="bold")]
    for (reason, near), pods in sorted(by_reason.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        paragraphs.append(Text.assemble("  ", (_counted(len(pods), "pod"), "red"), f" ({_some(pods)})"))
        paragraphs.append(Text(f"    {reason}"))
        if near:
            paragraphs.append(Text(f"    {near}", style="yellow"))
    return [*paragraphs, Text("")]


def _some(pods: Sequence[Pod]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(pod_name(pod) for pod in pods[:_SHOWN_PODS])
    rest = len(pods) - _SHOWN_PODS
    return shown + (f" and {rest} more" if rest > 0 else "")


# -- the last lines -----------------------------------------------------------------------------------------------------


def _summary(report: Report) -> Text:
    plan, timing = report.plan, report.timing
    new = sum(len(claim.pods) for claim in plan.claims)
    there = sum(len(item.pods) for item in plan.existing)
    text = Text.assemble(
        (f"${plan.price_per_hour:.3f} per hour", "bold"),
        f" for {_counted(len(plan.claims), 'new machine')} with {_counted(new, 'pod')}",
    )
    if there:
        text.append(f"; {_counted(there, 'pod')} on machines there are")
    if plan.unplaced:
        text.append(f"; {_counted(len(plan.unplaced), 'pod')} waiting", style="red")
    text.append(
        f"\ndecided in {timing.decision_seconds:.3f} s"
        f" (catalogue {timing.catalogue_seconds:.3f} s, {timing.wall_seconds:.2f} s in all)",
        style="dim",
    )
    return text


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1), header_style="dim")
