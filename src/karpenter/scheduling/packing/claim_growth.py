"""One NodeClaim of the classic packing while it grows: it takes pods as long as any of its instance types holds them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Self

from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.scheduling.demand import Demand, SchedulingNodeClaim
from karpenter.scheduling.node_filling import DemandSet, FillCache, PurchaseChannel
from karpenter.scheduling.offerings.purchase_options import PurchaseOption
from karpenter.scheduling.topology.host_limits import HostUsage
from karpenter.scheduling.topology.topology_groups import TopologyGroup


class ClaimGrowth:
    """A claim and the pods on it. ``joining``: by demand and purchase channel, how pods may join the claim."""

    def __init__(
        self,
        claim: SchedulingNodeClaim,
        demands: Sequence[Demand],
        fill_cache: FillCache,
        joining: Sequence[Mapping[PurchaseChannel, PurchaseOption]],
        unmet_affinity: Container[TopologyGroup],
    ) -> None:
        self.claim = claim
        self._demands = demands
        self._fill_cache = fill_cache
        self._joining = joining
        self._unmet_affinity = unmet_affinity
        self._usage = HostUsage(pool=claim.template.name)
        #: Demands that can no longer join, as far as others like them have shown.
        self._excluded: DemandSet = 0
        #: The most of each resource that any type has.
        self._most = claim.template.index.max_allocatable(claim.types)

    def copy(self) -> Self:
        """The same claim, to try further pods on."""
        other = copy(self)
        other._usage = self._usage.copy()
        return other

    @property
    def contents(self) -> Mapping[int, int]:
        """Pods on the claim, by position of their demand."""
        return dict(self.claim.contents)

    def fill(self, waiting: DemandSet, left: Sequence[int]) -> None:
        """Add demand after demand, in their order, as many pods as fit."""
        waiting &= self._fill_cache.fitting(self._free())
        while waiting:
            lowest = waiting & -waiting
            position = lowest.bit_length() - 1
            waiting ^= lowest
            if self.add(position, left[position]):
                waiting &= self._fill_cache.fitting(self._free())
            waiting &= ~self._excluded

    def _free(self) -> list[int]:
        """What a type with the most of everything would have left, by resource."""
        held = self.claim.requests
        return [self._most.get(name, 0) - held.get(name, 0) for name in self._fill_cache.names]

    def add(self, position: int, wanted: int) -> int:
        """Add pods of a demand until there are ``wanted`` of them, as far as they fit; how many were added."""
        demand = self._demands[position]
        count = wanted - dict(self.claim.contents).get(position, 0)
        joining = self._joining[position].get(self.claim.channel)
        if count <= 0 or joining is None or not self._could_join(demand.requests):
            return 0
        if demand.host_limits is not None:
            count = demand.host_limits.count_allowed(self._usage, count, self._unmet_affinity)
            if not count and not demand.host_limits.affinity:
                self._excluded |= self._fill_cache.excluded_with(position)
        count = self._grow(joining, position, count)
        if demand.host_limits is not None and count:
            demand.host_limits.record(self._usage, count)
        return count

    def _could_join(self, requests: Resources) -> bool:
        """Whether one more pod would fit on a type with the most of everything."""
        held = self.claim.requests
        return all(amount + held.get(name, 0) <= self._most.get(name, 0) for name, amount in requests.items() if amount)

    def _grow(self, joining: PurchaseOption, position: int, wanted: int) -> int:
        """Add as many pods of one demand as some type still holds; how many those are."""
        claim = self.claim
        joined = self._fill_cache.joined(claim.template, claim.requirements, joining) if wanted else None
        if joined is None and wanted:
            self._excluded |= self._fill_cache.with_same_requirements(
                joining.pod_requirements, claim.channel, self._joining
            )
        if joined is None:
            return 0
        narrowed, types = joined[0], claim.types & joined[1]
        requests = self._demands[position].requests
        fitting = 0
        best: tuple[TypeSet, Resources] = (0, {})
        step = wanted
        while step:  # binary search for the largest count: halve the step until it fits, then add what still fits
            total = res.add(claim.requests, {n: a * (fitting + step) for n, a in requests.items()})
            contents = claim.contents_with(position, fitting + step)
            held = types & self._fill_cache.types_holding(claim.template, total, contents)
            if held and claim.template.index.satisfies_min_values(narrowed, held):
                fitting += step
                best = (held, total)
                step = min(step, wanted - fitting)
            else:
                step //= 2
        if fitting:
            contents = claim.contents_with(position, fitting)
            self.claim = replace(claim, requirements=narrowed, types=best[0], requests=best[1], contents=contents)
        return fitting


def right_sized(claim: SchedulingNodeClaim, fill_cache: FillCache) -> SchedulingNodeClaim:
    """The claim with every type that holds its pods; the cheapest is at most as dear as the one it was filled for."""
    total = fill_cache.requests_of(claim.contents)
    held = claim.types & fill_cache.types_holding(claim.template, total, claim.contents)
    return replace(claim, types=held, requests=total)
