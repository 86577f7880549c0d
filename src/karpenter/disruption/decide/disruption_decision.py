"""The disruption decision: from a problem to commands that do not interfere with each other (DIS §3, §9).

Each method has its own module: ``emptiness``, ``drift``, ``consolidation``. This module is their order (DIS-055). All methods
read one snapshot. What one method decides is applied to the simulation of the next, and budgets are shared. So drift and
emptiness never wait for a consolidation search (Beyond of DIS-053), and all commands of a pass can be executed at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from karpenter.capacitybuffer.buffer_placements import claims_without_buffer_pods, placed_without_buffer_pods
from karpenter.disruption.decide.candidates import BlockedNode
from karpenter.disruption.decide.command import Candidate, Command, DisruptionReason
from karpenter.disruption.decide.consolidation import Consolidation, PrecedingCommands, consolidation_candidates
from karpenter.disruption.decide.consolidation_memory import DisruptionMemory, consolidation_inputs
from karpenter.disruption.decide.disruption_problem import DisruptionProblem, DisruptionSolution, prepare
from karpenter.disruption.decide.drift import DriftLimits, drift_candidates, replace_drifted, replace_drifted_static
from karpenter.disruption.decide.emptiness import delete_empty, empty_candidates
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets
from karpenter.disruption.decide.repair import RepairCommands, broken_keys, repair_candidates
from karpenter.disruption.decide.scheduling_simulation import simulate
from karpenter.disruption.decide.sleep import delete_asleep, sleep_candidates
from karpenter.disruption.decide.static_replacements import StaticReplacements
from karpenter.disruption.decide.terminate_first import FreedReservations
from karpenter.instancetypes.type_index import TypeIndex

_EMPTY, _DRIFTED, _UNDERUTILIZED = DisruptionReason.EMPTY, DisruptionReason.DRIFTED, DisruptionReason.UNDERUTILIZED
_UNHEALTHY = DisruptionReason.UNHEALTHY


def decide_disruption(
    problem: DisruptionProblem, indexes: Mapping[str, TypeIndex], memory: DisruptionMemory | None = None
) -> DisruptionSolution:
    """Which nodes to disrupt now, and how. ``indexes`` holds the prepared instance types of each NodePool, by name.

    ``memory``: what earlier decisions of the same caller left. It saves time and changes nothing.

    Deterministic. Cheap if no node is a candidate. Otherwise the cluster is prepared once, and the cost of each what-if question
    grows with the pods it is about.
    """
    return _DisruptionPass(problem, indexes, memory).solve()


class _DisruptionPass:
    """One decision while it is being made."""

    def __init__(
        self, problem: DisruptionProblem, indexes: Mapping[str, TypeIndex], memory: DisruptionMemory | None
    ) -> None:
        memory = memory or DisruptionMemory()
        self._prepared = prepare(problem, indexes, memory.packings)
        self._consolidation_memory = memory.consolidation
        self._budgets = RemainingBudgets(problem.snapshot, problem.context.now)
        self._static = StaticReplacements(problem.snapshot, indexes)
        self._commands: list[Command] = []
        self._blocked: list[BlockedNode] = []
        self._closed_pools: dict[DisruptionReason, Mapping[str, str]] = {}
        self._eligible: dict[DisruptionReason, int] = {}

    def solve(self) -> DisruptionSolution:
        """All methods in their order."""
        prepared = self._prepared
        asleep = self._delete_asleep()
        if self._repair(asleep):
            return self._solution()
        empty, blocked_empty = empty_candidates(prepared)
        drifted, drifted_static, blocked_drifted = drift_candidates(
            prepared.snapshot.nodes, prepared.checks, prepared.context
        )
        consolidatable, blocked_consolidation = consolidation_candidates(prepared)
        empty, drifted, drifted_static, consolidatable = (
            [candidate for candidate in candidates if candidate.node_pool not in asleep]
            for candidates in (empty, drifted, drifted_static, consolidatable)
        )
        self._blocked += (*blocked_empty, *blocked_drifted, *blocked_consolidation)
        self._count_eligible(_EMPTY, empty)
        self._count_eligible(_DRIFTED, (*drifted, *drifted_static))
        self._count_eligible(_UNDERUTILIZED, consolidatable)
        deleted = self._delete_empty(empty)
        drifted_static = [candidate for candidate in drifted_static if candidate.key not in deleted]
        commands, blocked_static = replace_drifted_static(
            drifted_static,
            self._static,
            self._budgets,
            prepared.context.failed_moves,
            may_go_first=prepared.problem.options.terminate_first_drift,
        )
        self._commands += commands
        self._blocked += blocked_static
        drifted = [candidate for candidate in drifted if candidate.key not in deleted]
        if drifted or consolidatable:
            closed = deleted | self._drifted_within_budgets((*drifted, *drifted_static))
            preceding = PrecedingCommands(tuple(self._commands), closed)
            if drifted or preceding.move_pods:
                self._replace_and_consolidate(drifted, consolidatable, closed)
            else:
                self._consolidate_unless_remembered(consolidatable, preceding)
        return self._solution()

    def _solution(self) -> DisruptionSolution:
        blocked = {
            (blocked_node.state_node.key, blocked_node.blocker.identity): blocked_node for blocked_node in self._blocked
        }
        now = self._prepared.context.now
        commands = tuple(replace(_without_buffer_pods(command), decided_at=now) for command in self._commands)
        return DisruptionSolution(commands, tuple(blocked.values()), self._closed_pools, self._eligible)

    def _repair(self, asleep: frozenset[str]) -> bool:
        """Decide repair (K15-200); whether a node is repaired, which ends the pass: everything else waits (K15-229)."""
        found, blocked = repair_candidates(self._prepared)
        candidates = [one for one in found if one.candidate.node_pool not in asleep]
        self._blocked += blocked
        self._count_eligible(_UNHEALTHY, [one.candidate for one in candidates])
        if not candidates:
            return False
        closed = broken_keys(candidates)
        freed = (
            FreedReservations(self._prepared, closed) if self._prepared.problem.options.terminate_first_repair else None
        )
        repairs = RepairCommands(self._prepared, self._budgets, simulate(self._prepared, closed), self._static, freed)
        commands, unplaceable = repairs.decide(candidates)
        self._commands += commands
        self._blocked += unplaceable
        return bool(commands)

    def _drifted_within_budgets(self, drifted: Iterable[Candidate]) -> frozenset[str]:
        """Drifted nodes that will be replaced soon: pods that move there would move twice."""
        return frozenset(candidate.key for candidate in drifted if self._budgets.allowed(candidate.node_pool, _DRIFTED))

    def _count_eligible(self, reason: DisruptionReason, candidates: Iterable[Candidate]) -> None:
        eligible = tuple(candidates)
        self._eligible[reason] = len(eligible)
        closed = self._budgets.closed_pools(reason) if eligible else {}
        waiting = sorted({candidate.node_pool for candidate in eligible} & closed.keys())
        if waiting:
            self._closed_pools[reason] = {pool: closed[pool] for pool in waiting}

    def _delete_asleep(self) -> frozenset[str]:
        """Decide sleep; the NodePools that are draining for it, in which no other method disrupts anything."""
        sleeping = self._prepared.snapshot.sleeping_pools
        draining = frozenset(name for name, sleep in sleeping.items() if sleep.is_draining)
        if draining:
            candidates, blocked = sleep_candidates(self._prepared)
            self._blocked += blocked
            self._count_eligible(DisruptionReason.SLEEP, candidates)
            command = delete_asleep(self._prepared, candidates, self._budgets)
            self._commands += () if command is None else (command,)
        return draining

    def _delete_empty(self, candidates: list[Candidate]) -> frozenset[str]:
        """Decide emptiness; the keys of the nodes that are deleted."""
        command = delete_empty(candidates, self._budgets)
        if command is None:
            return frozenset()
        self._commands.append(command)
        return frozenset(candidate.key for candidate in command.candidates)

    def _consolidate_unless_remembered(self, candidates: list[Candidate], preceding: PrecedingCommands) -> None:
        """Consolidation, unless it found nothing for the same inputs lately."""
        inputs = consolidation_inputs(self._prepared, candidates, preceding, self._budgets)
        remembered = None if inputs is None else self._consolidation_memory.recall(inputs, candidates)
        if remembered is not None:
            self._blocked += remembered
            return
        commands_before, already_blocked = len(self._commands), len(self._blocked)
        self._replace_and_consolidate([], candidates, preceding.closed_to_pods)
        if inputs is not None and len(self._commands) == commands_before:
            self._consolidation_memory.remember(inputs, self._blocked[already_blocked:])

    def _replace_and_consolidate(
        self, drifted: list[Candidate], consolidatable: list[Candidate], closed_to_pods: frozenset[str]
    ) -> None:
        """Drift, then consolidation of the candidates that drift neither takes nor needs."""
        prepared_simulation = simulate(self._prepared, closed_to_pods)
        limits = DriftLimits(self._prepared.snapshot, empty_first=self._prepared.problem.options.empty_first)
        goes_first = self._prepared.problem.options.terminate_first_drift
        freed = FreedReservations(self._prepared, closed_to_pods) if goes_first else None
        failed_moves = self._prepared.context.failed_moves.after_all(self._commands)
        commands, blocked, simulation = replace_drifted(
            drifted, prepared_simulation, self._budgets, limits, failed_moves, freed
        )
        self._commands += commands
        self._blocked += blocked
        preceding = PrecedingCommands(tuple(self._commands), closed_to_pods)
        hosting = {placed.node_key for command in commands for placed in command.placed_on_existing}
        taken = preceding.candidate_keys | hosting
        remaining = [candidate for candidate in consolidatable if candidate.key not in taken]
        if remaining:
            consolidation = Consolidation(self._prepared, self._budgets, preceding)
            moves, rejected = consolidation.consolidate(remaining, simulation)
            self._commands += moves
            self._blocked += rejected


def _without_buffer_pods(command: Command) -> Command:
    """The command as it is executed: virtual pods of capacity buffers only reserve room, nothing waits for them."""
    return replace(
        command,
        placed_on_existing=placed_without_buffer_pods(command.placed_on_existing),
        replacements=claims_without_buffer_pods(command.replacements),
    )
