"""What nodes cost while no pod was on them: before their first pod (start-up) and after their last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fractions import Fraction

from karpenter.simulation.run_report import MICROSECOND
from karpenter.simulator.instance_bills import InstanceBill


@dataclass
class NodeOccupancy:
    """When each node had pods, by node name, fed by bindings and departures of pods that no DaemonSet owns."""

    _pods: Counter[str] = field(default_factory=Counter)
    _node_of: dict[str, str] = field(default_factory=dict)
    _occupied_since: dict[str, datetime] = field(default_factory=dict)
    _occupied: Counter[str] = field(default_factory=Counter)
    first_pod: dict[str, datetime] = field(default_factory=dict)

    def add(self, uid: str, node: str, now: datetime) -> None:
        """A pod was bound."""
        if uid in self._node_of:
            return
        self._node_of[uid] = node
        self.first_pod.setdefault(node, now)
        if not self._pods[node]:
            self._occupied_since[node] = now
        self._pods[node] += 1

    def remove(self, uid: str, now: datetime) -> None:
        """A pod is gone."""
        node = self._node_of.pop(uid, None)
        if node is None:
            return
        self._pods[node] -= 1
        if not self._pods[node]:
            self._occupied[node] += (now - self._occupied_since.pop(node)) // timedelta(microseconds=1)

    def occupied(self, node: str, until: datetime) -> timedelta:
        """How long the node had pods."""
        since = self._occupied_since.get(node)
        running = until - since if since is not None and until > since else timedelta()
        return timedelta(microseconds=self._occupied[node]) + running


@dataclass(frozen=True, slots=True)
class IdleCost:
    """USD for nodes before their first pod, and for nodes without pods after it."""

    starting_usd: Fraction
    empty_usd: Fraction


def idle_cost(bills: Iterable[InstanceBill], occupancy: NodeOccupancy) -> IdleCost:
    """The cost of nodes without pods. Times without pods after the first one count at the average price of that span."""
    starting = empty = Fraction(0)
    for bill in bills:
        name, end = bill.record.node_name, bill.ended
        first = min(occupancy.first_pod.get(name, end), end)
        starting += bill.cost_usd(bill.launched, first)
        if end > first:
            without = end - first - occupancy.occupied(name, end)
            empty += bill.cost_usd(first, end) * max(Fraction(0), _ratio(without, end - first))
    return IdleCost(starting, empty)


def _ratio(part: timedelta, whole: timedelta) -> Fraction:
    return Fraction(part // MICROSECOND, whole // MICROSECOND)
