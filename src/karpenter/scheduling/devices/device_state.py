"""What claims leave of a host's devices, and the states that follow.

A `DeviceHost` is a fact; a `DeviceState` says what is left on it, and keeps the states that follow, so a demand that was tried
once costs a look-up. Equal states of a host are one object.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from karpenter.instancetypes.type_sets import members
from karpenter.scheduling.devices.device_allocation import Leftover, allocate
from karpenter.scheduling.devices.device_host import DeviceHost
from karpenter.state.device_demands import DeviceDemand


class DeviceStates:
    """All states of one host that were met so far."""

    def __init__(self, host: DeviceHost) -> None:
        self.host = host
        self._by_leftover: dict[Leftover, DeviceState] = {}

    @cached_property
    def all_free(self) -> DeviceState:
        """Nothing is taken."""
        counters = tuple(self.host.counter_totals[name] for name in self.host.counter_names)
        return self.state(Leftover((1 << len(self.host.devices)) - 1, counters))

    def state(self, leftover: Leftover) -> DeviceState:
        """The state with this left; one object for equal ones."""
        state = self._by_leftover.get(leftover)
        if state is None:
            state = self._by_leftover[leftover] = DeviceState(self, leftover)
        return state

    def with_held(self, held: Mapping[tuple[str, str, str], Mapping[str, int] | None]) -> DeviceState:
        """The state in which devices are in use: None of one held whole, else what is consumed of it (K15-166, K15-168)."""
        left = self.all_free.leftover
        free, counters, consumed = left.free, list(left.counters), dict(left.consumed)
        for position, device in enumerate(self.host.devices):
            key = (device.driver, device.pool, device.name)
            if key not in held:
                continue
            used = held[key]
            if used is None or not device.is_shareable:
                free &= ~(1 << position)
            else:
                for dimension in device.shared_dimensions:
                    consumed[position, dimension.name] = used.get(dimension.name, 0)
            for at, amount in self.host.consumption[position]:
                counters[at] = max(0, counters[at] - amount)
        return self.state(Leftover(free, tuple(counters), tuple(sorted(consumed.items()))))


class DeviceState:
    """What is left of a host's devices. Immutable; ``after`` remembers what follows."""

    __slots__ = ("_after", "_states", "leftover")

    def __init__(self, states: DeviceStates, leftover: Leftover) -> None:
        self._states = states
        self.leftover = leftover
        self._after: dict[DeviceDemand, DeviceState | None] = {}

    @property
    def host(self) -> DeviceHost:
        """The devices that this is a state of."""
        return self._states.host

    def after(self, demand: DeviceDemand) -> DeviceState | None:
        """What is left when one more pod has its devices; None where it cannot have them."""
        if demand in self._after:
            return self._after[demand]
        allocation = allocate(self.host, self.leftover, demand)
        after = None if allocation is None else self._states.state(allocation.leftover)
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

    def drivers_used_since(self, before: DeviceState) -> frozenset[str]:
        """Drivers whose devices were taken between two states of one host."""
        taken = members(before.leftover.free & ~self.leftover.free)
        earlier = dict(before.leftover.consumed)
        shared = (at for (at, name), amount in self.leftover.consumed if earlier.get((at, name), 0) != amount)
        return frozenset(self.host.devices[at].driver for at in (*taken, *shared))
