"""Filling one node with pods of many demands, fast: the inner loop of the value packing.

Demands are bits of one integer. Which of them a node could still take is a few ANDs: waiting, requests within what is free,
compatible with the requirements so far, not excluded by host limits. So a filling costs about as many steps as it puts demands
on the node, however many are waiting.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from copy import copy
from functools import reduce
from operator import or_
from typing import Protocol, Self

from karpenter.instancetypes.type_sets import AmountIndex, TypeSet
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements, compatible
from karpenter.model.resources import Resources
from karpenter.scheduling.devices.device_state import DeviceState
from karpenter.scheduling.devices.type_devices import TypeDevices
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.topology.host_limits import HostLimits, HostUsage
from karpenter.scheduling.topology.topology_groups import TopologyGroup
from karpenter.state.device_demands import DeviceDemand
from karpenter.state.host_ports import HostPort

#: A set of demands: bit i stands for the one at position i.
DemandSet = int
#: What a claim keeps to: its pool, and the reservation it draws from, if any.
LaunchChannel = tuple[str, str | None]
#: What a claim's requirements become when pods join, and the types that leaves them.
JoinResult = tuple[Requirements, TypeSet] | None


class JoiningOption(Protocol):
    """How a demand may join a claim: what it asks for and the types that hold one of its pods."""

    @property
    def template(self) -> NodePoolTemplate:
        """The NodePool of the node."""

    @property
    def pod_requirements(self) -> Requirements:
        """What its pods ask of the node."""

    @property
    def types(self) -> TypeSet:
        """Types that could each hold one of them."""


class EmptyClaim(Protocol):
    """A claim without pods. Its requirements are given as by `FillCache.canonical`."""

    @property
    def template(self) -> NodePoolTemplate:
        """Its pool."""

    @property
    def channel(self) -> LaunchChannel:
        """What it keeps to."""

    @property
    def requirements(self) -> Requirements:
        """What it offers."""

    @property
    def types(self) -> TypeSet:
        """What it may become."""


class PackableDemand(Protocol):
    """Pods of one group that want new nodes."""

    @property
    def requests(self) -> Resources:
        """Requests of one pod."""

    @property
    def host_limits(self) -> HostLimits | None:
        """Which pods may share a node with them."""

    @property
    def device_demand(self) -> DeviceDemand | None:
        """The devices that one pod needs."""


class FillCache:
    """What is known of the demands of a decision: numbers instead of mappings, sets instead of lists, answers remembered."""

    def __init__(self, demands: Sequence[PackableDemand], devices: TypeDevices | None = None) -> None:
        self._devices = devices
        self.requests = [demand.requests for demand in demands]
        self.device_demands = [demand.device_demand if devices is not None else None for demand in demands]
        names = sorted({name for demand in demands for name in demand.requests})
        self.names = tuple(names)
        self.needs = [
            tuple((names.index(name), amount) for name, amount in demand.requests.items() if amount > 0)
            for demand in demands
        ]
        least = {name: min([amounts.get(name, 0) for amounts in self.requests], default=0) for name in names}
        #: What every demand asks for at least.
        self._least_needs = tuple((at, least[name]) for at, name in enumerate(names) if least[name] > 0)
        self.host_limits = [demand.host_limits for demand in demands]
        self._cpu = AmountIndex([demand.requests.get(res.CPU, 0) for demand in demands])
        self._memory = AmountIndex([demand.requests.get(res.MEMORY, 0) for demand in demands])
        self.cpu_at = names.index(res.CPU) if res.CPU in names else -1
        self._memory_at = names.index(res.MEMORY) if res.MEMORY in names else -1
        self._by_limits_signature: dict[object, DemandSet] = {}
        self._limits_signatures: list[object] = []
        for position, host_limits in enumerate(self.host_limits):
            ruled = _host_limits_signature(host_limits)
            self._limits_signatures.append(ruled)
            if ruled is not None:
                self._by_limits_signature[ruled] = self._by_limits_signature.get(ruled, 0) | 1 << position
        self._rooms: dict[tuple[int, int], tuple[int, ...]] = {}
        self._canonical: dict[Requirements, Requirements] = {}
        self._joined: dict[tuple[int, int, int], JoinResult] = {}
        self._possible: dict[tuple[int, int], TypeSet] = {}
        self._demands_by_requirements: dict[tuple[LaunchChannel, int], DemandSet] = {}

    def with_same_requirements(
        self, asked: Requirements, channel: LaunchChannel, joining: Sequence[Mapping[LaunchChannel, JoiningOption]]
    ) -> DemandSet:
        """Demands that require the same of nodes in a launch channel: what excludes one excludes all."""
        canonical = self.canonical(asked)
        key = (channel, id(canonical))
        if key not in self._demands_by_requirements:
            alike = [
                position
                for position, joining_options in enumerate(joining)
                if channel in joining_options and self.canonical(joining_options[channel].pod_requirements) is canonical
            ]
            self._demands_by_requirements[key] = demand_set(alike)
        return self._demands_by_requirements[key]

    def requests_of(self, contents: Iterable[tuple[int, int]]) -> Resources:
        """What so many pods of each of these demands request together."""
        total: dict[str, int] = {}
        for at, count in contents:
            for name, amount in self.requests[at].items():
                total[name] = total.get(name, 0) + amount * count
        return total

    def room_of(self, template: NodePoolTemplate, target: int) -> list[int]:
        """What an empty node of a type leaves to pods of each resource."""
        key = (id(template), target)
        if key not in self._rooms:
            free = res.subtract(template.index.types[target].allocatable, template.overhead_of(target))
            self._rooms[key] = tuple(free.get(name, 0) for name in self.names)
        return list(self._rooms[key])

    def fitting(self, free: Sequence[int]) -> DemandSet:
        """Demands that ask for no more CPU and memory than this."""
        fitting = -1
        if self.cpu_at >= 0:
            fitting = self._cpu.at_most(free[self.cpu_at])
        return fitting & self._memory.at_most(free[self._memory_at]) if self._memory_at >= 0 else fitting

    def is_full(self, free: Sequence[int]) -> bool:
        """Whether every demand asks for more of some resource than this."""
        return any(free[at] < least for at, least in self._least_needs)

    def excluded_with(self, position: int) -> DemandSet:
        """Demands that obey the same rules: where this one may sit no more, they may not either."""
        return self._by_limits_signature.get(self._limits_signatures[position], 1 << position)

    def canonical(self, requirements: Requirements) -> Requirements:
        """The one object that stands for all equal requirements, so that answers can be found by identity."""
        return self._canonical.setdefault(requirements, requirements)

    def types_holding(
        self, template: NodePoolTemplate, requests: Resources, contents: Iterable[tuple[int, int]], within: TypeSet = -1
    ) -> TypeSet:
        """Types of a template, of those ``within``, that hold these pods, which request so much together."""
        types = template.types_fitting(requests, within)
        if self._devices is None or not types:
            return types
        demands = [(self.device_demands[position], count) for position, count in contents]
        return self._devices.types_holding(template.index, types, demands)

    def new_devices(self, template: NodePoolTemplate, position: int) -> DeviceState | None:
        """The devices of a new node of a type; None in decisions without devices."""
        return None if self._devices is None else self._devices.state_of_type(template.index, position)

    def joined(self, template: NodePoolTemplate, requirements: Requirements, joining: JoiningOption) -> JoinResult:
        """What one more demand makes of a claim's requirements (given as by `FillCache.canonical`), None if it may not join."""
        asked = joining.pod_requirements
        if not asked:
            return requirements, joining.types
        key = (id(template), id(requirements), id(joining))
        if key not in self._joined:
            self._joined[key] = self._join(template, requirements, joining)
        return self._joined[key]

    def _join(self, template: NodePoolTemplate, requirements: Requirements, joining: JoiningOption) -> JoinResult:
        if not compatible(requirements, joining.pod_requirements, template.index.well_known):
            return None
        narrowed = self.canonical(requirements.intersect(joining.pod_requirements))
        return narrowed, joining.types & self.possible_types(template, narrowed)

    def possible_types(self, template: NodePoolTemplate, requirements: Requirements) -> TypeSet:
        """Types of the template that meet the requirements (given as by `FillCache.canonical`) and can be launched under them."""
        key = (id(template), id(requirements))
        cached = self._possible.get(key)
        if cached is None:
            index = template.index
            cached = self._possible[key] = (
                template.types & index.matching(requirements) & index.with_available_offering(requirements)
            )
        return cached


