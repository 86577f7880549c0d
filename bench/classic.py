"""Consolidation by the rules of the reference (DIS §9.4, §9.5), to be compared with: not what the product does.

One command a pass: the largest prefix of the ordered candidates that can go with at most one node in their place, found by
bisection, else the first single node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from karpenter.disruption.decide.balanced import MoveScoring
from karpenter.disruption.decide.candidates import BlockedNode, DisruptionContext, is_consolidatable
from karpenter.disruption.decide.command import Candidate, Command, DisruptionReason
from karpenter.disruption.decide.costs import candidate_order
from karpenter.disruption.decide.disruption_problem import DisruptionProblem, prepare
from karpenter.disruption.decide.emptiness import empty_candidates, take_within_budgets
from karpenter.disruption.decide.move_evaluation import ConsolidationSettings, MoveEvaluator
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets
from karpenter.disruption.decide.scheduling_simulation import prepare_simulation
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.state.snapshot import ClusterSnapshot

_EMPTY, _REASON = DisruptionReason.EMPTY, DisruptionReason.UNDERUTILIZED
_LARGEST_SET = 100


def classic(
    snapshot: ClusterSnapshot, indexes: Mapping[str, TypeIndex], circumstances: DisruptionContext
) -> Command | None:
    """The one command of a pass; None where there is none."""
    prepared = prepare(DisruptionProblem(snapshot, circumstances), indexes)
    judge = prepared.checks
    allowances = RemainingBudgets(snapshot, circumstances.now)
    empty = take_within_budgets(empty_candidates(prepared)[0], allowances, _EMPTY)
    if empty:
        return Command(_EMPTY, empty, saving_per_hour=sum(candidate.price_per_hour or 0.0 for candidate in empty))
    candidates = [
        found
        for view in snapshot.nodes
        if is_consolidatable(view)
        and view.pods
        and not isinstance(found := judge.candidate_or_blocker(view, _REASON), BlockedNode)
    ]
    candidates.sort(key=candidate_order)
    world = prepare_simulation(snapshot, indexes, circumstances, SchedulingOptions(), judge)
    moves = MoveEvaluator(world, MoveScoring(snapshot, judge.prices), ConsolidationSettings())
    return _several(candidates, moves, allowances.copy()) or _single(candidates, moves, allowances)


def _several(candidates: Sequence[Candidate], moves: MoveEvaluator, allowances: RemainingBudgets) -> Command | None:
    allowed = take_within_budgets(list(candidates), allowances, _REASON)
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


def _single(candidates: Sequence[Candidate], moves: MoveEvaluator, allowances: RemainingBudgets) -> Command | None:
    for candidate in candidates:
        if allowances.remaining(candidate.node_pool, _REASON) > 0:
            found = _one_for_many((candidate,), moves)
            if found is not None:
                return found
    return None


def _one_for_many(candidates: Sequence[Candidate], moves: MoveEvaluator) -> Command | None:
    found = moves.replace(candidates)
    return found if isinstance(found, Command) and len(found.replacements) <= 1 else None
