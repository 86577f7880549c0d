"""Which machines may go at all, and what keeps the others: the checks of DIS §4, the same for every method.

A `Judge` looks at a machine in two steps. `candidate` asks what holds for every method, in a fixed order whose first failing
check counts; the filters of the methods (`for_emptiness`, `for_consolidation`, `for_drift`) come after that. Only drift may
choose a machine whose pods object, and only where its claim says how long a drain may take (DIS-082).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from karpenter.api.core import Pod, PodDisruptionBudget
from karpenter.api.karpenter import NodePool
from karpenter.disruption.decide.command import Candidate, Command, DisruptionReason
from karpenter.disruption.decide.costs import NODE_DISRUPTION_COST, NodePrices, disruption_cost, node_labels
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import durations, labels, pod_disruption, pods
from karpenter.model.conditions import find_condition, is_true
from karpenter.state.pod_counts import NamespacedLabels, namespaced_labels
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode

_WHEN_EMPTY = "WhenEmpty"
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class DisruptionContext:
    """What a decision depends on beside the snapshot: frozen data only, taken in the same step. Nodes are named by their keys.

    ``nominated``: nodes that pods are expected on. ``in_command``: nodes of running commands and of those that await validation.
    ``excluded_by_backoff``: by reason, the nodes whose last command failed too recently to try again. ``pending_commands``:
    consolidation commands that are due for validation; they are evaluated first, so that an equally good alternative does not
    displace them. ``controller_node``: name of the node this controller runs on, empty if unknown.
    """

    now: datetime
    nominated: frozenset[str] = frozenset()
    in_command: frozenset[str] = frozenset()
    excluded_by_backoff: Mapping[DisruptionReason, frozenset[str]] = field(default_factory=dict)
    pending_commands: tuple[Command, ...] = ()
    controller_node: str = ""

    def is_in_backoff(self, reason: DisruptionReason, key: str) -> bool:
        """Whether a node must not be disrupted for the reason yet, because an earlier attempt failed."""
        return key in self.excluded_by_backoff.get(reason, ())


@dataclass(frozen=True)
class BlockedNode:
    """A machine that stays, and what keeps it.

    ``lasting``: it concerns one method only and passes slowly, so it is said under another reason and less often (DIS-398).
    """

    state_node: StateNode
    message: str
    unconsolidatable: bool = False


class PodDisruptionBudgetIndex:
    """The PodDisruptionBudgets of a snapshot, found by what pods look like: replicas ask once."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._by_namespace: dict[str, list[PodDisruptionBudget]] = {}
        for budget in snapshot.pdbs:
            self._by_namespace.setdefault(budget.metadata.namespace, []).append(budget)
        self._by_identity: dict[NamespacedLabels, tuple[PodDisruptionBudget, ...]] = {}

    def selecting(self, pod: Pod) -> tuple[PodDisruptionBudget, ...]:
        """The budgets that select a pod."""
        nearby = self._by_namespace.get(pod.metadata.namespace)
        if not nearby:
            return ()
        face = namespaced_labels(pod)
        known = self._by_identity.get(face)
        if known is None:
            known = self._by_identity[face] = tuple(pod_disruption.pdbs_selecting(pod, nearby))
        return known


