"""Simulates scheduling without some nodes (DIS §7), many times on one snapshot, with the engine that schedules pending pods.

First all pending pods are placed, including those of nodes being deleted. A question about candidates is then about their own
pods only: pending pods of others never block a candidate, and no node is planned twice for the same pods (Beyond of DIS-161).
A simulation never changes: `after` gives the one in which a command is done, so the commands of a pass fit together. Preparing
costs one scheduling pass; each question costs what its own pods do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from math import inf

from karpenter.api.core import Pod
from karpenter.disruption.decide.candidates import (
    CandidateChecks,
    DisruptionContext,
    PodDisruptionBudgetIndex,
    consolidate_after_end,
)
from karpenter.disruption.decide.command import Candidate, Command, DisruptionReason, PendingCommand
from karpenter.disruption.decide.costs import disruption_cost
from karpenter.disruption.decide.disruption_problem import PreparedDisruption
from karpenter.disruption.decide.move_blockers import NeedsUninitializedNode, PodsUnschedulable, StrandedPod
from karpenter.disruption.decide.pod_arrivals import PodArrivals
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import pod_disruption, pods
from karpenter.model.requirements import Requirements
from karpenter.scheduling import pod_eligibility
from karpenter.scheduling.decision_memory import DecisionMemory, NewNodes
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import PlacedPods, Solution, UnschedulablePod
from karpenter.scheduling.solver import solve
from karpenter.scheduling.whatif.questions import (
    LimitsPolicy,
    ReschedulingResult,
    TooExpensive,
    UnreadyHosts,
    WhatIf,
)
from karpenter.scheduling.whatif.refused_nodes import RefusedNodes
from karpenter.scheduling.whatif.rescheduling import ReschedulingBase, prepare_rescheduling
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import NO_NODE_USAGE, StateNode, build_state_node
from karpenter.state.virtual_pods import is_virtual_pod

_SHOWN_PODS = 5


@dataclass(frozen=True)
class UnreschedulablePods:
    """Candidates that cannot be disrupted, because some of their pods would fit nowhere."""

    blocker: PodsUnschedulable | NeedsUninitializedNode


@dataclass(frozen=True, eq=False)
class SchedulingSimulation:
    """A snapshot, ready for questions about its nodes, with what has been decided about it so far (``prepare_simulation``).

    ``arrivals``: the pods that go to existing nodes by what is decided so far. ``nominated``: keys of the nodes that pending pods
    are going to need. ``_buffer_pods``: the virtual pods of capacity buffers by node. ``_consolidate_after_ends``: when nodes (by
    key) may take pods again that are closed within ``consolidateAfter``.
    """

    _base: ReschedulingBase
    _snapshot: ClusterSnapshot
    _checks: CandidateChecks
    _now: datetime
    arrivals: PodArrivals
    nominated: frozenset[str] = frozenset()
    _buffer_pods: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    _consolidate_after_ends: Mapping[str, datetime] = field(default_factory=dict)
    _reopened: frozenset[str] = frozenset()
    #: By key of a candidate. Its pods, the PodDisruptionBudgets and the time are those of one decision, so they stay true in it.
    _moving_pods_by_key: dict[str, tuple[Candidate, tuple[Pod, ...]]] = field(default_factory=dict)
    #: By key of a candidate, likewise: where its pods go without it. Several methods ask that.
    _questions: dict[str, tuple[Candidate, WhatIf]] = field(default_factory=dict)

    # -- other simulations ------------------------------------------------------------------------------------------------

    def with_closed_nodes(self, keys: Iterable[str]) -> SchedulingSimulation:
        """The simulation in which no pod is placed on these nodes any more."""
        return replace(self, _base=self._base.with_closed_nodes(keys))

    def closed_within_consolidate_after(self) -> SchedulingSimulation:
        """The simulation for consolidation: nodes in their own consolidateAfter period take no pods. Drift has no such rule."""
        pools = {pool.metadata.name: pool for pool in self._snapshot.pools}
        ends = {
            node.key: end
            for node in self._snapshot.nodes
            if (end := consolidate_after_end(node, pools.get(node.pool))) is not None
            and end > self._now
            and self._base.is_open(node.key)
        }
        return replace(self.with_closed_nodes(ends), _consolidate_after_ends=ends, _reopened=frozenset(ends))

    def after(self, command: Command) -> SchedulingSimulation:
        """The simulation in which the command's nodes are gone, and their pods where it says."""
        removed = tuple(candidate.key for candidate in command.candidates)
        leaving = self._pods_leaving(command)
        base = self._base.after_move(command.placed_on_existing, leaving, removed, command.replacements)
        return replace(self, _base=base, arrivals=self.arrivals.after(command.placed_on_existing))

    def with_arrivals(self, placements: Iterable[PlacedPods]) -> SchedulingSimulation:
        """The simulation in which these pods count on the nodes they go to when CPU beyond the baseline is priced."""
        return replace(self, arrivals=self.arrivals.after(placements))

    # -- questions --------------------------------------------------------------------------------------------------------

    def pods_to_place(self, candidates: Iterable[Candidate]) -> list[Pod]:
        """Pods that need another place when these go; what nothing can evict needs none in advance (DIS-162).

        The room that capacity buffers keep on them moves along.
        """
        leaving = tuple(candidates)
        moving = [pod for candidate in leaving for pod in self._moving_pods(candidate)]
        return [*moving, *(pod for candidate in leaving for pod in self._buffer_pods.get(candidate.key, ()))]

    def _moving_pods(self, candidate: Candidate) -> tuple[Pod, ...]:
        """The candidate's own pods that need another place."""
        known, moving = self._moving_pods_by_key.get(candidate.key, (None, ()))
        if known is not candidate:
            moving = pods_leaving_now(candidate, self._checks.pod_disruption_budgets, self._now)
            self._moving_pods_by_key[candidate.key] = (candidate, moving)
        return moving

    def pods_of_broken(self, candidate: Candidate) -> list[Pod]:
        """Pods that need another place when a broken node goes: also those that nothing can evict now (K15-231)."""
        return [*candidate.reschedulable_pods, *self._buffer_pods.get(candidate.key, ())]

    def _pods_leaving(self, command: Command) -> list[Pod]:
        if command.reason is DisruptionReason.UNHEALTHY:
            return [pod for candidate in command.candidates for pod in self.pods_of_broken(candidate)]
        return self.pods_to_place(command.candidates)

    @property
    def has_limits(self) -> bool:
        """Whether any NodePool has limits."""
        return self._base.has_limits

    def _without(self, candidates: Sequence[Candidate]) -> WhatIf:
        """The question where the candidates' pods go when the candidates are gone."""
        if len(candidates) != 1:
            return self._new_question(candidates)
        (candidate,) = candidates
        known = self._questions.get(candidate.key)
        if known is None or known[0] is not candidate:
            known = self._questions[candidate.key] = (candidate, self._new_question(candidates))
        return known[1]

    def _new_question(self, candidates: Sequence[Candidate]) -> WhatIf:
        parts = tuple(self._moving_pods(candidate) for candidate in candidates)
        if self._buffer_pods:
            parts = (tuple(self.pods_to_place(candidates)),)
        return WhatIf(parts, frozenset(candidate.key for candidate in candidates))

    def kind_of(self, candidate: Candidate) -> int | None:
        """The same number for candidates whose pods find the same places, for the same price; None where that is not known."""
        return None if self._buffer_pods else self._base.kind_of(self._without((candidate,)))

    def place_on_existing(self, candidates: Sequence[Candidate]) -> ReschedulingResult | None:
        """Placements of their pods on existing nodes; None if they do not all fit there."""
        question = self._without(candidates)
        return None if self._base.ready_hosts(question) is None else self._base.place_on_existing(question)

    def place_within_consolidate_after(self, candidate: Candidate) -> Mapping[str, datetime]:
        """The nodes (by name) within ``consolidateAfter`` that would give the pods a place, and when that is over.

        Empty if the pods fit on no existing node even then.
        """
        ends, question = self._consolidate_after_ends, self._without((candidate,))
        if len(ends) <= (candidate.key in ends) or not self._base.may_fit_on(question, self._reopened):
            return {}
        hosts = self._base.ready_hosts(WhatIf(question.parts, question.removed, reopened=self._reopened))
        return {host.name: ends[host.key] for host in hosts or () if host.key in ends}

    def place_as_planned(self, candidates: Sequence[Candidate], pending: PendingCommand) -> ReschedulingResult | None:
        """Placements of their pods on existing nodes and on the planned replacements, as the pending command has them."""
        planned_nodes = frozenset(replacement.name for replacement in pending.replacements)
        question = replace(self._without(candidates), reopened=planned_nodes, planned=pending.planned_nodes)
        place = self._base.place_on_existing(question)
        return None if place is None or not place.uninitialized_nodes <= planned_nodes else place

    def reschedule(
        self,
        candidates: Sequence[Candidate],
        max_price: float = inf,
        limits: LimitsPolicy = LimitsPolicy.WITHOUT_REMOVED,
    ) -> ReschedulingResult | UnreschedulablePods | TooExpensive:
        """Placements of the candidates' pods, unless the new nodes they need cost ``max_price`` or more."""
        question = self._without(candidates)
        if limits is not question.limits:
            question = replace(question, limits=limits)
        answer = self._answer(question, max_price)
        assert not isinstance(answer, RefusedNodes)  # nothing is refused
        return answer

    def reschedule_unless_refused(
        self, candidates: Sequence[Candidate], refused: Requirements | None, max_price: float
    ) -> ReschedulingResult | UnreschedulablePods | TooExpensive | RefusedNodes:
        """Placements of the candidates' pods, unless new nodes cost ``max_price`` or more, or all could be ``refused`` ones.

        ``refused``: requirements of new nodes for which the caller would turn the answer down; None for none.
        """
        return self._answer(self._without(candidates), max_price, refused)

    def known_new_nodes(
        self, candidates: Sequence[Candidate], refused: Requirements | None, max_price: float
    ) -> NewNodes | None:
        """The new nodes that `reschedule_unless_refused` comes to, if that is known without a plan, and if it plans any."""
        question = self._without(candidates)
        is_refused = self._base.refusal(question, max_price, refused) is not None
        return None if is_refused else self._base.known_new_nodes(question)

    def reschedule_broken(self, candidate: Candidate) -> ReschedulingResult | UnreschedulablePods:
        """Placements of all pods of a broken node (K15-231)."""
        answer = self._answer(WhatIf((tuple(self.pods_of_broken(candidate)),), frozenset((candidate.key,))))
        assert not isinstance(answer, TooExpensive | RefusedNodes)  # there is no price limit, and nothing is refused
        return answer

    def _answer(
        self, question: WhatIf, max_price: float = inf, refused: Requirements | None = None
    ) -> ReschedulingResult | UnreschedulablePods | TooExpensive | RefusedNodes:
        result = self._base.reschedule(question, max_price, refused)
        if isinstance(result, TooExpensive | RefusedNodes):
            return result
        if isinstance(result, UnreadyHosts):
            return UnreschedulablePods(NeedsUninitializedNode(_pod_name(result.pod), result.node_key))
        if result.unschedulable:
            return UnreschedulablePods(_pods_unschedulable(result.unschedulable))
        if result.uninitialized_nodes:
            waiting = (
                pod
                for placed_pods in result.placements
                if placed_pods.node_key in result.uninitialized_nodes
                for pod in placed_pods.pods
            )
            first = _pod_name(next(waiting))
            return UnreschedulablePods(NeedsUninitializedNode(first, min(result.uninitialized_nodes)))
        return result

    def minimum_price(self, candidates: Sequence[Candidate]) -> float:
        """USD per hour that nodes for their pods alone would cost at least."""
        return self._base.minimum_price(self._without(candidates))

    def minimum_new_price(self, candidates: Sequence[Candidate]) -> float:
        """USD per hour that nodes cost at least for those of their pods that do not fit on existing nodes."""
        return self._base.minimum_new_price(self._without(candidates))


