"""How often EC2 takes spot instances back, as its Spot Instance Advisor states it.

The advisor knows five bands of the share of a type's spot instances that were interrupted in the trailing month: below 5 %, to
10 %, to 15 %, to 20 %, and above. ``data/SOURCES.md`` tells where the packaged table comes from, and of which day it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from statistics import median_low

from karpenter.instancetypes.ec2_regions import BASE_REGION, region_of_zone
from karpenter.instancetypes.packaged_tables import packaged_rows

#: The share a band stands for: its middle. The last one has no end; it stands for a quarter.
MONTHLY_SHARES = (0.025, 0.075, 0.125, 0.175, 0.25)


@cache
def monthly_interruption_share(zone: str, instance_type: str) -> float:
    """The share of a type's spot instances in a zone's region that is interrupted within a month.

    The figure of the type; where there is none, the median of its family, then that of all types. Regions without figures have
    those of us-east-1, as have zones of no packaged region. ``zone``: a name such as ``us-east-1a``, or a zone ID.
    """
    bands = _bands(region_of_zone(zone)) or _bands(BASE_REGION)
    family = instance_type.partition(".")[0]
    return MONTHLY_SHARES[next(bands[key] for key in (instance_type, family, "") if key in bands)]


@cache
def _bands(region: str) -> Mapping[str, int]:
    """Bands by type, by family and, for the empty name, of all types; empty for regions without figures."""
    rows = (row for row in packaged_rows("ec2_spot_interruptions.csv") if row["region"] == region)
    by_type = {name: int(row["band"]) for row in rows for name in row["types"].split()}
    grouped: defaultdict[str, list[int]] = defaultdict(list)
    for name, band in by_type.items():
        grouped[name.partition(".")[0]].append(band)
        grouped[""].append(band)
    return {name: median_low(bands) for name, bands in grouped.items()} | by_type
