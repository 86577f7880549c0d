"""The ways to buy a type for a class, at this moment (AWS §8.1).

Every zone of the region is there with every capacity type, so that explanations can say why one is not to be had; most are
equal in their requirements, which are therefore shared between types.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from karpenter.api.ec2 import CapacityReservation
from karpenter.catalog.ec2 import ZONE_ID
from karpenter.catalog.types import Offering
from karpenter.catalog.well_known import absent, among
from karpenter.model import labels
from karpenter.model.requirements import Requirements
from karpenter.providers.aws.types.hardware import Hardware
from karpenter.providers.aws.types.prices import Prices
from karpenter.providers.aws.types.requirements import (
    GROUP_ID,
    GROUP_PARTITION,
    RESERVATION_INTERRUPTIBLE,
    RESERVATION_TYPE,
    open_zones,
    truth,
)
from karpenter.providers.aws.types.reserved import ReservedUnits
from karpenter.providers.aws.types.terms import ClassTerms
from karpenter.providers.aws.types.unavailable import Sold, Unavailable

#: What has been paid for is as good as free, but a larger type of it still costs more than a smaller one (AWS-354, AWS-602).
_RESERVED_DIVISOR = 10_000_000
_EXPIRING = "expiring"


@dataclass(frozen=True)
class Stock:
    """What is sold in the region now.

    ``zones`` are the names of all its zones, sorted; ``shifted`` of those traffic is shifted away from. The three
    memories are the living ones: ask them only while making offerings.
    """

    zones: tuple[str, ...]
    shifted: frozenset[str]
    prices: Prices
    unavailable: Unavailable
    reserved: ReservedUnits


class _Where(NamedTuple):
    """What an offering's requirements are made of; empty texts are labels it lacks."""

    capacity_type: str
    zone: str
    zone_id: str
    group: str
    partition: str = ""
    reservation: tuple[str, str, str] = ("", "", "")


def offerings(hardware: Hardware, terms: ClassTerms, stock: Stock, *, fits_class: bool) -> tuple[Offering, ...]:
    """All offerings of a type, those that cannot be had now marked so. ``fits_class``: AWS-340."""
    zones = frozenset(open_zones(hardware, terms)) - stock.shifted if fits_class else frozenset[str]()
    found = (*_bought(hardware, terms, stock, zones), *_reserved(hardware, terms, stock, zones))
    return tuple(found)


def _bought(hardware: Hardware, terms: ClassTerms, stock: Stock, zones: frozenset[str]) -> Iterator[Offering]:
    """Spot and on-demand (AWS-350 to AWS-352)."""
    for zone in stock.zones:
        exhausted = stock.unavailable.covers_subnets(terms.subnets_by_zone.get(zone, ()))
        is_open = zone in zones and not exhausted
        for capacity_type in hardware.capacity_types:
            price = _price(hardware.name, zone, capacity_type, stock.prices)
            for where in _divided(_Where(capacity_type, zone, terms.zone_ids.get(zone, ""), terms.group_id), terms):
                available = is_open and price is not None and not stock.unavailable.covers(_sold(hardware, where))
                yield Offering(_requirements(where), price or 0.0, available)


def _reserved(hardware: Hardware, terms: ClassTerms, stock: Stock, zones: frozenset[str]) -> Iterator[Offering]:
    """One per reservation (AWS-354)."""
    price = (stock.prices.on_demand(hardware.name) or 0.0) / _RESERVED_DIVISOR
    for item in terms.reservations_by_type.get(hardware.name, ()):
        left = stock.reserved.left(item.id)
        zone = item.availability_zone
        available = bool(left) and zone in zones and item.state != _EXPIRING
        for where in _divided(_reservation(item, terms), terms):
            yield Offering(_requirements(where), price, available, units_left=left)


def _reservation(item: CapacityReservation, terms: ClassTerms) -> _Where:
    return _Where(
        labels.RESERVED,
        item.availability_zone,
        terms.zone_ids.get(item.availability_zone, ""),
        terms.group_id,
        reservation=(item.id, item.reservation_type, truth(item.interruptible)),
    )


def _divided(where: _Where, terms: ClassTerms) -> Iterator[_Where]:
    """One per partition of the class's group (AWS-355)."""
    if not terms.partitions:
        yield where
    for partition in terms.partitions:
        yield where._replace(partition=partition)


def _price(name: str, zone: str, capacity_type: str, prices: Prices) -> float | None:
    known = prices.spot(name, zone) if capacity_type == labels.SPOT else prices.on_demand(name)
    return prices.overlaid(name) if known is None else known


def _sold(hardware: Hardware, where: _Where) -> Sold:
    return Sold(where.capacity_type, hardware.name, where.zone, where.group, where.partition)


@lru_cache(maxsize=4096)
def _requirements(where: _Where) -> Requirements:
    own = {
        labels.CAPACITY_TYPE: where.capacity_type,
        labels.ZONE: where.zone,
        ZONE_ID: where.zone_id,
        GROUP_ID: where.group,
        GROUP_PARTITION: where.partition,
    }
    reserved = zip((labels.RESERVATION_ID, RESERVATION_TYPE, RESERVATION_INTERRUPTIBLE), where.reservation, strict=True)
    return Requirements(
        (
            *(among(key, value) for key, value in own.items() if value),
            *(among(key, value) if value else absent(key) for key, value in reserved),
        )
    )
