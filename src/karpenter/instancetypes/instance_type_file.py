"""Instance types from a JSON file (OPS-251 ff.): a user's own catalogue for the simulated provider and for plans.

The file is an array of types. Members of an offering may start with a capital, as older files have them. A file that does
not say what it seems to say stops the start: every mistake is one line that names the file, the place and what belongs
there. Large files repeat the same few dozen requirement lists thousands of times, so equal ones are decoded once, by their
bytes, and shared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
from msgspec import Meta, Raw

from karpenter.api.meta import WireResources
from karpenter.instancetypes.instance_type import InstanceType, Offering
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

_DEFAULT_PODS = 110 * res.ONE_UNIT
_CAPACITY_TYPES = frozenset({labels.SPOT, labels.ON_DEMAND, labels.RESERVED})
_EXPECTED_SEPARATOR = " - at `"


class InstanceTypeFileError(ValueError):
    """The instance-type file cannot be used. The text names the file, the place in it and what is expected there."""


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
    requirements: Raw = Raw()
    requirements_capital: Raw = msgspec.field(name="Requirements", default=Raw())


class _InstanceTypeEntry(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A type as the file describes it."""

    name: Annotated[str, Meta(min_length=1)]
    architecture: Annotated[str, Meta(min_length=1)]
    operating_systems: Annotated[tuple[str, ...], Meta(min_length=1)]
    resources: WireResources
    offerings: tuple[_OfferingEntry, ...]
    overhead: WireResources = {}
    labels: dict[str, str] = {}


_DECODER = msgspec.json.Decoder(tuple[_InstanceTypeEntry, ...])
_REQUIREMENTS_DECODER = msgspec.json.Decoder(tuple[_RequirementEntry, ...])


