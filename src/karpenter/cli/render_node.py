"""The explanation of one node: a tree for people, data for programs."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TextIO

from rich.text import Text
from rich.tree import Tree

from karpenter.cli import render_disruption
from karpenter.cli.render_common import Json, console_for
from karpenter.cli.render_disruption import allowed_from_text, budget_status_text, opening_text
from karpenter.disruption.decide.blocker import BlockerCategory
from karpenter.disruption.decide.blocker_messages import blocker_message
from karpenter.disruption.decide.disruption_blockers import BudgetExhausted, DisruptionBlocker
from karpenter.disruption.decide.disruption_preview import DisruptionPreview
from karpenter.disruption.decide.node_explanation import ExplainedBlocker, NodeExplanation
from karpenter.model import clock
from karpenter.model import resources as res
from karpenter.model.texts import count_text
from karpenter.scheduling.daemonset_fit import DaemonSetShortfall
from karpenter.scheduling.explain.nearest_fit_messages import format_amount

#: Where the output is no terminal every fact has one line, so that it can be searched.
_WIDTH_ELSEWHERE = 4096


class NodeOutcome(StrEnum):
    """The node's state in the preview."""

    DISRUPTABLE = "disruptable"
    WAITING_FOR_BUDGET = "waiting-for-budget"
    BLOCKED = "blocked"
    NEEDED = "needed"


def outcome(explanation: NodeExplanation) -> NodeOutcome:
    """The node's state; a node that budgets put after others waits."""
    if explanation.command is not None:
        return NodeOutcome.DISRUPTABLE
    if explanation.blockers:
        return NodeOutcome.BLOCKED
    return NodeOutcome.WAITING_FOR_BUDGET if explanation.command_without_budgets is not None else NodeOutcome.NEEDED


def headline(explanation: NodeExplanation) -> str:
    """The one sentence."""
    match outcome(explanation):
        case NodeOutcome.DISRUPTABLE:
            assert explanation.command is not None
            return f"can be disrupted now: {render_disruption.command_text(explanation.command)}"
        case NodeOutcome.BLOCKED:
            return f"kept: blocked by {count_text(len(explanation.blockers), 'cause')}"
        case NodeOutcome.WAITING_FOR_BUDGET:
            return "waiting for budget: other nodes of its NodePool are disrupted first"
        case _:
            if explanation.expected_pods:
                return f"kept: {count_text(explanation.expected_pods, 'pod')} of disrupted nodes are planned for it"
            return "kept: not blocked, but no command that disrupts it is possible or worthwhile"


# -- the tree -----------------------------------------------------------------------------------------------------------------


def write(explanation: NodeExplanation, preview: DisruptionPreview, out: TextIO) -> None:
    """Write the tree."""
    style = "yellow" if explanation.blockers else "green"
    tree = Tree(Text.assemble((f"Node {explanation.state_node.name}", "bold"), " ", (headline(explanation), style)))
    for explained_blocker in explanation.blockers:
        tree.add(Text(_blocker_text(explained_blocker.blocker)))
    for line in _detail_lines(explanation, preview):
        tree.add(Text(line))
    console_for(out, _WIDTH_ELSEWHERE).print(tree)


def _blocker_text(blocker: DisruptionBlocker) -> str:
    if isinstance(blocker, BudgetExhausted):
        until = f"; {opening_text(blocker.status)}"
    elif blocker.category in (BlockerCategory.BUDGET, BlockerCategory.FREEZE):
        until = f"; {allowed_from_text(blocker.until)}"
    else:
        until = f"; until {clock.rfc3339(blocker.until)}" if blocker.until is not None else ""
    return f"{blocker.category.value}: {blocker_message(blocker)}{until}"


def _detail_lines(explanation: NodeExplanation, preview: DisruptionPreview) -> Iterator[str]:
    if explanation.command_without_budgets is not None:
        yield f"without budgets: {render_disruption.command_text(explanation.command_without_budgets)}"
        openings = () if explanation.blockers else preview.budget_statuses  # a blocker has said it
        yield from (
            budget_status_text(budget_status)
            for budget_status in openings
            if budget_status.node_pool == explanation.state_node.pool
        )
    if explanation.command is not None:
        yield from (
            f"{placed_pods.node_name} takes {count_text(len(placed_pods.pods), 'pod')}"
            for placed_pods in explanation.command.placed_on_existing
        )
    for misfit in explanation.daemonset_shortfalls:
        yield shortfall_text(misfit)
    if explanation.is_assumed_consolidatable:
        yield "assumed: consolidateAfter has elapsed (no condition yet)"
    price = "not known" if explanation.price_per_hour is None else f"${explanation.price_per_hour:.4f} per hour"
    yield f"price {price}, considered for {', '.join(reason.value for reason in explanation.reasons)}"


def shortfall_text(shortfall: DaemonSetShortfall) -> str:
    """What a DaemonSet lacks."""
    short = ", ".join(format_amount(name, short) for name, short in sorted(shortfall.missing.items()))
    return f"DaemonSet {shortfall.daemon_set} does not fit: {short} short"


# -- for programs -------------------------------------------------------------------------------------------------------------


def document(explanation: NodeExplanation, preview: DisruptionPreview) -> Json:
    """The answer as plain data. Money is USD per hour, times are in UTC."""
    move, waiting = explanation.command, explanation.command_without_budgets
    return {
        "node": explanation.state_node.name,
        "nodeClaim": explanation.state_node.claim.metadata.name if explanation.state_node.claim is not None else None,
        "nodePool": explanation.state_node.pool or None,
        "state": outcome(explanation).value,
        "text": headline(explanation),
        "price": explanation.price_per_hour,
        "reasons": [reason.value for reason in explanation.reasons],
        "blockers": [_blocker_data(explained_blocker) for explained_blocker in explanation.blockers],
        "command": render_disruption.command_data(move) if move is not None else None,
        "withoutBudgets": render_disruption.command_data(waiting) if waiting is not None else None,
        "budgetWindows": [
            render_disruption.budget_status_data(budget_status)
            for budget_status in preview.budget_statuses
            if waiting is not None and budget_status.node_pool == explanation.state_node.pool
        ],
        "daemonSetsThatDoNotFit": [
            {
                "daemonSet": set_shortfall.daemon_set,
                "short": res.resources_to_wire(set_shortfall.missing),
                "text": shortfall_text(set_shortfall),
            }
            for set_shortfall in explanation.daemonset_shortfalls
        ],
        "assumedConsolidatable": explanation.is_assumed_consolidatable,
    }


def _blocker_data(explained: ExplainedBlocker) -> Json:
    until = explained.blocker.until
    return {
        "cause": explained.blocker.category.value,
        "kind": explained.blocker.kind,
        "text": blocker_message(explained.blocker),
        "blocks": [reason.value for reason in explained.blocked_reasons],
        "until": clock.rfc3339(until) if until is not None else None,
    }