def can_leave_now(pod: Pod, budgets: PodDisruptionBudgetIndex, now: datetime) -> bool:
    """Whether something can evict a pod now (DIS-162).

    Only for pods that need another place when their node goes: for DaemonSet pods, which go with it, the answer means nothing.
    """
    if pod_disruption.is_protected(pod, now) and pods.is_active(pod):
        return False
    over = budgets.selecting(pod)
    return not over or not pod_eligibility.blocked_by_budgets(pod, over, now)


def pods_leaving_now(candidate: Candidate, budgets: PodDisruptionBudgetIndex, now: datetime) -> tuple[Pod, ...]:
    """The candidate's pods that need another place when it goes: all but those that nothing can evict now (DIS-162)."""
    every = candidate.reschedulable_pods
    if not budgets and not candidate.state_node.pods_with_eviction_annotation:
        return every
    leaving = tuple(pod for pod in every if can_leave_now(pod, budgets, now))
    return leaving if len(leaving) < len(every) else every


def simulate(prepared: PreparedDisruption, closed_to_pods: Iterable[str] = ()) -> SchedulingSimulation:
    """A simulation of the problem's cluster, with the replacements of pending commands. Closed nodes take no pods."""
    snapshot = prepared.snapshot
    existing = {node.key for node in snapshot.nodes}
    planned = (claim for command in prepared.context.pending_commands for claim in command.replacements)
    missing = (claim.claim for claim in planned if claim.name not in existing)
    planned_nodes = [build_state_node(None, claim, NO_NODE_USAGE, marked=False) for claim in missing]
    options = prepared.problem.options.provisioning
    simulation = prepare_simulation(
        snapshot, prepared.indexes, prepared.context, options, prepared.checks, planned_nodes, prepared.memory
    )
    return simulation.with_closed_nodes(closed_to_pods)


