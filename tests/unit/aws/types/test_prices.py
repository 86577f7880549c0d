"""Prices: price list, spot price history, packaged table."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.ec2_descriptions import SpotPrice
from karpenter.providers.aws.instancetype import ec2_pricing
from karpenter.providers.contract import ProviderError
from support.ec2_instance_types import (
    START,
    A,
    B,
    FakeRegion,
    InstanceTypeFixture,
    instance_type_fixture,
    product,
    spot,
)

NAMES = ("m5.large", "m5.metal")


def listing(large: object = 0.1, metal: object = 4.0, money: str = "USD") -> dict[str, tuple[str, ...]]:
    return {
        "Shared": (product("m5.large", large, money=money),),
        "Dedicated": (product("m5.metal", metal, money=money),),
    }


async def priced_fixture(name: str = "us-east-1", **settings: object) -> InstanceTypeFixture:
    return await instance_type_fixture(FakeRegion(names=NAMES, products=listing()), name, **settings)


def on_demand(fixture: InstanceTypeFixture) -> tuple[float | None, ...]:
    return tuple(fixture.provider.prices.on_demand(name) for name in NAMES)


async def test_the_price_list_is_read_for_shared_and_bare_metal_instances() -> None:
    """AWS-360."""
    fixture = await priced_fixture("eu-west-1")
    await fixture.provider.refresh_on_demand()
    assert on_demand(fixture) == (0.1, 4.0)
    common = {
        "regionCode": "eu-west-1",
        "serviceCode": "AmazonEC2",
        "preInstalledSw": "NA",
        "operatingSystem": "Linux",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    assert fixture.region.asked == [
        {**common, "tenancy": "Shared", "productFamily": "Compute Instance"},
        {**common, "tenancy": "Dedicated", "productFamily": "Compute Instance (bare metal)"},
    ]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"products": {"Shared": (product("m5.large", 0.1),)}}, id="AWS-T353"),
        pytest.param({"products": {"Dedicated": (product("m5.metal", 4.0),)}}, id="AWS-363-shared-empty"),
        pytest.param({"products": listing(large=0)}, id="AWS-363-nothing-usable"),
        pytest.param({"failing": {"products": AwsError("AccessDenied", "no")}}, id="AWS-363-refused"),
    ],
)
async def test_an_incomplete_price_list_changes_nothing(answer: dict[str, object]) -> None:
    fixture = await priced_fixture()
    before = on_demand(fixture)
    for name, value in answer.items():
        setattr(fixture.region, name, value)
    with pytest.raises(ProviderError, match="on-demand"):
        await fixture.provider.refresh_on_demand()
    assert on_demand(fixture) == before == (0.096, 4.608)


async def test_a_type_missing_in_the_price_list_keeps_its_price() -> None:
    """AWS-363."""
    fixture = await priced_fixture()
    await fixture.provider.refresh_on_demand()
    fixture.region.products = {"Shared": (product("c5.large", 1),), "Dedicated": (product("m5.metal", 5),)}
    await fixture.provider.refresh_on_demand()
    assert on_demand(fixture) == (0.1, 5.0)


@pytest.mark.parametrize(
    ("region", "currency"), [("cn-northwest-1", "CNY"), ("cn-north-1", "CNY"), ("eusc-de-east-1", "EUR")]
)
async def test_prices_in_another_currency_are_unknown_until_the_list_is_read(region: str, currency: str) -> None:
    """AWS-T354, AWS-367: 0.096 USD must not replace 1.013 CNY, otherwise spot at 0.3 CNY is never launched."""
    fixture = await priced_fixture(region)
    fixture.region.spot = [spot("m5.large", A, 0.3)]
    await fixture.provider.refresh_spot()
    assert not fixture.offering("m5.large", "on-demand").available
    assert fixture.offering("m5.large", "spot").available
    fixture.region.products = listing(1.013, 48, currency)
    await fixture.provider.refresh_on_demand()
    assert on_demand(fixture) == (1.013, 48.0)


async def test_unknown_prices_are_reported_with_the_fix() -> None:
    """AWS-364: an isolated VPC in China reads no price list, and packaged prices would be in the wrong currency."""
    fixture = await priced_fixture("cn-north-1", isolated_vpc=True)
    with capture_logs() as logs:
        await fixture.provider.refresh_on_demand()
        fixture.provider.log_price_fallback("no")
    assert [entry["event"] for entry in logs] == [
        "on-demand prices are unknown, no price list can be reached: give prices with NodeOverlays",
        "on-demand prices are unknown: no on-demand instance is launched without one",
    ]


@pytest.mark.parametrize(
    ("region", "isolated", "prices"),
    [
        pytest.param("us-gov-west-1", False, (0.121, 5.80608), id="AWS-T355 us-gov-west-1"),
        pytest.param("us-gov-east-1", False, (0.121, 5.80608), id="AWS-T355 us-gov-east-1"),
        pytest.param("us-east-1", True, (0.096, 4.608), id="AWS-T356"),
    ],
)
async def test_without_a_price_list_packaged_prices_apply_and_spot_prices_are_read(
    region: str, isolated: bool, prices: tuple[float, float]
) -> None:
    """GovCloud has its own packaged prices; its m5 costs about a quarter more."""
    fixture = await priced_fixture(region, isolated_vpc=isolated)
    fixture.region.spot = [spot("m5.large", A, 0.02)]
    with capture_logs() as logs:
        await fixture.provider.refresh_on_demand()
        await fixture.provider.refresh_on_demand()
        await fixture.provider.refresh_spot()
    assert fixture.region.asked == []
    assert on_demand(fixture) == pytest.approx(prices, rel=0.005)
    assert fixture.offering("m5.large", "spot").price_per_hour == 0.02
    assert len([entry for entry in logs if entry["log_level"] == "info"]) == 1


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([product("a", 0.1, 0.2)], {"a": 0.2}),
        ([product("a", 0.1, 0)], {"a": 0.1}),
        ([product("a", "free"), product("a", 0.3)], {"a": 0.3}),
        ([product("a", "nan"), product("b", "inf"), product("c", -1)], {}),
        ([product("a", 0.1, money="EUR")], {}),
        (["", "{}", "[]", '{"product": {"attributes": {"instanceType": 7}}}', product("", 1)], {}),
    ],
    ids=["last dimension", "free", "not a number", "no price", "other money", "not a product"],
)
def test_prices_are_parsed_from_products(texts: list[str], expected: dict[str, float]) -> None:
    """AWS-361."""
    assert ec2_pricing.parse_price_list(texts, "USD") == expected


def test_prices_are_parsed_from_the_spot_price_history() -> None:
    """AWS-365."""
    records = [
        spot("m5.large", A, 0.03),
        spot("m5.large", A, 0.04),
        spot("m5.large", B, "cheap"),
        SpotPrice(instance_type="m5.large", availability_zone=B, spot_price="0.05"),
    ]
    assert ec2_pricing.parse_spot_prices(records) == {"m5.large": {A: 0.04}}


@pytest.mark.parametrize(
    "answer",
    [{"spot": []}, {"failing": {"spot": AwsError("RequestLimitExceeded", "later")}}],
    ids=["AWS-365-empty", "AWS-365-refused"],
)
async def test_an_empty_answer_keeps_spot_prices(answer: dict[str, object]) -> None:
    fixture = await priced_fixture()
    fixture.region.spot = [spot("m5.large", A, 0.02)]
    await fixture.provider.refresh_spot()
    before = fixture.types()
    for name, value in answer.items():
        setattr(fixture.region, name, value)
    with pytest.raises(ProviderError, match="spot"):
        await fixture.provider.refresh_spot()
    assert fixture.types() == before


async def test_a_spot_price_missing_in_the_answers_expires() -> None:
    """8.2 Beyond: after half an hour, so that one incomplete answer does not remove all prices."""
    fixture = await priced_fixture()
    fixture.region.spot = [spot("m5.large", A, 0.02), spot("m5.large", B, 0.03)]
    await fixture.provider.refresh_spot()
    fixture.region.spot = [spot("m5.large", B, 0.04)]
    fixture.clock.advance(minutes=29)
    await fixture.provider.refresh_spot()
    assert fixture.offering("m5.large", "spot", A).available
    assert fixture.offering("m5.large", "spot", B).price_per_hour == 0.04
    fixture.clock.advance(minutes=1)
    await fixture.provider.refresh_spot()
    assert not fixture.offering("m5.large", "spot", A).available
    assert fixture.offering("m5.large", "spot", B).available


async def test_changed_prices_are_logged_once() -> None:
    """AWS-368."""
    fixture = await priced_fixture()
    fixture.region.spot = [spot("m5.large", A, 0.02), spot("m5.large", B, 0.03)]
    with capture_logs() as logs:
        for _ in range(2):
            await fixture.provider.refresh_on_demand()
            await fixture.provider.refresh_spot()
    messages = [entry["event"] for entry in logs]
    assert messages == ["updated on-demand pricing", "updated spot pricing with instance types and offerings"]
    assert (logs[1]["instance-type-count"], logs[1]["offering-count"]) == (1, 2)


def test_the_sequence_number_changes_with_prices_of_the_type() -> None:
    ec2_prices = ec2_pricing.Ec2Prices({"a": 1.0, "b": 2.0})
    before = ec2_prices.sequence_number("a"), ec2_prices.sequence_number("b")
    assert ec2_prices.set_on_demand({"a": 1.5, "b": 2.0}) == 1
    assert (ec2_prices.sequence_number("a") > before[0], ec2_prices.sequence_number("b") == before[1]) == (True, True)
    settled = ec2_prices.version
    ec2_prices.set_spot({"a": {A: 1.0}}, START)
    # The first spot prices apply to all types: a type without one no longer has its on-demand price as spot price.
    assert ec2_prices.sequence_number("b") > before[1]
    assert ec2_prices.spot("b", A) is None
    assert ec2_prices.version > settled
