"""The offerings of a type for a class, at this moment (AWS §8.1).

Every zone of the region is listed with every capacity type, so that explanations can say why one is unavailable. Most have equal
requirements, which types therefore share.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from math import inf
from typing import NamedTuple

import structlog
from cachetools import TTLCache

from karpenter.api.ec2_node_class import CapacityReservation
from karpenter.instancetypes.ec2_packaged_types import ZONE_ID
from karpenter.instancetypes.instance_type import Offering
from karpenter.instancetypes.well_known_labels import label_absent, label_in
from karpenter.model import labels
from karpenter.model.clock import Clock
from karpenter.model.requirements import Requirements
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.instancetype.ec2_hardware import Ec2Hardware
from karpenter.providers.aws.instancetype.ec2_pricing import Ec2Prices
from karpenter.providers.aws.instancetype.nodeclass_terms import NodeClassTerms, available_zones, label_bool

#: What has been paid for is as good as free, but a larger type of it still costs more than a smaller one (AWS-354, AWS-602).
_RESERVED_DIVISOR = 10_000_000
_EXPIRING = "expiring"


@dataclass(frozen=True)
class OfferingInputs:
    """What is sold in the region now.

    ``zones`` are the names of all its zones, sorted; ``shifted_zones`` those that traffic is shifted away from. Prices,
    unavailable offerings and reservations change: read them only while making offerings.
    """

    zones: tuple[str, ...]
    shifted_zones: frozenset[str]
    prices: Ec2Prices
    unavailable: UnavailableOfferings
    reservations: ReservationAvailability


class _OfferingLabels(NamedTuple):
    """What an offering's requirements are made of; empty texts are labels it lacks."""

    capacity_type: str
    zone: str
    zone_id: str
    group: str
    partition: str = ""
    reservation: tuple[str, str, str] = ("", "", "")


def type_offerings(
    hardware: Ec2Hardware, terms: NodeClassTerms, inputs: OfferingInputs, *, is_compatible: bool
) -> tuple[Offering, ...]:
    """All offerings of a type, those that cannot be launched now marked so. ``is_compatible``: AWS-340."""
    zones = frozenset(available_zones(hardware, terms)) - inputs.shifted_zones if is_compatible else frozenset[str]()
    offerings = (
        *_spot_and_on_demand(hardware, terms, inputs, zones),
        *_reserved_offerings(hardware, terms, inputs, zones),
    )
    return tuple(offerings)


def _spot_and_on_demand(
    hardware: Ec2Hardware, terms: NodeClassTerms, inputs: OfferingInputs, zones: frozenset[str]
) -> Iterator[Offering]:
    """Spot and on-demand (AWS-350 to AWS-352)."""
    for zone in inputs.zones:
        exhausted = inputs.unavailable.are_subnets_unavailable(terms.subnets_by_zone.get(zone, ()))
        is_open = zone in zones and not exhausted
        for capacity_type in hardware.capacity_types:
            price = _offering_price(hardware.name, zone, capacity_type, inputs.prices)
            for where in _per_partition(
                _OfferingLabels(capacity_type, zone, terms.zone_ids.get(zone, ""), terms.group_id), terms
            ):
                available = (
                    is_open
                    and price is not None
                    and not inputs.unavailable.is_unavailable(_offering_key(hardware, where))
                )
                yield Offering(_offering_requirements(where), price or 0.0, available)


def _reserved_offerings(
    hardware: Ec2Hardware, terms: NodeClassTerms, inputs: OfferingInputs, zones: frozenset[str]
) -> Iterator[Offering]:
    """One per reservation (AWS-354)."""
    price = (inputs.prices.on_demand(hardware.name) or 0.0) / _RESERVED_DIVISOR
    for reservation in terms.reservations_by_type.get(hardware.name, ()):
        count = inputs.reservations.available_count(reservation.id)
        zone = reservation.availability_zone
        is_open = zone in zones and reservation.state != _EXPIRING
        for where in _per_partition(_reservation_labels(reservation, terms), terms):
            # A full reservation is healthy: available, with nothing left (K15-A34).
            available = is_open and not inputs.unavailable.is_unavailable(_offering_key(hardware, where))
            yield Offering(_offering_requirements(where), price, available, reservation_capacity=count)


def _reservation_labels(reservation: CapacityReservation, terms: NodeClassTerms) -> _OfferingLabels:
    return _OfferingLabels(
        labels.RESERVED,
        reservation.availability_zone,
        terms.zone_ids.get(reservation.availability_zone, ""),
        terms.group_id,
        reservation=(reservation.id, reservation.reservation_type, label_bool(reservation.interruptible)),
    )


