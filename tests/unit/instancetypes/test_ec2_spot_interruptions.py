"""How often spot instances are interrupted, from the packaged bands of the Spot Instance Advisor."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from karpenter.instancetypes.ec2_packaged_types import packaged_instance_types
from karpenter.instancetypes.ec2_spot_interruptions import MONTHLY_SHARES, monthly_interruption_share
from karpenter.instancetypes.packaged_tables import packaged_rows

_ADVISOR = Path(__file__).parents[4] / "shared" / "data" / "spot_advisor.csv"
_SNAPSHOT = "2025-06-28"


def test_known_types_have_the_share_of_their_band() -> None:
    """Single figures of the packaged table, so that a wrong column or region is seen."""
    assert monthly_interruption_share("us-east-1a", "c5.large") == 0.025
    assert monthly_interruption_share("us-east-1a", "m5.large") == 0.175
    assert monthly_interruption_share("ap-northeast-2c", "m5.large") == 0.075
    assert monthly_interruption_share("apne2-az3", "m5.large") == 0.075
    assert monthly_interruption_share("us-east-1a", "c5.4xlarge") == 0.25


def test_no_type_is_in_two_bands_of_a_region() -> None:
    rows = packaged_rows("ec2_spot_interruptions.csv")
    listed = [(row["region"], name) for row in rows for name in row["types"].split()]
    assert len(listed) == len(set(listed)) > 1000


def test_types_without_a_figure_have_the_median_of_their_family_and_unknown_families_that_of_all_types() -> None:
    assert monthly_interruption_share("us-east-1a", "m5.new") == 0.25
    assert monthly_interruption_share("us-east-1a", "new.large") == 0.175


def test_regions_differ_where_they_have_figures_and_others_have_those_of_us_east_1() -> None:
    names = [kind.name for kind in packaged_instance_types()]
    base, seoul, paris, local = (
        [monthly_interruption_share(zone, name) for name in names]
        for zone in ("us-east-1a", "ap-northeast-2a", "eu-west-3a", "zone-a")
    )
    assert seoul != base
    assert paris == local == base


@pytest.mark.skipif(not _ADVISOR.is_file(), reason="the source table is not there")
def test_the_packaged_bands_are_those_of_the_source() -> None:
    with _ADVISOR.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["snapshot"] == _SNAPSHOT]
    packaged = {kind.name for kind in packaged_instance_types()}
    zones = {"us-east-1": "us-east-1a", "ap-northeast-2": "ap-northeast-2a"}
    for row in (row for row in rows if row["instance_type"] in packaged):
        expected = MONTHLY_SHARES[int(row["interruption_band"])]
        assert monthly_interruption_share(zones[row["region"]], row["instance_type"]) == expected, row
