"""Which nodes should lose their pods first when workloads scale down, as deletion costs of those pods (K15-346 to K15-350).

The ReplicaSet controller deletes pods with the lowest cost first. So pods on nodes that go anyway get the least, those on nodes
that could be disrupted less than others, and pods on nodes that stay have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from karpenter.api.core import Pod
from karpenter.disruption.decide.candidates import (
    CandidateChecks,
    DisruptionContext,
    is_drifted,
    never_consolidates,
)
from karpenter.disruption.decide.command import Candidate, DisruptionReason
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels, pods, taints
from karpenter.model.pod_disruption import DELETION_COST_ANNOTATION
from karpenter.state.snapshot import ClusterSnapshot, PodKey, pod_key
from karpenter.state.state_node import StateNode

#: The cost of pods on nodes that are on their way out: no pod can have a lower one.
LEAST_COST = -(2**31)
#: Nodes whose pods are changed by one pass, beside those that are on their way out (K15-350).
MAX_CHANGED_NODES = 50
_SYSTEM_NAMESPACE = "kube-system"
_DRIFTED, _UNDERUTILIZED = DisruptionReason.DRIFTED, DisruptionReason.UNDERUTILIZED


@dataclass(frozen=True)
class RankedNode:
    """A node and the deletion cost its pods should have; None for none."""

    state_node: StateNode
    cost: int | None


@dataclass(frozen=True)
class ExhaustedBudget:
    """A budget that more nodes use already than it allows."""

    node_pool: str
    reason: DisruptionReason
    allowed: int
    disrupting: int


@dataclass(frozen=True)
class NodeRanking:
    """Nodes by group: ``leaving`` goes anyway, ``ranked`` may be disrupted (the first goes first), ``cleaned`` stays."""

    leaving: tuple[RankedNode, ...] = ()
    ranked: tuple[RankedNode, ...] = ()
    cleaned: tuple[RankedNode, ...] = ()
    exhausted: tuple[ExhaustedBudget, ...] = ()


@dataclass(frozen=True)
class CostChange:
    """A pod whose deletion cost is to change; ``cost`` None removes it."""

    key: PodKey
    uid: str
    node: str
    node_pool: str
    cost: int | None

    @property
    def value(self) -> str | None:
        """The annotation as it should be."""
        return None if self.cost is None else str(self.cost)


def rank_nodes(
    snapshot: ClusterSnapshot,
    indexes: Mapping[str, TypeIndex],
    now: datetime,
    nominated: frozenset[str] = frozenset(),
    *,
    counts_cpu_surplus: bool = True,
) -> NodeRanking:
    """The nodes of ours in their groups. ``indexes``: prepared types of each NodePool.

    ``counts_cpu_surplus``: CPU beyond the baseline of burstable types costs money.
    """
    context = DisruptionContext(now, nominated=nominated)
    checks = CandidateChecks(snapshot, indexes, context, counts_cpu_surplus=counts_cpu_surplus)
    managed = [view for view in snapshot.nodes if view.managed]
    leaving = [view for view in managed if _is_leaving(view)]
    drifted: list[Candidate] = []
    others: list[Candidate] = []
    cleaned: list[StateNode] = []
    pools = {pool.metadata.name: pool for pool in snapshot.pools}
    for view in managed:
        if _is_leaving(view):
            continue
        if not _may_go(view, checks, indexes):
            cleaned.append(view)
            continue
        candidate = checks.as_candidate(view)
        if is_drifted(view) and not checks.is_in_static_pool(candidate):
            drifted.append(candidate)
        elif never_consolidates(pools[candidate.node_pool]):
            cleaned.append(view)
        else:
            others.append(candidate)
    budgets = RemainingBudgets(snapshot, now)
    ranked, overflow = _within_budgets(drifted, budgets, _DRIFTED)
    more, more_overflow = _within_budgets(others, budgets, _UNDERUTILIZED)
    ranked += more
    return NodeRanking(
        tuple(RankedNode(view, LEAST_COST) for view in leaving),
        tuple(RankedNode(view, place - len(ranked)) for place, view in enumerate(ranked)),
        tuple(RankedNode(view, None) for view in (*cleaned, *overflow, *more_overflow)),
        tuple(_exhausted_budgets(drifted, budgets, _DRIFTED))
        + tuple(_exhausted_budgets(others, budgets, _UNDERUTILIZED)),
    )


def _is_leaving(view: StateNode) -> bool:
    """Whether the node is marked for deletion or closed for its disruption (K15-347)."""
    is_tainted = view.node is not None and any(
        taints.is_same_taint(taint, labels.DISRUPTED_TAINT) for taint in view.node.spec.taints
    )
    return view.marked_for_deletion or is_tainted


def _may_go(view: StateNode, checks: CandidateChecks, indexes: Mapping[str, TypeIndex]) -> bool:
    """Whether nothing keeps the node (K15-349): the checks of all methods, pods that pin it, a type the NodePool lacks."""
    if next(checks.node_blockers(view), None) is not None or next(checks.pod_blockers(view), None) is not None:
        return False
    if any(_pins_node(pod) for pod in view.pods):
        return False
    instance_type = view.own_labels.get(labels.INSTANCE_TYPE, "")
    return bool(indexes[view.pool].named(instance_type))


def _pins_node(pod: Pod) -> bool:
    """Whether no other pod takes the place of this one when its workload scales down: of StatefulSets, and without owner."""
    if pod.metadata.namespace == _SYSTEM_NAMESPACE:
        return False
    owner = pods.controller_of(pod.metadata)
    if owner is None:
        return True
    return not (owner.kind in ("ReplicaSet", "DaemonSet") or (owner.kind == "Job" and owner.api_version == "batch/v1"))


def _within_budgets(
    candidates: Iterable[Candidate], budgets: RemainingBudgets, reason: DisruptionReason
) -> tuple[list[StateNode], list[StateNode]]:
    """Candidates that budgets allow to go, the most saved per disruption first, and the others (K15-348)."""
    taken: list[StateNode] = []
    overflow: list[StateNode] = []
    counts: dict[str, int] = {}
    for candidate in sorted(candidates, key=_saving_order):
        count = counts[candidate.node_pool] = counts.get(candidate.node_pool, 0) + 1
        fits = count <= budgets.remaining(candidate.node_pool, reason)
        (taken if fits else overflow).append(candidate.state_node)
    return taken, overflow


def _saving_order(candidate: Candidate) -> tuple[float, str]:
    return (-(candidate.price_per_hour or 0.0) / candidate.disruption_cost, candidate.state_node.name)


def _exhausted_budgets(
    candidates: Iterable[Candidate], budgets: RemainingBudgets, reason: DisruptionReason
) -> Iterator[ExhaustedBudget]:
    for pool in sorted({candidate.node_pool for candidate in candidates}):
        allowed, disrupting = budgets.allowed(pool, reason), budgets.disrupting(pool, reason)
        if disrupting > allowed:
            yield ExhaustedBudget(pool, reason, allowed, disrupting)


# -- changes of pods ------------------------------------------------------------------------------------------------------


def cost_changes(
    ranking: NodeRanking, current: Mapping[PodKey, str], max_nodes: int = MAX_CHANGED_NODES
) -> tuple[list[CostChange], bool]:
    """What to write, and whether more is left for the next pass (K15-346, K15-350).

    ``current``: the deletion costs that pods have now. Nodes without a change do not count against ``max_nodes``.
    """
    changes = [change for ranked in ranking.leaving for change in _changes(ranked, current)]
    changed_nodes = 0
    for ranked in (*ranking.ranked, *ranking.cleaned):
        own = list(_changes(ranked, current))
        if own and changed_nodes == max_nodes:
            return changes, True
        changed_nodes += bool(own)
        changes += own
    return changes, False


def _changes(ranked: RankedNode, current: Mapping[PodKey, str]) -> Iterator[CostChange]:
    view = ranked.state_node
    for pod in view.pods:
        change = CostChange(pod_key(pod), pod.metadata.uid, view.name, view.pool, ranked.cost)
        if is_replica(pod) and current.get(change.key) != change.value:
            yield change


def is_replica(pod: Pod) -> bool:
    """Whether a ReplicaSet controls the pod: no other controller reads deletion costs (K15-346)."""
    owner = pods.controller_of(pod.metadata)
    return owner is not None and (owner.kind, owner.api_version) == ("ReplicaSet", "apps/v1")


def deletion_costs(all_pods: Iterable[Pod]) -> Mapping[PodKey, str]:
    """The deletion costs that pods have."""
    return {
        pod_key(pod): pod.metadata.annotations[DELETION_COST_ANNOTATION]
        for pod in all_pods
        if DELETION_COST_ANNOTATION in pod.metadata.annotations
    }
