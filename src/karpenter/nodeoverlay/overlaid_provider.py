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
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.overlay_application import NodePoolInstanceTypes, ParsedOverlay, apply_overlays
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.quantity import QuantityError
from karpenter.model.requirements import (
    intersects,
    requirements_from_labels,
    requirements_from_wire,
    requirements_to_wire,
)
from karpenter.providers.contract import (
    CloudProvider,
    Instance,
    InsufficientCapacity,
    UnevaluatedNodePool,
)
from karpenter.providers.decorators import CloudProviderDecorator

#: What a claim carries whose types overlays changed.
_OVERLAY_ANNOTATIONS = frozenset({labels.PRICE_OVERLAY, labels.CAPACITY_OVERLAY})


@dataclass(frozen=True)
class _PoolInstanceTypes:
    """The types of a pool before and after its overlays."""

    without_overlays: tuple[InstanceType, ...]
    with_overlays: tuple[InstanceType, ...]

    def by_name(self) -> Mapping[str, InstanceType]:
        """The types after, by name."""
        return {item.name: item for item in self.with_overlays}


class _OfferingChoice(NamedTuple):
    """An offering of a type, in the order of preference."""

    price_per_hour: float
    instance_type: str
    zone: str
    capacity_type: str


class OverlaidProvider(CloudProviderDecorator):
    """A provider whose instance types pass through overlays. All else passes."""

    def __init__(self, provider: CloudProvider) -> None:
        super().__init__(provider)
        self._overlays: tuple[ParsedOverlay, ...] = ()
        self._pool_types: dict[str, _PoolInstanceTypes] = {}

    async def types_without_overlays(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """The pool's types as the cloud has them."""
        return await self._provider.instance_types(pool)

    def set_overlays(self, overlays: tuple[ParsedOverlay, ...], pool_types: Iterable[NodePoolInstanceTypes]) -> bool:
        """Let overlays, in the order they count, be in force for the pools they were judged for; whether anything changed."""
        before, self._overlays = self._pool_types, overlays
        self._pool_types = {item.node_pool.metadata.name: self._reuse_unchanged(before, item) for item in pool_types}
        return before != self._pool_types

    def _reuse_unchanged(
        self, before: Mapping[str, _PoolInstanceTypes], pool_types: NodePoolInstanceTypes
    ) -> _PoolInstanceTypes:
        """What is shown to a pool now: the same objects where nothing changed, as callers go by identity."""
        shown, known = (
            _PoolInstanceTypes(pool_types.types, apply_overlays(self._overlays, pool_types)),
            before.get(pool_types.node_pool.metadata.name),
        )
        return known if known is not None and known.without_overlays is pool_types.types and known == shown else shown

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """Everything the pool's class could use, overlays applied. Raises ``AwaitingOverlays``."""
        self._evaluated(pool.metadata.name)
        types = await self._provider.instance_types(pool)
        shown = self._evaluated(pool.metadata.name)
        if shown.without_overlays is not types:
            shown = _PoolInstanceTypes(types, apply_overlays(self._overlays, NodePoolInstanceTypes(pool, types)))
            self._pool_types[pool.metadata.name] = shown
        return shown.with_overlays

    def _evaluated(self, pool: str) -> _PoolInstanceTypes:
        shown = self._pool_types.get(pool)
        if shown is None:
            raise UnevaluatedNodePool(f"the overlays of NodePool {pool} have not been evaluated yet")
        return shown

    async def create(self, claim: NodeClaim) -> Instance:
        """Buy one machine for the claim. Raises ``AwaitingOverlays`` as well."""
        if not _OVERLAY_ANNOTATIONS & claim.metadata.annotations.keys():
            return await self._provider.create(claim)
        types = self._evaluated(claim.metadata.labels.get(labels.NODE_POOL, "")).by_name()
        plain = _without_requests(claim, {name for item in types.values() for name in item.overlay_capacity})
        instance = await self._create_cheapest(plain, _cheapest_offering(claim, types.values()))
        item = types.get(instance.labels.get(labels.INSTANCE_TYPE, ""))
        return instance if item is None else _with_overlay_capacity(instance, item)

    async def _create_cheapest(self, claim: NodeClaim, cheapest: _OfferingChoice | None) -> Instance:
        if cheapest is None or labels.PRICE_OVERLAY not in claim.metadata.annotations:
            return await self._provider.create(claim)
        try:
            return await self._provider.create(_restricted_to(claim, cheapest))
        except InsufficientCapacity:
            return await self._provider.create(claim)


def _cheapest_offering(claim: NodeClaim, types: Iterable[InstanceType]) -> _OfferingChoice | None:
    """The cheapest offering the claim accepts, ties by name, zone and capacity type; None where there is none."""
    wished = requirements_from_wire(claim.spec.requirements)
    try:
        requests = res.parse_resources(claim.spec.resources.requests)
    except QuantityError:
        return None
    found = (
        _OfferingChoice(offering.price_per_hour, item.name, offering.zone, offering.capacity_type)
        for item in types
        if wished.requirement_for(labels.INSTANCE_TYPE).allows(item.name)
        and intersects(item.requirements, wished)
        and res.fits(requests, item.allocatable)
        for offering in item.offerings
        if offering.available and intersects(offering.requirements, wished)
    )
    return min(found, default=None)


def _restricted_to(claim: NodeClaim, choice: _OfferingChoice) -> NodeClaim:
    """The claim as it accepts this offering alone."""
    chosen = requirements_from_labels(
        {
            labels.INSTANCE_TYPE: choice.instance_type,
            labels.ZONE: choice.zone,
            labels.CAPACITY_TYPE: choice.capacity_type,
        }
    )
    wished = requirements_from_wire(claim.spec.requirements).without(chosen).intersect(chosen)
    return msgspec.structs.replace(
        claim, spec=msgspec.structs.replace(claim.spec, requirements=requirements_to_wire(wished))
    )


def _without_requests(claim: NodeClaim, names: set[str]) -> NodeClaim:
    """The claim without its wish for some resources; the types it names all have them."""
    resources = claim.spec.resources
    kept = {name: amount for name, amount in resources.requests.items() if name not in names}
    resources = msgspec.structs.replace(resources, requests=kept)
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, resources=resources))


def _with_overlay_capacity(instance: Instance, instance_type: InstanceType) -> Instance:
    """The machine with what overlays give its type."""
    promised = {name: instance_type.allocatable[name] for name in instance_type.overlay_capacity}
    return replace(
        instance,
        capacity={**instance.capacity, **instance_type.overlay_capacity},
        allocatable={**instance.allocatable, **promised},
    )
