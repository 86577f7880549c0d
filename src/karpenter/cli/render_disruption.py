"""Which machines would be given back: a page for people below the plan, and plain data for programs.

What would be done now stands first. Where budgets hold something back, what would be done without them follows, with the moment
from which they allow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TextIO

from rich.text import Text

from karpenter.cli import render
from karpenter.cli.render_reasons import Json
from karpenter.cli.render_table import PAGE_WIDTH, SHOWN, console_on, counted
from karpenter.decide.disrupt import Command
from karpenter.decide.disrupt.outlook import AHEAD, Opening, Outlook
from karpenter.decide.disrupt.why import budget_text
from karpenter.decide.plan import PlannedClaim
from karpenter.model import moments
from karpenter.model.budgets import UNLIMITED

_SHOWN_NAMES = 5
_PRICE_DIGITS = 6
_HOURS_DIGITS = 4


def write(seen: Outlook, out: TextIO) -> None:
    """Write the page."""
    console = console_on(out, PAGE_WIDTH)
    console.print(Text("\nMachines to give back", style="bold"))
    for text in (*_moves(seen), *_kept(seen), *_assumptions(seen)):
        console.print(text, soft_wrap=True)


def _moves(seen: Outlook) -> Iterator[Text]:
    limited, free = seen.limited.commands, seen.free.commands
    if not free and not limited:
        yield Text("  none: every machine is needed, or something keeps it")
        return
    yield Text(f"  now: {_sum(limited)}" if limited else "  now: none", style="green" if limited else "yellow")
    yield from _listed(limited)
    if not holds_back(seen):
        return
    yield Text(f"  without budgets: {_sum(free)}", style="bold")
    yield from _listed(free)
    for item in seen.openings:
        yield Text(f"  {opening_text(item)}", style="" if item.left else "yellow")


def holds_back(seen: Outlook) -> bool:
    """Whether more machines would go if budgets and freezes forbade nothing."""
    return _machines(seen.free.commands) != _machines(seen.limited.commands)


def _machines(commands: Iterable[Command]) -> frozenset[str]:
    return frozenset(candidate.key for command in commands for candidate in command.candidates)


def _listed(commands: Sequence[Command]) -> Iterator[Text]:
    for command in commands[:SHOWN]:
        yield Text(f"    {command_text(command)}")
    if len(commands) > SHOWN:
        yield Text(f"    ... and {len(commands) - SHOWN} more moves: {_sum(commands[SHOWN:])}")


def _sum(commands: Sequence[Command]) -> str:
    machines = counted(len(_machines(commands)), "machine")
    bought = sum(len(command.replacements) for command in commands)
    replaced = f" for {bought} new" if bought else ""
    restarts = sum(command.restarts for command in commands)
    unknown = " (as far as prices are known)" if any(command.saving_per_hour is None for command in commands) else ""
    return (
        f"{machines}{replaced}, saves ${_saving(commands):.4f} per hour{unknown}, restarts {counted(restarts, 'pod')}"
    )


def _saving(commands: Iterable[Command]) -> float:
    return sum(command.saving_per_hour or 0.0 for command in commands)


def command_text(command: Command) -> str:
    """A move in one line."""
    names = _some([candidate.view.name for candidate in command.candidates])
    bought = ", ".join(_machine(planned) for planned in command.replacements)
    instead = f" -> {bought}" if bought else ""
    pools = ", ".join(command.pools)
    return f"{command.decision.value} {names} ({command.reason.value}, {pools}){instead}: {figures(command)}"


def figures(command: Command) -> str:
    """What a move saves, whom it hurts, and when it has paid for itself."""
    saving = command.saving_per_hour
    saved = "saving not known" if saving is None else f"saves ${saving:.4f} per hour"
    payback = command.payback_hours
    paid = "" if payback is None else f", paid back after {60 * payback:.1f} minutes"
    return f"{saved}, restarts {counted(command.restarts, 'pod')}{paid}"


def _machine(planned: PlannedClaim) -> str:
    where = f"{planned.cheapest.zone}, {planned.cheapest.capacity_type}"
    return f"{planned.instance_types[0]} ({where}, ${planned.price_per_hour:.4f} per hour)"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def opening_text(found: Opening) -> str:
    """What budgets allow, and from when they allow more."""
    if found.left:
        return f"{budget_text(found)}, {found.left} now" if found.allowed != UNLIMITED else budget_text(found)
    what = f'NodePool "{found.pool}" is {found.frozen}' if found.frozen else budget_text(found)
    return f"{what}; {when(found.at)}"


def when(moment: datetime | None) -> str:
    """From when budgets allow it."""
    return f"opens {moments.text(moment)}" if moment is not None else f"opens not within {AHEAD.days} days"


def _kept(seen: Outlook) -> Iterator[Text]:
    kept = len({item.view.key for item in seen.free.blocked if not item.lasting})
    if kept:
        what = f"{counted(kept, 'machine')} (karpenter explain node NAME says what)"
        yield Text(f"  kept by other things than budgets: {what}", style="yellow")
    if seen.resting:
        first = moments.text(min(seen.resting.values()))
        yield Text(
            f"  in their quiet time: {counted(len(seen.resting), 'machine')}, the first until {first}", style="yellow"
        )


def _assumptions(seen: Outlook) -> Iterator[Text]:
    if seen.assumed:
        names = _some(seen.assumed)
        yield Text(
            f"  assumed: quiet time (consolidateAfter) is over for {names}: no condition says so yet", style="dim"
        )
    if seen.going:
        yield Text(f"  assumed: {_some(seen.going)} about to go: tainted for disruption", style="dim")
    if seen.expecting:
        yield Text(f"  assumed: pods that wait will go to {_some(seen.expecting)}", style="dim")
    yield Text("  assumed: no earlier move has failed", style="dim")


# -- for programs -------------------------------------------------------------------------------------------------------------


def document(seen: Outlook) -> Json:
    """The outlook as plain data. Money is USD per hour, times are in UTC."""
    return {
        "now": [command(item) for item in seen.limited.commands],
        "withoutBudgets": [command(item) for item in seen.free.commands],
        "savingPerHour": {
            "now": round(_saving(seen.limited.commands), _PRICE_DIGITS),
            "withoutBudgets": round(_saving(seen.free.commands), _PRICE_DIGITS),
        },
        "openings": [opening(item) for item in seen.openings],
        "blocked": [{"node": item.view.name, "text": item.why} for item in seen.free.blocked],
        "quietUntil": {key: moments.text(end) for key, end in seen.resting.items()},
        "assumed": {
            "consolidatable": list(seen.assumed),
            "leaving": list(seen.going),
            "nominated": list(seen.expecting),
        },
    }


def command(found: Command) -> Json:
    """A move as plain data."""
    saving, payback = found.saving_per_hour, found.payback_hours
    return {
        "reason": found.reason.value,
        "decision": found.decision.value,
        "nodes": [candidate.view.name for candidate in found.candidates],
        "nodePools": list(found.pools),
        "replacements": [render.claim(planned) for planned in found.replacements],
        "placed": [{"node": item.node, "pods": [render.pod_name(pod) for pod in item.pods]} for item in found.placed],
        "savingPerHour": None if saving is None else round(saving, _PRICE_DIGITS),
        "restarts": found.restarts,
        "disruptionCost": round(found.disruption_cost, _HOURS_DIGITS),
        "paybackHours": None if payback is None else round(payback, _HOURS_DIGITS),
    }


def opening(found: Opening) -> Json:
    """What budgets allow, as plain data."""
    return {
        "nodePool": found.pool,
        "reason": found.reason.value,
        "allowed": None if found.allowed == UNLIMITED else found.allowed,
        "left": None if found.allowed == UNLIMITED else found.left,
        "limitedBy": found.source or None,
        "frozen": found.frozen or None,
        "opens": moments.text(found.at) if found.at is not None else None,
    }
