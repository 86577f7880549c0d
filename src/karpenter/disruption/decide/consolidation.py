"""Consolidation: nodes with pods go if their pods fit elsewhere for less money (DIS §8, §9.3, §10).

Four parts, each in its own module: ``move_evaluation`` judges one move, ``consolidation_search`` finds the moves of a pass,
``candidate_set_search`` improves them where there are few candidates, ``multi_step`` merges moves that follow each other. This
module is their order.

Why steps are merged: a pass may enable further moves, since a node that took pods may itself become unnecessary. Executed one
after the other, some pods would move twice. So follow-up steps are computed on a projected snapshot until none is left, and the
commands lead from the cluster as it is straight to the end. Each step costs one more search on a smaller problem, and at most
``_MAX_STEPS`` are made. This is skipped if budgets limit the search, if commands await validation (they must stay comparable),
or if drift moves pods in the same pass.

A follow-up step may be worth it only because the steps before it made its NodePool cheaper. Nodes of it that took pods in this
pass go with the nodes that these pods are from, if all of them are worth it together. Otherwise its nodes stay in this pass, and
take no pods in it: they would move twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from karpenter.disruption.decide.balanced import MoveScoring
from karpenter.disruption.decide.candidate_set_search import MAX_CANDIDATES, CandidateSetSearch
from karpenter.disruption.decide.candidates import BlockedNode, is_consolidatable
from karpenter.disruption.decide.command import Candidate, Command, DisruptionReason, PendingCommand
from karpenter.disruption.decide.connected_parts import split_into_parts
from karpenter.disruption.decide.consolidation_delays import node_age_blocker
from karpenter.disruption.decide.consolidation_search import ConsolidationResult, ConsolidationSearch
from karpenter.disruption.decide.disruption_problem import PreparedDisruption, prepare
from karpenter.disruption.decide.move_blockers import MoveBlocker, SavingTooSmall
from karpenter.disruption.decide.move_evaluation import ConsolidationSettings, MoveEvaluator
from karpenter.disruption.decide.multi_step import CommandPricing, composed_commands
from karpenter.disruption.decide.projected_snapshot import after_commands
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets
from karpenter.disruption.decide.scheduling_simulation import SchedulingSimulation, simulate
from karpenter.disruption.decide.stabilization_window import StabilizationWindow
from karpenter.disruption.decide.workload_rollouts import WorkloadRollouts
from karpenter.model.consolidation_thresholds import consolidation_thresholds
from karpenter.state.snapshot import ClusterSnapshot

#: Limit on follow-up steps. Each saves money, so the series ends by itself, normally after one or two.
_MAX_STEPS = 16
_ROUNDING = 1e-9
_REASON = DisruptionReason.UNDERUTILIZED


def consolidation_candidates(prepared: PreparedDisruption) -> tuple[list[Candidate], list[BlockedNode]]:
    """Nodes that are not empty and that consolidation may consider (DIS-101), and those that are blocked.

    As during ``consolidateAfter``, nothing is reported of nodes within their stabilization window.
    """
    checks, context, defaults = prepared.checks, prepared.context, prepared.problem.options.consolidation
    candidates: list[Candidate] = []
    blocked: list[BlockedNode] = []
    thresholds = {pool.metadata.name: consolidation_thresholds(pool, defaults) for pool in prepared.snapshot.pools}
    rollouts = WorkloadRollouts(prepared.snapshot, context.now)
    window = StabilizationWindow(prepared.snapshot, context.now, defaults.stabilization_window)
    pending_keys = {key for command in context.pending_commands for key in command.candidate_keys}
    for node in prepared.snapshot.nodes:
        if not checks.is_considered(node) or node.is_empty:
            continue
        candidate = checks.candidate_or_blocker(node, _REASON)
        if isinstance(candidate, BlockedNode):
            blocked.append(candidate)
            continue
        blocker = next(checks.consolidation_blockers(candidate), None)
        if blocker is not None:
            blocked.append(BlockedNode(node, blocker))
        elif is_consolidatable(node) and not context.is_in_backoff(_REASON, node.key):
            too_young = node_age_blocker(candidate, thresholds[candidate.node_pool], context.now)
            delay = too_young or (rollouts.first_blocker(candidate) if defaults.wait_for_rollouts else None)
            if delay is not None:
                blocked.append(BlockedNode(node, delay))
            elif node.key in pending_keys or window.blocker(node) is None:
                candidates.append(candidate)
    return candidates, blocked


@dataclass(frozen=True)
class PrecedingCommands:
    """What the pass decided before consolidation, and the nodes (by key) that take no pods because of it."""

    commands: tuple[Command, ...] = ()
    closed_to_pods: frozenset[str] = frozenset()

    @property
    def candidate_keys(self) -> frozenset[str]:
        """The nodes of all these commands."""
        return frozenset(candidate.key for command in self.commands for candidate in command.candidates)

    @property
    def move_pods(self) -> bool:
        """Whether pods need another place because of one of them, planned or not."""
        return any(command.replacements or command.pod_restarts for command in self.commands)


@dataclass(frozen=True)
class _MergedSteps:
    """Moves of a pass. ``too_small_now``: nodes, by key, that go only once the moves have made their pool cheaper (DIS-253)."""

    commands: tuple[Command, ...]
    too_small_now: Mapping[str, SavingTooSmall] = field(default_factory=dict)


class Consolidation:
    """Consolidation of one pass. ``budgets`` are only read."""

    def __init__(self, prepared: PreparedDisruption, budgets: RemainingBudgets, preceding: PrecedingCommands) -> None:
        self._prepared = prepared
        self._budgets = budgets
        self._preceding = preceding
        self._failed_moves = prepared.context.failed_moves.after_all(preceding.commands)

    def consolidate(
        self, candidates: Sequence[Candidate], simulation: SchedulingSimulation
    ) -> tuple[tuple[Command, ...], list[BlockedNode]]:
        """The commands, and the candidates that were evaluated and stay. ``simulation`` has the preceding commands applied."""
        pending = self._prepared.context.pending_commands
        result = self._search(candidates, simulation, pending)
        commands = result.commands
        rejections: dict[str, MoveBlocker] = dict(result.rejections)
        if not pending and not self._preceding.move_pods:
            commands = self._improved_if_few(candidates, commands)
            if not result.limited_by_budgets:
                pricing = CommandPricing(self._scoring, simulation.arrivals)
                closed_to_pods = self._preceding.closed_to_pods
                merged = self._with_follow_up_steps(candidates, commands, pricing, closed_to_pods)
                merged = self._without_pods_on_nodes_that_go_next(candidates, merged, pricing)
                commands = merged.commands
                rejections |= merged.too_small_now
        for candidate in (candidate for command in commands for candidate in command.candidates):
            rejections.pop(candidate.key, None)
        nodes = {candidate.key: candidate.state_node for candidate in candidates}
        rejected = [BlockedNode(nodes[key], rejections[key]) for key in sorted(rejections)]
        return commands, rejected

    def _without_pods_on_nodes_that_go_next(
        self, candidates: Sequence[Candidate], merged: _MergedSteps, pricing: CommandPricing
    ) -> _MergedSteps:
        """The moves, none of them to a node that a later pass removes, if such moves save as much: a pod would move twice."""
        going_next = merged.too_small_now.keys()
        hosts = {placed.node_key for command in merged.commands for placed in command.placed_on_existing}
        if not going_next & hosts:
            return merged
        closed_to_pods = self._preceding.closed_to_pods | going_next
        first = self._search(candidates, simulate(self._prepared, closed_to_pods), ()).commands
        others = self._with_follow_up_steps(candidates, first, pricing, closed_to_pods)
        is_as_good = _total_saving(others.commands) >= _total_saving(merged.commands) - _ROUNDING
        return others if is_as_good else merged

    def _with_follow_up_steps(
        self,
        candidates: Sequence[Candidate],
        first: tuple[Command, ...],
        pricing: CommandPricing,
        closed_to_pods: frozenset[str],
    ) -> _MergedSteps:
        """The moves merged with those that would follow once they are done, which take no pods to the closed nodes either."""
        best = _MergedSteps(first)
        steps = [*first]
        snapshot, step = self._prepared.snapshot, (*self._preceding.commands, *first)
        for _ in range(_MAX_STEPS if first else 0):
            snapshot = after_commands(snapshot, step, self._prepared.indexes)
            step = self._next_step(snapshot, closed_to_pods)
            if not step:
                break
            steps += step
            end = after_commands(snapshot, step, self._prepared.indexes)
            composed = self._composed(candidates, end, steps, pricing)
            if composed is None:
                break
            too_small = self._too_small(composed, pricing.scoring)
            if too_small:
                return replace(best, too_small_now=too_small)
            best = _MergedSteps(composed)
        return best

    def _next_step(self, snapshot: ClusterSnapshot, closed_to_pods: frozenset[str]) -> tuple[Command, ...]:
        """What consolidation would do next, on a projected snapshot."""
        context = replace(self._prepared.context, pending_commands=())
        problem = replace(self._prepared.problem, snapshot=snapshot, context=context)
        prepared = prepare(problem, self._prepared.indexes, self._prepared.memory)
        candidates, _ = consolidation_candidates(prepared)
        if not candidates:
            return ()
        preceding = PrecedingCommands(closed_to_pods=closed_to_pods)
        later = Consolidation(prepared, RemainingBudgets(snapshot, context.now), preceding)
        result = later._search(candidates, simulate(prepared, closed_to_pods), ())
        return later._improved_if_few(candidates, result.commands)

    def _composed(
        self, candidates: Sequence[Candidate], end: ClusterSnapshot, steps: Sequence[Command], pricing: CommandPricing
    ) -> tuple[Command, ...] | None:
        """All steps merged; None if that is impossible, beyond budgets, or failed lately."""
        composed = composed_commands(candidates, end, steps, pricing)
        may_go = {candidate.key for candidate in candidates} | self._preceding.candidate_keys
        removed = {node.key for node in self._prepared.snapshot.nodes} - {node.key for node in end.nodes}
        if composed is None or not removed <= may_go or not self._is_within_budgets(composed):
            return None
        failed_moves = self._failed_moves
        for command in composed:
            if failed_moves.has_in_backoff(command):
                return None
            failed_moves = failed_moves.after(command)
        return composed

    @staticmethod
    def _too_small(commands: Iterable[Command], scoring: MoveScoring) -> Mapping[str, SavingTooSmall]:
        """By key, the nodes of the commands that are not worth what they disrupt while the other nodes still cost something."""
        return {
            candidate.key: SavingTooSmall(command.saving_per_hour or 0.0, scoring.minimum_saving(command.candidates))
            for command in commands
            if not scoring.are_acceptable(command.scores, command.saving_per_hour)
            for candidate in command.candidates
        }

    def _improved_if_few(self, candidates: Sequence[Candidate], commands: tuple[Command, ...]) -> tuple[Command, ...]:
        """The moves, or one of a higher net saving where there are few candidates."""
        if not commands or len(candidates) > MAX_CANDIDATES:
            return commands
        simulation = simulate(self._prepared, self._preceding.closed_to_pods)
        evaluator, remaining = self._evaluator(candidates, simulation)
        better = CandidateSetSearch(remaining, evaluator, self._budgets).improvement_on(commands)
        return commands if better is None else split_into_parts(better, evaluator)

    def _is_within_budgets(self, commands: Iterable[Command]) -> bool:
        taken = Counter(candidate.node_pool for command in commands for candidate in command.candidates)
        return all(number <= self._budgets.remaining(pool, _REASON) for pool, number in taken.items())

    def _search(
        self,
        candidates: Sequence[Candidate],
        simulation: SchedulingSimulation,
        pending_commands: Iterable[PendingCommand],
    ) -> ConsolidationResult:
        evaluator, remaining = self._evaluator(candidates, simulation)
        return ConsolidationSearch(remaining, evaluator, self._budgets.copy()).run(pending_commands)

    def _evaluator(
        self, candidates: Iterable[Candidate], simulation: SchedulingSimulation
    ) -> tuple[MoveEvaluator, list[Candidate]]:
        """The simulation opened for moves that save money, and the candidates that no pending pod needs."""
        settings = ConsolidationSettings(self._prepared.problem.options.spot_to_spot, self._failed_moves)
        evaluator = MoveEvaluator(simulation.closed_within_consolidate_after(), self._scoring, settings)
        return evaluator, [candidate for candidate in candidates if candidate.key not in simulation.nominated]

    @cached_property
    def _scoring(self) -> MoveScoring:
        return MoveScoring(
            self._prepared.snapshot, self._prepared.checks.prices, self._prepared.problem.options.consolidation
        )


def _total_saving(commands: Iterable[Command]) -> float:
    """USD per hour."""
    return sum(command.saving_per_hour or 0.0 for command in commands)
