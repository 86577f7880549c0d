"""EC2 regions: their zones, which instance types each zone offers, and prices relative to us-east-1.

Figures of known days, packaged with the product; ``data/SOURCES.md`` names their origins. A ratio belongs to a type family.
Families newer than the price list have the median of their region: an estimate, and ``PriceRatios`` says so.

Zone names are specific to an account. The names here are the most common assignment of names to zone IDs, which are the same in
all accounts (``topology.k8s.aws/zone-id``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from karpenter.instancetypes.packaged_tables import packaged_rows

#: The region of the table of shapes; other prices are relative to its prices.
BASE_REGION = "us-east-1"
#: The day of the price lists that the ratios compare.
PRICE_RATIO_DATE = "2025-04-04"
_ZONE_ID = re.compile(r"(?P<prefix>[a-z0-9]+)(?:-[a-z0-9]+)?-az[0-9]+")


@dataclass(frozen=True, slots=True)
class EC2Region:
    """A region. ``zone_letters`` are the last letters of zone names by zone number.

    ``offerings_listed`` is False where no list of offerings is known; then each type with a price counts as offered in all zones.
    """

    name: str
    location: str
    zone_id_prefix: str
    zone_letters: Mapping[str, str]
    median_price_ratio: float
    offerings_listed: bool

    def zone_name(self, number: str) -> str:
        """Name of a zone, such as ``eu-west-1b``."""
        return f"{self.name}{self.zone_letters[number]}"

    def zone_id(self, number: str) -> str:
        """ID of a zone, such as ``euw1-az1``."""
        return f"{self.zone_id_prefix}-az{number}"


@dataclass(frozen=True, slots=True)
class PriceRatios:
    """On-demand prices of a region relative to us-east-1: of type families, and ``median`` of all types."""

    median: float = 1.0
    by_family: Mapping[str, float] | None = field(default_factory=dict)

    def ratio_of(self, instance_type: str) -> float:
        """The ratio of a type, such as ``m5.large``."""
        if self.by_family is None:
            return 1.0
        return self.by_family.get(_family(instance_type), self.median)

    def is_estimate(self, instance_type: str) -> bool:
        """Whether no price list says this ratio."""
        return self.by_family is not None and _family(instance_type) not in self.by_family


def _family(instance_type: str) -> str:
    return instance_type.partition(".")[0]


@cache
def ec2_regions() -> Mapping[str, EC2Region]:
    """All regions with packaged data, by name."""
    return {row["region"]: _region(row) for row in packaged_rows("ec2_regions.csv")}


def _region(row: Mapping[str, str]) -> EC2Region:
    return EC2Region(
        name=row["region"],
        location=row["location"],
        zone_id_prefix=row["zone_id_prefix"],
        zone_letters={zone[:-1]: zone[-1] for zone in row["zones"].split()},
        median_price_ratio=float(row["median_ratio"]),
        offerings_listed=row["offerings"] == "listed",
    )


def region_of_zone(zone: str) -> str:
    """The region of a zone name or zone ID, also of a local zone; empty if no packaged region has such zones."""
    by_id = _ZONE_ID.fullmatch(zone)
    if by_id:
        return next((name for name, region in ec2_regions().items() if region.zone_id_prefix == by_id["prefix"]), "")
    return next((name for name in ec2_regions() if re.fullmatch(rf"{name}(?:[a-z]|-.+)", zone)), "")


@cache
def zone_numbers_by_type(region: str) -> Mapping[str, str]:
    """The numbers of the zones that offer a type, such as ``13``, by type; without the base region, whose table has them."""
    return {
        name: row[region]
        for row in packaged_rows("ec2_region_offerings.csv")
        for name in row["types"].split()
        if row[region]
    }


@cache
def price_ratios(region: str) -> PriceRatios:
    """The price ratios of a region; all 1 for the base region and for regions without figures."""
    if region == BASE_REGION or region not in ec2_regions():
        return PriceRatios(by_family=None)
    by_family = {
        row["family"]: float(row[region]) for row in packaged_rows("ec2_region_price_ratios.csv") if row[region]
    }
    return PriceRatios(ec2_regions()[region].median_price_ratio, by_family)


@cache
def spot_percents(region: str) -> Mapping[str, int]:
    """Spot prices in percent of on-demand by type; empty for the base region and for regions without figures of their own."""
    return {
        row["type"]: int(row["percent"])
        for row in packaged_rows("ec2_region_spot_percents.csv")
        if row["region"] == region
    }
