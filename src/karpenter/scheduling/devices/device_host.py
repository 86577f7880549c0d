"""The devices of one node, or of an instance type, and what claims leave of them.

Devices are bits of one integer, so which of them a request may take is a few ANDs. A `DeviceHost` is a fact; a `DeviceState` says
what is left on it, and knows the states that follow, so a demand that was tried once costs a look-up. Nodes and types with equal
devices share one host, therefore 60 types with eight equal GPUs are searched once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from karpenter.api.resource_claims import DeviceTaint, DeviceToleration
from karpenter.instancetypes.type_sets import members
from karpenter.model import device_selectors
from karpenter.scheduling.devices.device_allocation import Allocation, Leftover, allocate
from karpenter.scheduling.devices.device_pools import HostDevice
from karpenter.state.device_demands import DeviceAlternative, DeviceDemand, DeviceFilter

#: A set of devices: bit i stands for the i-th of the host.
DeviceSet = int
_BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True)
class _Matching:
    """The devices a filter selects: those that may be taken, all of them, and an error that Mode All must not pass over."""

    takable: DeviceSet
    selected: DeviceSet
    error: str


class DeviceHost:
    """What a node or type offers. ``counters``: what counters have in all. ``pool_errors`` keep All from being met.

    ``native_resources``: extended resources that the node has without claims.
    """

    def __init__(
        self,
        devices: Sequence[HostDevice],
        counters: Mapping[tuple[str, str, str, str], int],
        pool_errors: Sequence[str] = (),
        native_resources: frozenset[str] = frozenset(),
    ) -> None:
        self.devices = tuple(devices)
        self.pool_errors = tuple(pool_errors)
        self.native_resources = native_resources
        self.counter_names = tuple(sorted(counters))
        self.counter_totals = dict(counters)
        at = {name: position for position, name in enumerate(self.counter_names)}
        #: By device: positions of counters with what it takes of them.
        self.consumption = [tuple((at[name], amount) for name, amount in device.consumes) for device in self.devices]
        self.shareable: DeviceSet = _set(n for n, device in enumerate(self.devices) if device.is_shareable)
        self._matching: dict[DeviceFilter, _Matching] = {}
        self._matching_by_alternative: dict[int, tuple[DeviceAlternative, _Matching]] = {}
        self._tokens: dict[str, tuple[tuple[object, ...], Mapping[object, DeviceSet]]] = {}
        self._states: dict[Leftover, DeviceState] = {}

    @cached_property
    def all_free(self) -> DeviceState:
        """Nothing is taken."""
        return self.state(
            Leftover((1 << len(self.devices)) - 1, tuple(self.counter_totals[name] for name in self.counter_names))
        )

    def state(self, leftover: Leftover) -> DeviceState:
        """The state with this left; one object for equal ones."""
        found = self._states.get(leftover)
        if found is None:
            found = self._states[leftover] = DeviceState(self, leftover)
        return found

    def with_held(self, held: Mapping[tuple[str, str, str], Mapping[str, int] | None]) -> DeviceState:
        """The state in which devices are in use: None of one held whole, else what is consumed of it (K15-166, K15-168)."""
        left = self.all_free.leftover
        free, counters, consumed = left.free, list(left.counters), dict(left.consumed)
        for position, device in enumerate(self.devices):
            key = (device.driver, device.pool, device.name)
            if key not in held:
                continue
            used = held[key]
            if used is None or not device.is_shareable:
                free &= ~(1 << position)
            else:
                for dimension in device.shared_dimensions:
                    consumed[position, dimension.name] = used.get(dimension.name, 0)
            for at, amount in self.consumption[position]:
                counters[at] = max(0, counters[at] - amount)
        return self.state(Leftover(free, tuple(counters), tuple(sorted(consumed.items()))))

    # -- what requests select -----------------------------------------------------------------------------------------------

    def takable(self, alternative: DeviceAlternative) -> DeviceSet:
        """Devices an alternative may take, whoever has them."""
        return self._matched(alternative).takable

    def all_of(self, alternative: DeviceAlternative) -> DeviceSet | None:
        """Every device that matches, for mode All; None where that cannot be said or one of them keeps claims away."""
        found = self._matched(alternative)
        if self.pool_errors or found.error or found.takable != found.selected:
            return None
        return found.selected

    def _matched(self, alternative: DeviceAlternative) -> _Matching:
        """Looked up by identity first, because comparing filters takes longer than all the rest."""
        known = self._matching_by_alternative.get(id(alternative))
        if known is None:
            found = self._matching.get(alternative.filter)
            if found is None:
                found = self._matching[alternative.filter] = self._match(alternative.filter)
            known = self._matching_by_alternative[id(alternative)] = (alternative, found)
        return known[1]

    def _match(self, device_filter: DeviceFilter) -> _Matching:
        selected = takable = 0
        first_error = ""
        for position, device in enumerate(self.devices):
            matches = True
            for expression in device_filter.selectors:
                result = device_selectors.match(expression, device.facts)
                first_error = first_error or result.error
                matches = result.matches
                if not matches:
                    break
            if matches and self._has_capacity(device, device_filter):
                selected |= 1 << position
                if not _repels(device.taints, device_filter.tolerations):
                    takable |= 1 << position
        return _Matching(takable, selected, first_error)

    def _has_capacity(self, device: HostDevice, device_filter: DeviceFilter) -> bool:
        """Whether the device has what the filter asks, if it is all free."""
        wanted = dict(device_filter.capacity)
        dimensions = {dimension.name: dimension for dimension in device.dimensions}
        if not wanted.keys() <= dimensions.keys():
            return False
        return all(dimensions[name].consumed_by(amount) is not None for name, amount in wanted.items())

    # -- attributes of constraints ----------------------------------------------------------------------------------------

    def tokens(self, attribute: str) -> tuple[tuple[object, ...], Mapping[object, DeviceSet]]:
        """By device what it has for a constraint: its value, or the binding group it is in; and the devices by token.

        Values and groups never agree (K15-160). None: it has neither.
        """
        found = self._tokens.get(attribute)
        if found is None:
            tokens = tuple(_token(device, attribute) for device in self.devices)
            sets: dict[object, DeviceSet] = {}
            for position, token in enumerate(tokens):
                sets[token] = sets.get(token, 0) | 1 << position
            found = self._tokens[attribute] = (tokens, sets)
        return found


class DeviceState:
    """What is left of a host's devices. Immutable; ``after`` remembers what follows."""

    __slots__ = ("_after", "host", "leftover")

    def __init__(self, host: DeviceHost, leftover: Leftover) -> None:
        self.host = host
        self.leftover = leftover
        self._after: dict[DeviceDemand, DeviceState | None] = {}

    def after(self, demand: DeviceDemand) -> DeviceState | None:
        """What is left when one more pod has its devices; None where it cannot have them."""
        if demand in self._after:
            return self._after[demand]
        found = self._allocate(demand)
        after = None if found is None else self.host.state(found.leftover)
        self._after[demand] = after
        return after

    def after_count(self, demand: DeviceDemand, count: int) -> tuple[int, DeviceState]:
        """How many of so many pods can have their devices, and what they leave."""
        state = self
        for number in range(count):
            following = state.after(demand)
            if following is None:
                return number, state
            state = following
        return count, state

    def _allocate(self, demand: DeviceDemand) -> Allocation | None:
        return allocate(self.host, self.leftover, demand)

    def drivers_used_since(self, before: DeviceState) -> frozenset[str]:
        """Drivers whose devices were taken between two states of one host."""
        taken = members(before.leftover.free & ~self.leftover.free)
        earlier = dict(before.leftover.consumed)
        shared = (at for (at, name), amount in self.leftover.consumed if earlier.get((at, name), 0) != amount)
        return frozenset(self.host.devices[at].driver for at in (*taken, *shared))


def _set(positions: Iterable[int]) -> DeviceSet:
    found = 0
    for position in positions:
        found |= 1 << position
    return found


def _token(device: HostDevice, attribute: str) -> object:
    for name, value in device.facts.attributes:
        if name == attribute:
            return (type(value).__name__, value)
    group = next((group for name, group in device.groups if name == attribute), None)
    return None if group is None else ("group", device.pool, group)


def _repels(taints: Sequence[DeviceTaint], tolerations: Sequence[DeviceToleration]) -> bool:
    """Whether a taint keeps the request away; beyond K15-172, as kube-scheduler has it."""
    return any(
        taint.effect in _BLOCKING_EFFECTS and not any(_tolerates(toleration, taint) for toleration in tolerations)
        for taint in taints
    )


def _tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value
