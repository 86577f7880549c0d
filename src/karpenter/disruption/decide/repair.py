"""Node repair: broken nodes are rebooted or replaced, most urgent first, within budgets (K15-222 to K15-238).

A replacement is launched before the broken node goes. What keeps a mistake from spreading: budgets of the reason Unhealthy, and
the breaker, which stops all repair in a NodePool, or in the cluster, where too many nodes are broken at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from karpenter.disruption.decide.candidates import BlockedNode, CandidateChecks, DisruptionContext
from karpenter.disruption.decide.command import Candidate, Command, DisruptionReason, Repair, saving_per_hour
from karpenter.disruption.decide.disruption_blockers import (
    DisruptionBlocker,
    NodeDoNotRepair,
    RepairWithoutGracePeriod,
    RepairWithoutNodePool,
    TooManyUnhealthy,
)
from karpenter.disruption.decide.disruption_problem import PreparedDisruption
from karpenter.disruption.decide.drift import unready_replacements
from karpenter.disruption.decide.move_blockers import (
    DriftedPodsUnplaceable,
    StaticPoolAtNodeLimit,
    StaticReservationsFull,
)
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets
from karpenter.disruption.decide.scheduling_simulation import SchedulingSimulation, UnreschedulablePods
from karpenter.disruption.decide.static_replacements import StaticBlocker, StaticReplacements
from karpenter.disruption.decide.terminate_first import FreedReservations, static_command
from karpenter.model import conditions, durations, labels, pod_disruption
from karpenter.model.repair_policies import SETTLING, RepairAction, RepairDecision, RepairPolicies, trusted_from
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode
from karpenter.static import replicas

#: The share of a NodePool's nodes, and of all nodes, that may be unhealthy; above it nothing is repaired (K15-228).
MAX_UNHEALTHY_PERCENT = 20
_UNHEALTHY = DisruptionReason.UNHEALTHY


@dataclass(frozen=True)
class RepairCandidate:
    """A broken node that may be repaired, and how. ``lifetime_cost`` as DIS-113."""

    candidate: Candidate
    repair: Repair
    lifetime_cost: float

    @property
    def order(self) -> tuple[float, float, str]:
        """Sort key: most urgent first, then the least disruptive, then by name (K15-227)."""
        return (-self.repair.decision.score, self.lifetime_cost, self.candidate.state_node.name)


def rebooted_at(state_node: StateNode) -> datetime | None:
    """The end of the node's last reboot: tolerations start again from there (K15-216, K15-295)."""
    claim = state_node.claim
    condition = conditions.find_condition(claim.status.conditions, conditions.REBOOTING) if claim is not None else None
    ended = condition is not None and condition.status == conditions.FALSE
    return condition.last_transition_time if condition is not None and ended else None


def next_repair(
    snapshot: ClusterSnapshot, policies: RepairPolicies, now: datetime, started_at: datetime
) -> datetime | None:
    """When the next policy becomes eligible for a node of the snapshot (K15-221); None if none is going to.

    A condition from before the start of the process counts once it is trusted.
    """
    nodes = [(view.node, rebooted_at(view)) for view in snapshot.nodes if view.node is not None and view.registered]
    moments = [policies.next_eligible(node, now, rebooted) for node, rebooted in nodes]
    all_trusted_from = started_at + SETTLING
    if now < all_trusted_from and any(policies.is_unhealthy(node) for node, _ in nodes):
        moments.append(all_trusted_from)
    return min((moment for moment in moments if moment is not None), default=None)


