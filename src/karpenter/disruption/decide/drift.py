"""Drift: how nodes with the condition Drifted are replaced (DIS §9.2, §9.3). ``nodeclaim/`` decides what has drifted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from karpenter.disruption.decide.candidates import BlockedNode, CandidateChecks, DisruptionContext, is_drifted
from karpenter.disruption.decide.command import Candidate, Command, DisruptionReason, saving_per_hour
from karpenter.disruption.decide.failed_moves import NO_FAILED_MOVES, FailedMoves
from karpenter.disruption.decide.move_blockers import (
    DriftedPodsUnplaceable,
    ReplacementExceedsLimits,
    ReplacementsUnready,
    StaticPoolAtNodeLimit,
    StaticReservationsFull,
)
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets
from karpenter.disruption.decide.scheduling_simulation import SchedulingSimulation, UnreschedulablePods
from karpenter.disruption.decide.static_replacements import StaticReplacements
from karpenter.disruption.decide.terminate_first import FreedReservations, holders_first, static_command
from karpenter.model.conditions import find_condition
from karpenter.scheduling.whatif.questions import LimitsPolicy, ReschedulingResult, TooExpensive
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode
from karpenter.static import replicas

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


# -- replacing what has drifted ------------------------------------------------------------------------------------------


def drift_candidates(
    nodes: Iterable[StateNode], checks: CandidateChecks, context: DisruptionContext
) -> tuple[list[Candidate], list[Candidate], list[BlockedNode]]:
    """Drifted nodes of dynamic and of static pools in the order of DIS-118, and those that are kept.

    The node the controller runs on comes last (DIS-469), before it those whose replacement failed lately.
    """
    dynamic: list[Candidate] = []
    fixed: list[Candidate] = []
    blocked: list[BlockedNode] = []
    for view in nodes:
        if not checks.is_considered(view) or not is_drifted(view):
            continue
        candidate_or_blocker = checks.candidate_or_blocker(view, DisruptionReason.DRIFTED)
        if isinstance(candidate_or_blocker, BlockedNode):
            blocked.append(candidate_or_blocker)
        elif not context.is_in_backoff(DisruptionReason.DRIFTED, view.key):
            (fixed if checks.is_in_static_pool(candidate_or_blocker) else dynamic).append(candidate_or_blocker)
    for drifted in (dynamic, fixed):
        drifted.sort(
            key=lambda candidate: (
                checks.hosts_controller(candidate),
                context.failed_moves.count(DisruptionReason.DRIFTED, candidate.key),
                _drift_order(candidate),
            )
        )
    return dynamic, fixed, blocked


def _drift_order(candidate: Candidate) -> tuple[bool, datetime, str]:
    """Nodes without pods first, then those that drifted longest ago (DIS-118, DIS-122); the name ends ties."""
    claim = candidate.state_node.claim
    condition = find_condition(claim.status.conditions, "Drifted") if claim is not None else None
    since = condition.last_transition_time if condition is not None else None
    return (bool(candidate.reschedulable_pods), since or _LONG_AGO, candidate.state_node.name)


def replace_drifted(
    candidates: Iterable[Candidate],
    simulation: SchedulingSimulation,
    budgets: RemainingBudgets,
    limits: DriftLimits,
    failed_moves: FailedMoves = NO_FAILED_MOVES,
    freed: FreedReservations | None = None,
) -> tuple[list[Command], list[BlockedNode], SchedulingSimulation]:
    """One command for each node that budgets allow and whose pods have a place to go, at any price (DIS-230).

    All that budgets allow in one pass: a command that fails does not delay the others. ``freed``: nodes of full reservations may
    go first (K15-322). Returns the commands, the nodes that stay,
    and the simulation with the commands done.
    """
    commands: list[Command] = []
    blocked: list[BlockedNode] = []
    for candidate in candidates:
        if budgets.remaining(candidate.node_pool, DisruptionReason.DRIFTED) <= 0:
            continue
        move = _replace_drifted_node(candidate, simulation, limits, freed)
        if isinstance(move, _DriftMove):
            if failed_moves.has_in_backoff(move.executed):
                blocked += unready_replacements(move.executed, failed_moves)
                continue
            commands.append(move.executed)
            failed_moves = failed_moves.after(move.executed)
            if freed is not None:
                freed.record(move.executed)
            simulation = simulation.after(move.command)
            budgets.consume(candidate.node_pool)
        else:
            blocked.append(BlockedNode(candidate.state_node, move))
    return commands, blocked, simulation


@dataclass(frozen=True)
class _DriftMove:
    """A command, and whether its replacements are left to provisioning: then the node is emptied first."""

    command: Command
    empty_first: bool = False

    @property
    def executed(self) -> Command:
        """The command as it is executed."""
        return replace(self.command, replacements=()) if self.empty_first else self.command


def _replace_drifted_node(
    candidate: Candidate, simulation: SchedulingSimulation, limits: DriftLimits, freed: FreedReservations | None
) -> _DriftMove | DriftedPodsUnplaceable | ReplacementExceedsLimits:
    """A command for one node. Its own capacity does not count against limits, since it goes (DIS-160)."""
    within_limits = simulation.reschedule((candidate,), limits=LimitsPolicy.WITH_REMOVED)
    if isinstance(within_limits, ReschedulingResult):
        return _DriftMove(_drift_command(candidate, within_limits))
    assert isinstance(within_limits, UnreschedulablePods)
    ask = partial(_reschedule_within_limits, candidate)
    first = freed.command(candidate, DisruptionReason.DRIFTED, within_limits, ask) if freed is not None else None
    if first is not None:
        return _DriftMove(first)
    unplaceable = DriftedPodsUnplaceable(within_limits.blocker)
    return (
        _replace_beyond_limits(candidate, simulation, limits) or unplaceable if simulation.has_limits else unplaceable
    )


def _reschedule_within_limits(
    candidate: Candidate, simulation: SchedulingSimulation
) -> ReschedulingResult | UnreschedulablePods:
    answer = simulation.reschedule((candidate,), limits=LimitsPolicy.WITH_REMOVED)
    assert not isinstance(answer, TooExpensive)  # there is no price limit
    return answer


def _replace_beyond_limits(
    candidate: Candidate, simulation: SchedulingSimulation, limits: DriftLimits
) -> _DriftMove | ReplacementExceedsLimits | None:
    """A command for a node that counts against limits till it is gone; None if limits are not what is in the way."""
    reschedule = simulation.reschedule((candidate,))
    if isinstance(reschedule, ReschedulingResult):
        if limits.empty_first:
            waiting = limits.start_emptying(candidate.node_pool)
            return waiting or _DriftMove(_drift_command(candidate, reschedule), empty_first=True)
        exceeded = limits.exceeded({claim.template.name for claim in reschedule.new_claims})
        return exceeded or _DriftMove(_drift_command(candidate, reschedule))
    unlimited = simulation.reschedule((candidate,), limits=LimitsPolicy.IGNORED)
    if not isinstance(unlimited, ReschedulingResult):
        return None
    node_pools = {claim.template.name for claim in unlimited.new_claims}
    return limits.exceeded(node_pools) or ReplacementExceedsLimits(tuple(sorted(node_pools)))


def _drift_command(candidate: Candidate, reschedule: ReschedulingResult) -> Command:
    return Command(
        DisruptionReason.DRIFTED,
        (candidate,),
        reschedule.to_planned_claims(),
        reschedule.placements,
        saving_per_hour=saving_per_hour((candidate,), reschedule.price_per_hour),
    )


class DriftLimits:
    """What limits of NodePools mean for drift in one pass (DIS-304, SCH-385).

    By default a replacement is launched first if the NodePool does not exceed its limits yet, as in Karpenter. With
    ``empty_first`` limits are never exceeded: one node of the NodePool at a time is emptied before its replacement is launched.
    """

    def __init__(self, snapshot: ClusterSnapshot, *, empty_first: bool) -> None:
        self.empty_first = empty_first
        self._snapshot = snapshot
        self._emptying = {view.pool for view in snapshot.nodes if view.marked_for_deletion} if empty_first else set()

    def exceeded(self, node_pools: Iterable[str]) -> ReplacementExceedsLimits | None:
        """The first of the NodePools that exceeds its limits, so that nothing may be created there."""
        for pool in self._snapshot.pools:
            if pool.metadata.name in node_pools:
                resources = replicas.exceeded_limits(pool, self._snapshot.nodes)
                if resources:
                    return ReplacementExceedsLimits((pool.metadata.name,), resources)
        return None

    def start_emptying(self, node_pool: str) -> ReplacementExceedsLimits | None:
        """Record that a node of the NodePool is emptied; what forbids it: another one that is not gone yet."""
        if node_pool in self._emptying:
            return ReplacementExceedsLimits((node_pool,), is_emptying=True)
        self._emptying.add(node_pool)
        return None


def replace_drifted_static(
    candidates: Iterable[Candidate],
    replacements: StaticReplacements,
    budgets: RemainingBudgets,
    failed_moves: FailedMoves = NO_FAILED_MOVES,
    *,
    may_go_first: bool = False,
) -> tuple[list[Command], list[BlockedNode]]:
    """One command for each drifted node of a static pool that budgets and the limit on nodes allow (DIS-225 to DIS-227).

    A pool that has more nodes than it wants is left alone until they are gone. Returns the commands, and the nodes that stay
    because no replacement can be staged (K15-214).
    """
    commands: list[Command] = []
    blocked: list[BlockedNode] = []
    for candidate in holders_first(candidates) if may_go_first else candidates:
        pool = candidate.node_pool
        if budgets.remaining(pool, DisruptionReason.DRIFTED) <= 0 or not replacements.may_replace(pool):
            continue
        command = static_command(candidate, DisruptionReason.DRIFTED, replacements, may_go_first=may_go_first)
        if isinstance(command, StaticPoolAtNodeLimit | StaticReservationsFull):
            blocked.append(BlockedNode(candidate.state_node, command))
        elif command is not None and failed_moves.has_in_backoff(command):
            replacements.unstage(command)
            blocked += unready_replacements(command, failed_moves)
        elif command is not None:
            commands.append(command)
            failed_moves = failed_moves.after(command)
            budgets.consume(pool)
    return commands, blocked


def unready_replacements(command: Command, failed_moves: FailedMoves) -> list[BlockedNode]:
    """The nodes of a command in backoff, where it is because replacements in a NodePool do not become ready; else none."""
    node_pool = failed_moves.closed_pool(command)
    if not node_pool:
        return []
    return [BlockedNode(candidate.state_node, ReplacementsUnready(node_pool)) for candidate in command.candidates]
