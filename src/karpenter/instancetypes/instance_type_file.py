"""Instance types from a JSON file (OPS-251 ff.): a user's own types for the simulated provider and for plans.

The file is an array of types. Members of an offering may start with a capital letter, as in older files. An invalid file stops
the start: every error is one line with the file, the JSON path and the expected value. Large files repeat the same few dozen
requirement lists thousands of times, so equal ones are decoded once, by their bytes, and shared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
from msgspec import Meta, Raw
from msgspec.structs import replace as replace_struct

from karpenter.api.meta import WireQuantity, WireResources
from karpenter.api.resource_claims import ResourceSliceSpec
from karpenter.instancetypes.instance_type import (
    NO_DEVICE_TEMPLATES,
    BindingGroup,
    DeviceTemplates,
    InstanceType,
    Offering,
)
from karpenter.instancetypes.well_known_labels import (
    INSTANCE_LABELS,
    complete_requirements,
    derived_labels,
    label_absent,
    label_in,
)
from karpenter.model import labels, quantity
from karpenter.model import resources as res
from karpenter.model.requirements import Op, Requirement, Requirements, requirement
from karpenter.model.texts import decoding_place

_DEFAULT_PODS = 110 * res.ONE_UNIT
_CAPACITY_TYPES = frozenset({labels.SPOT, labels.ON_DEMAND, labels.RESERVED})
_JSON_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_BINARY_UNITS = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class InstanceTypeFileError(ValueError):
    """The instance type file is invalid. The text names the file, the JSON path and the expected value."""


class _RequirementEntry(msgspec.Struct, frozen=True, gc=False):
    """One requirement of an offering."""

    key: Annotated[str, Meta(min_length=1)]
    operator: Op
    values: tuple[str, ...] = ()


class _OfferingEntry(msgspec.Struct, frozen=True, gc=False):
    """An offering in both spellings; exactly one of each pair is given."""

    price: Annotated[float, Meta(ge=0)] | None = None
    price_capital: Annotated[float, Meta(ge=0)] | None = msgspec.field(name="Price", default=None)
    available: bool | None = None
    available_capital: bool | None = msgspec.field(name="Available", default=None)
    units: Annotated[int, Meta(ge=0)] | None = msgspec.field(name="reservationCapacity", default=None)
    units_capital: Annotated[int, Meta(ge=0)] | None = msgspec.field(name="ReservationCapacity", default=None)
    interruptions: Annotated[float, Meta(ge=0)] = msgspec.field(name="interruptionsPerHour", default=0.0)
    interruptions_capital: Annotated[float, Meta(ge=0)] = msgspec.field(name="InterruptionsPerHour", default=0.0)
    capacity_override: WireResources | None = msgspec.field(name="capacityOverride", default=None)
    capacity_override_capital: WireResources | None = msgspec.field(name="CapacityOverride", default=None)
    overhead_override: WireResources | None = msgspec.field(name="overheadOverride", default=None)
    overhead_override_capital: WireResources | None = msgspec.field(name="OverheadOverride", default=None)
    requirements: Raw = msgspec.field(default_factory=Raw)
    requirements_capital: Raw = msgspec.field(name="Requirements", default_factory=Raw)

    @property
    def overrides_amounts(self) -> bool:
        """Whether it has amounts of its own."""
        return bool(
            self.capacity_override
            or self.capacity_override_capital
            or self.overhead_override
            or self.overhead_override_capital
        )


class _BindingGroupEntry(msgspec.Struct, frozen=True, gc=False):
    """Devices of a pool that will agree in an attribute."""

    attribute: Annotated[str, Meta(min_length=1)]
    pool: str
    devices: Annotated[tuple[str, ...], Meta(min_length=2)]


class _InstanceTypeEntry(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A type as the file describes it."""

    name: Annotated[str, Meta(min_length=1)]
    architecture: Annotated[str, Meta(min_length=1)]
    operating_systems: Annotated[tuple[str, ...], Meta(min_length=1)]
    resources: WireResources
    offerings: tuple[_OfferingEntry, ...]
    overhead: WireResources = {}
    labels: dict[str, str] = {}
    devices: tuple[ResourceSliceSpec, ...] = ()
    device_binding_groups: tuple[_BindingGroupEntry, ...] = ()


_DECODER = msgspec.json.Decoder(tuple[_InstanceTypeEntry, ...])
_REQUIREMENTS_DECODER = msgspec.json.Decoder(tuple[_RequirementEntry, ...])