def _host_limits_signature(host_limits: HostLimits | None) -> object:
    """Equal for demands that a filling node shuts out together; None where that cannot be said, as other pods may join."""
    if host_limits is None or host_limits.affinity:
        return None
    ports: tuple[HostPort, ...] = host_limits.ports
    return (
        host_limits.spread,
        host_limits.anti_affinity,
        host_limits.repelled_by,
        host_limits.others_spread,
        ports,
        host_limits.exposed_workload,
    )


class NodeFill:
    """One node of a given type while it is filled."""

    __slots__ = (
        "_channel",
        "_devices",
        "_excluded",
        "_fill_cache",
        "_free",
        "_host_usage",
        "_joining",
        "_target",
        "_template",
        "_unmet_affinity",
        "contents",
        "requirements",
        "types",
    )

    def __init__(
        self,
        fill_cache: FillCache,
        start: EmptyClaim,
        target: int,
        joining: Sequence[Mapping[LaunchChannel, JoiningOption]],
        unmet_affinity: Container[TopologyGroup],
    ) -> None:
        self._fill_cache = fill_cache
        template = start.template
        self._template = template
        self._channel = start.channel
        self._target = target
        self._joining = joining
        self._unmet_affinity = unmet_affinity
        self._free = fill_cache.room_of(template, target)
        self._host_usage = HostUsage(pool=template.name)
        self._excluded: DemandSet = 0
        self._devices = fill_cache.new_devices(template, target)
        self.contents: dict[int, int] = {}
        self.requirements = start.requirements
        self.types = start.types

    def copy(self) -> Self:
        """The same node, to try further pods on."""
        other = copy(self)
        other._free = list(self._free)
        other._host_usage = self._host_usage.copy()
        other.contents = dict(self.contents)
        return other

    def limit_cpu(self, millis: int) -> None:
        """Leave no more CPU than this to pods."""
        cpu_at = self._fill_cache.cpu_at
        if cpu_at >= 0:
            self._free[cpu_at] = min(self._free[cpu_at], millis)

    def fill(self, waiting: DemandSet, left: Sequence[int]) -> int:
        """Add demand after demand, in their order, as many pods as fit; how many were tried."""
        tried = 0
        waiting_demands = waiting & self._fill_cache.fitting(self._free)
        while waiting_demands:
            lowest = waiting_demands & -waiting_demands
            position = lowest.bit_length() - 1
            waiting_demands ^= lowest
            tried += 1
            if self.add(position, left[position]):
                waiting_demands &= self._fill_cache.fitting(self._free)
            waiting_demands &= ~self._excluded
        return tried

    def add(self, position: int, wanted: int) -> int:
        """As many pods of a demand as fit."""
        needs = self._fill_cache.needs[position]
        free = self._free
        count = wanted - self.contents.get(position, 0)
        for at, amount in needs:
            fitting = free[at] // amount
            if fitting < count:
                count = fitting
        if count <= 0:
            return 0
        host_limits = self._fill_cache.host_limits[position]
        if host_limits is not None:
            count = host_limits.count_allowed(self._host_usage, count, self._unmet_affinity)
            if not count:
                self._excluded |= self._fill_cache.excluded_with(position) if not host_limits.affinity else 0
                return 0
        count = self._join(position, count)
        if not count:
            return 0
        self.contents[position] = self.contents.get(position, 0) + count
        for at, amount in needs:
            free[at] -= amount * count
        if host_limits is not None:
            host_limits.record(self._host_usage, count)
        return count

    def _join(self, position: int, count: int) -> int:
        """Let so many pods join, or as many as there are devices for."""
        joining = self._joining[position].get(self._channel)
        joined = self._fill_cache.joined(self._template, self.requirements, joining) if joining is not None else None
        if joined is None and joining is not None:
            self._excluded |= self._fill_cache.with_same_requirements(
                joining.pod_requirements, self._channel, self._joining
            )
        if joined is None or not (self.types & joined[1]) >> self._target & 1:
            return 0
        demand = self._fill_cache.device_demands[position]
        if demand is not None and self._devices is not None:
            count, self._devices = self._devices.after_count(demand, count)
            if not count:
                return 0
        self.requirements = joined[0]
        self.types &= joined[1]
        return count


def demand_set(positions: Sequence[int]) -> DemandSet:
    """Positions as a set."""
    return reduce(or_, (1 << position for position in positions), 0)