def repair_candidates(prepared: PreparedDisruption) -> tuple[list[RepairCandidate], list[BlockedNode]]:
    """Broken nodes in the order of K15-227, and those that something keeps from being repaired."""
    policies, context = prepared.problem.options.repair, prepared.context
    if policies is None:
        return [], []
    candidates: list[RepairCandidate] = []
    blocked: list[BlockedNode] = []
    breaker = _Breaker(prepared.snapshot, policies)
    for view in prepared.snapshot.nodes:
        decision = _decision(view, prepared.checks, policies, context.now)
        if decision is None or _is_out_of_date(view, decision, context):
            continue
        blocker = _blocker(view, decision, prepared.checks) or breaker.blocker(view)
        if blocker is not None:
            blocked.append(BlockedNode(view, blocker))
            continue
        exhausted = decision.action is RepairAction.REBOOT and view.key in context.reboots_exhausted
        repair = Repair(decision, _effective_bound(view, decision), has_escalated=exhausted)
        candidates.append(
            RepairCandidate(prepared.checks.as_candidate(view), repair, _lifetime_cost(view, context.now))
        )
    return sorted(candidates, key=lambda candidate: candidate.order), blocked


def _decision(
    view: StateNode, checks: CandidateChecks, policies: RepairPolicies, now: datetime
) -> RepairDecision | None:
    """What is due for a node that registered; one that never did is left to the liveness checks (K15-223)."""
    if view.node is None or not view.registered or not checks.is_considered(view):
        return None
    return policies.decision(view.node, now, rebooted_at(view))


def _is_out_of_date(view: StateNode, decision: RepairDecision, context: DisruptionContext) -> bool:
    """Whether Node and condition are from before the start of the process, and kubelets may not have reported since."""
    assert view.node is not None
    changed_at, started_at = decision.condition.last_transition_time, context.started_at
    return started_at is not None and context.now < trusted_from(view.node, changed_at, started_at)


def _blocker(view: StateNode, decision: RepairDecision, checks: CandidateChecks) -> DisruptionBlocker | None:
    """What keeps the node from being repaired: K15-222, K15-201, K15-225, K15-226 in this order."""
    assert view.node is not None
    if not view.pool:
        return RepairWithoutNodePool()
    blocker = checks.repair_blocker(view)
    if blocker is not None:
        return blocker
    if view.node.metadata.annotations.get(labels.DO_NOT_REPAIR) == "true":
        return NodeDoNotRepair()
    is_bounded = decision.drain_bound is not None or _claim_bound(view) is not None
    return None if is_bounded or next(checks.pod_blockers(view), None) is None else RepairWithoutGracePeriod()


def _claim_bound(view: StateNode) -> timedelta | None:
    text = view.claim.spec.termination_grace_period if view.claim is not None else None
    return durations.parse_duration_or_never(text) if text and durations.is_valid_duration(text) else None


def _effective_bound(view: StateNode, decision: RepairDecision) -> timedelta | None:
    """The policy's bound, cut to the claim's grace period (K15-230); None inherits that of the claim."""
    own = _claim_bound(view)
    if decision.drain_bound is None or own is None:
        return decision.drain_bound
    return min(decision.drain_bound, own)


def _lifetime_cost(view: StateNode, now: datetime) -> float:
    assert view.claim is not None
    evictions = sum(pod_disruption.eviction_cost(pod) for pod in view.pods)
    return evictions * replicas.lifetime_remaining(view.claim, now)


