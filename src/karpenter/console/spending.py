"""What the nodes of a cluster cost per hour, by NodePool, instance type, purchase option and namespace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from karpenter.api.core import Pod
from karpenter.console.node_rows import NodeRow, NodeState
from karpenter.model import pods
from karpenter.model import resources as res
from karpenter.state.state_node import StateNode

#: Hours of a month, as eks-node-viewer counts them (OPS-800).
HOURS_PER_MONTH = 730
#: The part of the price that no pod requests, and what belongs to no NodePool or purchase option.
UNREQUESTED, NO_POOL, UNKNOWN, NO_LABEL = "(not requested)", "(no NodePool)", "(unknown)", "(no label)"
_SHARED_RESOURCES = (res.CPU, res.MEMORY)


class SpendDimension(StrEnum):
    """By what spending is split."""

    NODE_POOL = "NodePool"
    NAMESPACE = "namespace"
    INSTANCE_TYPE = "instance type"
    CAPACITY_TYPE = "purchase option"


@dataclass(frozen=True)
class SpendRow:
    """A part of the price: USD per hour, and how many nodes (of a namespace: pods) it is for."""

    name: str
    price_per_hour: float
    count: int

    @property
    def price_per_month(self) -> float:
        """USD per month of 730 hours."""
        return self.price_per_hour * HOURS_PER_MONTH


@dataclass(frozen=True)
class Spending:
    """USD per hour of all nodes with a known price, split in several ways; each split adds up to ``price_per_hour``.

    ``unpriced_nodes``: nodes whose price is not known; they are in no sum. ``rows``: dearest first.
    """

    price_per_hour: float
    unpriced_nodes: int
    rows: Mapping[SpendDimension, tuple[SpendRow, ...]] = field(default_factory=dict)

    @property
    def price_per_month(self) -> float:
        """USD per month of 730 hours."""
        return self.price_per_hour * HOURS_PER_MONTH


def spending(nodes: Sequence[NodeRow], state_nodes: Iterable[StateNode]) -> Spending:
    """The spending of these nodes. ``state_nodes``: the same nodes with their pods.

    A pod's part of a node's price is the mean of its shares of the allocatable CPU and memory. This is an estimate: providers
    sell whole nodes, and other resources do not count.
    """
    priced = [row for row in nodes if row.price_per_hour is not None]
    rows = {
        SpendDimension.NODE_POOL: _split((row.pool or NO_POOL, row.price_per_hour or 0.0) for row in priced),
        SpendDimension.INSTANCE_TYPE: _split(
            (row.instance_type or UNKNOWN, row.price_per_hour or 0.0) for row in priced
        ),
        SpendDimension.CAPACITY_TYPE: _split(
            (row.capacity_type or UNKNOWN, row.price_per_hour or 0.0) for row in priced
        ),
        SpendDimension.NAMESPACE: _split(
            _pod_parts(priced, {view.key: view for view in state_nodes}, lambda pod: pod.metadata.namespace)
        ),
    }
    total = sum(row.price_per_hour or 0.0 for row in priced)
    return Spending(total, len(nodes) - len(priced), rows)


def _split(parts: Iterable[tuple[str, float]]) -> tuple[SpendRow, ...]:
    prices: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, int] = defaultdict(int)
    for name, price in parts:
        prices[name] += price
        counts[name] += 1
    rows = (SpendRow(name, price, counts[name]) for name, price in prices.items())
    return tuple(sorted(rows, key=lambda row: (-row.price_per_hour, row.name)))


def label_spending(nodes: Sequence[NodeRow], state_nodes: Iterable[StateNode], label: str) -> tuple[SpendRow, ...]:
    """The price of the nodes by the value of a label of their pods, dearest first; counts pods."""
    priced = [row for row in nodes if row.price_per_hour is not None]
    views = {view.key: view for view in state_nodes}
    return _split(_pod_parts(priced, views, lambda pod: pod.metadata.labels.get(label, NO_LABEL)))


def unused_capacity(nodes: Sequence[NodeRow], state_nodes: Iterable[StateNode]) -> tuple[SpendRow, ...]:
    """The price of what no pod requests, by why it is there, dearest first; counts nodes.

    Of nodes that NodePools launched: ``starting`` until the node is initialized, ``leaving`` once its end began, ``held`` where
    something keeps it from disruption, else ``room between pods``. Of others: ``other nodes``.
    """
    views = {view.key: view for view in state_nodes}
    priced = [row for row in nodes if row.price_per_hour is not None]
    return _split((_unused_reason(row), _unrequested_price(row, views[row.key])) for row in priced)


def _unused_reason(row: NodeRow) -> str:
    if row.state is NodeState.UNMANAGED:
        return "other nodes"
    if row.state in (NodeState.LAUNCHING, NodeState.LAUNCHED, NodeState.REGISTERED):
        return "starting"
    if row.state in (NodeState.DISRUPTING, NodeState.TERMINATING):
        return "leaving"
    return "held" if row.held_by else "room between pods"


def _unrequested_price(row: NodeRow, view: StateNode) -> float:
    requested = sum(_shares(view.pods, row.allocatable))
    return (row.price_per_hour or 0.0) * max(0.0, 1.0 - requested)


def _pod_parts(
    priced: Iterable[NodeRow], views: Mapping[str, StateNode], name_of: Callable[[Pod], str]
) -> Iterator[tuple[str, float]]:
    """A part for each pod, and one for what is left of each node. Shares of an overfull node are scaled down to it."""
    for row in priced:
        price = row.price_per_hour or 0.0
        on_node = views[row.key].pods
        shares = list(zip(map(name_of, on_node), _shares(on_node, row.allocatable), strict=True))
        total = sum(share for _, share in shares)
        scale = price / max(1.0, total)
        yield from ((name, share * scale) for name, share in shares)
        yield UNREQUESTED, price * max(0.0, 1.0 - total)


def _shares(on_node: Iterable[Pod], allocatable: res.Resources) -> Iterator[float]:
    """Of each pod, the mean of its shares of the resources that the node has."""
    parts = [(name, 1.0 / allocatable[name]) for name in _SHARED_RESOURCES if allocatable.get(name)]
    for pod in on_node:
        requests = pods.pod_requests(pod)
        yield sum(requests.get(name, 0) * part for name, part in parts) / len(parts) if parts else 0.0
