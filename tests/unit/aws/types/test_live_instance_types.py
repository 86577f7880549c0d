"""Live instance types and prices for commands, cached in a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from karpenter.api.ec2_node_class import EC2NodeClassStatus
from karpenter.model import labels
from karpenter.providers.aws.aws_apis import AwsApis
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_settings import AwsSettings
from karpenter.providers.aws.live_instance_types import AnswerCache, LiveInstanceTypes, load_live_instance_types
from karpenter.providers.contract import ProviderError
from support.ec2_instance_types import PLAIN, START, A, B, FakeRegion, InstanceTypeFixture, of_kubelet, product, spot
from support.manual_clock import ManualClock

_DENIED = AwsError("UnauthorizedOperation", "no", "DescribeInstanceTypes")


@dataclass
class Connection:
    """A region that EC2 describes; ``opened`` names it."""

    ec2: FakeRegion
    loaded: str = "eu-west-1"
    account: str = "123456789012"
    asked: list[str] = field(default_factory=list)

    @property
    def services(self) -> AwsApis:
        port = cast(Any, self.ec2)
        return AwsApis(port, port, port, port, port, port, port, cast(Any, self))

    async def open(self) -> str:
        return self.loaded

    async def get_caller_identity(self) -> str:
        self.asked.append("identity")
        return f"arn:aws:sts::{self.account}:assumed-role/admin/me"


def _region(price: float = 0.2) -> FakeRegion:
    region = FakeRegion(names=("m5.large", "c5.large"), spot=[spot("m5.large", A, 0.05)])
    region.products = {"Shared": (product("m5.large", price),), "Dedicated": (product("m5.metal", 9),)}
    return region


async def _load(connection: Connection, cache: AnswerCache, clock: ManualClock | None = None) -> LiveInstanceTypes:
    return await load_live_instance_types(connection, AwsSettings("shop"), cache, clock or ManualClock(START))


def _prices(live: LiveInstanceTypes, name: str = "m5.large") -> dict[tuple[str, str], float]:
    (instance_type,) = (each for each in live.types() if each.name == name)
    return {
        (offer.capacity_type, offer.zone): offer.price_per_hour for offer in instance_type.offerings if offer.available
    }


async def test_types_and_prices_are_those_of_the_region(tmp_path: Path) -> None:
    """AWS-360, AWS-365: prices of the region of the command."""
    live = await _load(Connection(_region()), AnswerCache(tmp_path))
    assert (live.region, live.currency, live.has_price_list) == ("eu-west-1", "USD", True)
    prices = _prices(live)
    assert prices[labels.ON_DEMAND, A] == 0.2
    assert prices[labels.SPOT, A] == 0.05
    assert (labels.SPOT, B) not in prices


async def test_a_plan_and_the_controller_choose_from_the_same_types(tmp_path: Path) -> None:
    """AWS-281 to AWS-283: cached answers give the same types as in the controller."""
    region = _region()
    fixture = await InstanceTypeFixture(region, "eu-west-1").loaded()
    await fixture.provider.refresh_on_demand()
    await fixture.provider.refresh_spot()
    cache = AnswerCache(tmp_path)
    await _load(Connection(region), cache)
    live = await _load(Connection(FakeRegion(failing={"types": _DENIED})), cache)
    for node_class in (PLAIN, of_kubelet(maxPods=7)):
        assert live.class_types(node_class) == fixture.provider.types_for(node_class)


async def test_a_class_without_subnets_counts_as_one_with_a_subnet_in_every_zone(tmp_path: Path) -> None:
    """AWS-341: a class from a file has no status, and can still be planned."""
    live = await _load(Connection(_region()), AnswerCache(tmp_path))
    bare = msgspec.structs.replace(PLAIN, status=EC2NodeClassStatus())
    zones = {offer.zone for each in live.class_types(bare) for offer in each.offerings if offer.available}
    assert {A, B} <= zones


@pytest.mark.parametrize(
    ("minutes", "account", "region", "expected"),
    [
        pytest.param(29, "123456789012", "eu-west-1", 0.2, id="young"),
        pytest.param(30, "123456789012", "eu-west-1", 0.3, id="too-old"),
        pytest.param(-1, "123456789012", "eu-west-1", 0.3, id="from-the-future"),
        pytest.param(1, "999999999999", "eu-west-1", 0.3, id="another-account"),
        pytest.param(1, "123456789012", "eu-west-3", 0.3, id="another-region"),
    ],
)
async def test_answers_are_cached_for_half_an_hour(
    tmp_path: Path, minutes: int, account: str, region: str, expected: float
) -> None:
    """AWS-366: a command uses the cached answers of another command."""
    cache, clock = AnswerCache(tmp_path), ManualClock(START)
    first = await _load(Connection(_region(0.2)), cache, clock)
    clock.advance(minutes=minutes)
    second = await _load(Connection(_region(0.3), region, account), cache, clock)
    assert _prices(second)[labels.ON_DEMAND, A] == expected
    assert (second.read_at == first.read_at) is (expected == 0.2)


@pytest.mark.parametrize("content", [b"", b"{", b'{"types": 7}'])
async def test_a_damaged_cache_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    cache = AnswerCache(tmp_path)
    await _load(Connection(_region(0.2)), cache)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert _prices(await _load(Connection(_region(0.3)), cache))[labels.ON_DEMAND, A] == 0.3
    assert [entry.name for entry in tmp_path.iterdir()] == [file.name]


async def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    live = await _load(Connection(_region()), AnswerCache(blocked))
    assert _prices(live)[labels.ON_DEMAND, A] == 0.2


@pytest.mark.parametrize("call", ["types", "offerings", "spot", "products"])
async def test_an_error_of_aws_is_one_line(tmp_path: Path, call: str) -> None:
    """AWS-364: a plan with live prices never uses other prices silently."""
    region = _region()
    region.failing = {call: _DENIED}
    with pytest.raises(ProviderError, match=r"^live prices: .*UnauthorizedOperation") as caught:
        await _load(Connection(region), AnswerCache(tmp_path))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


async def test_without_a_price_list_on_demand_prices_are_the_packaged_ones(tmp_path: Path) -> None:
    """AWS-362, AWS-367"""
    region = _region()
    live = await _load(Connection(region, "us-gov-west-1"), AnswerCache(tmp_path))
    assert not live.has_price_list
    assert region.asked == []