class CandidateChecks:
    """Answers about the machines of one snapshot. ``indexes``: prepared types of each NodePool; None where nobody looked."""

    def __init__(
        self, snapshot: ClusterSnapshot, indexes: Mapping[str, TypeIndex] | None, context: DisruptionContext
    ) -> None:
        self._pools = {pool.metadata.name: pool for pool in snapshot.pools}
        self._indexes = indexes
        self._buffer_pods = snapshot.virtual_pod_counts
        self._context = context
        self.pod_disruption_budgets = PodDisruptionBudgetIndex(snapshot)
        self.prices = NodePrices(indexes or {})

    def is_considered(self, state_node: StateNode) -> bool:
        """Whether there is anything to say about the machine: foreign ones and those under way stay silent (DIS-070, DIS-071)."""
        return state_node.claim is not None and state_node.key not in self._context.in_command

    def candidate_or_blocker(self, state_node: StateNode, reason: DisruptionReason) -> Candidate | BlockedNode:
        """The machine as a candidate, or the first thing that forbids it (DIS-072 to DIS-082)."""
        why = next(self.node_blockers(state_node), "")
        if not why and not self._ignores_pod_blockers(state_node, reason):
            why = next((text for _, text in self.pod_blockers(state_node)), "")
        return BlockedNode(state_node, why) if why else self._candidate(state_node)

    def _candidate(self, state_node: StateNode) -> Candidate:
        moving = tuple(pod for pod in state_node.pods if pods.needs_rescheduling(pod))
        return Candidate(
            state_node, state_node.pool, moving, self.prices.price_per_hour(state_node), disruption_cost(moving)
        )

    def node_blockers(self, state_node: StateNode) -> Iterator[str]:
        """All that forbids it about the machine itself, in the order of DIS-072 to DIS-078."""
        if state_node.node is None:
            yield "Nodeclaim does not have an associated node"
            return
        if not state_node.initialized:
            yield "Node isn't initialized"
        if state_node.marked_for_deletion:
            yield "Node is deleting or marked for deletion"
        if state_node.key in self._context.nominated:
            yield "Node is nominated for a pending pod"
        if state_node.node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true":
            yield f'Disruption is blocked through the "{labels.DO_NOT_DISRUPT}" annotation'
        if not state_node.pool:
            yield f"Node doesn't have required label (label={labels.NODE_POOL})"
        elif why := self._node_pool_blocker(state_node.pool):
            yield why

    def _node_pool_blocker(self, name: str) -> str:
        """DIS-078, with its Beyond: a pool that is there but cannot be bought from is not called missing."""
        if name not in self._pools:
            return f"NodePool not found (NodePool={name})"
        if self._indexes is not None and (name not in self._indexes or not self._indexes[name].types):
            return f"NodePool has no instance types that could be resolved (NodePool={name})"
        return ""

    def _ignores_pod_blockers(self, state_node: StateNode, reason: DisruptionReason) -> bool:
        """Whether objections of pods do not count: the drain has an end that its claim names (DIS-082)."""
        eventual = reason is DisruptionReason.DRIFTED
        return eventual and state_node.claim is not None and state_node.claim.spec.termination_grace_period is not None

    def pod_blockers(self, state_node: StateNode) -> Iterator[tuple[Pod, str]]:
        """All pods that must not be evicted and why, also such as need no other place (DIS-079 to DIS-081, DIS-085)."""
        now = self._context.now
        for pod in state_node.pods:
            if pods.is_active(pod) and pod_disruption.is_protected(pod, now):
                yield pod, f'Pod has "{labels.DO_NOT_DISRUPT}" annotation (Pod={_name(pod)})'
        for pod in state_node.pods:
            is_asked = pods.is_active(pod) and not pods.is_mirror_pod(pod)
            if is_asked and (text := self._pdb_blocker(pod)) and not pod_disruption.is_protected(pod, now):
                yield pod, text

    def _pdb_blocker(self, pod: Pod) -> str:
        matching = self.pod_disruption_budgets.selecting(pod)
        if not matching or pod_disruption.tolerates_disruption(pod):
            return ""
        names = " ".join(sorted(f"{budget.metadata.namespace}/{budget.metadata.name}" for budget in matching))
        if len(matching) > 1:
            return f"Eviction does not support multiple PDBs (PodDisruptionBudget(s)=[{names}])"
        if not matching[0].status.disruptions_allowed and not pod_disruption.allows_unready_eviction(matching[0], pod):
            return f"PDB prevents pod evictions (PodDisruptionBudget=[{names}])"
        return ""

    # -- filters of the methods -----------------------------------------------------------------------------------------

    def emptiness_blocker(self, candidate: Candidate) -> BlockedNode | None:
        """What keeps an empty machine that is otherwise free to go (DIS-100); None lets it go once it is consolidatable."""
        pool = self._pools[candidate.node_pool]
        count = self._buffer_pods.get(candidate.key, 0)
        why = _consolidation_disabled_message(pool) or (
            f"Node is kept for {count} capacity buffer pod(s)" if count else ""
        )
        return BlockedNode(candidate.state_node, why, unconsolidatable=True) if why else None

    def consolidation_blocker(self, candidate: Candidate) -> BlockedNode | None:
        """What keeps a machine with pods from being consolidated (DIS-101 to DIS-106)."""
        why = next(self.consolidation_blockers(candidate), "")
        return BlockedNode(candidate.state_node, why, unconsolidatable=True) if why else None

    def consolidation_blockers(self, candidate: Candidate) -> Iterator[str]:
        """All that keeps a machine with pods from being consolidated, in the order of DIS-102 to DIS-106.

        To move the controller for money would hold up everything else for as long as it is away (DIS-469).
        """
        pool = self._pools[candidate.node_pool]
        found = node_labels(candidate.state_node)
        kind = found.get(labels.INSTANCE_TYPE, "")
        if self._indexes is not None and kind not in self._indexes[candidate.node_pool].position_by_name:
            yield f'Instance Type "{kind}" not found'
        yield from (
            f'Node does not have label "{key}"' for key in (labels.CAPACITY_TYPE, labels.ZONE) if key not in found
        )
        if self.hosts_controller(candidate):
            yield "The controller itself runs on this node"
        if why := _consolidation_disabled_message(pool):
            yield why
        # As good as empty, once its pods have a place (DIS-121).
        is_worth_nothing = candidate.disruption_cost <= NODE_DISRUPTION_COST
        if pool.spec.disruption.consolidation_policy == _WHEN_EMPTY and not is_worth_nothing:
            yield f'NodePool "{candidate.node_pool}" has non-empty consolidation disabled'

    def hosts_controller(self, candidate: Candidate) -> bool:
        """Whether this very controller runs on the machine."""
        return bool(self._context.controller_node) and candidate.state_node.name == self._context.controller_node

    def is_in_static_pool(self, candidate: Candidate) -> bool:
        """Whether its pool holds a fixed number of nodes: nothing but drift and scale-down concerns those (DIS-563)."""
        return self._pools[candidate.node_pool].spec.replicas is not None


