"""The console view: everything people look at, built from the objects of the API server by pure functions.

Each part is computed when it is first asked for, and once. Nodes cost most, about 0.1 ms each with ten pods. Finding reasons for
pods that wait takes a scheduling pass, and the lower bound of the price a linear program: both are computed apart, and handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from karpenter.console.console_input import ConsoleInput
from karpenter.console.decision_rows import DecisionKind, DecisionRow
from karpenter.console.decisions import EventRow, decisions, event_rows
from karpenter.console.node_rows import NodeRow, node_rows
from karpenter.console.pending_pods import PendingPod, PodCounts, count_pods, pending_pods
from karpenter.console.pool_rows import PoolRow, pool_rows
from karpenter.console.spending import Spending, spending


@dataclass(frozen=True)
class ConsoleView:
    """A cluster as people look at it."""

    given: ConsoleInput

    @property
    def now(self) -> datetime:
        """The time of the view."""
        return self.given.now

    @cached_property
    def nodes(self) -> tuple[NodeRow, ...]:
        """Nodes, and NodeClaims without one."""
        return node_rows(self.given)

    @cached_property
    def pods(self) -> PodCounts:
        """Pods by phase."""
        return count_pods(self.given.pods)

    @cached_property
    def pending(self) -> tuple[PendingPod, ...]:
        """Pods without a node."""
        return pending_pods(self.given)

    @cached_property
    def pools(self) -> tuple[PoolRow, ...]:
        """NodePools."""
        return pool_rows(self.given, self.nodes)

    @cached_property
    def spending(self) -> Spending:
        """What the nodes cost, split in several ways."""
        return spending(self.nodes, self.given.state_nodes)

    @cached_property
    def decisions(self) -> tuple[DecisionRow, ...]:
        """What was decided, the latest first."""
        return decisions(self.given, self.nodes)

    @cached_property
    def events(self) -> tuple[EventRow, ...]:
        """Events about nodes and scheduling, the latest first."""
        return event_rows(self.given.events)

    @property
    def price_per_hour(self) -> float:
        """USD per hour of all nodes with a known price."""
        return sum(row.price_per_hour or 0.0 for row in self.nodes)

    @property
    def managed_price_per_hour(self) -> float:
        """The same for the nodes that NodePools launched, beside which the price bound stands."""
        return sum(row.price_per_hour or 0.0 for row in self.nodes if row.pool)

    @property
    def interruptions(self) -> tuple[DecisionRow, ...]:
        """The interruptions among the decisions."""
        return tuple(row for row in self.decisions if row.kind is DecisionKind.INTERRUPTION)
