"""Which nodes are candidates, and what blocks the others: the checks of DIS §4, shared by all disruption methods.

``CandidateChecks`` works in two steps. ``candidate_or_blocker`` makes the checks that hold for every method, in a fixed order;
the first one that fails counts. The filters of the methods (``emptiness_blocker``, ``consolidation_blockers``) follow. Only
drift may choose a node whose pods must not be evicted, and only if its NodeClaim limits how long a drain takes (DIS-082).
Checks are generators: the decision takes the first blocker and evaluates no further check, an explanation takes all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from karpenter.api.core import Pod, PodDisruptionBudget
from karpenter.api.karpenter import NodePool
from karpenter.disruption.decide import disruption_blockers
from karpenter.disruption.decide.command import Candidate, DisruptionReason, PendingCommand
from karpenter.disruption.decide.costs import NODE_DISRUPTION_COST, NodePrices, disruption_cost
from karpenter.disruption.decide.disruption_blockers import (
    ConsolidationBlocker,
    DisruptionBlocker,
    NodeBlocker,
    PodBlocker,
)
from karpenter.disruption.decide.failed_moves import NO_FAILED_MOVES, FailedMoves
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import durations, labels, pod_disruption, pods
from karpenter.model.conditions import CONSOLIDATABLE, DRIFTED
from karpenter.state.pod_counts import NamespacedLabels, namespaced_labels
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode

_WHEN_EMPTY = "WhenEmpty"
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class DisruptionContext:
    """What a decision depends on beside the snapshot: frozen data only, taken in the same step. Nodes are named by their keys.

    ``nominated``: nodes that pods are expected on. ``in_command``: nodes of running commands and of those that await validation.
    ``excluded_by_backoff``: by reason, nodes that no move may disrupt yet, because an earlier one was undone.
    ``failed_moves``: moves that failed too recently to try them again. ``pending_commands``: consolidation commands that are
    due for validation; they are evaluated first, so that an equally good alternative does not displace them.
    ``controller_node``: name of the node this controller runs on, empty if unknown. ``reboots_exhausted``: nodes that were
    rebooted so often that a further repair replaces them (K15-236). ``started_at``: the start of the process; what
    a Node said before is not trusted at once (`repair_policies.SETTLING`). None trusts it.
    """

    now: datetime
    nominated: frozenset[str] = frozenset()
    in_command: frozenset[str] = frozenset()
    excluded_by_backoff: Mapping[DisruptionReason, frozenset[str]] = field(default_factory=dict)
    failed_moves: FailedMoves = NO_FAILED_MOVES
    pending_commands: tuple[PendingCommand, ...] = ()
    controller_node: str = ""
    reboots_exhausted: frozenset[str] = frozenset()
    started_at: datetime | None = None

    def is_in_backoff(self, reason: DisruptionReason, key: str) -> bool:
        """Whether a node must not be disrupted for the reason yet, whatever the move."""
        return key in self.excluded_by_backoff.get(reason, ())


@dataclass(frozen=True)
class BlockedNode:
    """A node that is not disrupted, and the first thing that blocks it."""

    state_node: StateNode
    blocker: DisruptionBlocker


class PodDisruptionBudgetIndex:
    """The PodDisruptionBudgets of a snapshot by pod labels; replicas share one lookup."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._by_namespace: dict[str, list[PodDisruptionBudget]] = {}
        for budget in snapshot.pdbs:
            self._by_namespace.setdefault(budget.metadata.namespace, []).append(budget)
        self._by_identity: dict[NamespacedLabels, tuple[PodDisruptionBudget, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_namespace)

    def selecting(self, pod: Pod) -> tuple[PodDisruptionBudget, ...]:
        """The budgets that select a pod."""
        nearby = self._by_namespace.get(pod.metadata.namespace)
        if not nearby:
            return ()
        pod_labels = namespaced_labels(pod)
        disruption_budgets = self._by_identity.get(pod_labels)
        if disruption_budgets is None:
            disruption_budgets = self._by_identity[pod_labels] = tuple(pod_disruption.pdbs_selecting(pod, nearby))
        return disruption_budgets


class CandidateChecks:
    """Checks of the nodes of one snapshot. ``indexes``: prepared types of each NodePool; None if unknown.

    ``counts_cpu_surplus``: CPU beyond the baseline of burstable types costs money.
    """

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        indexes: Mapping[str, TypeIndex] | None,
        context: DisruptionContext,
        *,
        counts_cpu_surplus: bool = True,
    ) -> None:
        self._pools = {pool.metadata.name: pool for pool in snapshot.pools}
        self._indexes = indexes
        self.nodes_by_key = {node.key: node for node in snapshot.nodes}
        self._buffer_pods = snapshot.virtual_pod_counts
        self._indispensable_gangs = snapshot.indispensable_gangs
        self._sleeping_pools = snapshot.sleeping_pools
        self._context = context
        self.pod_disruption_budgets = PodDisruptionBudgetIndex(snapshot)
        self.prices = NodePrices(indexes or {}, counts_cpu_surplus=counts_cpu_surplus)

    def is_considered(self, state_node: StateNode) -> bool:
        """Whether there is anything to say about the node: foreign ones and those under way stay silent (DIS-070, DIS-071)."""
        return state_node.claim is not None and state_node.key not in self._context.in_command

    def candidate_or_blocker(self, state_node: StateNode, reason: DisruptionReason) -> Candidate | BlockedNode:
        """The node as a candidate, or the first thing that forbids it (DIS-072 to DIS-082)."""
        blocker: NodeBlocker | PodBlocker | None = next(self.node_blockers(state_node), None)
        may_pods_object = bool(self.pod_disruption_budgets or state_node.pods_with_eviction_annotation)
        if blocker is None and may_pods_object and not self._ignores_pod_blockers(state_node, reason):
            blocker = next(self._respected_pod_blockers(state_node, reason), None)
        return self.as_candidate(state_node) if blocker is None else BlockedNode(state_node, blocker)

    def as_candidate(self, state_node: StateNode) -> Candidate:
        """The node as a candidate, whatever blocks it."""
        return Candidate(
            state_node,
            state_node.pool,
            state_node.reschedulable_pods,
            self.prices.price_per_hour(state_node),
            disruption_cost(state_node),
        )

    def node_blockers(self, state_node: StateNode) -> Iterator[NodeBlocker]:
        """Everything about the node itself that blocks it, in the order of K15-202 (DIS-072 to DIS-078)."""
        if state_node.node is None:
            yield disruption_blockers.NodeMissing()
            return
        if state_node.rebooting:
            yield disruption_blockers.NodeRebooting()
        if state_node.marked_for_deletion:
            yield disruption_blockers.NodeDeleting()
        if not state_node.initialized:
            yield disruption_blockers.NodeNotInitialized(state_node.registered)
        if state_node.key in self._context.nominated:
            yield disruption_blockers.NodeNominated()
        protection = pod_disruption.node_disruption_protection(state_node.node, self._context.now)
        if protection is not None and protection.active:
            yield disruption_blockers.NodeDoNotDisrupt(until=protection.until)
        elif state_node.node.metadata.annotations.get(labels.SCALE_DOWN_DISABLED) == "true":
            yield disruption_blockers.NodeDoNotDisrupt(labels.SCALE_DOWN_DISABLED)
        yield from self._nodepool_blockers(state_node.pool)

    def _nodepool_blockers(self, pool: str) -> Iterator[NodeBlocker]:
        if not pool:
            yield disruption_blockers.NodePoolLabelMissing()
        elif pool not in self._pools:
            yield disruption_blockers.NodePoolMissing(pool)
        elif self._indexes is not None and not self._has_types(pool):
            # A NodePool that exists without instance types is not called missing (DIS-078 Beyond).
            yield disruption_blockers.NodePoolWithoutTypes(pool)

    def _has_types(self, pool: str) -> bool:
        index = self._indexes.get(pool) if self._indexes is not None else None
        return index is not None and bool(index.types)

    def _respected_pod_blockers(self, state_node: StateNode, reason: DisruptionReason) -> Iterator[PodBlocker]:
        """The objections of pods that count for the reason: the deadline of a sleep ends some."""
        sleep = self._sleeping_pools.get(state_node.pool) if reason is DisruptionReason.SLEEP else None
        for blocker in self.pod_blockers(state_node):
            is_protected = isinstance(blocker, disruption_blockers.PodDoNotDisrupt)
            if sleep is None or not (
                sleep.ignores_do_not_disrupt if is_protected else sleep.ignores_disruption_budgets
            ):
                yield blocker

    def _ignores_pod_blockers(self, state_node: StateNode, reason: DisruptionReason) -> bool:
        """Whether objections of pods do not count: the drain has an end that its claim names (DIS-082)."""
        eventual = reason is DisruptionReason.DRIFTED
        return eventual and state_node.claim is not None and state_node.claim.spec.termination_grace_period is not None

    def pod_blockers(self, state_node: StateNode) -> Iterator[PodBlocker]:
        """One blocker per pod that must not be evicted, even if it needs no rescheduling (DIS-079 to DIS-081, DIS-085)."""
        now = self._context.now
        for pod in filter(pods.is_active, state_node.pods_with_eviction_annotation):
            protection = pod_disruption.disruption_protection(pod, now)
            if protection is not None and protection.active:
                yield disruption_blockers.PodDoNotDisrupt(_name(pod), until=protection.until)
            elif pod_disruption.is_not_safe_to_evict(pod):
                yield disruption_blockers.PodDoNotDisrupt(_name(pod), labels.SAFE_TO_EVICT)
        for pod in state_node.pods if self.pod_disruption_budgets else ():
            # Most pods have no budget: that is asked first.
            blocker = self._pdb_blocker(pod)
            if blocker is None or not pods.is_active(pod) or pods.is_mirror_pod(pod):
                continue
            if not pod_disruption.is_protected(pod, now):
                yield blocker

    def _pdb_blocker(self, pod: Pod) -> disruption_blockers.PdbExhausted | disruption_blockers.MultiplePdbs | None:
        matching = self.pod_disruption_budgets.selecting(pod)
        if not matching or pod_disruption.tolerates_disruption(pod):
            return None
        names = sorted(f"{budget.metadata.namespace}/{budget.metadata.name}" for budget in matching)
        if len(matching) > 1:
            return disruption_blockers.MultiplePdbs(tuple(names))
        if not matching[0].status.disruptions_allowed and not pod_disruption.allows_unready_eviction(matching[0], pod):
            return disruption_blockers.PdbExhausted(names[0])
        return None

    # -- filters of the methods -----------------------------------------------------------------------------------------

    def emptiness_blocker(self, candidate: Candidate) -> ConsolidationBlocker | None:
        """What keeps an empty node that no other check blocks (DIS-100); with None it goes once it is consolidatable."""
        disabled = _disabled_by_pool(self._pools[candidate.node_pool])
        count = self._buffer_pods.get(candidate.key, 0)
        return disabled or (disruption_blockers.HoldsBufferPods(count) if count else None)

    def consolidation_blockers(self, candidate: Candidate) -> Iterator[ConsolidationBlocker]:
        """Everything that keeps a node with pods from being consolidated, in the order of DIS-102 to DIS-106.

        Moving the controller to save money would delay all other work while it is away (DIS-469).
        """
        pool = self._pools[candidate.node_pool]
        own_labels = candidate.state_node.own_labels
        instance_type = own_labels.get(labels.INSTANCE_TYPE, "")
        if self._indexes is not None and not self._indexes[candidate.node_pool].named(instance_type):
            yield disruption_blockers.InstanceTypeUnknown(instance_type)
        for key in (labels.CAPACITY_TYPE, labels.ZONE):
            if key not in own_labels:
                yield disruption_blockers.NodeLabelMissing(key)
        if self.hosts_controller(candidate):
            yield disruption_blockers.HostsController()
        if (gang := self._indispensable_gangs.get(candidate.state_node.name)) is not None:
            yield disruption_blockers.SplitsGang(gang)
        disabled = _disabled_by_pool(pool)
        if disabled is not None:
            yield disabled
        # A node whose pods cost nothing to disrupt counts as empty (DIS-121).
        costs_nothing = candidate.disruption_cost <= NODE_DISRUPTION_COST
        if pool.spec.disruption.consolidation_policy == _WHEN_EMPTY and not costs_nothing:
            yield disruption_blockers.OnlyWhenEmpty(candidate.node_pool)

    def hosts_controller(self, candidate: Candidate) -> bool:
        """Whether this very controller runs on the node."""
        return bool(self._context.controller_node) and candidate.state_node.name == self._context.controller_node

    def repair_blocker(self, state_node: StateNode) -> NodeBlocker | None:
        """What keeps a broken node from being repaired (K15-201, K15-223, K15-224); None if nothing of the node itself does.

        Repair does not wait for initialization, nor does it respect do-not-disrupt on the node.
        """
        is_starting = state_node.registered and not state_node.initialized
        return next(
            (
                blocker
                for blocker in self.node_blockers(state_node)
                if not isinstance(blocker, disruption_blockers.NodeDoNotDisrupt)
                and not (
                    is_starting
                    and isinstance(blocker, disruption_blockers.NodeNotInitialized | disruption_blockers.NodeNominated)
                )
            ),
            None,
        )

    def is_in_static_pool(self, candidate: Candidate) -> bool:
        """Whether its pool holds a fixed number of nodes: nothing but drift and scale-down concerns those (DIS-563)."""
        return self._pools[candidate.node_pool].spec.replicas is not None