def instance_type_file_schema() -> dict[str, Any]:
    """The JSON schema of an instance type file, made of the structs that read it."""
    (array, requirement_ref), definitions = msgspec.json.schema_components(
        (tuple[_InstanceTypeEntry, ...], _RequirementEntry), ref_template="#/$defs/{name}"
    )
    # The decoder reads requirements later and takes each member in two spellings, which the structs do not say.
    offering = definitions[_OfferingEntry.__name__]
    requirements = {"type": "array", "items": requirement_ref}
    offering["properties"] |= {"requirements": requirements, "Requirements": requirements}
    spellings = [(name, name.capitalize()) for name in ("price", "requirements")]
    offering["allOf"] = [{"anyOf": [{"required": [name]} for name in either]} for either in spellings]
    schema = {"$schema": _JSON_SCHEMA_DIALECT, "title": "Instance types", **array, "$defs": definitions}
    plain = re.sub(
        r"_(InstanceType|Offering|Requirement|BindingGroup)Entry", r"\1", msgspec.json.encode(schema).decode()
    )
    described: dict[str, Any] = msgspec.json.decode(plain)
    return described


def load_instance_types(path: str | Path) -> tuple[InstanceType, ...]:
    """The types of a file, in its order. Raises ``InstanceTypeFileError`` if it cannot be read or is invalid."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InstanceTypeFileError(
            f"{path}: cannot be read ({error.strerror}); expected a JSON array of instance types"
        ) from None
    return parse_instance_types(content, str(path))


def parse_instance_types(content: bytes, source: str = "instance types") -> tuple[InstanceType, ...]:
    """Like ``load_instance_types``, from the content; ``source`` is its name in messages."""
    location = _JsonLocation(source)
    try:
        entries = _DECODER.decode(content)
    except msgspec.ValidationError as error:
        location.decoding_error(error)
    except msgspec.DecodeError as error:
        location.error(f"expected a JSON array of instance types ({error})")
    return _InstanceTypeReader(location).instance_types(entries)


@dataclass(frozen=True, slots=True)
class _JsonLocation:
    """A position in a file, as a JSON path without the ``$`` of the whole."""

    source: str
    path: str = ""

    def child(self, step: str) -> _JsonLocation:
        return _JsonLocation(self.source, self.path + step)

    def error(self, expectation: str) -> NoReturn:
        place = self.path.removeprefix(".")
        text = f"{place}: {expectation}" if place else expectation
        raise InstanceTypeFileError(f"{self.source}: {text}") from None

    def decoding_error(self, error: msgspec.ValidationError) -> NoReturn:
        path, text = decoding_place(error)
        if text.startswith("Invalid enum value"):
            text += f"; expected one of {', '.join(Op)}"
        text = text[:1].lower() + text[1:]
        self.child(path).error(text if path else f"expected a JSON array of instance types ({text})")


@dataclass
class _InstanceTypeReader:
    """Builds types; equal requirements and offerings are shared objects."""

    location: _JsonLocation
    _requirements_by_json: dict[bytes, tuple[Requirements, ...]] = field(default_factory=dict)
    _offerings: dict[tuple[object, ...], Offering] = field(default_factory=dict)
    _values_by_offerings: dict[tuple[int, ...], dict[str, Requirement]] = field(default_factory=dict)

    def instance_types(self, entries: tuple[_InstanceTypeEntry, ...]) -> tuple[InstanceType, ...]:
        self._refuse_duplicates(entries)
        sold = [_outside_reservations(self._offerings_of_entry(index, entry)) for index, entry in enumerate(entries)]
        requirements = [
            _requirements(entry, self._values_of_offerings(offerings))
            for entry, offerings in zip(entries, sold, strict=True)
        ]
        well_known = INSTANCE_LABELS.union(*requirements)
        return tuple(
            self._instance_type(index, entry, complete_requirements(requirements[index], well_known), sold[index])
            for index, entry in enumerate(entries)
        )

    def _values_of_offerings(self, offerings: tuple[Offering, ...]) -> dict[str, Requirement]:
        """The values of the offerings for each label; most types are sold in the same places."""
        places = tuple(id(offering.requirements) for offering in offerings)
        values = self._values_by_offerings.get(places)
        if values is None:
            values = self._values_by_offerings[places] = _values_of_offerings(offerings)
        return values

    def _refuse_duplicates(self, entries: tuple[_InstanceTypeEntry, ...]) -> None:
        seen: set[str] = set()
        for index, entry in enumerate(entries):
            if entry.name in seen:
                self.location.child(f"[{index}].name").error(f"{entry.name} is there twice; expected different names")
            seen.add(entry.name)

    def _instance_type(
        self, index: int, entry: _InstanceTypeEntry, requirements: Requirements, offerings: tuple[Offering, ...]
    ) -> InstanceType:
        capacity = _parse_resources(entry.resources, self.location, f"[{index}].resources")
        capacity.setdefault(res.PODS, _DEFAULT_PODS)
        overhead = _parse_resources(entry.overhead, self.location, f"[{index}].overhead")
        devices = NO_DEVICE_TEMPLATES
        if entry.devices or entry.device_binding_groups:
            devices = self._devices(entry, self.location.child(f"[{index}]"))
        return InstanceType(entry.name, requirements, capacity, overhead, offerings, devices=devices)

    def _devices(self, entry: _InstanceTypeEntry, location: _JsonLocation) -> DeviceTemplates:
        """The slices that drivers will publish; a pool of one slice need not say how many it has."""
        slices = []
        for index, spec in enumerate(entry.devices):
            here = location.child(f".devices[{index}]")
            if not spec.driver:
                here.child(".driver").error("expected the name of a DRA driver")
            if spec.node_name or spec.node_selector is not None or spec.all_nodes:
                here.error("expected no nodeName, nodeSelector or allNodes: the devices are those of the node")
            count = spec.pool.resource_slice_count or 1
            slices.append(replace_struct(spec, pool=replace_struct(spec.pool, resource_slice_count=count)))
        groups = tuple(BindingGroup(each.attribute, each.pool, each.devices) for each in entry.device_binding_groups)
        return DeviceTemplates(tuple(slices), groups)

    def _offerings_of_entry(self, index: int, entry: _InstanceTypeEntry) -> tuple[Offering, ...]:
        # A file may have ten thousand offerings: places in the file are spelt out only for those that need them.
        offerings: list[Offering] = []
        known = self._requirements_by_json
        for place, sold in enumerate(entry.offerings):
            requirements_json = bytes(sold.requirements) or bytes(sold.requirements_capital)
            price = sold.price if sold.price is not None else sold.price_capital
            if not requirements_json or price is None:
                here = self.location.child(f"[{index}].offerings[{place}]")
                here.error(f"expected `{'price' if requirements_json else 'requirements'}`")
            ways = known.get(requirements_json)
            if ways is None:
                here = self.location.child(f"[{index}].offerings[{place}].requirements")
                ways = known[requirements_json] = _parse_requirements(requirements_json, here)
            amounts = _NO_OVERRIDES
            if sold.overrides_amounts:
                amounts = _parse_overrides(sold, self.location.child(f"[{index}].offerings[{place}]"))
            offerings += [self._shared_offering(sold, price, requirements, amounts) for requirements in ways]
        return tuple(offerings)

    def _shared_offering(
        self, entry: _OfferingEntry, price_per_hour: float, requirements: Requirements, amounts: _Overrides
    ) -> Offering:
        """The offering of an entry: one object for all equal ones."""
        available = entry.available_capital if entry.available is None else entry.available
        units = entry.units_capital if entry.units is None else entry.units
        interruptions = entry.interruptions or entry.interruptions_capital
        terms = (id(requirements), price_per_hour, available is not False, units, interruptions, amounts)
        offering = self._offerings.get(terms)
        if offering is None:
            capacity, overhead = map(dict, amounts)
            offering = self._offerings[terms] = Offering(
                requirements, price_per_hour, available is not False, units, interruptions, capacity, overhead
            )
        return offering


#: The amounts that an offering has instead of its type's: of its capacity, and of its overhead.
_Overrides = tuple[frozenset[tuple[str, int]], frozenset[tuple[str, int]]]
_NO_OVERRIDES: _Overrides = (frozenset(), frozenset())


def _outside_reservations(offerings: tuple[Offering, ...]) -> tuple[Offering, ...]:
    """If some offerings have a reservation, require the absence of the reservation label for the others."""
    if not any(labels.RESERVATION_ID in offering.requirements and offering.reservation_id for offering in offerings):
        return offerings
    none = Requirements((label_absent(labels.RESERVATION_ID),))
    return tuple(
        offering if offering.reservation_id else replace(offering, requirements=offering.requirements.intersect(none))
        for offering in offerings
    )


def _parse_overrides(entry: _OfferingEntry, location: _JsonLocation) -> _Overrides:
    capacity = entry.capacity_override or entry.capacity_override_capital or {}
    overhead = entry.overhead_override or entry.overhead_override_capital or {}
    return (
        frozenset(_parse_resources(capacity, location, ".capacityOverride").items()),
        frozenset(_parse_resources(overhead, location, ".overheadOverride").items()),
    )


def _parse_requirements(content: bytes, location: _JsonLocation) -> tuple[Requirements, ...]:
    """One requirement set per zone and capacity type, so that an offering always names one of each."""
    try:
        entries = _REQUIREMENTS_DECODER.decode(content)
    except msgspec.ValidationError as error:
        location.decoding_error(error)
    requirements = Requirements(
        requirement(requirement_entry.key, requirement_entry.operator, requirement_entry.values)
        for requirement_entry in entries
    )
    for key in (labels.ZONE, labels.CAPACITY_TYPE):
        if key not in requirements or requirements[key].operator != Op.IN:
            location.error(f"expected `In` with at least one value for {key}")
    unknown = requirements[labels.CAPACITY_TYPE].values - _CAPACITY_TYPES
    if unknown:
        location.error(f"capacity type {min(unknown)!r} is not one of {', '.join(sorted(_CAPACITY_TYPES))}")
    other_requirements = requirements.without((labels.ZONE, labels.CAPACITY_TYPE))
    places = product(sorted(requirements[labels.ZONE].values), sorted(requirements[labels.CAPACITY_TYPE].values))
    return tuple(
        Requirements((label_in(labels.ZONE, zone), label_in(labels.CAPACITY_TYPE, kind), *other_requirements.values()))
        for zone, kind in places
    )


def _parse_resources(wire: WireResources, location: _JsonLocation, member: str) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for name, value in wire.items():
        try:
            amounts[name] = quantity.parse_milli(value)
        except quantity.QuantityError as error:
            location.child(f"{member}.{name}").error(str(error))
        if amounts[name] < 0:
            location.child(f"{member}.{name}").error(f"expected a quantity of at least 0, not {value}")
    return amounts


def _requirements(entry: _InstanceTypeEntry, of_offerings: Mapping[str, Requirement]) -> dict[str, Requirement]:
    """Labels of the type; those that it does not define itself have the values of its offerings."""
    derived = derived_labels(
        entry.name, _resource_text(entry.resources, res.CPU), _resource_text(entry.resources, res.MEMORY)
    )
    # A label in its old spelling and in the stable one: the later counts.
    stated = ((labels.normalise(key), value) for key, value in {**derived, **entry.labels}.items())
    requirements = {key: label_in(key, value) for key, value in stated}
    requirements[labels.INSTANCE_TYPE] = label_in(labels.INSTANCE_TYPE, entry.name)
    requirements[labels.ARCH] = label_in(labels.ARCH, entry.architecture)
    requirements[labels.OS] = label_in(labels.OS, *entry.operating_systems)
    for key, values in of_offerings.items():
        if key not in requirements or key in (labels.ZONE, labels.CAPACITY_TYPE):
            requirements[key] = values
    return requirements


def _values_of_offerings(offerings: Iterable[Offering]) -> dict[str, Requirement]:
    """The values of the offerings for each label."""
    values: dict[str, set[str]] = {labels.ZONE: set(), labels.CAPACITY_TYPE: set()}
    open_ended: set[str] = set()
    for offering in offerings:
        for key, offered in offering.requirements.items():
            values.setdefault(key, set()).update(offered.values)
            if offered.complement:
                open_ended.add(key)
    return {
        key: Requirement(key, True)
        if key in open_ended
        else label_in(key, *sorted(label_values))
        if label_values
        else label_absent(key)
        for key, label_values in values.items()
    }


def _resource_text(resources: WireResources, name: str) -> str:
    """A quantity as a label value: canonical, in the family of units (binary or decimal) the file uses."""
    return _canonical_text(resources.get(name, 0))


@lru_cache(maxsize=4096)
def _canonical_text(value: WireQuantity) -> str:
    try:
        amount = quantity.parse_milli(value)
    except quantity.QuantityError:
        return "0"  # reported with its place when the capacity is read
    return quantity.quantity_text(amount, binary=str(value).endswith(_BINARY_UNITS))
