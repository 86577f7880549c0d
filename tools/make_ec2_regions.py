"""Writes the packaged tables of EC2 regions from a directory of source tables (``data/SOURCES.md`` names their origins).

    python tools/make_ec2_regions.py SOURCE_DIRECTORY

Reads ``regions.csv``, ``region_price_ratio.csv``, ``instance_types.csv`` and ``spot_advisor.csv``, and the EC2 data of the
installed moto package: zones of each region, and which type each zone offers. Writes five tables beside that of us-east-1:

* ``ec2_regions.csv``: zones with names and IDs, the usual price relative to us-east-1, whether offerings are listed or assumed;
* ``ec2_region_offerings.csv``: a row for types that are offered alike, a column for each region, the numbers of their zones;
* ``ec2_region_price_ratios.csv``: a row for each type family, a column for each region, the price relative to us-east-1;
* ``ec2_region_spot_percents.csv``: spot price in percent of on-demand, for regions beside us-east-1 with savings of their own;
* ``ec2_spot_interruptions.csv``: a row for each region and band of the Spot Instance Advisor, the types in it.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import moto
from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

Row = Mapping[str, str]

DATA = Path(__file__).resolve().parents[1] / "src/karpenter/instancetypes/data"
_OFFERINGS = Path(moto.__file__).parent / "ec2/resources/instance_type_offerings"
#: Its offerings are a column of the table of shapes.
_BASE_REGION = "us-east-1"
_SPOT_SNAPSHOT = "2025-06-28"
LISTED, ASSUMED = "listed", "assumed"


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a source table."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class _Source:
    """The source tables."""

    def __init__(self, directory: Path) -> None:
        self.regions = sorted(read_rows(directory / "regions.csv"), key=lambda row: row["region"])
        self.ratios = read_rows(directory / "region_price_ratio.csv")
        self.advised = [row for row in read_rows(directory / "spot_advisor.csv") if row["snapshot"] == _SPOT_SNAPSHOT]
        self.spot_savings = [row for row in self.advised if row["region"] != _BASE_REGION]
        self.types = sorted(row["name"] for row in read_rows(directory / "instance_types.csv"))

    def families(self, region: str) -> frozenset[str]:
        """Families with a price in the region."""
        return frozenset(row["family"] for row in self.ratios if row["region"] == region)


def _zone_letters(region: str) -> dict[str, str]:
    """Letter of a zone name by zone ID, as moto assigns them; a zone that only its offerings mention takes the next letter."""
    zones = {zone.zone_id: zone.name for zone in RegionsAndZonesBackend.zones[region]}
    letters = {zone_id: name.removeprefix(region) for zone_id, name in zones.items()}
    for zone_id in sorted(_offered_by_zone_id(region).keys() - letters.keys()):
        letters[zone_id] = chr(ord(max(letters.values())) + 1)
    return dict(sorted(letters.items()))


def _offered_by_zone_id(region: str) -> dict[str, set[str]]:
    """Instance types by zone ID; empty for regions moto has no list of."""
    path = _OFFERINGS / "availability-zone-id" / f"{region}.json.gz"
    if not path.exists():
        return {}
    types: dict[str, set[str]] = {}
    for offering in json.loads(gzip.decompress(path.read_bytes())):
        types.setdefault(offering["Location"], set()).add(offering["InstanceType"])
    return types


def _region_rows(source: _Source) -> Iterator[Row]:
    for row in source.regions:
        region = row["region"]
        letters = _zone_letters(region)
        yield {
            "region": region,
            "location": row["location"],
            "zone_id_prefix": next(iter(letters)).rpartition("-az")[0],
            "zones": " ".join(f"{zone_id.rpartition('-az')[2]}{letter}" for zone_id, letter in letters.items()),
            "median_ratio": row["median_ratio"],
            "offerings": LISTED if _offered_by_zone_id(region) else ASSUMED,
        }


def _zone_numbers(region: str, source: _Source) -> dict[str, str]:
    """Zone numbers by instance type. Without a list: all zones for every type whose family has a price there."""
    by_zone = _offered_by_zone_id(region)
    numbers: dict[str, str] = {}
    if by_zone:
        for zone_id in sorted(by_zone):
            for name in by_zone[zone_id]:
                numbers[name] = numbers.get(name, "") + zone_id.rpartition("-az")[2]
        return numbers
    families = source.families(region)
    everywhere = "".join(zone_id.rpartition("-az")[2] for zone_id in _zone_letters(region))
    return {name: everywhere for name in source.types if name.partition(".")[0] in families}


def _offering_rows(source: _Source) -> Iterator[Row]:
    regions = [row["region"] for row in source.regions if row["region"] != _BASE_REGION]
    by_region = {region: _zone_numbers(region, source) for region in regions}
    types_by_zones: dict[tuple[str, ...], list[str]] = {}
    for name in source.types:
        zones = tuple(by_region[region].get(name, "") for region in regions)
        if any(zones):
            types_by_zones.setdefault(zones, []).append(name)
    for zones, names in sorted(types_by_zones.items(), key=lambda entry: entry[1]):
        yield {"types": " ".join(names)} | dict(zip(regions, zones, strict=True))


def _ratio_rows(source: _Source) -> Iterator[Row]:
    by_family: dict[str, dict[str, str]] = {}
    for row in source.ratios:
        if row["region"] != _BASE_REGION:
            by_family.setdefault(row["family"], {})[row["region"]] = row["ratio_to_us_east_1"]
    for family in sorted(by_family):
        yield {"family": family} | by_family[family]


def _spot_rows(source: _Source) -> Iterator[Row]:
    for row in sorted(source.spot_savings, key=lambda row: (row["region"], row["instance_type"])):
        if row["instance_type"] in source.types:
            percent = 100 - int(row["savings_pct"])
            yield {"region": row["region"], "type": row["instance_type"], "percent": str(percent)}


def _interruption_rows(source: _Source) -> Iterator[Row]:
    types = frozenset(source.types)
    by_band: dict[tuple[str, str], list[str]] = {}
    for row in source.advised:
        if row["instance_type"] in types:
            by_band.setdefault((row["region"], row["interruption_band"]), []).append(row["instance_type"])
    for (region, band), names in sorted(by_band.items()):
        yield {"region": region, "band": band, "types": " ".join(sorted(names))}


def _write(name: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    with (DATA / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)


def main(directory: Path) -> None:
    """Write the tables."""
    source = _Source(directory)
    others = [row["region"] for row in source.regions if row["region"] != _BASE_REGION]
    described = ("region", "location", "zone_id_prefix", "zones", "median_ratio", "offerings")
    _write("ec2_regions.csv", described, _region_rows(source))
    _write("ec2_region_offerings.csv", ("types", *others), _offering_rows(source))
    _write("ec2_region_price_ratios.csv", ("family", *others), _ratio_rows(source))
    _write("ec2_region_spot_percents.csv", ("region", "type", "percent"), _spot_rows(source))
    _write("ec2_spot_interruptions.csv", ("region", "band", "types"), _interruption_rows(source))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
