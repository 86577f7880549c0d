"""The console view: everything people look at, built from the objects of the API server in one pure function.

Its cost grows with the number of nodes, pods and events. Finding reasons for pods that wait takes a scheduling pass, and the
lower bound of the price a linear program: both are computed apart, and handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from karpenter.console.console_input import ConsoleInput
from karpenter.console.decisions import DecisionKind, DecisionRow, EventRow, decisions, event_rows
from karpenter.console.node_rows import NodeRow, node_rows
from karpenter.console.pending_pods import PendingPod, PodCounts, count_pods, pending_pods
from karpenter.console.pool_rows import PoolRow, pool_rows
from karpenter.console.spending import Spending, spending
from karpenter.model import resources as res
from karpenter.model.resources import Resources


@dataclass(frozen=True)
class ConsoleView:
    """A cluster as people look at it. ``requested`` and ``allocatable`` are sums over the nodes that exist."""

    now: datetime
    nodes: tuple[NodeRow, ...]
    pods: PodCounts
    pending: tuple[PendingPod, ...]
    pools: tuple[PoolRow, ...]
    spending: Spending
    decisions: tuple[DecisionRow, ...]
    events: tuple[EventRow, ...]
    requested: Resources
    allocatable: Resources

    def fill(self, resource: str) -> float:
        """Requested share of the allocatable amount; 0 where nothing is allocatable."""
        offered = self.allocatable.get(resource, 0)
        return self.requested.get(resource, 0) / offered if offered else 0.0

    @property
    def interruptions(self) -> tuple[DecisionRow, ...]:
        """The interruptions among the decisions."""
        return tuple(row for row in self.decisions if row.kind is DecisionKind.INTERRUPTION)


def build_console_view(given: ConsoleInput) -> ConsoleView:
    """The view of a cluster at a moment."""
    nodes = node_rows(given)
    existing = [row for row in nodes if not row.planned]
    return ConsoleView(
        now=given.now,
        nodes=nodes,
        pods=count_pods(given.pods),
        pending=pending_pods(given),
        pools=pool_rows(given, nodes),
        spending=spending(nodes, given.snapshot.nodes),
        decisions=decisions(given, nodes),
        events=event_rows(given.events),
        requested=res.add(*(row.requested for row in existing)),
        allocatable=res.add(*(row.allocatable for row in existing)),
    )
