"""Emptiness: a node nobody needs goes after its quiet time, as far as budgets allow (DIS §4, §6, §9.1)."""

from __future__ import annotations

from karpenter.cluster.snapshot import Snapshot
from karpenter.decide.disrupt.allowances import Allowances
from karpenter.decide.disrupt.candidates import Blocked, Judge, is_consolidatable
from karpenter.decide.disrupt.command import Candidate, DisruptionReason
from karpenter.decide.disrupt.costs import order
from karpenter.model import pods


def empty_candidates(snapshot: Snapshot, judge: Judge) -> tuple[list[Candidate], list[Blocked]]:
    """Empty machines that would go if budgets let them, best first, and those that are kept for another reason."""
    candidates: list[Candidate] = []
    blocked: list[Blocked] = []
    for view in snapshot.nodes:
        if not judge.is_ours(view) or any(pods.needs_a_place(pod) for pod in view.pods):
            continue
        found = judge.candidate(view, DisruptionReason.EMPTY)
        obstacle = found if isinstance(found, Blocked) else judge.for_emptiness(found)
        if obstacle is not None:
            blocked.append(obstacle)
        elif isinstance(found, Candidate) and is_consolidatable(view):
            candidates.append(found)
    return sorted(candidates, key=order), blocked


def within_budgets(
    candidates: list[Candidate], allowances: Allowances, reason: DisruptionReason
) -> tuple[Candidate, ...]:
    """The first candidates of each pool that budgets allow (DIS-151); they are taken from the allowances."""
    kept: list[Candidate] = []
    for candidate in candidates:
        if allowances.left(candidate.pool, reason) > 0:
            allowances.take(candidate.pool)
            kept.append(candidate)
    return tuple(kept)
