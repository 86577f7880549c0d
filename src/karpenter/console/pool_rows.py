"""The NodePools of a cluster: nodes, price, limits, and how many nodes their budgets allow to be disrupted now and next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from karpenter.api.karpenter import NodePool
from karpenter.console.console_input import ConsoleInput
from karpenter.console.node_rows import NodeRow, NodeState
from karpenter.disruption.decide.budget_status import BudgetStatus, budget_status
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.disruption.decide.remaining_budgets import PoolNodeCounts, pool_node_counts
from karpenter.model import conditions
from karpenter.model import resources as res
from karpenter.model.disruption_rules import disruption_rules
from karpenter.model.quantity import QuantityError
from karpenter.model.resources import Resources

_LEAVING = frozenset({NodeState.DISRUPTING, NodeState.TERMINATING})


@dataclass(frozen=True)
class PoolRow:
    """A NodePool.

    ``price_per_hour``: USD of its nodes with a known price. ``budgets``: one per disruption reason; each says what is allowed
    now and when more is. ``limits``: from ``spec.limits``, beside ``used`` of the same resources. ``leaving``, ``drifted``:
    number of such nodes.
    """

    name: str
    weight: int
    nodes: int
    leaving: int
    drifted: int
    price_per_hour: float
    requested: Resources
    allocatable: Resources
    limits: Resources
    used: Resources
    budgets: tuple[BudgetStatus, ...]
    freeze: str
    ready: bool
    not_ready_reason: str

    def fill(self, resource: str) -> float:
        """Requested share of the allocatable amount; 0 where nothing is allocatable."""
        offered = self.allocatable.get(resource, 0)
        return self.requested.get(resource, 0) / offered if offered else 0.0

    @property
    def next_opening(self) -> datetime | None:
        """When a budget that is closed now opens; None where none is closed, or none opens within a month."""
        return min(
            (budget.opens_at for budget in self.budgets if not budget.remaining and budget.opens_at), default=None
        )


def pool_rows(given: ConsoleInput, nodes: Sequence[NodeRow]) -> tuple[PoolRow, ...]:
    """All NodePools, by name."""
    counts = pool_node_counts(given.snapshot.nodes)
    rows = (_pool_row(pool, given, nodes, counts) for pool in given.snapshot.pools)
    return tuple(sorted(rows, key=lambda row: row.name))


def _pool_row(
    pool: NodePool, given: ConsoleInput, nodes: Sequence[NodeRow], counts: Mapping[str, PoolNodeCounts]
) -> PoolRow:
    name = pool.metadata.name
    own = [row for row in nodes if row.pool == name]
    limits = _limits(pool)
    rules = disruption_rules(pool, given.snapshot.freeze)
    freeze = rules.active_freeze(given.now)
    ready = conditions.find_condition(pool.status.conditions, conditions.READY)
    return PoolRow(
        name=name,
        weight=pool.spec.weight or 0,
        nodes=len(own),
        leaving=sum(row.state in _LEAVING for row in own),
        drifted=sum(bool(row.drift) for row in own),
        price_per_hour=sum(row.price_per_hour or 0.0 for row in own),
        requested=res.add(*(row.requested for row in own)),
        allocatable=res.add(*(row.allocatable for row in own)),
        limits=limits,
        used=_used(given, name, limits),
        budgets=tuple(budget_status(pool, rules, counts[name], reason, given.now) for reason in DisruptionReason),
        freeze=str(freeze) if freeze is not None else "",
        ready=ready is not None and ready.status == conditions.TRUE,
        not_ready_reason=ready.message or ready.reason if ready is not None else "",
    )


def _limits(pool: NodePool) -> Resources:
    try:
        return res.parse_resources(pool.spec.limits)
    except QuantityError:
        return {}


def _used(given: ConsoleInput, pool: str, limits: Resources) -> Resources:
    """What counts against the limits: capacity, and the number of nodes."""
    total = res.add(*_capacities(given, pool))
    return {name: total.get(name, 0) for name in limits}


def _capacities(given: ConsoleInput, pool: str) -> Iterator[Resources]:
    for view in given.snapshot.nodes:
        if view.pool == pool:
            yield {**view.capacity, res.NODES: res.ONE_UNIT}
