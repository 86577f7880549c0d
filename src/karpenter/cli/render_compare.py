"""Two plans for the same pods side by side: the one that was chosen and the classic one, which packs as the reference does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TextIO

from rich.text import Text

from karpenter.cli.machines import Machines, grouped, summed
from karpenter.cli.render import Comparison, Report
from karpenter.cli.render_table import PAGE_WIDTH, SHOWN, console_on, counted, shortened

_LABEL = 24
_COLUMN = 25
_SIDE = 38
#: Hours of a month as clouds count them.
_HOURS_PER_MONTH = 730
_NONE = "-"


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the plans, with its machines by how they are bought."""

    name: str
    report: Report
    groups: list[Machines]


def write(comparison: Comparison, out: TextIO) -> None:
    """Write the page."""
    console = console_on(out, PAGE_WIDTH)
    sides = tuple(
        _Side(name, report, grouped(report.plan, report.index))
        for name, report in (("chosen", comparison.chosen), ("classic", comparison.classic))
    )
    for text in (*_figures(sides), Text(""), *_machines(sides), Text(""), _verdict(comparison)):
        console.print(text, soft_wrap=True)


def _figures(sides: Sequence[_Side]) -> Iterator[Text]:
    yield Text(_figure("", [side.name for side in sides]), style="bold")
    plans = [side.report.plan for side in sides]
    yield Text(_figure("price, $/h", [f"{plan.price_per_hour:.3f}" for plan in plans]))
    bounds = [plan.lower_bound_per_hour for plan in plans]
    yield Text(_figure("lower bound, $/h", [_NONE if bound is None else f"{bound:.3f}" for bound in bounds]))
    yield Text(_figure("gap", [_NONE if plan.gap is None else f"{plan.gap:.1%}" for plan in plans]))
    wastes = [sum(summed(side.groups).values()) for side in sides]
    yield Text(_figure("requested by nobody, $/h", [f"{wasted:.3f}" for wasted in wastes]))
    yield Text(_figure("new machines", [str(len(plan.claims)) for plan in plans]))
    yield Text(_figure("pods on them", [str(sum(len(claim.pods) for claim in plan.claims)) for plan in plans]))
    yield Text(_figure("pods on machines there", [str(sum(len(each.pods) for each in p.existing)) for p in plans]))
    yield Text(_figure("pods waiting", [str(len(plan.unplaced)) for plan in plans]))
    seconds = [side.report.timing.decision_seconds for side in sides]
    yield Text(_figure("decided in, s", [f"{each:.3f}" for each in seconds]), style="dim")


def _figure(label: str, values: Sequence[str]) -> str:
    return (label.ljust(_LABEL) + "".join(value.rjust(_COLUMN) for value in values)).rstrip()


def _machines(sides: Sequence[_Side]) -> Iterator[Text]:
    """What each would buy, the dearest first."""
    if not any(side.groups for side in sides):
        return
    yield Text("  ".join(f"{side.name} buys".ljust(_SIDE) for side in sides).rstrip(), style="bold")
    for lines in zip_longest(*(_lines(side.groups) for side in sides), fillvalue=""):
        yield Text("  ".join(line.ljust(_SIDE) for line in lines).rstrip())


def _lines(groups: Sequence[Machines]) -> Iterator[str]:
    for group in groups[:SHOWN]:
        price = f"{group.price_per_hour:.3f}"
        what = f"{len(group.claims):>4} {group.instance_type} {group.first.cheapest.capacity_type}"
        yield f"{shortened(what, _SIDE - len(price) - 1).ljust(_SIDE - len(price))}{price}"
    rest = groups[SHOWN:]
    if rest:
        price = f"{sum(group.price_per_hour for group in rest):.3f}"
        yield f"     ... and {len(rest)} more".ljust(_SIDE - len(price)) + price


def _verdict(comparison: Comparison) -> Text:
    """What the choice saves, in price alone."""
    chosen, classic = comparison.chosen.plan, comparison.classic.plan
    fewer = len(classic.unplaced) - len(chosen.unplaced)
    beside = f"; it has a place for {counted(fewer, 'more pod')}" if fewer > 0 else ""
    saved, share = comparison.saved_per_hour, comparison.saved_share
    if saved > 0 and share is not None:
        month = saved * _HOURS_PER_MONTH
        return Text(f"The chosen plan saves ${saved:.3f} per hour ({share:.1%}), ${month:,.0f} a month{beside}.")
    if saved < 0:
        why = "machines' fees and room for pods to come are not counted"
        return Text(f"The chosen plan costs ${-saved:.3f} per hour more ({why}){beside}.")
    return Text(f"Both cost the same{beside}.")
