"""The disruption decision: from a snapshot to commands that do not hinder each other (DIS §3, §9).

All methods look at one snapshot in the order of DIS-055, and what one of them decides is settled for those after it; budgets
are shared. So drift and emptiness never wait for a search (Beyond of DIS-053), and every command of a pass can be carried out
at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from karpenter.capacitybuffer.buffer_placements import claims_without_buffer_pods, placed_without_buffer_pods
from karpenter.disruption.decide.balanced import MoveScoring
from karpenter.disruption.decide.candidate_set_search import MAX_CANDIDATES, CandidateSetSearch
from karpenter.disruption.decide.candidates import BlockedNode, CandidateChecks, DisruptionContext, is_consolidatable
from karpenter.disruption.decide.command import Candidate, Command, ConsolidationType, DisruptionReason
from karpenter.disruption.decide.consolidation import ConsolidationSettings, MoveEvaluator
from karpenter.disruption.decide.consolidation_delays import WorkloadRollouts, node_age_blocker
from karpenter.disruption.decide.consolidation_search import ConsolidationSearch
from karpenter.disruption.decide.drift_replacement import drift_candidates, replace_drifted, replace_drifted_static
from karpenter.disruption.decide.emptiness import empty_candidates, take_within_budgets
from karpenter.disruption.decide.multi_step import composed_commands
from karpenter.disruption.decide.projected_snapshot import after_commands
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets
from karpenter.disruption.decide.scheduling_simulation import SchedulingSimulation
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import pods
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.state import state_node
from karpenter.state.snapshot import ClusterSnapshot

#: So many steps are gone through on paper; each saves money, so there is an end, and it is near.
_MAX_STEPS = 16
_EMPTY, _DRIFTED, _UNDERUTILIZED = DisruptionReason.EMPTY, DisruptionReason.DRIFTED, DisruptionReason.UNDERUTILIZED


@dataclass(frozen=True)
class DisruptionOptions:
    """Settings a decision depends on: those of provisioning, and the gate SpotToSpotConsolidation (DIS-200)."""

    provisioning: SchedulingOptions = field(default_factory=SchedulingOptions)
    spot_to_spot: bool = False


@dataclass(frozen=True)
class DisruptionProblem:
    """Everything one decision depends on, except the prepared instance types, which callers cache between decisions."""

    snapshot: ClusterSnapshot
    context: DisruptionContext
    options: DisruptionOptions = DisruptionOptions()


@dataclass(frozen=True)
class DisruptionSolution:
    """The outcome.

    ``commands`` respect budgets together and can be carried out together, most urgent first. ``blocked``: machines that stay and
    why, each reason once. ``closed_pools``: by reason, pools that have candidates but whose budgets allow nothing at all, each
    with the field that says so (DIS-149). ``eligible``: by reason, how many machines would go if no budget forbade it (DIS-414).
    """

    commands: tuple[Command, ...] = ()
    blocked_nodes: tuple[BlockedNode, ...] = ()
    closed_pools: Mapping[DisruptionReason, Mapping[str, str]] = field(default_factory=dict)
    eligible_nodes: Mapping[DisruptionReason, int] = field(default_factory=dict)


def decide_disruption(problem: DisruptionProblem, indexes: Mapping[str, TypeIndex]) -> DisruptionSolution:
    """Which nodes to disrupt now, and how. ``indexes`` holds the prepared instance types of each NodePool, by name.

    Deterministic. Cheap if no node is a candidate. Otherwise the cluster is prepared once, and the cost of each what-if question
    grows with the pods it is about.
    """
    return _DisruptionPass(problem, indexes).solve()


class _DisruptionPass:
    """One decision while it is being made."""

    def __init__(self, problem: DisruptionProblem, indexes: Mapping[str, TypeIndex]) -> None:
        self._problem = problem
        self._snapshot, self._context, self._options = problem.snapshot, problem.context, problem.options
        self._indexes = indexes
        self._checks = CandidateChecks(self._snapshot, indexes, self._context)
        self._budgets = RemainingBudgets(self._snapshot, self._context.now)
        self._commands: list[Command] = []
        self._blocked: list[BlockedNode] = []
        self._closed_pools: dict[DisruptionReason, Mapping[str, str]] = {}
        self._eligible: dict[DisruptionReason, int] = {}
        self._closed_to_pods: frozenset[str] = frozenset()

    def solve(self) -> DisruptionSolution:
        """The whole of it."""
        empty = self._empty_candidates()
        moving, fixed, kept = drift_candidates(self._snapshot.nodes, self._checks, self._context)
        self._blocked += kept
        movable = self._consolidation_candidates()
        self._count_eligible(_EMPTY, empty)
        self._count_eligible(_DRIFTED, (*moving, *fixed))
        self._count_eligible(_UNDERUTILIZED, movable)
        gone = self._remove_empty(empty)
        fixed = [candidate for candidate in fixed if candidate.key not in gone]
        self._commands += replace_drifted_static(fixed, self._snapshot, self._indexes, self._budgets)
        moving = [candidate for candidate in moving if candidate.key not in gone]
        if moving or movable:
            self._replace_and_consolidate(moving, movable, gone | self._drifted_within_budgets((*moving, *fixed)))
        blocked = {(item.state_node.key, item.blocker.identity): item for item in self._blocked}
        commands = tuple(
            replace(_without_buffer_pods(command), decided_at=self._context.now) for command in self._commands
        )
        return DisruptionSolution(commands, tuple(blocked.values()), self._closed_pools, self._eligible)

    def _drifted_within_budgets(self, outdated: Iterable[Candidate]) -> set[str]:
        """Drifted machines whose turn will come: pods that move there would move twice."""
        return {candidate.key for candidate in outdated if self._budgets.allowed(candidate.node_pool, _DRIFTED)}

    def _count_eligible(self, reason: DisruptionReason, candidates: Iterable[Candidate]) -> None:
        found = tuple(candidates)
        self._eligible[reason] = len(found)
        closed = self._budgets.closed_pools(reason) if found else {}
        wanting = sorted({candidate.node_pool for candidate in found} & closed.keys())
        if wanting:
            self._closed_pools[reason] = {pool: closed[pool] for pool in wanting}

    # -- machines without pods ----------------------------------------------------------------------------------------------

    def _empty_candidates(self) -> list[Candidate]:
        candidates, blocked = empty_candidates(self._snapshot, self._checks)
        self._blocked += blocked
        return [c for c in candidates if not self._context.is_in_backoff(_EMPTY, c.key)]

    def _remove_empty(self, candidates: list[Candidate]) -> set[str]:
        """All that budgets allow go in one command (DIS-220)."""
        taken = take_within_budgets(candidates, self._budgets, _EMPTY)
        if taken:
            known = [candidate.price_per_hour for candidate in taken]
            saving = sum(price for price in known if price is not None) if None not in known else None
            kind = ConsolidationType.EMPTY
            self._commands.append(Command(_EMPTY, taken, consolidation_type=kind, saving_per_hour=saving))
        return {candidate.key for candidate in taken}

    # -- machines with pods -------------------------------------------------------------------------------------------------

    def _consolidation_candidates(self) -> list[Candidate]:
        """Machines that consolidation may look at (DIS-101)."""
        found: list[Candidate] = []
        pools = {pool.metadata.name: pool for pool in self._snapshot.pools}
        roll_outs = WorkloadRollouts(self._snapshot)
        for view in self._snapshot.nodes:
            if not self._checks.is_considered(view) or not any(pods.is_reschedulable(pod) for pod in view.pods):
                continue
            candidate = self._checks.candidate_or_blocker(view, _UNDERUTILIZED)
            if isinstance(candidate, BlockedNode):
                self._blocked.append(candidate)
                continue
            blocker = next(self._checks.consolidation_blockers(candidate), None)
            if blocker is not None:
                self._blocked.append(BlockedNode(view, blocker))
            elif is_consolidatable(view) and not self._context.is_in_backoff(_UNDERUTILIZED, view.key):
                too_young = node_age_blocker(candidate, pools[candidate.node_pool], self._context.now)
                delay = too_young or roll_outs.first_blocker(candidate)
                if delay is not None:
                    self._blocked.append(BlockedNode(view, delay))
                else:
                    found.append(candidate)
        return found

    def _replace_and_consolidate(
        self, drifted: list[Candidate], consolidatable: list[Candidate], closed_to_pods: set[str]
    ) -> None:
        """Drift, then consolidation of what is left. ``shut``: machines nobody moves to."""
        self._closed_to_pods = frozenset(closed_to_pods)
        world = self._simulation(closed_to_pods)
        commands, blocked = replace_drifted(drifted, world, self._budgets)
        self._commands += commands
        self._blocked += blocked
        taken = self._candidate_keys()
        hosting = {placed.node_key for command in commands for placed in command.placed_on_existing}
        left = [c for c in consolidatable if c.key not in taken and c.key not in hosting]
        if left:
            self._consolidate(left, world)

    def _candidate_keys(self) -> set[str]:
        return {candidate.key for command in self._commands for candidate in command.candidates}

    def _simulation(self, closed_to_pods: Iterable[str]) -> SchedulingSimulation:
        known = {view.key for view in self._snapshot.nodes}
        planned = (item for command in self._context.pending_commands for item in command.replacements)
        coming = [
            state_node.build_state_node(None, item.claim, state_node.NO_NODE_USAGE, marked=False)
            for item in planned
            if item.name not in known
        ]
        options = self._options.provisioning
        world = SchedulingSimulation(self._snapshot, self._indexes, self._context, options, self._checks, coming)
        world.close(closed_to_pods)
        return world

    def _consolidate(self, candidates: list[Candidate], simulation: SchedulingSimulation) -> None:
        chosen = self._context.pending_commands
        found = self._search(candidates, simulation, self._budgets.copy(), chosen)
        first = (
            found.commands if chosen or self._has_relocations() else self._improved_if_few(candidates, found.commands)
        )
        views = {candidate.key: candidate.state_node for candidate in candidates}
        self._blocked += [BlockedNode(views[key], found.rejections[key]) for key in sorted(found.rejections)]
        commands = first if found.limited_by_budgets or chosen else self._with_follow_up_steps(candidates, first)
        self._commands += commands
        for candidate in (candidate for command in commands for candidate in command.candidates):
            self._budgets.consume(candidate.node_pool)

    def _with_follow_up_steps(self, candidates: Sequence[Candidate], first: tuple[Command, ...]) -> tuple[Command, ...]:
        """The moves, and what would follow once they are done, as one way (anti-churn)."""
        if self._has_relocations():
            return first  # drift moves pods as well; what comes of both is seen in the next pass
        best = first
        known = {candidate.key for candidate in candidates} | self._candidate_keys()
        steps = [*first]
        snapshot, step = self._snapshot, (*self._commands, *first)
        for _ in range(_MAX_STEPS if first else 0):
            snapshot = after_commands(snapshot, step, self._indexes)
            context = replace(self._context, pending_commands=())
            later = _DisruptionPass(replace(self._problem, snapshot=snapshot, context=context), self._indexes)
            step = later._consolidation_commands()
            if not step:
                break
            steps += step
            end = after_commands(snapshot, step, self._indexes)
            scales = MoveScoring(self._snapshot, self._checks.prices)
            found = composed_commands(candidates, end, steps, scales)
            vanished = {view.key for view in self._snapshot.nodes} - {view.key for view in end.nodes}
            if found is None or not vanished <= known or not self._is_within_budgets(found):
                break
            if not all(scales.are_acceptable(command.scores, command.saving_per_hour) for command in found):
                break
            best = found
        return best

    def _has_relocations(self) -> bool:
        """Whether something was decided that gives pods another place."""
        return any(command.placed_on_existing or command.replacements for command in self._commands)

    def _improved_if_few(self, candidates: Sequence[Candidate], commands: tuple[Command, ...]) -> tuple[Command, ...]:
        """The moves, or where there are few machines what is worth more."""
        if not commands or len(candidates) > MAX_CANDIDATES:
            return commands
        moves, left = self._consolidation_setup(candidates, self._simulation(self._closed_to_pods))
        better = CandidateSetSearch(left, moves, self._budgets).improvement_on(commands)
        return commands if better is None else (better,)

    def _consolidation_commands(self) -> tuple[Command, ...]:
        """What would be moved for money, whatever else there is to do."""
        movable = self._consolidation_candidates()
        if not movable:
            return ()
        return self._improved_if_few(
            movable, self._search(movable, self._simulation(()), self._budgets.copy()).commands
        )

    def _is_within_budgets(self, commands: Iterable[Command]) -> bool:
        taken = Counter(candidate.node_pool for command in commands for candidate in command.candidates)
        return all(number <= self._budgets.remaining(pool, _UNDERUTILIZED) for pool, number in taken.items())

    def _search(
        self,
        candidates: Sequence[Candidate],
        simulation: SchedulingSimulation,
        budgets: RemainingBudgets,
        pending_commands: Iterable[Command] = (),
    ) -> ConsolidationSearch:
        moves, left = self._consolidation_setup(candidates, simulation)
        replan = ConsolidationSearch(left, moves, budgets)
        replan.run(pending_commands)
        return replan

    def _consolidation_setup(
        self, candidates: Iterable[Candidate], simulation: SchedulingSimulation
    ) -> tuple[MoveEvaluator, list[Candidate]]:
        """The world opened for moves for money, and those of the machines that nobody who waits is going to need."""
        simulation.close_within_consolidate_after()
        scales = MoveScoring(self._snapshot, self._checks.prices)
        moves = MoveEvaluator(simulation, scales, ConsolidationSettings(self._options.spot_to_spot))
        return moves, [candidate for candidate in candidates if candidate.key not in simulation.nominated]


def _without_buffer_pods(command: Command) -> Command:
    """As it is carried out: nobody waits for the virtual pods of capacity buffers, they only make sure of room."""
    return replace(
        command,
        placed_on_existing=placed_without_buffer_pods(command.placed_on_existing),
        replacements=claims_without_buffer_pods(command.replacements),
    )
