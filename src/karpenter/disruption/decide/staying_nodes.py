"""Why single nodes stay; an answer for one node holds for all equal nodes.

What keeps a node depends on where its pods would go, on its price and on what disrupting it costs. In a large cluster most
nodes are alike in all of that, so the search evaluates each kind of node once instead of each node. Whether a move of
a node failed before is not kept here, and neither are moves that are made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from karpenter.disruption.decide.command import Candidate
from karpenter.disruption.decide.move_blockers import RoomWithinConsolidateAfter
from karpenter.disruption.decide.replacement_prices import MoveRejection, are_spot
from karpenter.disruption.decide.scheduling_simulation import SchedulingSimulation

#: The kind of the pods, NodePool, price, disruption cost, and whether it is a spot node.
NodeKind = tuple[int, str, float | None, float, bool]


@dataclass(eq=False)
class StayingNodes:
    """What is known of kinds of nodes in one simulation.

    ``not_deletable``: their pods do not fit on other nodes. ``waiting``: where they would within ``consolidateAfter``, None for
    nowhere. ``rejections``: why no new nodes replace one of them.
    """

    not_deletable: set[NodeKind] = field(default_factory=set)
    waiting: dict[NodeKind, RoomWithinConsolidateAfter | None] = field(default_factory=dict)
    rejections: dict[NodeKind, MoveRejection] = field(default_factory=dict)
    _kinds: dict[str, tuple[Candidate, NodeKind | None]] = field(default_factory=dict)

    def alike(self, candidate: Candidate, simulation: SchedulingSimulation) -> NodeKind | None:
        """The kind of a candidate; None where it is not known to be like another one."""
        known = self._kinds.get(candidate.key)
        if known is None or known[0] is not candidate:
            known = self._kinds[candidate.key] = (candidate, _kind(candidate, simulation))
        return known[1]


def _kind(candidate: Candidate, simulation: SchedulingSimulation) -> NodeKind | None:
    pods = simulation.kind_of(candidate)
    if pods is None:
        return None
    price, cost = candidate.price_per_hour, candidate.disruption_cost
    return (pods, candidate.node_pool, price, cost, are_spot((candidate,)))
