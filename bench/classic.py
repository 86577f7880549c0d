"""Consolidation by the rules of the reference (DIS §9.4, §9.5), to be compared with: not what the product does.

One command a pass: the largest prefix of the ordered candidates that can go with at most one machine in their place, found by
bisection, else the first single machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from karpenter.catalog.index import TypeIndex
from karpenter.cluster.snapshot import Snapshot
from karpenter.decide.disrupt.allowances import Allowances
from karpenter.decide.disrupt.balanced import Scales
from karpenter.decide.disrupt.candidates import Blocked, Circumstances, Judge, is_consolidatable
from karpenter.decide.disrupt.command import Candidate, Command, DisruptionReason
from karpenter.decide.disrupt.costs import order
from karpenter.decide.disrupt.emptiness import empty_candidates, within_budgets
from karpenter.decide.disrupt.moves import Moves, Settings
from karpenter.decide.disrupt.simulation import World
from karpenter.decide.provision import Options

_EMPTY, _REASON = DisruptionReason.EMPTY, DisruptionReason.UNDERUTILIZED
_LARGEST_SET = 100


def classic(snapshot: Snapshot, indexes: Mapping[str, TypeIndex], circumstances: Circumstances) -> Command | None:
    """The one command of a pass; None where there is none."""
    judge = Judge(snapshot, indexes, circumstances)
    allowances = Allowances(snapshot, circumstances.now)
    empty = within_budgets(empty_candidates(snapshot, judge)[0], allowances, _EMPTY)
    if empty:
        return Command(_EMPTY, empty, saving_per_hour=sum(candidate.price_per_hour or 0.0 for candidate in empty))
    candidates = [
        found
        for view in snapshot.nodes
        if is_consolidatable(view) and view.pods and not isinstance(found := judge.candidate(view, _REASON), Blocked)
    ]
    candidates.sort(key=order)
    world = World(snapshot, indexes, circumstances, Options(), judge)
    moves = Moves(world, Scales(snapshot, judge.prices), Settings())
    return _several(candidates, moves, allowances.copy()) or _single(candidates, moves, allowances)


def _several(candidates: Sequence[Candidate], moves: Moves, allowances: Allowances) -> Command | None:
    allowed = within_budgets(list(candidates), allowances, _REASON)
    best: Command | None = None
    low, high = 1, min(_LARGEST_SET, len(allowed)) - 1
    while low <= high:
        middle = (low + high) // 2
        found = _one_for_many(allowed[: middle + 1], moves)
        if found is not None:
            best, low = found, middle + 1
        else:
            high = middle - 1
    return best


def _single(candidates: Sequence[Candidate], moves: Moves, allowances: Allowances) -> Command | None:
    for candidate in candidates:
        if allowances.left(candidate.pool, _REASON) > 0:
            found = _one_for_many((candidate,), moves)
            if found is not None:
                return found
    return None


def _one_for_many(candidates: Sequence[Candidate], moves: Moves) -> Command | None:
    found = moves.replace(candidates)
    return found if isinstance(found, Command) and len(found.replacements) <= 1 else None