def _per_partition(offering_labels: _OfferingLabels, terms: NodeClassTerms) -> Iterator[_OfferingLabels]:
    """One per partition of the class's group (AWS-355)."""
    if not terms.partitions:
        yield offering_labels
    for partition in terms.partitions:
        yield offering_labels._replace(partition=partition)


def _offering_price(name: str, zone: str, capacity_type: str, prices: Ec2Prices) -> float | None:
    price = prices.spot(name, zone) if capacity_type == labels.SPOT else prices.on_demand(name)
    return prices.overlay_price(name) if price is None else price


def _offering_key(hardware: Ec2Hardware, offering_labels: _OfferingLabels) -> OfferingKey:
    return OfferingKey(
        offering_labels.capacity_type,
        hardware.name,
        offering_labels.zone,
        offering_labels.group,
        offering_labels.partition,
        offering_labels.reservation[0],
    )


@lru_cache(maxsize=4096)
def _offering_requirements(offering_labels: _OfferingLabels) -> Requirements:
    own = {
        labels.CAPACITY_TYPE: offering_labels.capacity_type,
        labels.ZONE: offering_labels.zone,
        ZONE_ID: offering_labels.zone_id,
        aws_labels.PLACEMENT_GROUP_ID: offering_labels.group,
        aws_labels.PLACEMENT_GROUP_PARTITION: offering_labels.partition,
    }
    reserved = zip(
        (labels.RESERVATION_ID, aws_labels.RESERVATION_TYPE, aws_labels.RESERVATION_INTERRUPTIBLE),
        offering_labels.reservation,
        strict=True,
    )
    return Requirements(
        (
            *(label_in(key, value) for key, value in own.items() if value),
            *(label_in(key, value) if value else label_absent(key) for key, value in reserved),
        )
    )


#: How long a count holds that no describe call confirms.
RESERVATION_COUNT_TTL = timedelta(hours=24)


class ReservationAvailability:
    """Units left by reservation id: set by EC2's answers, changed by our launches and terminations; 0 where unknown."""

    def __init__(self, clock: Clock) -> None:
        self._available: TTLCache[str, int, datetime] = TTLCache(inf, RESERVATION_COUNT_TTL, clock.now)
        #: Grows with every change of a count.
        self.version = 0

    def available_count(self, reservation: str) -> int:
        """Instances that can still be had of it."""
        return self._available.get(reservation) or 0

    def set_available_count(self, reservation: str, units: int) -> None:
        """EC2 says how many there are."""
        self._put(reservation, max(0, units))

    def mark_launched(self, reservation: str) -> None:
        """An instance was launched into it."""
        self._put(reservation, max(0, self.available_count(reservation) - 1))

    def mark_terminated(self, reservation: str) -> None:
        """An instance of it is gone. A reservation with an unknown count keeps it."""
        available = self._available.get(reservation)
        if available is not None:
            self._put(reservation, available + 1)

    def mark_exhausted(self, reservation: str) -> None:
        """EC2 said that it is full (K15-A56)."""
        self._put(reservation, 0)

    def _put(self, reservation: str, units: int) -> None:
        if self._available.get(reservation) != units:
            self.version += 1
        self._available[reservation] = units


#: How long the first time; doubled each further time, up to ``MAX_UNAVAILABLE_TTL``.
UNAVAILABLE_TTL = timedelta(minutes=3)
MAX_UNAVAILABLE_TTL = timedelta(minutes=60)
#: After so long without a mark the pauses begin at the shortest again.
UNAVAILABLE_RESET_AFTER = timedelta(minutes=60)
#: Answers that speak of a limit of the account instead of stock.
QUOTA_CODES = frozenset({"MaxSpotInstanceCountExceeded", "VcpuLimitExceeded", "MaxFleetCountExceeded"})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class OfferingKey:
    """An offering of a type; ``placement_group`` and ``partition`` are empty for launches outside a placement group.

    ``reservation``: the ID of its capacity reservation. An entry of one says nothing of another one (K15-A36).
    """

    capacity_type: str
    instance_type: str
    zone: str
    placement_group: str = ""
    partition: str = ""
    reservation: str = ""


@dataclass(frozen=True, slots=True)
class _UnavailableEntry:
    until: datetime
    ttl: timedelta


