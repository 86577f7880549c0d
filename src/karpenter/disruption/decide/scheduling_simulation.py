"""Simulates scheduling without some nodes (DIS §7), many times on one snapshot, with the engine that schedules pending pods.

First all pending pods are placed, including those of nodes being deleted. A question about candidates is then about their own
pods only: pending pods of others never block a candidate, and no node is planned twice for the same pods (Beyond of DIS-161).
Commands that the pass decides are applied here, so that its commands fit together. Preparing costs one scheduling pass; each
question costs what its own pods do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from karpenter.api.core import Pod
from karpenter.disruption.decide.candidates import CandidateChecks, DisruptionContext, consolidate_after_elapsed
from karpenter.disruption.decide.command import Candidate, Command
from karpenter.disruption.decide.costs import disruption_cost
from karpenter.disruption.decide.disruption_blockers import NeedsUninitializedNode, PodsUnschedulable, StrandedPod
from karpenter.disruption.decide.disruption_problem import PreparedDisruption
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import pod_disruption, pods
from karpenter.scheduling import pod_eligibility
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solution import UnschedulablePod
from karpenter.scheduling.solver import solve
from karpenter.scheduling.whatif.rescheduling import ReschedulingBase, ReschedulingResult, WhatIf
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import NO_NODE_USAGE, StateNode, build_state_node
from karpenter.state.virtual_pods import is_virtual_pod

_SHOWN_PODS = 5


@dataclass(frozen=True)
class UnreschedulablePods:
    """Candidates that cannot be disrupted, because some of their pods would fit nowhere."""

    blocker: PodsUnschedulable | NeedsUninitializedNode


class SchedulingSimulation:
    """A snapshot, ready for questions about its nodes, and what has been decided about it so far.

    ``planned_nodes``: replacements of pending commands; only questions about those commands place pods on them.
    """

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        indexes: Mapping[str, TypeIndex],
        context: DisruptionContext,
        options: SchedulingOptions,
        checks: CandidateChecks,
        planned_nodes: Sequence[StateNode] = (),
    ) -> None:
        self._now = context.now
        self._checks = checks
        self._snapshot = snapshot
        everything = replace(snapshot, nodes=(*snapshot.nodes, *planned_nodes))
        by_price = sorted(everything.nodes, key=lambda view: (self._price_per_disruption(view), view.name))
        fill_order = tuple(view.key for view in by_price)
        self._prepared = ReschedulingBase(build_problem(everything, indexes, self._now, options), indexes, fill_order)
        self._prepared.close_nodes(view.key for view in planned_nodes)
        #: Nodes that pods who wait are going to need, and the virtual pods of capacity buffers by node.
        self.nominated: frozenset[str] = frozenset()
        self._buffer_pods: dict[str, tuple[Pod, ...]] = {}
        self._place_pending_pods(indexes, options)
        self._pools = {pool.metadata.name: pool for pool in snapshot.pools}

    def close(self, keys: Iterable[str]) -> None:
        """Close these nodes: no pod is placed on them any more."""
        self._prepared.close_nodes(keys)

    def close_within_consolidate_after(self) -> None:
        """Close nodes in their own consolidateAfter period; this holds for consolidation, not for drift."""
        restless = (
            v.key for v in self._snapshot.nodes if not consolidate_after_elapsed(v, self._pools.get(v.pool), self._now)
        )
        self._prepared.close_nodes(restless)

    def _price_per_disruption(self, state_node: StateNode) -> float:
        """Pods move to nodes that will stay: last to those that are dear for what they hold."""
        moving = [pod for pod in state_node.pods if pods.is_reschedulable(pod)]
        return (
            (self._checks.prices.price_per_hour(state_node) or 0.0) / disruption_cost(moving)
            if state_node.managed
            else 0.0
        )

    def _place_pending_pods(self, indexes: Mapping[str, TypeIndex], options: SchedulingOptions) -> None:
        leaving = pod_eligibility.pods_leaving_nodes(self._snapshot, self._now)
        if self._snapshot.pod_groups or leaving:
            plan = solve(build_problem(self._snapshot, indexes, self._now, options), indexes)
            self._prepared.apply_move(plan.placed_on_existing, leaving)
            self.nominated = frozenset(
                i.node_key for i in plan.placed_on_existing if not all(map(is_virtual_pod, i.pods))
            )
            self._buffer_pods = {i.node_key: tuple(filter(is_virtual_pod, i.pods)) for i in plan.placed_on_existing}

    # -- questions --------------------------------------------------------------------------------------------------------

    def pods_to_place(self, candidates: Iterable[Candidate]) -> list[Pod]:
        """Pods that need another place when these go; what nothing can evict needs none in advance (DIS-162).

        The room that capacity buffers keep on them moves along.
        """
        going = tuple(candidates)
        found = [pod for candidate in going for pod in candidate.reschedulable_pods if self._is_reschedulable(pod)]
        return [*found, *(pod for candidate in going for pod in self._buffer_pods.get(candidate.key, ()))]

    def _is_reschedulable(self, pod: Pod) -> bool:
        if not pod_disruption.is_currently_reschedulable(pod, self._now):
            return False
        over = self._checks.pod_disruption_budgets.selecting(pod)
        return not over or not pod_eligibility.blocked_by_budgets(pod, over, self._now)

    def _without(self, candidates: Sequence[Candidate]) -> WhatIf:
        """The question where the candidates' pods go when the candidates are gone."""
        return WhatIf(tuple(self.pods_to_place(candidates)), frozenset(candidate.key for candidate in candidates))

    def place_on_existing(self, candidates: Sequence[Candidate]) -> ReschedulingResult | None:
        """Placements of their pods on existing nodes; None if they do not all fit there."""
        place = self._prepared.place_on_existing(self._without(candidates))
        return None if place is None or place.uninitialized_nodes else place

    def place_as_planned(self, candidates: Sequence[Candidate], pending: Command) -> ReschedulingResult | None:
        """Placements of their pods on existing nodes and on the planned replacements, as the pending command has them."""
        bought = {planned.name: planned.pods for planned in pending.replacements}
        meant = {**bought, **{placed.node_key: placed.pods for placed in pending.placed_on_existing}}
        planned = {pod.metadata.uid: key for key, inside in meant.items() for pod in inside}
        question = replace(self._without(candidates), reopened=frozenset(bought), planned=planned)
        place = self._prepared.place_on_existing(question)
        return None if place is None or not place.uninitialized_nodes <= bought.keys() else place

    def reschedule(
        self, candidates: Sequence[Candidate], max_price: float = inf
    ) -> ReschedulingResult | UnreschedulablePods | None:
        """Placements of their pods; None if the new nodes they need cost ``max_price`` or more."""
        found = self._prepared.reschedule(replace(self._without(candidates), max_price=max_price))
        if found is None:
            return None
        if found.unschedulable:
            return UnreschedulablePods(_pods_unschedulable(found.unschedulable))
        if found.uninitialized_nodes:
            waiting = (
                pod
                for placed_pods in found.placements
                if placed_pods.node_key in found.uninitialized_nodes
                for pod in placed_pods.pods
            )
            first = _pod_name(next(waiting))
            return UnreschedulablePods(NeedsUninitializedNode(first, min(found.uninitialized_nodes)))
        return found

    def minimum_price(self, candidates: Iterable[Candidate]) -> float:
        """USD per hour that nodes for their pods alone would cost at least."""
        return self._prepared.minimum_price(self.pods_to_place(candidates))

    def minimum_new_price(self, candidates: Sequence[Candidate]) -> float:
        """USD per hour that nodes cost at least for those of their pods that do not fit on existing nodes."""
        return self._prepared.minimum_new_price(self._without(candidates))

    def apply(self, command: Command) -> None:
        """Its nodes go, and their pods where it says."""
        gone = (candidate.key for candidate in command.candidates)
        self._prepared.apply_move(
            command.placed_on_existing, self.pods_to_place(command.candidates), gone, command.replacements
        )


def simulate(prepared: PreparedDisruption, closed_to_pods: Iterable[str] = ()) -> SchedulingSimulation:
    """A simulation of the problem's cluster, with the planned nodes of pending commands. Closed nodes take no pods."""
    snapshot = prepared.snapshot
    existing = {node.key for node in snapshot.nodes}
    planned = (claim for command in prepared.context.pending_commands for claim in command.replacements)
    planned_nodes = [
        build_state_node(None, claim.claim, NO_NODE_USAGE, marked=False)
        for claim in planned
        if claim.name not in existing
    ]
    options = prepared.problem.options.provisioning
    simulation = SchedulingSimulation(
        snapshot, prepared.indexes, prepared.context, options, prepared.checks, planned_nodes
    )
    simulation.close(closed_to_pods)
    return simulation


def _pods_unschedulable(unschedulable: Sequence[UnschedulablePod]) -> PodsUnschedulable:
    """The first pods without a place and why (DIS-168)."""
    shown = tuple(
        StrandedPod(_pod_name(unschedulable_pod.pod), tuple(unschedulable_pod.reasons))
        for unschedulable_pod in unschedulable[:_SHOWN_PODS]
    )
    return PodsUnschedulable(shown, len(unschedulable) - len(shown))


def _pod_name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
