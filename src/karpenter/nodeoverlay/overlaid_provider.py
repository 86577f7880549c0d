"""A cloud provider decorator that applies NodeOverlays (SCH-760, OPS-244).

Instance types of a pool are returned with the accepted overlays. A pool whose overlays have not been evaluated yet gets no
types, so that no instance is launched at a wrong price after a start (API-166). The decorated provider knows nothing of
overlays: a claim is passed on without requests for resources that overlays add, and the instance is returned with them. If
overlays changed prices, the decorator first restricts the claim to the offering that is cheapest by those prices, and retries
without the restriction if that offering has no capacity.
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
from karpenter.providers.contract import CloudProvider, Instance, InsufficientCapacity, UnevaluatedNodePool
from karpenter.providers.decorators import CloudProviderDecorator

#: Annotations of claims whose instance types were changed by overlays.
_OVERLAY_ANNOTATIONS = frozenset({labels.PRICE_OVERLAY, labels.CAPACITY_OVERLAY})


@dataclass(frozen=True)
class _PoolInstanceTypes:
    """The types of a pool without and with its overlays."""

    without_overlays: tuple[InstanceType, ...]
    with_overlays: tuple[InstanceType, ...]

    def by_name(self) -> Mapping[str, InstanceType]:
        """The types with overlays, by name."""
        return {instance_type.name: instance_type for instance_type in self.with_overlays}


class _OfferingChoice(NamedTuple):
    """An offering of an instance type; sorts by preference."""

    price_per_hour: float
    instance_type: str
    zone: str
    capacity_type: str


class OverlaidProvider(CloudProviderDecorator):
    """Applies overlays to instance types and launches; delegates everything else."""

    def __init__(self, provider: CloudProvider) -> None:
        super().__init__(provider)
        self._overlays: tuple[ParsedOverlay, ...] = ()
        self._pool_types: dict[str, _PoolInstanceTypes] = {}

    async def types_without_overlays(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """The pool's types as the decorated provider returns them."""
        return await self._provider.instance_types(pool)

    def set_overlays(self, overlays: tuple[ParsedOverlay, ...], pool_types: Iterable[NodePoolInstanceTypes]) -> bool:
        """Apply overlays, in order of precedence, to the evaluated pools; returns whether anything changed."""
        before, self._overlays = self._pool_types, overlays
        self._pool_types = {types.node_pool.metadata.name: self._reuse_unchanged(before, types) for types in pool_types}
        return before != self._pool_types

    def _reuse_unchanged(
        self, before: Mapping[str, _PoolInstanceTypes], pool_types: NodePoolInstanceTypes
    ) -> _PoolInstanceTypes:
        """The types of a pool: the same objects if nothing changed, because callers compare by identity."""
        current = _PoolInstanceTypes(pool_types.types, apply_overlays(self._overlays, pool_types))
        previous = before.get(pool_types.node_pool.metadata.name)
        if previous is not None and previous.without_overlays is pool_types.types and previous == current:
            return previous
        return current

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """All instance types of the pool, with overlays. Raises ``UnevaluatedNodePool``."""
        self._evaluated(pool.metadata.name)
        types = await self._provider.instance_types(pool)
        pool_types = self._evaluated(pool.metadata.name)
        if pool_types.without_overlays is not types:
            pool_types = _PoolInstanceTypes(types, apply_overlays(self._overlays, NodePoolInstanceTypes(pool, types)))
            self._pool_types[pool.metadata.name] = pool_types
        return pool_types.with_overlays

    def _evaluated(self, pool: str) -> _PoolInstanceTypes:
        pool_types = self._pool_types.get(pool)
        if pool_types is None:
            raise UnevaluatedNodePool(f"the overlays of NodePool {pool} have not been evaluated yet")
        return pool_types

    async def create(self, claim: NodeClaim) -> Instance:
        """Launch one instance for the claim. Raises ``UnevaluatedNodePool`` as well."""
        if not _OVERLAY_ANNOTATIONS & claim.metadata.annotations.keys():
            return await self._provider.create(claim)
        types = self._evaluated(claim.metadata.labels.get(labels.NODE_POOL, "")).by_name()
        plain = _without_requests(
            claim, {name for instance_type in types.values() for name in instance_type.overlay_capacity}
        )
        instance = await self._create_cheapest(plain, _cheapest_offering(claim, types.values()))
        instance_type = types.get(instance.labels.get(labels.INSTANCE_TYPE, ""))
        return instance if instance_type is None else _with_overlay_capacity(instance, instance_type)

    async def _create_cheapest(self, claim: NodeClaim, cheapest: _OfferingChoice | None) -> Instance:
        if cheapest is None or labels.PRICE_OVERLAY not in claim.metadata.annotations:
            return await self._provider.create(claim)
        try:
            return await self._provider.create(_restricted_to(claim, cheapest))
        except InsufficientCapacity:
            return await self._provider.create(claim)


def _cheapest_offering(claim: NodeClaim, types: Iterable[InstanceType]) -> _OfferingChoice | None:
    """The cheapest offering the claim accepts, ties by name, zone and capacity type; None where there is none."""
    requirements = requirements_from_wire(claim.spec.requirements)
    try:
        requests = res.parse_resources(claim.spec.resources.requests)
    except QuantityError:
        return None
    choices = (
        _OfferingChoice(offering.price_per_hour, instance_type.name, offering.zone, offering.capacity_type)
        for instance_type in types
        if requirements.requirement_for(labels.INSTANCE_TYPE).allows(instance_type.name)
        and intersects(instance_type.requirements, requirements)
        and res.fits(requests, instance_type.allocatable)
        for offering in instance_type.offerings
        if offering.available and intersects(offering.requirements, requirements)
    )
    return min(choices, default=None)


def _restricted_to(claim: NodeClaim, choice: _OfferingChoice) -> NodeClaim:
    """The claim restricted to this offering."""
    choice_requirements = requirements_from_labels(
        {
            labels.INSTANCE_TYPE: choice.instance_type,
            labels.ZONE: choice.zone,
            labels.CAPACITY_TYPE: choice.capacity_type,
        }
    )
    open_requirements = requirements_from_wire(claim.spec.requirements).without(choice_requirements)
    wire = requirements_to_wire(open_requirements.intersect(choice_requirements))
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, requirements=wire))


def _without_requests(claim: NodeClaim, names: set[str]) -> NodeClaim:
    """The claim without requests for some resources; all its instance types provide them through overlays."""
    resources = claim.spec.resources
    requests = {name: amount for name, amount in resources.requests.items() if name not in names}
    resources = msgspec.structs.replace(resources, requests=requests)
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, resources=resources))


def _with_overlay_capacity(instance: Instance, instance_type: InstanceType) -> Instance:
    """The instance with the resources that overlays add to its type."""
    overlay_allocatable = {name: instance_type.allocatable[name] for name in instance_type.overlay_capacity}
    return replace(
        instance,
        capacity={**instance.capacity, **instance_type.overlay_capacity},
        allocatable={**instance.allocatable, **overlay_allocatable},
    )
