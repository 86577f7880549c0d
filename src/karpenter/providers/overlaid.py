"""A cloud as NodeOverlays make it look (SCH-760, OPS-244).

What pools may use comes with the overlays in force; a pool that was not judged yet gets nothing, so that nothing is bought at a
wrong price after a start (API-166). The cloud itself knows nothing of overlays. So a claim is handed on without its wish for
resources they add, and its machine is reported with them; and where they changed prices, the cloud is first asked for what is
cheapest by those, and for anything the claim accepts only if that cannot be had.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.catalog.overlays import Overlay, PoolTypes, applied
from karpenter.catalog.types import InstanceType
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.quantity import QuantityError
from karpenter.model.requirements import from_labels, from_wire, intersects, to_wire
from karpenter.providers.contract import (
    CloudProvider,
    Instance,
    InsufficientCapacity,
    ProviderError,
)
from karpenter.providers.passing import PassingProvider

#: What a claim carries whose types overlays changed.
_APPLIED = frozenset({labels.PRICE_OVERLAY, labels.CAPACITY_OVERLAY})


class AwaitingOverlays(ProviderError):
    """The pool's overlays have not been judged yet; soon they will be (OPS-229)."""


@dataclass(frozen=True)
class _Shown:
    """The types of a pool before and after its overlays."""

    before: tuple[InstanceType, ...]
    after: tuple[InstanceType, ...]

    def by_name(self) -> Mapping[str, InstanceType]:
        """The types after, by name."""
        return {item.name: item for item in self.after}


class _Choice(NamedTuple):
    """An offering of a type, in the order of preference."""

    price_per_hour: float
    instance_type: str
    zone: str
    capacity_type: str


class OverlaidProvider(PassingProvider):
    """A provider whose instance types pass through overlays. All else passes."""

    def __init__(self, provider: CloudProvider) -> None:
        super().__init__(provider)
        self._overlays: tuple[Overlay, ...] = ()
        self._shown: dict[str, _Shown] = {}

    async def plain_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """The pool's types as the cloud has them."""
        return await self._provider.instance_types(pool)

    def put(self, overlays: tuple[Overlay, ...], judged: Iterable[PoolTypes]) -> bool:
        """Let overlays, in the order they count, be in force for the pools they were judged for; whether anything changed."""
        before, self._overlays = self._shown, overlays
        self._shown = {item.pool.metadata.name: self._kept(before, item) for item in judged}
        return before != self._shown

    def _kept(self, before: Mapping[str, _Shown], item: PoolTypes) -> _Shown:
        """What is shown to a pool now: the same objects where nothing changed, as callers go by identity."""
        shown, known = _Shown(item.types, applied(self._overlays, item)), before.get(item.pool.metadata.name)
        return known if known is not None and known.before is item.types and known == shown else shown

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """Everything the pool's class could use, overlays applied. Raises ``AwaitingOverlays``."""
        self._known(pool.metadata.name)
        types = await self._provider.instance_types(pool)
        shown = self._known(pool.metadata.name)
        if shown.before is not types:
            shown = _Shown(types, applied(self._overlays, PoolTypes(pool, types)))
            self._shown[pool.metadata.name] = shown
        return shown.after

    def _known(self, pool: str) -> _Shown:
        shown = self._shown.get(pool)
        if shown is None:
            raise AwaitingOverlays(f"the overlays of NodePool {pool} have not been evaluated yet")
        return shown

    async def create(self, claim: NodeClaim) -> Instance:
        """Buy one machine for the claim. Raises ``AwaitingOverlays`` as well."""
        if not _APPLIED & claim.metadata.annotations.keys():
            return await self._provider.create(claim)
        types = self._known(claim.metadata.labels.get(labels.NODE_POOL, "")).by_name()
        plain = _without(claim, {name for item in types.values() for name in item.extended})
        instance = await self._bought(plain, _cheapest(claim, types.values()))
        item = types.get(instance.labels.get(labels.INSTANCE_TYPE, ""))
        return instance if item is None else _with(instance, item)

    async def _bought(self, claim: NodeClaim, cheapest: _Choice | None) -> Instance:
        if cheapest is None or labels.PRICE_OVERLAY not in claim.metadata.annotations:
            return await self._provider.create(claim)
        try:
            return await self._provider.create(_narrowed(claim, cheapest))
        except InsufficientCapacity:
            return await self._provider.create(claim)


def _cheapest(claim: NodeClaim, types: Iterable[InstanceType]) -> _Choice | None:
    """The cheapest offering the claim accepts, ties by name, zone and capacity type; None where there is none."""
    wished = from_wire(claim.spec.requirements)
    try:
        requests = res.parse(claim.spec.resources.requests)
    except QuantityError:
        return None
    found = (
        _Choice(offering.price_per_hour, item.name, offering.zone, offering.capacity_type)
        for item in types
        if wished.of(labels.INSTANCE_TYPE).allows(item.name)
        and intersects(item.requirements, wished)
        and res.fits(requests, item.allocatable)
        for offering in item.offerings
        if offering.available and intersects(offering.requirements, wished)
    )
    return min(found, default=None)


def _narrowed(claim: NodeClaim, choice: _Choice) -> NodeClaim:
    """The claim as it accepts this offering alone."""
    chosen = from_labels(
        {
            labels.INSTANCE_TYPE: choice.instance_type,
            labels.ZONE: choice.zone,
            labels.CAPACITY_TYPE: choice.capacity_type,
        }
    )
    wished = from_wire(claim.spec.requirements).without(chosen).intersect(chosen)
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, requirements=to_wire(wished)))


def _without(claim: NodeClaim, names: set[str]) -> NodeClaim:
    """The claim without its wish for some resources; the types it names all have them."""
    resources = claim.spec.resources
    kept = {name: amount for name, amount in resources.requests.items() if name not in names}
    resources = msgspec.structs.replace(resources, requests=kept)
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, resources=resources))


def _with(instance: Instance, item: InstanceType) -> Instance:
    """The machine with what overlays give its type."""
    promised = {name: item.allocatable[name] for name in item.extended}
    return replace(
        instance,
        capacity={**instance.capacity, **item.extended},
        allocatable={**instance.allocatable, **promised},
    )
