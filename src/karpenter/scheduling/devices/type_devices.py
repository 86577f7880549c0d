"""The devices of instance types in one decision, and claims as amounts of resources (K15-163).

The packing search handles amounts, not devices. So each kind of device that pods request is a resource: a type has as many as
there are matching devices, a pod requests as many as it claims. That is necessary but not sufficient: counters, constraints and
shared capacity may still rule a node out. Code that puts pods on a node therefore calls `types_holding` or uses a `DeviceState`,
which search for the devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from karpenter.api.resource_claims import ResourceSliceSpec
from karpenter.instancetypes.instance_type import NO_DEVICE_TEMPLATES, DeviceTemplates, InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import TypeSet, members
from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.scheduling.devices.device_host import DeviceHost
from karpenter.scheduling.devices.device_pools import HostDevice, device_pools, host_device
from karpenter.scheduling.devices.device_state import DeviceState, DeviceStates
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
        self._states: dict[object, DeviceStates] = {}
        self._states_by_type: dict[int, tuple[InstanceType, DeviceStates]] = {}
        self._types_by_states: dict[int, tuple[TypeIndex, list[tuple[DeviceStates, TypeSet]]]] = {}
        self._holding: dict[tuple[int, tuple[tuple[DeviceDemand, int], ...]], bool] = {}
        self._names = _resource_names(self._filters)
        self._wider: dict[DeviceFilter, tuple[DeviceFilter, ...]] = {}
        self._indexes: dict[int, tuple[TypeIndex, TypeIndex]] = {}

    # -- hosts ----------------------------------------------------------------------------------------------------------------

    def states_of(self, instance_type: InstanceType) -> DeviceStates:
        """What nodes of a type will offer, in all its states."""
        kept = self._states_by_type.get(id(instance_type))
        if kept is None:
            kept = self._states_by_type[id(instance_type)] = (instance_type, self._make_states(instance_type))
        return kept[1]

    def _make_states(self, instance_type: InstanceType) -> DeviceStates:
        templates = instance_type.devices
        if templates == NO_DEVICE_TEMPLATES:
            templates = DeviceTemplates(self._remembered.get(instance_type.name, ()))
        native = frozenset(name for name in self.extended_resources if instance_type.capacity.get(name, 0) > 0)
        return self.states(templates, native)

    def states(self, templates: DeviceTemplates, native: frozenset[str] = frozenset()) -> DeviceStates:
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
        return self.states_with(devices, counters, errors, native)

    def states_with(
        self,
        devices: Sequence[HostDevice],
        counters: Mapping[tuple[str, str, str, str], int],
        errors: Sequence[str],
        native: frozenset[str],
    ) -> DeviceStates:
        """The host with these; one object for equal ones."""
        key = (tuple(devices), tuple(sorted(counters.items())), tuple(errors), native)
        states = self._states.get(key)
        if states is None:
            states = self._states[key] = DeviceStates(DeviceHost(devices, counters, errors, native))
        return states

    def _states_by_types(self, index: TypeIndex) -> list[tuple[DeviceStates, TypeSet]]:
        """The hosts of an index, with the types whose devices are equal."""
        kept = self._types_by_states.get(id(index))
        if kept is None:
            types: dict[int, tuple[DeviceStates, TypeSet]] = {}
            for position, instance_type in enumerate(index.types):
                states = self.states_of(instance_type)
                types[id(states)] = (states, types.get(id(states), (states, 0))[1] | 1 << position)
            kept = self._types_by_states[id(index)] = (index, list(types.values()))
        return kept[1]

    def state_of_type(self, index: TypeIndex, position: int) -> DeviceState:
        """A new node of a type, with all of its devices free."""
        return self.states_of(index.types[position]).all_free

    # -- what fits ------------------------------------------------------------------------------------------------------------

    def types_holding(self, index: TypeIndex, types: TypeSet, contents: Contents) -> TypeSet:
        """Those of the types whose devices suffice for these pods."""
        wanted = tuple((demand, count) for demand, count in contents if demand is not None)
        if not wanted:
            return types
        held = 0
        for states, alike in self._states_by_types(index):
            if types & alike and self._holds(states, wanted):
                held |= types & alike
        return held

    def _holds(self, states: DeviceStates, wanted: tuple[tuple[DeviceDemand, int], ...]) -> bool:
        key = (id(states), wanted)
        holds = self._holding.get(key)
        if holds is None:
            holds = self._holding[key] = after_contents(states.all_free, wanted) is not None
        return holds

    def drivers_of(self, index: TypeIndex, types: TypeSet, contents: Contents) -> tuple[str, ...]:
        """Drivers whose devices the pods use, whichever of the types it will be (SCH-610); sorted."""
        wanted = tuple((demand, count) for demand, count in contents if demand is not None)
        drivers: frozenset[str] | None = None
        for states, alike in self._states_by_types(index) if wanted else ():
            after = after_contents(states.all_free, wanted) if types & alike else None
            if after is not None:
                used = after.drivers_used_since(states.all_free)
                drivers = used if drivers is None else drivers & used
        return tuple(sorted(drivers or ()))

    # -- devices as resources -------------------------------------------------------------------------------------------------

    def with_devices(self, index: TypeIndex) -> TypeIndex:
        """The types with their devices as resources."""
        kept = self._indexes.get(id(index))
        if kept is None:
            kept = self._indexes[id(index)] = (index, self._extended_index(index))
        return kept[1]

    def _extended_index(self, index: TypeIndex) -> TypeIndex:
        states = [self.states_of(instance_type) for instance_type in index.types]
        amounts = [self.amounts_of(each.all_free) for each in states]
        names = dict.fromkeys(name for each in amounts for name in each)
        rows = [(each, instance_type.capacity) for each, instance_type in zip(amounts, index.types, strict=True)]
        added = {name: [own.get(name, capacity.get(name, 0)) for own, capacity in rows] for name in names}
        extended = index.with_resources(added)
        self._states_by_type |= {id(each): (each, own) for each, own in zip(extended.types, states, strict=True)}
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
        """Extended resources that some of the types have as devices: no node reports these in its capacity."""
        if not self.extended_resources:
            return self.extended_resources
        native = [self.states_of(index.types[position]).host.native_resources for position in members(types)]
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
        """Filters that select, on every host, every device that this one selects: a device taken by it is one of theirs."""
        wider = self._wider.get(inner)
        if wider is None:
            others = (each for each in self._filters if each != inner)
            wider = self._wider[inner] = tuple(each for each in others if self._is_around(each, inner))
        return wider

    def _is_around(self, outer: DeviceFilter, inner: DeviceFilter) -> bool:
        first, second = _as_alternative(inner), _as_alternative(outer)
        hosts = (states.host for states in self._states.values())
        return all(not host.takable(first) & ~host.takable(second) for host in hosts)


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
    """The largest number of devices selected by a filter that can be allocated at once."""
    takable = host.takable(_as_alternative(device_filter)) & free
    if takable & host.shareable:
        return _ENDLESS
    partitions: dict[tuple[str, str, str], list[dict[tuple[str, str, str, str], int]]] = {}
    whole = 0
    for position in members(takable):
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
    groups: dict[str, list[tuple[str, str]]] = {}
    for attribute, device in leaders:
        groups.setdefault(device, []).append((attribute, leader(attribute, device)))
    return groups


def _resource_names(filters: Iterable[DeviceFilter]) -> dict[DeviceFilter, str]:
    """A name for each filter that says what it selects."""
    names: dict[DeviceFilter, str] = {}
    for each in filters:
        own = f" where {' && '.join(each.own_selectors)}" if each.own_selectors else ""
        name = f"{DEVICE_RESOURCE_PREFIX}{each.device_class}{own}"
        used = set(names.values())
        names[each] = name if name not in used else f"{name} ({len(used)})"
    return names
