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
from karpenter.catalog.types import InstanceType, Offering
from karpenter.catalog.well_known import MACHINE_LABELS, absent, among, complete, derived_labels
from karpenter.model import labels, quantity
from karpenter.model import resources as res
from karpenter.model.requirements import Op, Requirement, Requirements, requirement

_DEFAULT_PODS = 110 * res.ONE
_CAPACITY_TYPES = frozenset({labels.SPOT, labels.ON_DEMAND, labels.RESERVED})
_EXPECTED_SEPARATOR = " - at `"


class FileError(ValueError):
    """The instance-type file cannot be used. The text names the file, the place in it and what is expected there."""


class _Wanted(msgspec.Struct, frozen=True, gc=False):
    """One requirement of an offering."""

    key: Annotated[str, Meta(min_length=1)]
    operator: Op
    values: tuple[str, ...] = ()


class _Sold(msgspec.Struct, frozen=True, gc=False):
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


class _Described(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A type as the file describes it."""

    name: Annotated[str, Meta(min_length=1)]
    architecture: Annotated[str, Meta(min_length=1)]
    operating_systems: Annotated[tuple[str, ...], Meta(min_length=1)]
    resources: WireResources
    offerings: tuple[_Sold, ...]
    overhead: WireResources = {}
    labels: dict[str, str] = {}


_DECODER = msgspec.json.Decoder(tuple[_Described, ...])
_WANTED_DECODER = msgspec.json.Decoder(tuple[_Wanted, ...])


def load(path: str | Path) -> tuple[InstanceType, ...]:
    """The types of a file, in its order. Raises ``FileError`` for whatever is wrong with it."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror}); expected a JSON array of instance types") from None
    return loads(content, str(path))


