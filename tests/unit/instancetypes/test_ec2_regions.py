"""The packaged data of EC2 regions: zones, what they offer, prices."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from karpenter.instancetypes import ec2_packaged_types, ec2_regions
from karpenter.model import labels

SOURCE = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "instance_types.csv"


def _on_demand_prices(region: str) -> dict[str, float]:
    return {
        instance_type.name: offering.price_per_hour
        for instance_type in ec2_packaged_types.packaged_instance_types(region)
        for offering in instance_type.offerings
        if offering.capacity_type == labels.ON_DEMAND
    }


def test_all_regions_have_zones_of_their_own() -> None:
    regions = ec2_regions.ec2_regions().values()
    zones = [region.zone_name(number) for region in regions for number in region.zone_letters]
    zone_ids = [region.zone_id(number) for region in regions for number in region.zone_letters]
    assert len(regions) == 34
    assert len(set(zones)) == len(zones) == len(set(zone_ids)) >= 34 * 2
    assert {ec2_regions.region_of_zone(zone) for zone in (*zones, *zone_ids)} == set(ec2_regions.ec2_regions())


@pytest.mark.parametrize(
    ("zone", "region"),
    [
        ("eu-central-1b", "eu-central-1"),
        ("apne2-az3", "ap-northeast-2"),
        ("us-west-2-lax-1a", "us-west-2"),
        ("zone-a", ""),
        ("us-east-1", ""),
    ],
)
def test_a_zone_names_its_region(zone: str, region: str) -> None:
    assert ec2_regions.region_of_zone(zone) == region


@pytest.mark.parametrize("region", ["ap-northeast-2", "mx-central-1"])
def test_types_of_a_region_are_offered_in_its_zones_only(region: str) -> None:
    own = {
        ec2_regions.ec2_regions()[region].zone_name(number) for number in ec2_regions.ec2_regions()[region].zone_letters
    }
    types = ec2_packaged_types.packaged_instance_types(region)
    assert len(types) > 200
    for instance_type in types:
        zones = {offering.zone for offering in instance_type.offerings}
        assert zones <= own
        assert instance_type.requirements[labels.ZONE].values == zones
        assert instance_type.requirements[labels.REGION].values == {region}
        assert all(offering.price_per_hour > 0 for offering in instance_type.offerings)


def test_prices_are_those_of_the_price_list_where_it_has_the_family() -> None:
    """m5.large costs 0.115 USD in Frankfurt and 0.118 USD in Seoul; the list of 2025 does not know m8g."""
    assert ec2_packaged_types.on_demand_prices("eu-central-1")["m5.large"] == pytest.approx(0.115, rel=1e-4)
    assert _on_demand_prices("ap-northeast-2")["m5.large"] == pytest.approx(0.118, rel=1e-4)
    ratios = ec2_regions.price_ratios("eu-central-1")
    assert not ratios.is_estimate("m5.large")
    assert ratios.is_estimate("c9g.large")
    assert ratios.ratio_of("c9g.large") == 1.1979


def test_the_base_region_and_regions_without_figures_have_the_prices_of_the_table() -> None:
    for region in ("us-east-1", "xx-nowhere-1"):
        ratios = ec2_regions.price_ratios(region)
        assert (ratios.ratio_of("m5.large"), ratios.is_estimate("c9g.large")) == (1.0, False)


def test_spot_prices_of_seoul_rest_on_its_own_savings_and_others_on_those_of_the_base_region() -> None:
    assert ec2_regions.spot_percents("eu-central-1") == {}
    percents = ec2_regions.spot_percents("ap-northeast-2")
    own = next(
        instance_type
        for instance_type in ec2_packaged_types.packaged_instance_types("ap-northeast-2")
        if instance_type.name == "m5.large"
    )
    prices = {offering.capacity_type: offering.price_per_hour for offering in own.offerings}
    assert prices["spot"] == pytest.approx(prices["on-demand"] * percents["m5.large"] / 100, abs=1e-6)


@pytest.mark.skipif(not SOURCE.exists(), reason="needs the source table")
def test_listed_prices_of_seoul_agree_with_the_source_table() -> None:
    with SOURCE.open(newline="", encoding="utf-8") as file:
        listed = {
            row["name"]: float(row["price_ap_northeast_2"])
            for row in csv.DictReader(file)
            if row["price_ap_northeast_2_basis"] == "list-2025-04-04"
        }
    prices = _on_demand_prices("ap-northeast-2")
    shared = listed.keys() & prices.keys()
    assert len(shared) > 450
    assert {name: prices[name] for name in shared} == pytest.approx({name: listed[name] for name in shared}, rel=0.01)