class _Breaker:
    """Where too many nodes are unhealthy, for any duration and reason: per NodePool, and in the whole cluster.

    Many small NodePools would each replace their nodes when the network of the control plane fails.
    """

    def __init__(self, snapshot: ClusterSnapshot, policies: RepairPolicies) -> None:
        total: dict[str, int] = {}
        unhealthy: dict[str, int] = {}
        for view in snapshot.nodes:
            is_unhealthy = view.node is not None and policies.is_unhealthy(view.node)
            for scope in {view.pool, ""} if view.node is not None else ():
                total[scope] = total.get(scope, 0) + 1
                unhealthy[scope] = unhealthy.get(scope, 0) + is_unhealthy
        self._open = {
            scope for scope, number in total.items() if unhealthy[scope] > -(-MAX_UNHEALTHY_PERCENT * number // 100)
        }

    def blocker(self, view: StateNode) -> TooManyUnhealthy | None:
        """What stops the repair of a node; None if the breaker is closed."""
        scope = next((scope for scope in (view.pool, "") if scope in self._open), None)
        return None if scope is None else TooManyUnhealthy(scope, MAX_UNHEALTHY_PERCENT)


class RepairCommands:
    """Decides commands for the broken nodes of one pass, each on the cluster that the ones before leave."""

    def __init__(
        self,
        prepared: PreparedDisruption,
        budgets: RemainingBudgets,
        simulation: SchedulingSimulation,
        static: StaticReplacements,
        freed: FreedReservations | None = None,
    ) -> None:
        self._prepared = prepared
        self._budgets = budgets
        self._simulation = simulation
        self._static = static
        self._freed = freed

    def decide(self, candidates: Sequence[RepairCandidate]) -> tuple[list[Command], list[BlockedNode]]:
        """One command for each node that budgets allow and that can be repaired; and the nodes that stay."""
        commands: list[Command] = []
        blocked: list[BlockedNode] = []
        failed_moves = self._prepared.context.failed_moves
        for repairable in candidates:
            view = repairable.candidate.state_node
            # A node that never became ready is no capacity that a budget protects (K15-208).
            if view.initialized and self._budgets.remaining(view.pool, _UNHEALTHY) <= 0:
                continue
            command = self._command(repairable)
            if isinstance(command, DriftedPodsUnplaceable | StaticPoolAtNodeLimit | StaticReservationsFull):
                blocked.append(BlockedNode(view, command))
            elif command is not None and failed_moves.has_in_backoff(command):
                if self._prepared.checks.is_in_static_pool(repairable.candidate):
                    self._static.unstage(command)
                blocked += unready_replacements(command, failed_moves)
            elif command is not None:
                commands.append(command)
                failed_moves = failed_moves.after(command)
                self._simulation = self._simulation.after(command)
                if self._freed is not None:
                    self._freed.record(command)
                if view.initialized:
                    self._budgets.consume(view.pool)
        return commands, blocked

    def _command(self, repairable: RepairCandidate) -> Command | DriftedPodsUnplaceable | StaticBlocker | None:
        if repairable.repair.is_reboot:
            return Command(_UNHEALTHY, (repairable.candidate,), saving_per_hour=0.0, repair=repairable.repair)
        command = (
            self._static_command(repairable.candidate)
            if self._prepared.checks.is_in_static_pool(repairable.candidate)
            else self._dynamic_command(repairable.candidate)
        )
        return replace(command, repair=repairable.repair) if isinstance(command, Command) else command

    def _dynamic_command(self, candidate: Candidate) -> Command | DriftedPodsUnplaceable:
        """A replacement for the pods of the node, at any price (K15-231)."""
        result = self._simulation.reschedule_broken(candidate)
        if isinstance(result, UnreschedulablePods):
            first = (
                self._freed.command(
                    candidate, _UNHEALTHY, result, lambda simulation: simulation.reschedule_broken(candidate)
                )
                if self._freed is not None
                else None
            )
            return first or DriftedPodsUnplaceable(result.blocker)
        saving = saving_per_hour((candidate,), result.price_per_hour)
        return Command(_UNHEALTHY, (candidate,), result.to_planned_claims(), result.placements, saving_per_hour=saving)

    def _static_command(self, candidate: Candidate) -> Command | StaticBlocker | None:
        """A replacement by the template of the static NodePool (K15-233); None while the pool has more than it wants."""
        if not self._static.may_replace(candidate.node_pool):
            return None
        return static_command(candidate, _UNHEALTHY, self._static, may_go_first=self._freed is not None)


def broken_keys(candidates: Iterable[RepairCandidate]) -> frozenset[str]:
    """Nodes that go soon: pods that move there would move twice."""
    return frozenset(repairable.candidate.key for repairable in candidates)