def prepare_simulation(
    snapshot: ClusterSnapshot,
    indexes: Mapping[str, TypeIndex],
    context: DisruptionContext,
    options: SchedulingOptions,
    checks: CandidateChecks,
    planned_nodes: Sequence[StateNode] = (),
    memory: DecisionMemory | None = None,
) -> SchedulingSimulation:
    """A simulation of a snapshot with all pending pods placed.

    ``planned_nodes``: replacements of pending commands; only questions about those commands place pods on them.
    """
    problem = build_problem(replace(snapshot, nodes=(*snapshot.nodes, *planned_nodes)), indexes, context.now, options)
    fill_order = tuple(node.key for node in sorted(problem.snapshot.nodes, key=partial(_fill_order, checks)))
    base = prepare_rescheduling(problem, indexes, fill_order, memory).with_closed_nodes(
        node.key for node in planned_nodes
    )
    leaving = pod_eligibility.pods_leaving_nodes(snapshot, context.now)
    arrivals = PodArrivals(checks.prices, checks.nodes_by_key)
    if not snapshot.pod_groups and not leaving:
        return SchedulingSimulation(base, snapshot, checks, context.now, arrivals)
    # What moves should find its room at once, and the room of these pods is counted on this snapshot.
    pending_problem = build_problem(snapshot, indexes, context.now, options.counting_terminating_pods())
    plan = solve(pending_problem, indexes, memory)
    placed = plan.placed_on_existing
    base = base.after_move(placed, leaving).with_limits_used(plan.new_claims)
    promised = _promised_nodes(plan, snapshot.planned_nodes) if options.terminating_pods_window else set()
    return SchedulingSimulation(
        base.with_closed_nodes(promised) if promised else base,
        snapshot,
        checks,
        context.now,
        arrivals.after(placed),
        frozenset(placed_pods.node_key for placed_pods in placed if not all(map(is_virtual_pod, placed_pods.pods))),
        {placed_pods.node_key: tuple(filter(is_virtual_pod, placed_pods.pods)) for placed_pods in placed},
    )


