"""How many more machines of each NodePool may go: its budgets, less the machines that are down or leaving already (DIS §6)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import datetime

from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Snapshot
from karpenter.decide.disrupt.command import DisruptionReason
from karpenter.model.budgets import Allowance
from karpenter.model.conditions import is_true
from karpenter.model.freezes import freeze_of
from karpenter.model.pool_rules import rules_of


@dataclass(frozen=True)
class PoolNodes:
    """A pool's nodes as budgets see them: ``counted`` is what percentages are of (DIS-145), ``unavailable`` how many of those
    are down or on their way out (DIS-146)."""

    counted: int = 0
    unavailable: int = 0


def pool_nodes(views: Iterable[NodeView]) -> Mapping[str, PoolNodes]:
    """What budgets see of every pool; a pool without nodes has none."""
    counted: defaultdict[str, int] = defaultdict(int)
    unavailable: defaultdict[str, int] = defaultdict(int)
    for view in views:
        if view.claim is not None and view.initialized and not _is_terminating(view):
            counted[view.pool] += 1
            unavailable[view.pool] += view.leaving or not view.ready
    return defaultdict(PoolNodes, {pool: PoolNodes(counted[pool], unavailable[pool]) for pool in counted})


def _is_terminating(view: NodeView) -> bool:
    return view.claim is not None and is_true(view.claim.status.conditions, "InstanceTerminating")


class Allowances:
    """What budgets and freezes still allow while a pass takes from it.

    Every machine taken counts against every reason (DIS-147).
    """

    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self._pools = {pool.metadata.name: pool for pool in snapshot.pools}
        self._freeze = snapshot.freeze
        self._now = now
        self._nodes = pool_nodes(snapshot.nodes)
        self._taken: defaultdict[str, int] = defaultdict(int)
        self._allowed: dict[tuple[str, DisruptionReason], Allowance] = {}

    def copy(self) -> Allowances:
        """The same, to be taken from on its own; what the pools allow is worked out once for both."""
        other = copy(self)
        other._taken = self._taken.copy()
        return other

    def allowed(self, pool: str, reason: DisruptionReason) -> int:
        """How many nodes of the pool may be away at once for the reason (DIS-144); none of a pool nobody knows."""
        return self._allowance(pool, reason).nodes

    def _allowance(self, pool: str, reason: DisruptionReason) -> Allowance:
        known = self._allowed.get((pool, reason))
        if known is None:
            found = self._pools.get(pool)
            counted = self._nodes[pool].counted
            rules = rules_of(found, self._freeze) if found is not None else None
            known = rules.allowance(counted, reason.value, self._now) if rules is not None else Allowance(0)
            self._allowed[pool, reason] = known
        return known

    def left(self, pool: str, reason: DisruptionReason) -> int:
        """How many more nodes may go (DIS-147)."""
        return max(0, self.allowed(pool, reason) - self._nodes[pool].unavailable - self._taken[pool])

    def take(self, pool: str, number: int = 1) -> None:
        """So many nodes of the pool go."""
        self._taken[pool] += number

    def closed(self, reason: DisruptionReason) -> Mapping[str, str]:
        """Pools with nodes whose budget is 0, whatever is happening to them now, and the field that says so (DIS-149).

        A freeze says so itself.
        """
        return {
            name: self._allowance(name, reason).source
            for name, pool in self._pools.items()
            if self._nodes[name].counted
            and not self.allowed(name, reason)
            and freeze_of(pool, self._freeze, self._now) is None
        }
