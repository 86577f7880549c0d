"""From slices to the devices a node offers: pools, their generations, completeness and validity (SCH-785, K15-162).

A pool is what one driver publishes under one name. Only its newest generation counts. A pool whose slices are not all there
offers nothing yet, and one that contradicts itself (two devices of a name, counters that do not exist or are negative) offers
nothing at all; claims for All devices cannot be met beside either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from karpenter.api.resource_claims import BasicDevice, Counter, Device, DeviceTaint, ResourceSliceSpec
from karpenter.model.device_selectors import AttributeValue, DeviceFacts, Version
from karpenter.state.claim_validation import parsed_quantity

#: Driver and name of a pool.
PoolKey = tuple[str, str]


@dataclass(frozen=True)
class SharedDimension:
    """A dimension of a device that several claims may share, in thousandths (K15-165).

    ``default``: consumed by a request that names no amount; None for the whole. Amounts are rounded up to ``values``, or to
    ``minimum`` plus steps; above ``maximum`` none is allowed.
    """

    name: str
    capacity: int
    default: int | None = None
    values: tuple[int, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    step: int | None = None

    def consumed_by(self, wanted: int | None) -> int | None:
        """What a request for so much consumes; None where it may not have that."""
        amount = wanted if wanted is not None else self.default
        if amount is None:
            amount = self.capacity
        elif self.values:
            amount = min((value for value in self.values if value >= amount), default=self.capacity + 1)
        elif self.minimum is not None:
            amount = self._in_steps(max(amount, self.minimum), self.minimum)
        too_much = amount > self.capacity or (self.maximum is not None and amount > self.maximum)
        return None if too_much else amount

    def _in_steps(self, amount: int, minimum: int) -> int:
        return amount if not self.step else minimum + -(-(amount - minimum) // self.step) * self.step


#: Of a shared device without dimensions: any number of claims may have it.
_ENDLESS = (SharedDimension("", 10**15, default=1),)


@dataclass(frozen=True)
class HostDevice:
    """A device as a node offers it. ``consumes``: amounts by pool, counter set and counter. Equal devices are equal values."""

    driver: str
    pool: str
    name: str
    facts: DeviceFacts
    consumes: tuple[tuple[tuple[str, str, str, str], int], ...] = ()
    taints: tuple[DeviceTaint, ...] = ()
    dimensions: tuple[SharedDimension, ...] = ()
    groups: tuple[tuple[str, str], ...] = ()

    @property
    def is_shareable(self) -> bool:
        """Whether several claims may hold it."""
        return self.facts.allow_multiple_allocations

    @property
    def shared_dimensions(self) -> tuple[SharedDimension, ...]:
        """What claims share of it; a device without dimensions has one that never runs out."""
        return self.dimensions or _ENDLESS


@dataclass(frozen=True)
class DevicePool:
    """The newest generation of a pool. ``error``: why it offers nothing, empty when it does."""

    devices: tuple[tuple[Device, ResourceSliceSpec], ...]
    counters: Mapping[tuple[str, str], int]
    error: str


def device_pools(slices: Iterable[ResourceSliceSpec]) -> dict[PoolKey, DevicePool]:
    """The pools of slices, by driver and name."""
    by_pool: dict[PoolKey, list[ResourceSliceSpec]] = {}
    for spec in slices:
        by_pool.setdefault((spec.driver, spec.pool.name), []).append(spec)
    return {key: _pool_of(key, own) for key, own in by_pool.items()}


def _pool_of(key: PoolKey, slices: Sequence[ResourceSliceSpec]) -> DevicePool:
    newest = max(spec.pool.generation for spec in slices)
    current = [spec for spec in slices if spec.pool.generation == newest]
    devices = tuple((device, spec) for spec in current for device in spec.devices)
    counters = {
        (each.name, name): parsed_quantity(counter.value)
        for spec in current
        for each in spec.shared_counters
        for name, counter in each.counters.items()
    }
    error = ""
    if len(current) != current[0].pool.resource_slice_count:
        error = f"pool {'/'.join(key)} is incomplete (missing slices)"
    elif _is_invalid(current, devices, counters):
        error = f"pool {'/'.join(key)} is invalid (duplicate device names)"
    return DevicePool(devices, {name: amount or 0 for name, amount in counters.items()}, error)


def _is_invalid(
    slices: Sequence[ResourceSliceSpec],
    devices: Sequence[tuple[Device, ResourceSliceSpec]],
    counters: Mapping[tuple[str, str], int | None],
) -> bool:
    names = [device.name for device, _ in devices]
    sets = [each.name for spec in slices for each in spec.shared_counters]
    consumed = [entry for device, _ in devices for entry in _consumption(device.flat)]
    return (
        len(set(names)) < len(names)
        or len(set(sets)) < len(sets)
        or any(amount is None or amount < 0 for amount in counters.values())
        or any(key not in counters or amount is None or amount < 0 for key, amount in consumed)
    )


def _consumption(device: BasicDevice) -> Iterator[tuple[tuple[str, str], int | None]]:
    for entry in device.consumes_counters:
        for name, counter in entry.counters.items():
            yield (entry.counter_set, name), _amount_of(counter)


def _amount_of(counter: Counter) -> int | None:
    return parsed_quantity(counter.value)


def host_device(key: PoolKey, device: Device, groups: Sequence[tuple[str, str]] = ()) -> HostDevice:
    """A device of a valid pool. ``groups``: by attribute, the binding group it is in (K15-160)."""
    driver, pool = key
    flat = device.flat
    shareable = bool(flat.allow_multiple_allocations)
    facts = DeviceFacts(
        driver,
        tuple(sorted(_attributes(driver, flat), key=lambda attribute: attribute[0])),
        tuple(sorted(_capacities(driver, flat))),
        shareable,
    )
    consumes = tuple(
        ((driver, pool, counter_set, name), amount or 0) for (counter_set, name), amount in _consumption(flat) if amount
    )
    dimensions = tuple(_dimensions(flat))
    return HostDevice(driver, pool, device.name, facts, consumes, flat.taints, dimensions, tuple(groups))


def _attributes(driver: str, device: BasicDevice) -> Iterator[tuple[str, AttributeValue]]:
    for name, value in device.attributes.items():
        plain: AttributeValue | None = value.string if value.string is not None else value.bool_
        plain = value.int_ if plain is None else plain
        if plain is None and value.version is not None:
            plain = Version(value.version)
        if plain is not None:
            yield _qualified(driver, name), plain


def _capacities(driver: str, device: BasicDevice) -> Iterator[tuple[str, int]]:
    for name, capacity in device.capacity.items():
        amount = parsed_quantity(capacity.value)
        if amount is not None:
            yield _qualified(driver, name), amount


def _dimensions(device: BasicDevice) -> Iterator[SharedDimension]:
    for name in sorted(device.capacity):
        capacity = device.capacity[name]
        amount = parsed_quantity(capacity.value)
        if amount is None:
            continue
        policy = capacity.request_policy
        if policy is None:
            yield SharedDimension(name, amount)
            continue
        limits = policy.valid_range
        yield SharedDimension(
            name,
            amount,
            None if policy.default is None else parsed_quantity(policy.default),
            tuple(sorted(value for each in policy.valid_values if (value := parsed_quantity(each)) is not None)),
            None if limits is None or limits.min is None else parsed_quantity(limits.min),
            None if limits is None or limits.max is None else parsed_quantity(limits.max),
            None if limits is None or limits.step is None else parsed_quantity(limits.step),
        )


def _qualified(driver: str, name: str) -> str:
    """Names without a domain are of the driver's."""
    return name if "/" in name else f"{driver}/{name}"