def is_consolidatable(state_node: StateNode) -> bool:
    """Whether the node's consolidateAfter period is over (DIS-320)."""
    return CONSOLIDATABLE in state_node.true_conditions


def is_drifted(state_node: StateNode) -> bool:
    """Whether the node is not what its pool asks for any more (DIS-321)."""
    return DRIFTED in state_node.true_conditions


def consolidate_after_end(state_node: StateNode, pool: NodePool | None) -> datetime | None:
    """The end of a node's own consolidateAfter period, past or to come; None if it has none or it is unknown.

    Until then no pods of nodes that are consolidated are placed on it (DIS-166, DIS-241).
    """
    since = state_node.last_pod_event
    period = _consolidate_after(pool) if pool is not None and since is not None else None
    if not period or since is None:
        return None
    try:
        return since + period
    except OverflowError:
        return _NEVER


def _consolidate_after(pool: NodePool) -> timedelta | None:
    """``consolidateAfter``; None for Never, and where the text is no duration, which the pool's own conditions say."""
    try:
        return durations.parse_duration_or_never(pool.spec.disruption.consolidate_after)
    except durations.DurationError:
        return None


def never_consolidates(pool: NodePool) -> bool:
    """Whether ``consolidateAfter`` is Never."""
    return _consolidate_after(pool) is None


def consolidation_enabled(pool: NodePool) -> bool:
    """Whether the pool gives nodes back for money at all."""
    return _disabled_by_pool(pool) is None


def _disabled_by_pool(
    pool: NodePool,
) -> disruption_blockers.NodePoolStatic | disruption_blockers.ConsolidationDisabled | None:
    """What about the NodePool rules out emptiness and consolidation."""
    if pool.spec.replicas is not None:
        return disruption_blockers.NodePoolStatic(pool.metadata.name)
    if _consolidate_after(pool) is None:
        return disruption_blockers.ConsolidationDisabled(pool.metadata.name)
    return None


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