def is_consolidatable(state_node: StateNode) -> bool:
    """Whether the machine's quiet time is over (DIS-320)."""
    return state_node.claim is not None and is_true(state_node.claim.status.conditions, "Consolidatable")


def is_drifted(state_node: StateNode) -> bool:
    """Whether the machine is not what its pool asks for any more (DIS-321)."""
    return state_node.claim is not None and is_true(state_node.claim.status.conditions, "Drifted")


def consolidate_after_elapsed(state_node: StateNode, pool: NodePool | None, now: datetime) -> bool:
    """Whether a machine may be given pods of others that go: outside its own quiet time (DIS-166, DIS-241)."""
    until = consolidate_after_end(state_node, pool)
    return until is None or now >= until


def consolidate_after_end(state_node: StateNode, pool: NodePool | None) -> datetime | None:
    """The end of a machine's own quiet time, past or to come (DIS-241); None where it has none or nobody knows."""
    if pool is None or state_node.claim is None:
        return None
    period = _consolidate_after(pool)
    initialized = find_condition(state_node.claim.status.conditions, "Initialized")
    if not period or initialized is None or initialized.status != "True":
        return None
    since = state_node.claim.status.last_pod_event_time or initialized.last_transition_time
    try:
        return None if since is None else since + period
    except OverflowError:
        return _NEVER


def _consolidate_after(pool: NodePool) -> timedelta | None:
    """``consolidateAfter``; None for Never, and where the text is no duration, which the pool's own conditions say."""
    try:
        return durations.parse_duration_or_never(pool.spec.disruption.consolidate_after)
    except durations.DurationError:
        return None


def consolidation_enabled(pool: NodePool) -> bool:
    """Whether the pool gives machines back for money at all."""
    return not _consolidation_disabled_message(pool)


def _consolidation_disabled_message(pool: NodePool) -> str:
    """What about the pool rules every kind of consolidation out."""
    if pool.spec.replicas is not None:
        return f'NodePool "{pool.metadata.name}" is static'
    if _consolidate_after(pool) is None:
        return f'NodePool "{pool.metadata.name}" has consolidation disabled'
    return ""


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