def loads(content: bytes, source: str = "instance types") -> tuple[InstanceType, ...]:
    """Like ``load``, from the content; ``source`` is how messages call it."""
    place = _Place(source)
    try:
        described = _DECODER.decode(content)
    except msgspec.ValidationError as error:
        place.refuse_decoding(error)
    except msgspec.DecodeError as error:
        place.refuse(f"expected a JSON array of instance types ({error})")
    return _Reader(place).types(described)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where we are in which file, as a JSON path."""

    source: str
    path: str = "$"

    def at(self, step: str) -> _Place:
        return _Place(self.source, self.path + step)

    def refuse(self, expectation: str) -> NoReturn:
        raise FileError(f"{self.source}: {self.path}: {expectation}") from None

    def refuse_decoding(self, error: msgspec.ValidationError) -> NoReturn:
        text, _, where = str(error).partition(_EXPECTED_SEPARATOR)
        if text.startswith("Invalid enum value"):
            text += f"; expected one of {', '.join(Op)}"
        self.at(where.rstrip("`").removeprefix("$")).refuse(text[:1].lower() + text[1:])


@dataclass
class _Reader:
    """Builds types, sharing what is equal between them."""

    place: _Place
    _wheres: dict[bytes, tuple[Requirements, ...]] = field(default_factory=dict)
    _offerings: dict[tuple[int, float, bool, int | None, float], Offering] = field(default_factory=dict)

    def types(self, described: tuple[_Described, ...]) -> tuple[InstanceType, ...]:
        self._refuse_duplicates(described)
        sold = [
            _outside_reservations(tuple(self._sold(item.offerings, self.place.at(f"[{index}]"))))
            for index, item in enumerate(described)
        ]
        own = [_requirements(item, offerings) for item, offerings in zip(described, sold, strict=True)]
        well_known = MACHINE_LABELS.union(*own)
        return tuple(
            self._type(index, item, complete(own[index], well_known), sold[index])
            for index, item in enumerate(described)
        )

    def _refuse_duplicates(self, described: tuple[_Described, ...]) -> None:
        seen: set[str] = set()
        for index, item in enumerate(described):
            if item.name in seen:
                self.place.at(f"[{index}].name").refuse(f"{item.name} is there twice; expected different names")
            seen.add(item.name)

    def _type(
        self, index: int, item: _Described, requirements: Requirements, offerings: tuple[Offering, ...]
    ) -> InstanceType:
        place = self.place.at(f"[{index}]")
        capacity = _amounts(item.resources, place.at(".resources"))
        capacity.setdefault(res.PODS, _DEFAULT_PODS)
        overhead = _amounts(item.overhead, place.at(".overhead"))
        return InstanceType(item.name, requirements, capacity, overhead, offerings)

    def _sold(self, items: tuple[_Sold, ...], place: _Place) -> Iterator[Offering]:
        for index, item in enumerate(items):
            wanted = bytes(item.requirements) or bytes(item.requirements_capital)
            price = item.price if item.price is not None else item.price_capital
            if not wanted or price is None:
                place.at(f".offerings[{index}]").refuse(f"expected `{'price' if wanted else 'requirements'}`")
            available = item.available_capital if item.available is None else item.available
            units = item.units_capital if item.units is None else item.units
            interruptions = item.interruptions or item.interruptions_capital
            for where in self._where(wanted, place, index):
                yield self._offering(Offering(where, price, available is not False, units, interruptions))

    def _offering(self, read: Offering) -> Offering:
        """The one object that stands for all equal offerings."""
        sold = (read.price_per_hour, read.available, read.units_left, read.interruptions_per_hour)
        key = (id(read.requirements), *sold)
        return self._offerings.setdefault(key, read)

    def _where(self, content: bytes, place: _Place, index: int) -> tuple[Requirements, ...]:
        known = self._wheres.get(content)
        if known is None:
            known = self._wheres[content] = _where(content, place.at(f".offerings[{index}].requirements"))
        return known


def _outside_reservations(offerings: tuple[Offering, ...]) -> tuple[Offering, ...]:
    """Where some offerings belong to reservations, the others belong to none: their machines do not get the label."""
    if not any(offering.reservation for offering in offerings):
        return offerings
    none = Requirements((absent(labels.RESERVATION_ID),))
    return tuple(
        offering if offering.reservation else replace(offering, requirements=offering.requirements.intersect(none))
        for offering in offerings
    )


def _where(content: bytes, place: _Place) -> tuple[Requirements, ...]:
    """One requirement set per zone and capacity type, so that an offering always names one of each."""
    try:
        wanted = _WANTED_DECODER.decode(content)
    except msgspec.ValidationError as error:
        place.refuse_decoding(error)
    built = Requirements(requirement(item.key, item.operator, item.values) for item in wanted)
    for key in (labels.ZONE, labels.CAPACITY_TYPE):
        if key not in built or built[key].operator != Op.IN:
            place.refuse(f"expected `In` with at least one value for {key}")
    unknown = built[labels.CAPACITY_TYPE].values - _CAPACITY_TYPES
    if unknown:
        place.refuse(f"capacity type {min(unknown)!r} is not one of {', '.join(sorted(_CAPACITY_TYPES))}")
    rest = built.without((labels.ZONE, labels.CAPACITY_TYPE))
    places = product(sorted(built[labels.ZONE].values), sorted(built[labels.CAPACITY_TYPE].values))
    return tuple(
        Requirements((among(labels.ZONE, zone), among(labels.CAPACITY_TYPE, kind), *rest.values()))
        for zone, kind in places
    )


def _amounts(wire: WireResources, place: _Place) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for name, value in wire.items():
        try:
            amounts[name] = quantity.milli(value)
        except quantity.QuantityError as error:
            place.at(f".{name}").refuse(str(error))
        if amounts[name] < 0:
            place.at(f".{name}").refuse(f"expected a quantity of at least 0, not {value}")
    return amounts


def _requirements(item: _Described, offerings: Iterable[Offering]) -> dict[str, Requirement]:
    derived = derived_labels(item.name, _as_text(item.resources, res.CPU), _as_text(item.resources, res.MEMORY))
    known = {labels.normalise(key): value for key, value in {**derived, **item.labels}.items()}
    own = {key: among(key, value) for key, value in known.items()}
    own[labels.INSTANCE_TYPE] = among(labels.INSTANCE_TYPE, item.name)
    own[labels.ARCH] = among(labels.ARCH, item.architecture)
    own[labels.OS] = among(labels.OS, *item.operating_systems)
    return own | _offered(offerings, frozenset(own))


def _offered(offerings: Iterable[Offering], own: frozenset[str]) -> dict[str, Requirement]:
    """What the offerings together say about labels the type itself does not have."""
    values: dict[str, set[str]] = {labels.ZONE: set(), labels.CAPACITY_TYPE: set()}
    open_ended: set[str] = set()
    for offering in offerings:
        for key, item in offering.requirements.items():
            values.setdefault(key, set()).update(item.values)
            if item.complement:
                open_ended.add(key)
    return {
        key: Requirement(key, True) if key in open_ended else among(key, *sorted(found)) if found else absent(key)
        for key, found in values.items()
        if key not in own or key in (labels.ZONE, labels.CAPACITY_TYPE)
    }


def _as_text(resources: WireResources, name: str) -> str:
    """A quantity as a label value: canonical, in the family of units (binary or decimal) the file uses."""
    value = resources.get(name, 0)
    try:
        amount = quantity.milli(value)
    except quantity.QuantityError:
        return "0"  # reported with its place when the capacity is read
    return quantity.text(amount, binary=re.fullmatch(r".*[KMGTPE]i", str(value)) is not None)