def _promised_nodes(plan: Solution, planned_nodes: Mapping[str, str]) -> set[str]:
    """Keys of the nodes for which pods wait that do not fit there yet: others are being deleted there. Moves leave their room."""
    new = (pod for claim in plan.new_claims for pod in claim.pods)
    waiting = (*new, *(unplaced.pod for unplaced in plan.unschedulable))
    return {planned_nodes[pod.metadata.uid] for pod in waiting if pod.metadata.uid in planned_nodes}


def _fill_order(checks: CandidateChecks, state_node: StateNode) -> tuple[float, str]:
    """Sort key: pods move to nodes that will stay, last to those with a high price for the disruption they cost."""
    price = checks.prices.price_per_hour(state_node) if state_node.managed else None
    return ((price or 0.0) / disruption_cost(state_node), state_node.name)


def _pods_unschedulable(unschedulable: Sequence[UnschedulablePod]) -> PodsUnschedulable:
    """The first pods without a place and why (DIS-168)."""
    shown = tuple(
        StrandedPod(_pod_name(unschedulable_pod.pod), tuple(unschedulable_pod.reasons))
        for unschedulable_pod in unschedulable[:_SHOWN_PODS]
    )
    return PodsUnschedulable(shown, len(unschedulable) - len(shown))


def _pod_name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
