"""Consolidation that found nothing: while its inputs stay as they are, it finds nothing again.

Most passes see a change that consolidation does not read: a condition of a NodeClaim, the counters of a NodePool, a budget that
allows more nodes than there are candidates, a delay that ended for an empty node. `ConsolidationInputs` is everything that
consolidation reads, with what time changes worked out (which pods move, which nodes are within ``consolidateAfter``, which pods
came lately). Equal inputs give the same answer. Comparing them costs little: what did not change is the same object.

Only the answer "nothing" is remembered: commands hold nodes as they were seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime

from karpenter.disruption.decide.candidates import BlockedNode, CandidateChecks, consolidate_after_end
from karpenter.disruption.decide.command import Candidate, DisruptionReason
from karpenter.disruption.decide.consolidation import PrecedingCommands
from karpenter.disruption.decide.disruption_blockers import DisruptionBlocker
from karpenter.disruption.decide.disruption_problem import PreparedDisruption
from karpenter.disruption.decide.failed_moves import FailedMoves
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets
from karpenter.disruption.decide.scheduling_simulation import pods_leaving_now
from karpenter.scheduling import pod_eligibility
from karpenter.scheduling.arrival_forecast import recent_arrivals
from karpenter.scheduling.decision_memory import DecisionMemory, without_usage
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode

#: The latest inputs that are kept: a cluster goes back and forth between a few states, for instance around a nomination.
_MAX_INPUTS = 4
#: These parts of a snapshot are reduced to what consolidation reads of them; the others count as they are.
_REDUCED = frozenset({"nodes", "pools"})
_SNAPSHOT_FIELDS = tuple(each.name for each in fields(ClusterSnapshot) if each.name not in _REDUCED)


@dataclass(frozen=True)
class ConsolidationInputs:
    """Everything that the answer of consolidation depends on, if no command moves pods before it and none awaits validation.

    ``preceding``: the nodes of commands of the same pass. Without pods that move, nothing else of those commands matters.
    ``candidates`` and ``nodes`` come first: they change most often, and the first difference ends a comparison.
    """

    candidates: tuple[object, ...]
    nodes: tuple[object, ...]
    preceding: frozenset[str]
    closed_to_pods: frozenset[str]
    consolidate_after_ends: Mapping[str, datetime]
    budgets: Mapping[str, int]
    failed_moves: FailedMoves
    pools: tuple[object, ...]
    snapshot: tuple[object, ...]
    moving: tuple[object, ...]
    settings: tuple[object, ...]


def consolidation_inputs(
    prepared: PreparedDisruption,
    candidates: Sequence[Candidate],
    preceding: PrecedingCommands,
    budgets: RemainingBudgets,
) -> ConsolidationInputs | None:
    """The inputs of consolidation; None where nothing is remembered: devices and gangs are worked out within a decision."""
    snapshot, context = prepared.snapshot, prepared.context
    if snapshot.devices is not None or snapshot.gangs or context.pending_commands:
        return None
    return ConsolidationInputs(
        candidates=tuple(_candidate_inputs(each, prepared.checks, context.now) for each in candidates),
        nodes=tuple(map(_node_inputs, snapshot.nodes)),
        preceding=preceding.candidate_keys,
        closed_to_pods=preceding.closed_to_pods,
        consolidate_after_ends=_consolidate_after_ends(snapshot, context.now),
        budgets=_budgets_for(candidates, budgets),
        failed_moves=context.failed_moves.after_all(preceding.commands),
        pools=tuple(map(without_usage, snapshot.pools)),
        snapshot=tuple(getattr(snapshot, name) for name in _SNAPSHOT_FIELDS),
        moving=_moving(snapshot, context.now),
        settings=(prepared.problem.options, *prepared.indexes.items()),
    )


class ConsolidationMemory:
    """The latest inputs for which consolidation found nothing, each with why the candidates stay."""

    def __init__(self) -> None:
        self._rejections: list[tuple[ConsolidationInputs, Mapping[str, DisruptionBlocker]]] = []

    def recall(self, inputs: ConsolidationInputs, candidates: Iterable[Candidate]) -> list[BlockedNode] | None:
        """The candidates that stay, as consolidation gives them; None if it did not have these inputs lately."""
        for position, (known, rejections) in enumerate(self._rejections):
            if known == inputs:
                self._rejections.insert(0, self._rejections.pop(position))
                nodes = {candidate.key: candidate.state_node for candidate in candidates}
                return [BlockedNode(nodes[key], blocker) for key, blocker in rejections.items()]
        return None

    def remember(self, inputs: ConsolidationInputs, rejected: Iterable[BlockedNode]) -> None:
        """Consolidation found no move; these candidates stay."""
        rejections = {blocked.state_node.key: blocked.blocker for blocked in rejected}
        self._rejections = [(inputs, rejections), *self._rejections[: _MAX_INPUTS - 1]]


@dataclass(frozen=True)
class DisruptionMemory:
    """What the decisions of one disruption controller leave for the next: packings, and when consolidation found nothing."""

    packings: DecisionMemory = field(default_factory=DecisionMemory)
    consolidation: ConsolidationMemory = field(default_factory=ConsolidationMemory)


def _candidate_inputs(candidate: Candidate, checks: CandidateChecks, now: datetime) -> tuple[object, ...]:
    return (
        candidate.key,
        candidate.price_per_hour,
        candidate.disruption_cost,
        candidate.reschedulable_pods,
        pods_leaving_now(candidate, checks.pod_disruption_budgets, now),
    )


def _node_inputs(node: StateNode) -> tuple[object, ...]:
    """A node without its conditions, annotations and versions; `StateNode` has worked out what they mean."""
    claim, own = node.claim, node.node
    return (
        node.key,
        node.pods,
        node.marked_for_deletion,
        node.launched,
        node.registered,
        node.initialized,
        node.name,
        node.hostname,
        node.pool,
        node.requirements,
        node.taints,
        node.capacity,
        node.allocatable,
        node.pod_requests,
        node.daemonset_requests,
        None if claim is None else (claim.metadata.labels, claim.spec),
        None if own is None else (own.metadata.name, own.metadata.labels),
    )


def _consolidate_after_ends(snapshot: ClusterSnapshot, now: datetime) -> dict[str, datetime]:
    pools = {pool.metadata.name: pool for pool in snapshot.pools}
    ends = ((node.key, consolidate_after_end(node, pools.get(node.pool))) for node in snapshot.nodes)
    return {key: end for key, end in ends if end is not None and end > now}


def _budgets_for(candidates: Iterable[Candidate], budgets: RemainingBudgets) -> dict[str, int]:
    """By NodePool, how many of its candidates budgets allow: what they allow beyond that is not read."""
    counts: dict[str, int] = {}
    for candidate in candidates:
        counts[candidate.node_pool] = counts.get(candidate.node_pool, 0) + 1
    return {
        pool: min(number, budgets.remaining(pool, DisruptionReason.UNDERUTILIZED)) for pool, number in counts.items()
    }


def _moving(snapshot: ClusterSnapshot, now: datetime) -> tuple[object, ...]:
    """Pods that nodes on their way out leave behind, and what the plan for those and for pending pods reads of time."""
    leaving = pod_eligibility.pods_leaving_nodes(snapshot, now)
    arrivals = recent_arrivals(snapshot, now) if leaving or snapshot.pod_groups else None
    return leaving, arrivals
