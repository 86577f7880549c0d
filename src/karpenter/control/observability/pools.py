"""Gauges about NodePools: limits and use, price, and what their disruption budgets allow (OPS-430 to OPS-434)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import structlog

from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import WireResources
from karpenter.catalog.types import InstanceType
from karpenter.control.observability.amounts import decimal, resource_type
from karpenter.control.observability.parts import Part, Picture
from karpenter.decide.disrupt import pool_nodes
from karpenter.model import labels, quantity
from karpenter.model.pool_rules import rules_of
from karpenter.providers.contract import ProviderError
from karpenter.telemetry.exposition import Family, Writing, pairs

_LIMIT = Family("karpenter_nodepools_limit", "What a NodePool's nodes may have at most, as its limits say.")
_USAGE = Family("karpenter_nodepools_usage", "What a NodePool's nodes have, as its status says.")
_COST = Family("karpenter_nodepools_cost_total", "What a NodePool's machines cost now, in USD per hour.")
_ALLOWED = Family("karpenter_nodepools_allowed_disruptions", "How many nodes budgets let be disrupted at a time.")
_CONSUMING = Family("karpenter_nodepools_nodes_consuming_budgets", "How many nodes count against that now.")
_FROZEN = Family("karpenter_nodepools_frozen", "Whether a freeze keeps a NodePool's nodes from being disrupted now.")

#: The reasons budgets speak of, as the API spells them (OPS-405).
BUDGETED = ("Underutilized", "Empty", "Drifted")
_log = structlog.get_logger()


class Amounts(Part):
    """Limits and use (OPS-430)."""

    def picture(self, picture: Picture) -> Writing:
        """Everything is in the pools."""
        return partial(self._write, picture.pools)

    @staticmethod
    def _write(pools: tuple[NodePool, ...]) -> Iterator[str]:
        yield from _LIMIT.text(_resources((pool.metadata.name, pool.spec.limits) for pool in pools))
        yield from _USAGE.text(_resources((pool.metadata.name, pool.status.resources) for pool in pools))


def _resources(found: Iterable[tuple[str, WireResources]]) -> Iterator[tuple[str, str]]:
    for pool, resources in found:
        for name, given in resources.items():
            try:
                amount = quantity.milli(given)
            except quantity.QuantityError:
                continue  # the pool's own condition says so
            yield pairs(nodepool=pool, resource_type=resource_type(name)), decimal(amount)


class Budgets(Part):
    """What may be disrupted at a time, and what is (OPS-433, OPS-434; DIS-417, DIS-418)."""

    def picture(self, picture: Picture) -> Writing:
        """Everything is in pools and views."""
        return partial(self._write, picture)

    @staticmethod
    def _write(picture: Picture) -> Iterator[str]:
        nodes = pool_nodes(picture.views)
        allowed: list[tuple[str, int]] = []
        consuming: list[tuple[str, int]] = []
        frozen: list[tuple[str, int]] = []
        for pool in picture.pools:
            own = nodes[pool.metadata.name]
            rules = rules_of(pool, picture.freeze)
            frozen.append((pairs(nodepool=pool.metadata.name), int(rules.freeze(picture.now) is not None)))
            for reason in BUDGETED:
                described = pairs(nodepool=pool.metadata.name, reason=reason)
                allowed.append((described, rules.allowance(own.counted, reason, picture.now).nodes))
                consuming.append((described, own.unavailable))
        yield from _ALLOWED.text(allowed)
        yield from _CONSUMING.text(consuming)
        yield from _FROZEN.text(frozen)


class _Prices:
    """What is sold to one pool. A price is looked for when somebody asks for it."""

    def __init__(self, types: tuple[InstanceType, ...]) -> None:
        self.types = types
        self._by_name = {item.name: item for item in types}
        self._known: dict[tuple[str, str, str], float | None] = {}

    def of(self, found: Mapping[str, str]) -> float | None:
        """USD per hour of the machine these labels describe; None when nothing like it is sold."""
        key = (found.get(labels.INSTANCE_TYPE, ""), found.get(labels.ZONE, ""), found.get(labels.CAPACITY_TYPE, ""))
        if key not in self._known:
            self._known[key] = self._look_for(*key)
        return self._known[key]

    def _look_for(self, name: str, zone: str, capacity_type: str) -> float | None:
        item = self._by_name.get(name)
        for offering in item.offerings if item is not None else ():
            if offering.zone == zone and offering.capacity_type == capacity_type:
                return offering.price_per_hour
        return None


class Costs(Part):
    """Hourly prices of what runs, per pool (OPS-122, OPS-431). What nobody sells any more costs nothing here, and is counted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._prices: dict[str, _Prices] = {}
        self._unpriced: set[str] = set()

    def claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """A claim that is gone may come back under its name."""
        if new is None and old is not None:
            self._unpriced.discard(old.metadata.name)

    async def refresh(self) -> None:
        """Ask what is sold to each pool, which providers keep at hand, and say of which claim no price is known."""
        prices: dict[str, _Prices] = {}
        for pool in self._world.state.pools():
            found = await self._sold(pool) if self._world.manages(pool) else None
            if found is not None:
                prices[pool.metadata.name] = found
        self._prices = prices
        for claim in self._world.state.claims():
            self._look_at(claim)

    async def _sold(self, pool: NodePool) -> _Prices | None:
        try:
            types = await self._world.provider.instance_types(pool)
        except ProviderError:
            return None  # the provisioner says so, and the pool's condition
        for known in self._prices.values():
            if known.types is types:
                return known
        return _Prices(types)

    def _look_at(self, claim: NodeClaim) -> None:
        found = claim.metadata.labels
        pool = found.get(labels.NODE_POOL, "")
        prices = self._prices.get(pool)
        if prices is None or not claim.status.provider_id or claim.metadata.name in self._unpriced:
            return
        if prices.of(found) is None:
            self._unpriced.add(claim.metadata.name)
            self._world.metrics.nodepools_cost_tracker_errors_total.labels(nodepool=pool).inc()
            _log.error(
                "no price known for nodeclaim",
                NodeClaim={"name": claim.metadata.name},
                NodePool={"name": pool},
                **{"instance-type": found.get(labels.INSTANCE_TYPE, ""), "zone": found.get(labels.ZONE, "")},
                **{"capacity-type": found.get(labels.CAPACITY_TYPE, "")},
            )

    def picture(self, picture: Picture) -> Writing:
        """Prices do not change meanwhile; a new list is a new object."""
        return partial(self._write, picture, self._prices)

    @staticmethod
    def _write(picture: Picture, prices: Mapping[str, _Prices]) -> Iterator[str]:
        costs = {pool.metadata.name: 0.0 for pool in picture.pools if pool.metadata.name in prices}
        for claim in picture.claims:
            found = claim.metadata.labels
            pool = found.get(labels.NODE_POOL, "")
            if pool in costs and claim.status.provider_id:
                costs[pool] += prices[pool].of(found) or 0.0
        yield from _COST.text((pairs(nodepool=pool), round(cost, 6)) for pool, cost in costs.items())
