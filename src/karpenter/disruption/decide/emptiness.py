"""Emptiness: an empty node is deleted once ``consolidateAfter`` is over, as far as budgets allow (DIS §4, §6, §9.1).

Empty is as DIS-121 has it: pods that cost nothing to evict do not keep a node, and need no place in advance.
"""

from __future__ import annotations

from karpenter.disruption.decide.candidates import BlockedNode, DisruptionContext, is_consolidatable
from karpenter.disruption.decide.command import Candidate, Command, ConsolidationType, DisruptionReason, saving_per_hour
from karpenter.disruption.decide.costs import candidate_order
from karpenter.disruption.decide.disruption_problem import PreparedDisruption
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets


def empty_candidates(prepared: PreparedDisruption) -> tuple[list[Candidate], list[BlockedNode]]:
    """Empty nodes that would be deleted if budgets allow it, best first, and those that another check blocks."""
    checks, context = prepared.checks, prepared.context
    candidates: list[Candidate] = []
    blocked: list[BlockedNode] = []
    for view in prepared.snapshot.nodes:
        if not checks.is_considered(view) or not view.is_empty:
            continue
        candidate = checks.candidate_or_blocker(view, DisruptionReason.EMPTY)
        if isinstance(candidate, BlockedNode):
            blocked.append(candidate)
            continue
        blocker = checks.emptiness_blocker(candidate)
        if blocker is not None:
            blocked.append(BlockedNode(view, blocker))
        elif is_consolidatable(view) and not _is_in_backoff(context, view.key):
            candidates.append(candidate)
    failures = context.failed_moves.count
    return sorted(candidates, key=lambda c: (failures(DisruptionReason.EMPTY, c.key), candidate_order(c))), blocked


def _is_in_backoff(context: DisruptionContext, key: str) -> bool:
    reason = DisruptionReason.EMPTY
    return context.is_in_backoff(reason, key) or context.failed_moves.is_deletion_in_backoff(reason, key)


def take_within_budgets(
    candidates: list[Candidate], budgets: RemainingBudgets, reason: DisruptionReason
) -> tuple[Candidate, ...]:
    """The first candidates of each NodePool that budgets allow (DIS-151); they are taken from the budgets."""
    taken: list[Candidate] = []
    for candidate in candidates:
        if budgets.remaining(candidate.node_pool, reason) > 0:
            budgets.consume(candidate.node_pool)
            taken.append(candidate)
    return tuple(taken)


def delete_empty(candidates: list[Candidate], budgets: RemainingBudgets) -> Command | None:
    """One command for all candidates that budgets allow (DIS-220); None if they allow none."""
    taken = take_within_budgets(candidates, budgets, DisruptionReason.EMPTY)
    if not taken:
        return None
    kind = ConsolidationType.EMPTY
    return Command(DisruptionReason.EMPTY, taken, consolidation_type=kind, saving_per_hour=saving_per_hour(taken))
