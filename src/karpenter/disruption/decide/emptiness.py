"""Emptiness: a node nobody needs goes after its quiet time, as far as budgets allow (DIS §4, §6, §9.1)."""

from __future__ import annotations

from karpenter.disruption.decide.candidates import BlockedNode, CandidateChecks, is_consolidatable
from karpenter.disruption.decide.command import Candidate, DisruptionReason
from karpenter.disruption.decide.costs import candidate_order
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets
from karpenter.model import pods
from karpenter.state.snapshot import ClusterSnapshot


def empty_candidates(snapshot: ClusterSnapshot, checks: CandidateChecks) -> tuple[list[Candidate], list[BlockedNode]]:
    """Empty machines that would go if budgets let them, best first, and those that are kept for another reason."""
    candidates: list[Candidate] = []
    blocked: list[BlockedNode] = []
    for view in snapshot.nodes:
        if not checks.is_considered(view) or any(pods.is_reschedulable(pod) for pod in view.pods):
            continue
        candidate = checks.candidate_or_blocker(view, DisruptionReason.EMPTY)
        if isinstance(candidate, BlockedNode):
            blocked.append(candidate)
            continue
        blocker = checks.emptiness_blocker(candidate)
        if blocker is not None:
            blocked.append(BlockedNode(view, blocker))
        elif is_consolidatable(view):
            candidates.append(candidate)
    return sorted(candidates, key=candidate_order), blocked


def take_within_budgets(
    candidates: list[Candidate], budgets: RemainingBudgets, reason: DisruptionReason
) -> tuple[Candidate, ...]:
    """The first candidates of each pool that budgets allow (DIS-151); they are taken from the allowances."""
    kept: list[Candidate] = []
    for candidate in candidates:
        if budgets.remaining(candidate.node_pool, reason) > 0:
            budgets.consume(candidate.node_pool)
            kept.append(candidate)
    return tuple(kept)