class UnavailableOfferings:
    """What cannot be had now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offerings: dict[str, dict[OfferingKey, _UnavailableEntry]] = {}
        self._expired_entries: dict[OfferingKey, _UnavailableEntry] = {}
        self._capacity_types: dict[str, datetime] = {}
        self._subnets: dict[str, datetime] = {}
        self._expirations: list[datetime] = []
        self._sequences: Counter[str] = Counter()
        self._common = 0
        self._version = 0

    def mark_unavailable(self, key: OfferingKey, reason: str, fleet_id: str = "") -> None:
        """EC2 has none of it now; ``reason`` is the code of its answer. Marking again restarts the time (AWS-375)."""
        self._expire_entries()
        now = self._clock.now()
        entries = self._offerings.setdefault(key.instance_type, {})
        ttl = self._ttl_for(key, entries.get(key), reason, now)
        entries[key] = _UnavailableEntry(now + ttl, ttl)
        heapq.heappush(self._expirations, now + ttl)
        self._bump_sequence(key.instance_type)
        _log.debug("removing offering from offerings", **_log_fields(key, reason, ttl, fleet_id))

    def _ttl_for(self, key: OfferingKey, current: _UnavailableEntry | None, reason: str, now: datetime) -> timedelta:
        if reason in QUOTA_CODES:
            return UNAVAILABLE_TTL
        if current is not None:
            return current.ttl
        past = self._expired_entries.get(key)
        if past is None or past.until + UNAVAILABLE_RESET_AFTER <= now:
            return UNAVAILABLE_TTL
        return min(2 * past.ttl, MAX_UNAVAILABLE_TTL)

    def mark_capacity_type_unavailable(self, capacity_type: str) -> None:
        """No offering of this capacity type is available now (AWS-377)."""
        self._mark_common(self._capacity_types, capacity_type)

    def mark_subnet_unavailable(self, subnet_id: str) -> None:
        """A subnet has no addresses left (AWS-378)."""
        self._mark_common(self._subnets, subnet_id)

    def _mark_common(self, marks: dict[str, datetime], name: str) -> None:
        self._expire_entries()
        marks[name] = self._clock.now() + UNAVAILABLE_TTL
        heapq.heappush(self._expirations, marks[name])
        self._common += 1
        self._version += 1

    def is_unavailable(self, key: OfferingKey) -> bool:
        """Whether it cannot be had: marked as such, for its whole group, or for launches anywhere (AWS-376 with its Beyond)."""
        self._expire_entries()
        if key.capacity_type in self._capacity_types:
            return True
        entries = self._offerings.get(key.instance_type)
        if not entries:
            return False
        anywhere = replace(key, placement_group="", partition="")
        scopes = {key, replace(key, partition=""), anywhere, replace(anywhere, reservation="")}
        return not entries.keys().isdisjoint(scopes)

    def are_subnets_unavailable(self, subnet_ids: Iterable[str]) -> bool:
        """Whether there is at least one of them and all are marked (AWS-378)."""
        self._expire_entries()
        ids = frozenset(subnet_ids)
        return bool(ids) and ids <= self._subnets.keys()

    @property
    def version(self) -> int:
        """Grows with every mark and every end of one."""
        self._expire_entries()
        return self._version

    def sequence_number(self, instance_type: str) -> int:
        """Grows with every mark, and end of one, that concerns the type (AWS-379)."""
        self._expire_entries()
        return self._common + self._sequences[instance_type]

    def unavailable_offerings(self) -> tuple[OfferingKey, ...]:
        """All offerings that are marked now, in no order."""
        self._expire_entries()
        return tuple(key for entries in self._offerings.values() for key in entries)

    def _expire_entries(self) -> None:
        """End what has come to its end."""
        if not self._expirations:
            return
        now = self._clock.now()
        if self._expirations[0] > now:
            return
        while self._expirations and self._expirations[0] <= now:
            heapq.heappop(self._expirations)
        for name, entries in tuple(self._offerings.items()):
            self._expire_type(name, entries, now)
        for marks in (self._capacity_types, self._subnets):
            for key in [key for key, until in marks.items() if until <= now]:
                del marks[key]
                self._common += 1
                self._version += 1
        self._expired_entries = {
            offering_key: past
            for offering_key, past in self._expired_entries.items()
            if past.until + UNAVAILABLE_RESET_AFTER > now
        }

    def _expire_type(self, name: str, entries: dict[OfferingKey, _UnavailableEntry], now: datetime) -> None:
        for key in [key for key, entry in entries.items() if entry.until <= now]:
            self._expired_entries[key] = entries.pop(key)
            self._bump_sequence(name)
        if not entries:
            del self._offerings[name]

    def _bump_sequence(self, name: str) -> None:
        self._sequences[name] += 1
        self._version += 1


def _log_fields(offering_key: OfferingKey, reason: str, ttl: timedelta, fleet_id: str) -> dict[str, str]:
    """What the log says of a mark (AWS-380)."""
    fields = {
        "reason": reason,
        "instance-type": offering_key.instance_type,
        "zone": offering_key.zone,
        "capacity-type": offering_key.capacity_type,
        "ttl": str(ttl),
        "fleet-id": fleet_id,
        "placement-group-id": offering_key.placement_group,
        "placement-group-partition": offering_key.partition,
        "capacity-reservation-id": offering_key.reservation,
    }
    return {key: value for key, value in fields.items() if value}