def load_instance_types(path: str | Path) -> tuple[InstanceType, ...]:
    """The types of a file, in its order. Raises ``FileError`` for whatever is wrong with it."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InstanceTypeFileError(
            f"{path}: cannot be read ({error.strerror}); expected a JSON array of instance types"
        ) from None
    return parse_instance_types(content, str(path))


def parse_instance_types(content: bytes, source: str = "instance types") -> tuple[InstanceType, ...]:
    """Like ``load``, from the content; ``source`` is how messages call it."""
    place = _JsonLocation(source)
    try:
        described = _DECODER.decode(content)
    except msgspec.ValidationError as error:
        place.decoding_error(error)
    except msgspec.DecodeError as error:
        place.error(f"expected a JSON array of instance types ({error})")
    return _InstanceTypeReader(place).instance_types(described)


@dataclass(frozen=True, slots=True)
class _JsonLocation:
    """Where we are in which file, as a JSON path."""

    source: str
    path: str = "$"

    def child(self, step: str) -> _JsonLocation:
        return _JsonLocation(self.source, self.path + step)

    def error(self, expectation: str) -> NoReturn:
        raise InstanceTypeFileError(f"{self.source}: {self.path}: {expectation}") from None

    def decoding_error(self, error: msgspec.ValidationError) -> NoReturn:
        text, _, where = str(error).partition(_EXPECTED_SEPARATOR)
        if text.startswith("Invalid enum value"):
            text += f"; expected one of {', '.join(Op)}"
        self.child(where.rstrip("`").removeprefix("$")).error(text[:1].lower() + text[1:])


@dataclass
class _InstanceTypeReader:
    """Builds types, sharing what is equal between them."""

    location: _JsonLocation
    _requirements_by_json: dict[bytes, tuple[Requirements, ...]] = field(default_factory=dict)
    _offerings: dict[tuple[int, float, bool, int | None, float], Offering] = field(default_factory=dict)

    def instance_types(self, described: tuple[_InstanceTypeEntry, ...]) -> tuple[InstanceType, ...]:
        self._refuse_duplicates(described)
        sold = [
            _outside_reservations(tuple(self._offerings_of_entries(item.offerings, self.location.child(f"[{index}]"))))
            for index, item in enumerate(described)
        ]
        own = [_requirements(item, offerings) for item, offerings in zip(described, sold, strict=True)]
        well_known = INSTANCE_LABELS.union(*own)
        return tuple(
            self._instance_type(index, item, complete_requirements(own[index], well_known), sold[index])
            for index, item in enumerate(described)
        )

    def _refuse_duplicates(self, described: tuple[_InstanceTypeEntry, ...]) -> None:
        seen: set[str] = set()
        for index, item in enumerate(described):
            if item.name in seen:
                self.location.child(f"[{index}].name").error(f"{item.name} is there twice; expected different names")
            seen.add(item.name)

    def _instance_type(
        self, index: int, item: _InstanceTypeEntry, requirements: Requirements, offerings: tuple[Offering, ...]
    ) -> InstanceType:
        place = self.location.child(f"[{index}]")
        capacity = _parse_resources(item.resources, place.child(".resources"))
        capacity.setdefault(res.PODS, _DEFAULT_PODS)
        overhead = _parse_resources(item.overhead, place.child(".overhead"))
        return InstanceType(item.name, requirements, capacity, overhead, offerings)

    def _offerings_of_entries(self, items: tuple[_OfferingEntry, ...], place: _JsonLocation) -> Iterator[Offering]:
        for index, item in enumerate(items):
            wanted = bytes(item.requirements) or bytes(item.requirements_capital)
            price = item.price if item.price is not None else item.price_capital
            if not wanted or price is None:
                place.child(f".offerings[{index}]").error(f"expected `{'price' if wanted else 'requirements'}`")
            available = item.available_capital if item.available is None else item.available
            units = item.units_capital if item.units is None else item.units
            interruptions = item.interruptions or item.interruptions_capital
            for where in self._requirements_of_offering(wanted, place, index):
                yield self._offering(Offering(where, price, available is not False, units, interruptions))

    def _offering(self, read: Offering) -> Offering:
        """The one object that stands for all equal offerings."""
        sold = (read.price_per_hour, read.available, read.reservation_capacity, read.interruptions_per_hour)
        key = (id(read.requirements), *sold)
        return self._offerings.setdefault(key, read)

    def _requirements_of_offering(self, content: bytes, place: _JsonLocation, index: int) -> tuple[Requirements, ...]:
        known = self._requirements_by_json.get(content)
        if known is None:
            known = self._requirements_by_json[content] = _parse_requirements(
                content, place.child(f".offerings[{index}].requirements")
            )
        return known


def _outside_reservations(offerings: tuple[Offering, ...]) -> tuple[Offering, ...]:
    """Where some offerings belong to reservations, the others belong to none: their machines do not get the label."""
    if not any(offering.reservation_id for offering in offerings):
        return offerings
    none = Requirements((label_absent(labels.RESERVATION_ID),))
    return tuple(
        offering if offering.reservation_id else replace(offering, requirements=offering.requirements.intersect(none))
        for offering in offerings
    )


def _parse_requirements(content: bytes, place: _JsonLocation) -> tuple[Requirements, ...]:
    """One requirement set per zone and capacity type, so that an offering always names one of each."""
    try:
        wanted = _REQUIREMENTS_DECODER.decode(content)
    except msgspec.ValidationError as error:
        place.decoding_error(error)
    built = Requirements(requirement(item.key, item.operator, item.values) for item in wanted)
    for key in (labels.ZONE, labels.CAPACITY_TYPE):
        if key not in built or built[key].operator != Op.IN:
            place.error(f"expected `In` with at least one value for {key}")
    unknown = built[labels.CAPACITY_TYPE].values - _CAPACITY_TYPES
    if unknown:
        place.error(f"capacity type {min(unknown)!r} is not one of {', '.join(sorted(_CAPACITY_TYPES))}")
    rest = built.without((labels.ZONE, labels.CAPACITY_TYPE))
    places = product(sorted(built[labels.ZONE].values), sorted(built[labels.CAPACITY_TYPE].values))
    return tuple(
        Requirements((label_in(labels.ZONE, zone), label_in(labels.CAPACITY_TYPE, kind), *rest.values()))
        for zone, kind in places
    )


def _parse_resources(wire: WireResources, place: _JsonLocation) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for name, value in wire.items():
        try:
            amounts[name] = quantity.parse_milli(value)
        except quantity.QuantityError as error:
            place.child(f".{name}").error(str(error))
        if amounts[name] < 0:
            place.child(f".{name}").error(f"expected a quantity of at least 0, not {value}")
    return amounts


def _requirements(item: _InstanceTypeEntry, offerings: Iterable[Offering]) -> dict[str, Requirement]:
    derived = derived_labels(
        item.name, _resource_text(item.resources, res.CPU), _resource_text(item.resources, res.MEMORY)
    )
    known = {labels.normalise(key): value for key, value in {**derived, **item.labels}.items()}
    own = {key: label_in(key, value) for key, value in known.items()}
    own[labels.INSTANCE_TYPE] = label_in(labels.INSTANCE_TYPE, item.name)
    own[labels.ARCH] = label_in(labels.ARCH, item.architecture)
    own[labels.OS] = label_in(labels.OS, *item.operating_systems)
    return own | _values_of_offerings(offerings, frozenset(own))


def _values_of_offerings(offerings: Iterable[Offering], own: frozenset[str]) -> dict[str, Requirement]:
    """What the offerings together say about labels the type itself does not have."""
    values: dict[str, set[str]] = {labels.ZONE: set(), labels.CAPACITY_TYPE: set()}
    open_ended: set[str] = set()
    for offering in offerings:
        for key, item in offering.requirements.items():
            values.setdefault(key, set()).update(item.values)
            if item.complement:
                open_ended.add(key)
    return {
        key: Requirement(key, True)
        if key in open_ended
        else label_in(key, *sorted(found))
        if found
        else label_absent(key)
        for key, found in values.items()
        if key not in own or key in (labels.ZONE, labels.CAPACITY_TYPE)
    }


def _resource_text(resources: WireResources, name: str) -> str:
    """A quantity as a label value: canonical, in the family of units (binary or decimal) the file uses."""
    value = resources.get(name, 0)
    try:
        amount = quantity.parse_milli(value)
    except quantity.QuantityError:
        return "0"  # reported with its place when the capacity is read
    return quantity.quantity_text(amount, binary=re.fullmatch(r".*[KMGTPE]i", str(value)) is not None)
