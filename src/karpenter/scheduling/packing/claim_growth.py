"""One NodeClaim of the classic packing while it grows: it takes pods as long as any of its instance types holds them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Self

from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.scheduling.demand import SchedulingNodeClaim
from karpenter.scheduling.node_filling import DemandSet, FillCache, LaunchChannel, NodeFill
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.topology.host_limits import HostUsage
from karpenter.scheduling.topology.topology_groups import TopologyGroup


class ClaimGrowth:
    """A claim and the pods on it. ``joining``: by demand and launch channel, how pods may join the claim."""

    def __init__(
        self,
        claim: SchedulingNodeClaim,
        fill_cache: FillCache,
        joining: Sequence[Mapping[LaunchChannel, LaunchOption]],
        unmet_affinity: Container[TopologyGroup],
    ) -> None:
        self._start = claim
        self._channel = claim.channel
        self._fill_cache = fill_cache
        self._joining = joining
        self._unmet_affinity = unmet_affinity
        self._usage = HostUsage(pool=claim.template.name)
        #: Demands that can no longer join, as far as others like them have shown.
        self._excluded: DemandSet = 0
        self._requirements, self._types = claim.requirements, claim.types
        self._requests: Resources = {}
        self._contents: dict[int, int] = {}
        #: What a type with the most of everything would have left, by resource.
        most = claim.template.most_room(claim.types)
        self._free = [most.get(name, 0) for name in fill_cache.names]

    @property
    def claim(self) -> SchedulingNodeClaim:
        """The claim as it is now."""
        return replace(
            self._start,
            requirements=self._requirements,
            types=self._types,
            requests=self._requests,
            contents=tuple(self._contents.items()),
        )

    def copy(self) -> Self:
        """The same claim, to try further pods on."""
        other = copy(self)
        other._usage = self._usage.copy()
        other._contents = dict(self._contents)
        other._free = list(self._free)
        return other

    @property
    def contents(self) -> Mapping[int, int]:
        """Pods on the claim, by position of their demand."""
        return self._contents

    def fill(self, waiting: DemandSet, left: Sequence[int]) -> None:
        """Add demand after demand, in their order, as many pods as fit."""
        waiting &= self._fill_cache.fitting(self._free)
        while waiting:
            lowest = waiting & -waiting
            position = lowest.bit_length() - 1
            waiting ^= lowest
            if self.add(position, left[position]):
                waiting &= self._fill_cache.fitting(self._free)
                if self._fill_cache.is_full(self._free):
                    return
            if self._excluded:
                waiting &= ~self._excluded

    def add(self, position: int, wanted: int) -> int:
        """Add pods of a demand until there are ``wanted`` of them, as far as they fit; how many were added."""
        count = wanted - self._contents.get(position, 0)
        for at, amount in self._fill_cache.needs[position]:
            # No more than would fit on a type with the most of everything.
            fitting = self._free[at] // amount
            if fitting < count:
                count = fitting
        joining = self._joining[position].get(self._channel) if count > 0 else None
        if joining is None:
            return 0
        host_limits = self._fill_cache.host_limits[position]
        if host_limits is not None:
            count = host_limits.count_allowed(self._usage, count, self._unmet_affinity)
            if not count:
                self._excluded |= self._fill_cache.excluded_with(position) if not host_limits.affinity else 0
                return 0
        count = self._grow(joining, position, count)
        if host_limits is not None and count:
            host_limits.record(self._usage, count)
        return count

    def _grow(self, joining: LaunchOption, position: int, wanted: int) -> int:
        """Add as many pods of one demand as some type still holds; how many those are."""
        template = self._start.template
        joined = self._fill_cache.joined(template, self._requirements, joining)
        if joined is None:
            self._excluded |= self._fill_cache.with_same_requirements(
                joining.pod_requirements, self._channel, self._joining
            )
            return 0
        narrowed, types = joined[0], self._types & joined[1]
        fitting, best, step = 0, types, wanted
        while step:  # binary search for the largest count: halve the step until it fits, then add what still fits
            held = self._types_with(position, fitting + step, types)
            if held and template.index.satisfies_min_values(narrowed, held):
                fitting += step
                best = held
                step = min(step, wanted - fitting)
            else:
                step //= 2
        if fitting:
            self._requirements, self._types = narrowed, best
            self._contents[position] = self._contents.get(position, 0) + fitting
            more = {name: amount * fitting for name, amount in self._fill_cache.requests[position].items()}
            self._requests = res.add(self._requests, more)
            for at, amount in self._fill_cache.needs[position]:
                self._free[at] -= amount * fitting
        return fitting

    def _types_with(self, position: int, count: int, types: TypeSet) -> TypeSet:
        """Those of the types that hold so many more pods of a demand: all of them hold what is there already."""
        held = self._requests
        requests = self._fill_cache.requests[position]
        changed = {name: held.get(name, 0) + amount * count for name, amount in requests.items() if amount}
        contents = self._contents_with(position, count)
        return self._fill_cache.types_holding(self._start.template, changed, contents, types)

    def _contents_with(self, position: int, count: int) -> Iterator[tuple[int, int]]:
        """The pods on the claim and so many more of one demand; only devices need to know all of them."""
        for at, number in self._contents.items():
            yield at, number + (count if at == position else 0)
        if position not in self._contents:
            yield position, count


def right_sized(claim: SchedulingNodeClaim, fill_cache: FillCache) -> SchedulingNodeClaim:
    """The claim with every type that holds its pods; the cheapest costs at most as much as the one it was filled for."""
    total = fill_cache.requests_of(claim.contents)
    held = fill_cache.types_holding(claim.template, total, claim.contents, claim.types)
    return replace(claim, types=held, requests=total)


def claim_of_node(start: SchedulingNodeClaim, node: NodeFill, fill_cache: FillCache) -> SchedulingNodeClaim:
    """The claim for what is on a node that was filled from this start, with every type that holds it."""
    contents = tuple(node.contents.items())
    total = fill_cache.requests_of(contents)
    held = fill_cache.types_holding(start.template, total, contents, node.types)
    return replace(start, requirements=node.requirements, types=held, requests=total, contents=contents)
