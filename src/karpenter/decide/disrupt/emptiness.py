"""Emptiness: a node nobody needs goes after its quiet time, as far as budgets allow (DIS §4, §6, §9.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Snapshot
from karpenter.decide.disrupt.allowances import Allowances
from karpenter.decide.disrupt.candidates import Blocked, Circumstances, Judge, is_consolidatable
from karpenter.decide.disrupt.command import Candidate, DisruptionReason
from karpenter.decide.disrupt.costs import order
from karpenter.model import pods


@dataclass(frozen=True)
class Removal:
    """A machine that may go now."""

    view: NodeView
    pool: str
    reason: str = DisruptionReason.EMPTY.value


@dataclass(frozen=True)
class Emptiness:
    """The outcome: what goes, what would but may not, and the pools whose budget allows nothing at all (DIS-149).

    ``eligible`` is how many would go if no budget forbade it (DIS-414).
    """

    removals: tuple[Removal, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    closed_pools: tuple[str, ...] = ()
    eligible: int = 0


def empty_nodes(snapshot: Snapshot, now: datetime, is_nominated: Callable[[str], bool]) -> Emptiness:
    """Empty machines that may be removed now, within budgets. ``is_nominated`` says of a view's key whether pods are expected."""
    judge = Judge(snapshot, None, Circumstances(now, is_nominated))
    candidates, blocked = empty_candidates(snapshot, judge)
    allowances = Allowances(snapshot, now)
    allowed = within_budgets(candidates, allowances, DisruptionReason.EMPTY)
    wanted = {candidate.pool for candidate in candidates}
    closed = tuple(sorted(wanted & allowances.closed(DisruptionReason.EMPTY)))
    removals = tuple(Removal(candidate.view, candidate.pool) for candidate in allowed)
    return Emptiness(removals, tuple(blocked), closed, len(candidates))


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
