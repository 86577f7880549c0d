"""How many more nodes of each NodePool may be disrupted: its budgets less the nodes that are unready or deleting (DIS §6)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import datetime

from karpenter.disruption.decide.command import DisruptionReason
from karpenter.model.conditions import INSTANCE_TERMINATING
from karpenter.model.disruption_rules import disruption_rules
from karpenter.model.freezes import active_freeze
from karpenter.model.nodepool_budgets import DisruptionAllowance
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode


@dataclass(frozen=True)
class PoolNodeCounts:
    """A pool's nodes as budgets see them: ``initialized`` is what percentages are of (DIS-145, K15-207).

    ``unavailable``: how many of those are down, rebooting or on their way out (DIS-146); ``leaving``: the same without those that
    are only down.
    """

    initialized: int = 0
    unavailable: int = 0
    leaving: int = 0

    def consuming(self, reason: DisruptionReason) -> int:
        """How many of its nodes count against budgets for a reason: for repair not those that are only down (K15-206)."""
        return self.leaving if reason is DisruptionReason.UNHEALTHY else self.unavailable


def pool_node_counts(nodes: Iterable[StateNode]) -> Mapping[str, PoolNodeCounts]:
    """What budgets see of every pool; a pool without nodes has none."""
    counted: defaultdict[str, int] = defaultdict(int)
    unavailable: defaultdict[str, int] = defaultdict(int)
    leaving: defaultdict[str, int] = defaultdict(int)
    for view in nodes:
        if view.claim is not None and (view.initialized or view.rebooting) and not _is_terminating(view):
            counted[view.pool] += 1
            leaving[view.pool] += view.marked_for_deletion or view.rebooting
            unavailable[view.pool] += view.marked_for_deletion or view.rebooting or not view.ready
    counts = {pool: PoolNodeCounts(counted[pool], unavailable[pool], leaving[pool]) for pool in counted}
    return defaultdict(PoolNodeCounts, counts)


def _is_terminating(state_node: StateNode) -> bool:
    return INSTANCE_TERMINATING in state_node.true_conditions


class RemainingBudgets:
    """What budgets and freezes still allow while a pass takes from it.

    Every node taken counts against every reason (DIS-147).
    """

    def __init__(self, snapshot: ClusterSnapshot, now: datetime) -> None:
        self._pools = {pool.metadata.name: pool for pool in snapshot.pools}
        self._freeze = snapshot.freeze
        self._now = now
        self._node_counts = pool_node_counts(snapshot.nodes)
        self._consumed: defaultdict[str, int] = defaultdict(int)
        self._allowances: dict[tuple[str, DisruptionReason], DisruptionAllowance] = {}
        #: What may go beyond the nodes that are unavailable already, before anything is taken; below 0 where they are too many.
        self._free: dict[tuple[str, DisruptionReason], int] = {}

    def copy(self) -> RemainingBudgets:
        """The same, to be taken from on its own; what the pools allow is worked out once for both."""
        other = copy(self)
        other._consumed = self._consumed.copy()
        return other

    def allowed(self, pool: str, reason: DisruptionReason) -> int:
        """How many nodes of the pool may be unavailable at once for the reason (DIS-144); 0 for an unknown pool."""
        return self._allowance(pool, reason).nodes

    def _allowance(self, pool: str, reason: DisruptionReason) -> DisruptionAllowance:
        allowance = self._allowances.get((pool, reason))
        if allowance is None:
            nodepool = self._pools.get(pool)
            counted = self._node_counts[pool].initialized
            rules = disruption_rules(nodepool, self._freeze) if nodepool is not None else None
            allowance = (
                rules.allowance(counted, reason.value, self._now) if rules is not None else DisruptionAllowance(0)
            )
            self._allowances[pool, reason] = allowance
        return allowance

    def disrupting(self, pool: str, reason: DisruptionReason) -> int:
        """How many nodes of the pool count against its budgets now."""
        return self._node_counts[pool].consuming(reason)

    def remaining(self, pool: str, reason: DisruptionReason) -> int:
        """How many more nodes may go (DIS-147)."""
        free = self._free.get((pool, reason))
        if free is None:
            free = self.allowed(pool, reason) - self._node_counts[pool].consuming(reason)
            self._free[pool, reason] = free
        return max(0, free - self._consumed[pool])

    def consume(self, pool: str, number: int = 1) -> None:
        """So many nodes of the pool go."""
        self._consumed[pool] += number

    def closed_pools(self, reason: DisruptionReason) -> Mapping[str, str]:
        """Pools with nodes whose budget is 0, whatever is happening to them now, and the field that says so (DIS-149).

        A freeze says so itself.
        """
        return {
            name: self._allowance(name, reason).limiting_path
            for name, pool in self._pools.items()
            if self._node_counts[name].initialized
            and not self.allowed(name, reason)
            and active_freeze(pool, self._freeze, self._now) is None
        }
