"""The devices of instance types in one decision, and claims as amounts of resources (K15-163).

A search that packs nodes knows amounts, not devices. So each kind of device that pods ask for is a resource: types have as many
as devices match, pods request as many as they claim. That is necessary, not sufficient: counters, constraints and shared capacity
can say no. Whoever puts pods on a node therefore asks `types_holding` or a `DeviceState`, which search for the devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from karpenter.api.resource_claims import ResourceSliceSpec
from karpenter.instancetypes.instance_type import NO_DEVICE_TEMPLATES, DeviceTemplates, InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import TypeSet, members
from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.scheduling.devices.device_host import DeviceHost, DeviceState
from karpenter.scheduling.devices.device_pools import HostDevice, device_pools, host_device
from karpenter.state.device_demands import ClaimedDevices, DeviceAlternative, DeviceDemand, DeviceFilter

#: Devices of a kind as a resource; the rest of the name says which.
DEVICE_RESOURCE_PREFIX = "devices of "
#: More devices than there are pods.
_ENDLESS = 10**6 * res.ONE_UNIT
#: Pods on a node, as demands with their numbers, in the order they joined.
Contents = Sequence[tuple[DeviceDemand | None, int]]


class TypeDevices:
    """Hosts by instance type, and the resources that stand for devices. ``demands`` are all that may be asked in the decision.

    ``remembered``: what drivers published on nodes of a type that has no templates of its own. `requests_of` compares what hosts
    there are, so it is asked once all hosts are made.
    """

    def __init__(
        self, demands: Iterable[DeviceDemand], remembered: Mapping[str, tuple[ResourceSliceSpec, ...]]
    ) -> None:
        self._remembered = remembered
        claims = [claim for demand in demands for claim in demand.all_devices]
        self._filters = dict.fromkeys(each.filter for claim in claims for each in _only_alternatives(claim))
        self._filter_by_resource = {
            claim.extended_resource: each.filter
            for claim in claims
            if claim.extended_resource
            for each in _only_alternatives(claim)
        }
        #: Extended resources that are asked for as devices.
        self.extended_resources = frozenset(self._filter_by_resource)
        self._hosts: dict[object, DeviceHost] = {}
        self._host_by_type: dict[int, tuple[InstanceType, DeviceHost]] = {}
        self._types_by_host: dict[int, tuple[TypeIndex, list[tuple[DeviceHost, TypeSet]]]] = {}
        self._holding: dict[tuple[int, tuple[tuple[DeviceDemand, int], ...]], bool] = {}
        self._names = _resource_names(self._filters)
        self._wider: dict[DeviceFilter, tuple[DeviceFilter, ...]] = {}
        self._indexes: dict[int, tuple[TypeIndex, TypeIndex]] = {}

    # -- hosts ----------------------------------------------------------------------------------------------------------------

    def host_of(self, instance_type: InstanceType) -> DeviceHost:
        """What nodes of a type will offer."""
        known = self._host_by_type.get(id(instance_type))
        if known is None:
            known = self._host_by_type[id(instance_type)] = (instance_type, self._make_host(instance_type))
        return known[1]

    def _make_host(self, instance_type: InstanceType) -> DeviceHost:
        templates = instance_type.devices
        if templates == NO_DEVICE_TEMPLATES:
            templates = DeviceTemplates(self._remembered.get(instance_type.name, ()))
        native = frozenset(name for name in self.extended_resources if instance_type.capacity.get(name, 0) > 0)
        return self.host(templates, native)

    def host(self, templates: DeviceTemplates, native: frozenset[str] = frozenset()) -> DeviceHost:
        """The host with the devices of some slices; one object for equal ones."""
        devices: list[HostDevice] = []
        counters: dict[tuple[str, str, str, str], int] = {}
        errors: list[str] = []
        for key, pool in sorted(device_pools(templates.slices).items()):
            if pool.error:
                errors.append(pool.error)
                continue
            groups = _groups_of_pool(templates, key[1])
            devices += [host_device(key, device, groups.get(device.name, ())) for device, _ in pool.devices]
            counters |= {(*key, *name): amount for name, amount in pool.counters.items()}
        return self.host_with(devices, counters, errors, native)

    def host_with(
        self,
        devices: Sequence[HostDevice],
        counters: Mapping[tuple[str, str, str, str], int],
        errors: Sequence[str],
        native: frozenset[str],
    ) -> DeviceHost:
        """The host with these; one object for equal ones."""
        key = (tuple(devices), tuple(sorted(counters.items())), tuple(errors), native)
        found = self._hosts.get(key)
        if found is None:
            found = self._hosts[key] = DeviceHost(devices, counters, errors, native)
        return found

    def _hosts_of(self, index: TypeIndex) -> list[tuple[DeviceHost, TypeSet]]:
        """The hosts of an index with the types that are alike."""
        known = self._types_by_host.get(id(index))
        if known is None:
            types: dict[int, tuple[DeviceHost, TypeSet]] = {}
            for position, instance_type in enumerate(index.types):
                host = self.host_of(instance_type)
                types[id(host)] = (host, types.get(id(host), (host, 0))[1] | 1 << position)
            known = self._types_by_host[id(index)] = (index, list(types.values()))
        return known[1]

    def state_of_type(self, index: TypeIndex, position: int) -> DeviceState:
        """A new node of a type, with all of its devices free."""
        return self.host_of(index.types[position]).all_free

    # -- what fits ------------------------------------------------------------------------------------------------------------

    def types_holding(self, index: TypeIndex, types: TypeSet, contents: Contents) -> TypeSet:
        """Those of the types whose devices suffice for these pods."""
        wanted = tuple((demand, count) for demand, count in contents if demand is not None)
        if not wanted:
            return types
        held = 0
        for host, alike in self._hosts_of(index):
            if types & alike and self._holds(host, wanted):
                held |= types & alike
        return held

    def _holds(self, host: DeviceHost, wanted: tuple[tuple[DeviceDemand, int], ...]) -> bool:
        key = (id(host), wanted)
        known = self._holding.get(key)
        if known is None:
            known = self._holding[key] = after_contents(host.all_free, wanted) is not None
        return known

    def drivers_of(self, index: TypeIndex, types: TypeSet, contents: Contents) -> tuple[str, ...]:
        """Drivers whose devices the pods use, whichever of the types it will be (SCH-610); sorted."""
        wanted = tuple((demand, count) for demand, count in contents if demand is not None)
        found: frozenset[str] | None = None
        for host, alike in self._hosts_of(index) if wanted else ():
            after = after_contents(host.all_free, wanted) if types & alike else None
            if after is not None:
                used = after.drivers_used_since(host.all_free)
                found = used if found is None else found & used
        return tuple(sorted(found or ()))

    # -- devices as resources -------------------------------------------------------------------------------------------------

    def with_devices(self, index: TypeIndex) -> TypeIndex:
        """The types with their devices as resources."""
        known = self._indexes.get(id(index))
        if known is None:
            known = self._indexes[id(index)] = (index, self._extended_index(index))
        return known[1]

    def _extended_index(self, index: TypeIndex) -> TypeIndex:
        hosts = [self.host_of(instance_type) for instance_type in index.types]
        amounts = [self.amounts_of(host.all_free) for host in hosts]
        names = dict.fromkeys(name for each in amounts for name in each)
        rows = [(each, instance_type.capacity) for each, instance_type in zip(amounts, index.types, strict=True)]
        added = {name: [own.get(name, capacity.get(name, 0)) for own, capacity in rows] for name in names}
        extended = index.with_resources(added)
        self._host_by_type |= {id(each): (each, host) for each, host in zip(extended.types, hosts, strict=True)}
        return extended

    def amounts_of(self, state: DeviceState) -> dict[str, int]:
        """What a node in this state has of each resource that stands for devices, at most.

        Extended resources are among them, save on nodes that have them without devices.
        """
        host, free = state.host, state.leftover.free
        if host.native_resources:
            return dict.fromkeys(self._names.values(), _ENDLESS)
        backed = {name: _amount(host, free, each) for name, each in self._filter_by_resource.items()}
        return {**{self._names[each]: _amount(host, free, each) for each in self._filters}, **backed}

    def device_backed(self, index: TypeIndex, types: TypeSet) -> frozenset[str]:
        """Extended resources that some of the types have as devices: no node will tell how much it has of these."""
        if not self.extended_resources:
            return self.extended_resources
        native = [self.host_of(index.types[position]).native_resources for position in members(types)]
        return self.extended_resources - frozenset[str].intersection(*native) if native else frozenset()

    def requests_of(self, demand: DeviceDemand) -> Resources:
        """What a pod takes of these resources at least; claims by name, which pods share, count as nothing."""
        requests: dict[str, int] = {}
        for claim in demand.own:
            for alternative in _only_alternatives(claim):
                amount = res.ONE_UNIT * (1 if alternative.takes_all else alternative.count)
                for each in (alternative.filter, *self._filters_around(alternative.filter)):
                    requests[self._names[each]] = requests.get(self._names[each], 0) + amount
        return requests

    def _filters_around(self, inner: DeviceFilter) -> tuple[DeviceFilter, ...]:
        """Filters that select, on every host, all that this one does: who takes a device by it takes one of theirs."""
        known = self._wider.get(inner)
        if known is None:
            others = (each for each in self._filters if each != inner)
            known = self._wider[inner] = tuple(each for each in others if self._is_around(each, inner))
        return known

    def _is_around(self, outer: DeviceFilter, inner: DeviceFilter) -> bool:
        first, second = _as_alternative(inner), _as_alternative(outer)
        return all(not host.takable(first) & ~host.takable(second) for host in self._hosts.values())


def after_contents(state: DeviceState, wanted: Iterable[tuple[DeviceDemand, int]]) -> DeviceState | None:
    """What pods leave of a node's devices; None where they cannot all have theirs."""
    for demand, count in wanted:
        fitting, state = state.after_count(demand, count)
        if fitting < count:
            return None
    return state


