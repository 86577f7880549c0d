"""Gauges about NodePools: limits and use, price, and what their disruption budgets allow (OPS-430 to OPS-434)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import structlog

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import WireResources
from karpenter.clustermetrics.cluster_collector import (
    ClusterCollector,
    ClusterMetricsSnapshot,
    decimal_text,
    resource_type_label,
)
from karpenter.controller_context import ControllerContext
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.disruption.decide.remaining_budgets import pool_node_counts
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.metrics.exposition import GaugeFamily, SeriesWriter, label_pairs
from karpenter.model import labels, quantity
from karpenter.model.disruption_rules import disruption_rules
from karpenter.providers.contract import ProviderError

_LIMIT = GaugeFamily("karpenter_nodepools_limit", "What a NodePool's nodes may have at most, as its limits say.")
_USAGE = GaugeFamily("karpenter_nodepools_usage", "What a NodePool's nodes have, as its status says.")
_COST = GaugeFamily("karpenter_nodepools_cost_total", "What a NodePool's nodes cost now, in USD per hour.")
_ALLOWED = GaugeFamily("karpenter_nodepools_allowed_disruptions", "How many nodes budgets let be disrupted at a time.")
_CONSUMING = GaugeFamily("karpenter_nodepools_nodes_consuming_budgets", "How many nodes count against that now.")
_FROZEN_POOLS = GaugeFamily(
    "karpenter_nodepools_frozen", "Whether a freeze keeps a NodePool's nodes from being disrupted now."
)

#: The reasons budgets speak of, as the API spells them; the label has them in lower case (K15-453).
BUDGET_REASONS = ("Underutilized", "Empty", "Drifted", "Unhealthy")
_log = structlog.get_logger()


class NodePoolResourceMetrics(ClusterCollector):
    """Limits and use (OPS-430)."""

    def prepare(self, snapshot: ClusterMetricsSnapshot) -> SeriesWriter:
        """Everything is in the pools."""
        return partial(self._write, snapshot.pools)

    @staticmethod
    def _write(pools: tuple[NodePool, ...]) -> Iterator[str]:
        yield from _LIMIT.lines(_resource_samples((pool.metadata.name, pool.spec.limits) for pool in pools))
        yield from _USAGE.lines(_resource_samples((pool.metadata.name, pool.status.resources) for pool in pools))


def _resource_samples(resources_by_pool: Iterable[tuple[str, WireResources]]) -> Iterator[tuple[str, str]]:
    for pool, resources in resources_by_pool:
        for name, given in resources.items():
            try:
                amount = quantity.parse_milli(given)
            except quantity.QuantityError:
                continue  # the pool's own condition says so
            yield label_pairs(nodepool=pool, resource_type=resource_type_label(name)), decimal_text(amount)


class DisruptionBudgetMetrics(ClusterCollector):
    """What may be disrupted at a time, and what is (OPS-433, OPS-434; DIS-417, DIS-418)."""

    def prepare(self, snapshot: ClusterMetricsSnapshot) -> SeriesWriter:
        """Everything is in pools and views."""
        return partial(self._write, snapshot)

    @staticmethod
    def _write(snapshot: ClusterMetricsSnapshot) -> Iterator[str]:
        nodes = pool_node_counts(snapshot.views)
        allowed: list[tuple[str, int]] = []
        consuming: list[tuple[str, int]] = []
        frozen: list[tuple[str, int]] = []
        for pool in snapshot.pools:
            own = nodes[pool.metadata.name]
            rules = disruption_rules(pool, snapshot.freeze)
            frozen.append(
                (label_pairs(nodepool=pool.metadata.name), int(rules.active_freeze(snapshot.now) is not None))
            )
            for reason in BUDGET_REASONS:
                described = label_pairs(nodepool=pool.metadata.name, reason=reason.lower())
                allowed.append((described, rules.allowance(own.initialized, reason, snapshot.now).nodes))
                consuming.append((described, own.consuming(DisruptionReason(reason))))
        yield from _ALLOWED.lines(allowed)
        yield from _CONSUMING.lines(consuming)
        yield from _FROZEN_POOLS.lines(frozen)


class _PoolPrices:
    """Instance types and prices of one pool. A price is looked up on first use."""

    def __init__(self, types: tuple[InstanceType, ...]) -> None:
        self.types = types
        self._by_name = {instance_type.name: instance_type for instance_type in types}
        self._price_cache: dict[tuple[str, str, str], float | None] = {}

    def price_per_hour(self, node_labels: Mapping[str, str]) -> float | None:
        """USD per hour of the node these labels describe; None when nothing like it is sold."""
        key = (
            node_labels.get(labels.INSTANCE_TYPE, ""),
            node_labels.get(labels.ZONE, ""),
            node_labels.get(labels.CAPACITY_TYPE, ""),
        )
        if key not in self._price_cache:
            self._price_cache[key] = self._find_price(*key)
        return self._price_cache[key]

    def _find_price(self, name: str, zone: str, capacity_type: str) -> float | None:
        instance_type = self._by_name.get(name)
        for offering in instance_type.offerings if instance_type is not None else ():
            if offering.zone == zone and offering.capacity_type == capacity_type:
                return offering.price_per_hour
        return None


class NodePoolCostMetrics(ClusterCollector):
    """Hourly prices of what runs, per pool (OPS-122, OPS-431). Nodes whose price is unknown count as free."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._prices: dict[str, _PoolPrices] = {}
        self._unpriced: set[str] = set()
        self._checked: tuple[Mapping[str, _PoolPrices], tuple[NodeClaim, ...]] = ({}, ())

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """A claim that is gone may come back under its name."""
        if new is None and old is not None:
            self._unpriced.discard(old.metadata.name)

    async def refresh(self) -> None:
        """Read the instance types of each pool, which providers cache, and log NodeClaims without a price."""
        prices: dict[str, _PoolPrices] = {}
        for pool in self._context.state.pools():
            pool_prices = await self._pool_prices(pool) if self._context.is_managed(pool) else None
            if pool_prices is not None:
                prices[pool.metadata.name] = pool_prices
        self._prices = prices
        claims = self._context.state.claims()
        if claims is self._checked[1] and prices == self._checked[0]:
            return
        self._checked = prices, claims
        for claim in claims:
            self._check_priced(claim)

    async def _pool_prices(self, pool: NodePool) -> _PoolPrices | None:
        try:
            types = await self._context.provider.instance_types(pool)
        except ProviderError:
            return None  # the provisioner says so, and the pool's condition
        for pool_prices in self._prices.values():
            if pool_prices.types is types:
                return pool_prices
        return _PoolPrices(types)

    def _check_priced(self, claim: NodeClaim) -> None:
        claim_labels = claim.metadata.labels
        pool = claim_labels.get(labels.NODE_POOL, "")
        prices = self._prices.get(pool)
        if prices is None or not claim.status.provider_id or claim.metadata.name in self._unpriced:
            return
        if prices.price_per_hour(claim_labels) is None:
            self._unpriced.add(claim.metadata.name)
            self._context.metrics.nodepools_cost_tracker_errors_total.labels(nodepool=pool).inc()
            _log.error(
                "no price known for nodeclaim",
                NodeClaim={"name": claim.metadata.name},
                NodePool={"name": pool},
                **{
                    "instance-type": claim_labels.get(labels.INSTANCE_TYPE, ""),
                    "zone": claim_labels.get(labels.ZONE, ""),
                },
                **{"capacity-type": claim_labels.get(labels.CAPACITY_TYPE, "")},
            )

    def prepare(self, snapshot: ClusterMetricsSnapshot) -> SeriesWriter:
        """Prices do not change meanwhile; a new list is a new object."""
        return partial(self._write, snapshot, self._prices)

    @staticmethod
    def _write(snapshot: ClusterMetricsSnapshot, prices: Mapping[str, _PoolPrices]) -> Iterator[str]:
        costs = {pool.metadata.name: 0.0 for pool in snapshot.pools if pool.metadata.name in prices}
        for claim in snapshot.claims:
            claim_labels = claim.metadata.labels
            pool = claim_labels.get(labels.NODE_POOL, "")
            if pool in costs and claim.status.provider_id:
                costs[pool] += prices[pool].price_per_hour(claim_labels) or 0.0
        yield from _COST.lines((label_pairs(nodepool=pool), round(cost, 6)) for pool, cost in costs.items())
