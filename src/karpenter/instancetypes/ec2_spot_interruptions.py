"""How often EC2 takes spot instances back, as its Spot Instance Advisor states it.

The advisor knows five bands of the share of a type's spot instances that were interrupted in the trailing month: below 5 %, to
10 %, to 15 %, to 20 %, and above. ``data/SOURCES.md`` tells where the packaged table comes from, and of which day it is.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median_low

from karpenter.instancetypes.ec2_regions import BASE_REGION, region_of_zone

#: The share a band stands for: its middle. The last one has no end; it stands for a quarter.
MONTHLY_SHARES = (0.025, 0.075, 0.125, 0.175, 0.25)
_TABLE = Path(__file__).with_name("data") / "ec2_spot_interruptions.csv"


@cache
def monthly_interruption_share(zone: str, instance_type: str) -> float:
    """The share of a type's spot instances in a zone's region that is interrupted within a month.

    The figure of the type; where there is none, the median of its family, then that of all types. Regions without figures have
    those of us-east-1, as have zones of no packaged region. ``zone``: a name such as ``us-east-1a``, or a zone ID.
    """
    region = region_of_zone(zone)
    bands = _bands(region if region in _rows_by_region() else BASE_REGION)
    family = instance_type.partition(".")[0]
    return MONTHLY_SHARES[next(bands[key] for key in (instance_type, family, "") if key in bands)]


@cache
def _bands(region: str) -> Mapping[str, int]:
    """Bands by type, by family and, for the empty name, of all types."""
    by_type = {name: int(row["band"]) for row in _rows_by_region()[region] for name in row["types"].split()}
    grouped: defaultdict[str, list[int]] = defaultdict(list)
    for name, band in by_type.items():
        grouped[name.partition(".")[0]].append(band)
        grouped[""].append(band)
    return {name: median_low(bands) for name, bands in grouped.items()} | by_type


@cache
def _rows_by_region() -> Mapping[str, tuple[Mapping[str, str], ...]]:
    by_region: defaultdict[str, list[Mapping[str, str]]] = defaultdict(list)
    for row in _rows():
        by_region[row["region"]].append(row)
    return {region: tuple(rows) for region, rows in by_region.items()}


def _rows() -> Iterator[Mapping[str, str]]:
    with _TABLE.open(encoding="utf-8") as file:
        yield from csv.DictReader(file)