def _only_alternatives(claim: ClaimedDevices) -> Iterator[DeviceAlternative]:
    """The alternatives of requests that have one: what any solution takes for sure."""
    for request in claim.requests:
        if len(request.alternatives) == 1 and not request.alternatives[0].admin_access:
            yield request.alternatives[0]


def _as_alternative(device_filter: DeviceFilter) -> DeviceAlternative:
    return DeviceAlternative("", device_filter)


def _amount(host: DeviceHost, free: int, device_filter: DeviceFilter) -> int:
    """How many of the devices a filter selects can be had at once, at most."""
    found = host.takable(_as_alternative(device_filter)) & free
    if found & host.shareable:
        return _ENDLESS
    partitions: dict[tuple[str, str, str], list[dict[tuple[str, str, str, str], int]]] = {}
    whole = 0
    for position in members(found):
        consumes = dict(host.devices[position].consumes)
        if not consumes:
            whole += 1
        else:
            partitions.setdefault(min(consumes)[:3], []).append(consumes)
    return res.ONE_UNIT * (whole + sum(_most_partitions(host, each) for each in partitions.values()))


def _most_partitions(host: DeviceHost, consumes: Sequence[Mapping[tuple[str, str, str, str], int]]) -> int:
    """How many devices that share a counter set its counters allow at most."""
    most = len(consumes)
    for name in consumes[0]:
        least = min(each.get(name, 0) for each in consumes)
        if least:
            most = min(most, host.counter_totals[name] // least)
    return most


def _groups_of_pool(templates: DeviceTemplates, pool: str) -> dict[str, list[tuple[str, str]]]:
    """By device its binding groups: attribute, and the first device it is tied to, over any number of groups (K15-160)."""
    leaders: dict[tuple[str, str], str] = {}

    def leader(attribute: str, device: str) -> str:
        above = leaders.get((attribute, device), device)
        return above if above == device else leader(attribute, above)

    for group in templates.binding_groups:
        if group.pool == pool and len(group.devices) > 1:
            first = min(leader(group.attribute, device) for device in group.devices)
            for device in group.devices:
                leaders[group.attribute, leader(group.attribute, device)] = first
                leaders[group.attribute, device] = first
    found: dict[str, list[tuple[str, str]]] = {}
    for attribute, device in leaders:
        found.setdefault(device, []).append((attribute, leader(attribute, device)))
    return found


def _resource_names(filters: Iterable[DeviceFilter]) -> dict[DeviceFilter, str]:
    """A name for each filter that says what it selects."""
    names: dict[DeviceFilter, str] = {}
    for each in filters:
        own = f" where {' && '.join(each.own_selectors)}" if each.own_selectors else ""
        name = f"{DEVICE_RESOURCE_PREFIX}{each.device_class}{own}"
        used = set(names.values())
        names[each] = name if name not in used else f"{name} ({len(used)})"
    return names
