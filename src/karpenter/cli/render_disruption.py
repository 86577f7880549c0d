"""Which nodes would be disrupted: a page for people below the plan, and plain data for programs.

What would be done now stands first. Where budgets hold something back, what would be done without them follows, with the moment
from which they allow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime
from typing import TextIO

from rich.text import Text

from karpenter.cli import render_common, render_plan_data
from karpenter.cli.render_common import PAGE_WIDTH, SHOWN_ENTRIES, Json, console_for, print_line
from karpenter.disruption.decide.blocker import BlockerCategory
from karpenter.disruption.decide.blocker_messages import blocker_message, budget_message
from karpenter.disruption.decide.budget_status import BUDGET_HORIZON, BudgetStatus
from karpenter.disruption.decide.command import Command
from karpenter.disruption.decide.disruption_preview import DisruptionPreview
from karpenter.model import clock
from karpenter.model.nodepool_budgets import UNLIMITED_DISRUPTIONS
from karpenter.model.texts import count_text
from karpenter.scheduling.solution import NewNodeClaim

_SHOWN_NAMES = 5
_PRICE_DIGITS = 6
_HOURS_DIGITS = 4
#: Delays of consolidation beside ``consolidateAfter``.
_DELAYS = (
    ("younger than the minimum node age", BlockerCategory.NODE_AGE),
    ("waiting for a roll-out", BlockerCategory.ROLLOUT),
)


def write(preview: DisruptionPreview, out: TextIO) -> None:
    """Write the page."""
    console = console_for(out, PAGE_WIDTH)
    console.print(Text("\nNodes to disrupt", style="bold"))
    for text in (*_command_lines(preview), *_blocked_lines(preview), *_assumptions(preview)):
        print_line(console, text)


def _command_lines(preview: DisruptionPreview) -> Iterator[Text]:
    limited, free = preview.within_budgets.commands, preview.without_budgets.commands
    if not free and not limited:
        yield Text("  none: all nodes are needed or blocked")
        return
    yield Text(f"  now: {_totals_text(limited)}" if limited else "  now: none", style="green" if limited else "yellow")
    yield from _listed_commands(limited)
    if not budgets_hold_back(preview):
        return
    yield Text(f"  without budgets: {_totals_text(free)}", style="bold")
    yield from _listed_commands(free)
    for budget_status in preview.budget_statuses:
        yield Text(f"  {budget_status_text(budget_status)}", style="" if budget_status.remaining else "yellow")


def budgets_hold_back(preview: DisruptionPreview) -> bool:
    """Whether more nodes would be disrupted without budgets and freezes."""
    return _disrupted_nodes(preview.without_budgets.commands) != _disrupted_nodes(preview.within_budgets.commands)


def _disrupted_nodes(commands: Iterable[Command]) -> frozenset[str]:
    return frozenset(candidate.key for command in commands for candidate in command.candidates)


def _listed_commands(commands: Sequence[Command]) -> Iterator[Text]:
    for command in commands[:SHOWN_ENTRIES]:
        yield Text(f"    {command_text(command)}")
    if len(commands) > SHOWN_ENTRIES:
        yield Text(
            f"    ... and {len(commands) - SHOWN_ENTRIES} more commands: {_totals_text(commands[SHOWN_ENTRIES:])}"
        )


def _totals_text(commands: Sequence[Command]) -> str:
    nodes = count_text(len(_disrupted_nodes(commands)), "node")
    replacements = sum(len(command.replacements) for command in commands)
    replaced = f" for {replacements} new" if replacements else ""
    restarts = sum(command.pod_restarts for command in commands)
    unknown = " (as far as prices are known)" if any(command.saving_per_hour is None for command in commands) else ""
    return (
        f"{nodes}{replaced}, saves ${_saving(commands):.4f} per hour{unknown}, restarts {count_text(restarts, 'pod')}"
    )


def _saving(commands: Iterable[Command]) -> float:
    return sum(command.saving_per_hour or 0.0 for command in commands)


def command_text(command: Command) -> str:
    """A command in one line."""
    names = _some_names([candidate.state_node.name for candidate in command.candidates])
    replacements = ", ".join(_replacement_text(planned) for planned in command.replacements)
    instead = f" -> {replacements}" if replacements else ""
    pools = ", ".join(command.node_pools)
    return f"{command.decision.value} {names} ({command.reason.value}, {pools}){instead}: {command_figures(command)}"


def command_figures(command: Command) -> str:
    """What a command saves, how many pods restart, and when it has paid back."""
    saving = command.saving_per_hour
    saved = "saving not known" if saving is None else f"saves ${saving:.4f} per hour"
    payback = command.payback_hours
    paid = "" if payback is None else f", paid back after {60 * payback:.1f} minutes"
    return f"{saved}, restarts {count_text(command.pod_restarts, 'pod')}{paid}"


def _replacement_text(planned: NewNodeClaim) -> str:
    where = f"{planned.cheapest_offering.zone}, {planned.cheapest_offering.capacity_type}"
    return f"{planned.instance_types[0]} ({where}, ${planned.price_per_hour:.4f} per hour)"


def _some_names(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def budget_status_text(status: BudgetStatus) -> str:
    """What budgets allow, and from when they allow more."""
    if status.remaining:
        return (
            f"{budget_message(status)}, {status.remaining} now"
            if status.allowed != UNLIMITED_DISRUPTIONS
            else budget_message(status)
        )
    what = f'NodePool "{status.node_pool}" is {status.freeze}' if status.freeze else budget_message(status)
    return f"{what}; {opening_text(status)}"


def opening_text(status: BudgetStatus) -> str:
    """When budgets that are closed allow one more node: at a time, or once one of those is back that use them up."""
    by_time = allowed_from_text(status.opens_at)
    if status.freeze or not status.allowed:
        return by_time
    sooner = "opens when one of them is gone or ready again"
    return sooner if status.opens_at is None else f"{sooner}; {by_time} at the latest"


def allowed_from_text(moment: datetime | None) -> str:
    """From when budgets allow it."""
    return f"opens {clock.rfc3339(moment)}" if moment is not None else f"opens not within {BUDGET_HORIZON.days} days"


def _blocked_lines(preview: DisruptionPreview) -> Iterator[Text]:
    kept = {
        blocked_node.state_node.key
        for blocked_node in preview.without_budgets.blocked_nodes
        if not blocked_node.blocker.concerns_consolidation_only
    }
    if kept:
        what = f"{count_text(len(kept), 'node')} (see karpenter explain node NAME)"
        yield Text(f"  blocked by other causes than budgets: {what}", style="yellow")
    if preview.consolidate_after_ends:
        first = clock.rfc3339(min(preview.consolidate_after_ends.values()))
        yield Text(
            f"  waiting for consolidateAfter: {count_text(len(preview.consolidate_after_ends), 'node')}, the first until {first}",
            style="yellow",
        )
    counted = kept | set(preview.consolidate_after_ends)
    for title, category in _DELAYS:
        if ends := _delay_ends(preview, category, counted):
            until = clock.rfc3339(min(ends.values()))
            yield Text(f"  {title}: {count_text(len(ends), 'node')}, the first until {until}", style="yellow")
            counted |= set(ends)


def _delay_ends(preview: DisruptionPreview, category: BlockerCategory, counted: Set[str]) -> Mapping[str, datetime]:
    """By key of a node that is not counted yet, when its delay ends."""
    return {
        blocked_node.state_node.key: blocked_node.blocker.until
        for blocked_node in preview.without_budgets.blocked_nodes
        if blocked_node.blocker.category is category
        and blocked_node.blocker.until is not None
        and blocked_node.state_node.key not in counted
    }


def _assumptions(preview: DisruptionPreview) -> Iterator[Text]:
    if preview.assumed_consolidatable:
        names = _some_names(preview.assumed_consolidatable)
        yield Text(f"  assumed: consolidateAfter has elapsed for {names} (no condition yet)", style="dim")
    if preview.tainted_for_disruption:
        yield Text(f"  assumed: {_some_names(preview.tainted_for_disruption)} being disrupted (tainted)", style="dim")
    if preview.nominated:
        yield Text(f"  assumed: pending pods will go to {_some_names(preview.nominated)}", style="dim")
    yield Text("  assumed: no earlier command has failed", style="dim")


# -- for programs -------------------------------------------------------------------------------------------------------------


def document(preview: DisruptionPreview) -> Json:
    """The preview as plain data. Money is USD per hour, times are in UTC."""
    return {
        "now": [command_data(command) for command in preview.within_budgets.commands],
        "withoutBudgets": [command_data(command) for command in preview.without_budgets.commands],
        "savingPerHour": {
            "now": round(_saving(preview.within_budgets.commands), _PRICE_DIGITS),
            "withoutBudgets": round(_saving(preview.without_budgets.commands), _PRICE_DIGITS),
        },
        "budgetWindows": [budget_status_data(budget_status) for budget_status in preview.budget_statuses],
        "blocked": [
            {"node": blocked_node.state_node.name, "text": blocker_message(blocked_node.blocker)}
            for blocked_node in preview.without_budgets.blocked_nodes
        ],
        "consolidatableFrom": {key: clock.rfc3339(end) for key, end in preview.consolidate_after_ends.items()},
        "assumed": {
            "consolidatable": list(preview.assumed_consolidatable),
            "disrupting": list(preview.tainted_for_disruption),
            "nominated": list(preview.nominated),
        },
    }


def command_data(command: Command) -> Json:
    """A command as plain data."""
    saving, payback = command.saving_per_hour, command.payback_hours
    return {
        "reason": command.reason.value,
        "decision": command.decision.value,
        "nodes": [candidate.state_node.name for candidate in command.candidates],
        "nodePools": list(command.node_pools),
        "replacements": [render_plan_data.node_claim_data(planned) for planned in command.replacements],
        "placed": [
            {"node": placed_pods.node_name, "pods": [render_common.pod_name(pod) for pod in placed_pods.pods]}
            for placed_pods in command.placed_on_existing
        ],
        "savingPerHour": None if saving is None else round(saving, _PRICE_DIGITS),
        "restarts": command.pod_restarts,
        "disruptionCost": round(command.disruption_cost, _HOURS_DIGITS),
        "paybackHours": None if payback is None else round(payback, _HOURS_DIGITS),
    }


def budget_status_data(status: BudgetStatus) -> Json:
    """What budgets allow, as plain data."""
    return {
        "nodePool": status.node_pool,
        "reason": status.reason.value,
        "allowed": None if status.allowed == UNLIMITED_DISRUPTIONS else status.allowed,
        "left": None if status.allowed == UNLIMITED_DISRUPTIONS else status.remaining,
        "limitedBy": status.limited_by or None,
        "frozen": status.freeze or None,
        "allowedFrom": clock.rfc3339(status.opens_at) if status.opens_at is not None else None,
    }
