"""Incremental updates of instance types give the same lists as a full rebuild, at low cost."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from karpenter.api.ec2_node_class import CapacityReservation, EC2NodeClass
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.providers.aws.ec2_descriptions import PlacementGroupInfoEntry
from karpenter.providers.aws.instancetype.ec2_offerings import OfferingKey
from karpenter.providers.aws.instancetype.nodeclass_terms import image_set
from support.ec2_instance_types import (
    IDS,
    PLAIN,
    ZONES,
    FakeRegion,
    InstanceTypeFixture,
    of_spec,
    of_status,
    product,
    raw,
    spot,
)
from support.examples import series

NAMES = ("a1.large", "c5.large", "hpc7a.12xlarge", "m5.large", "m5.metal", "m6g.large")
RESERVED = CapacityReservation(
    id="cr-1",
    availability_zone=ZONES[0],
    instance_type="m5.large",
    instance_match_criteria="open",
    owner_id="1" * 12,
)
CLASSES = (PLAIN, of_spec(ami_family="Bottlerocket"), of_status(capacity_reservations=(RESERVED,)))
GROUP = PlacementGroupInfoEntry(group_id="pg-1", strategy="partition", partition_count=2)


@dataclass
class Twins:
    """Two fixtures with the same events: one is read after every event, the other only at the end."""

    dice: random.Random
    asked: InstanceTypeFixture
    late: InstanceTypeFixture

    def happen(self) -> None:
        event = self.dice.choice(EVENTS)
        state = self.dice.getstate()
        event(self.dice, self.asked)
        self.dice.setstate(state)
        event(self.dice, self.late)


def _stock_out(dice: random.Random, fixture: InstanceTypeFixture) -> None:
    kind, name, zone = dice.choice(("spot", "on-demand")), dice.choice(NAMES), dice.choice(ZONES)
    scope = dice.choice((("", ""), ("pg-1", ""), ("pg-1", "2")))
    fixture.memories.unavailable.mark_unavailable(OfferingKey(kind, name, zone, *scope), "InsufficientInstanceCapacity")


def _whole_type(dice: random.Random, fixture: InstanceTypeFixture) -> None:
    fixture.memories.unavailable.mark_capacity_type_unavailable("spot")


def _subnet(dice: random.Random, fixture: InstanceTypeFixture) -> None:
    fixture.memories.unavailable.mark_subnet_unavailable(f"subnet-{dice.choice(ZONES)}")


def _time(dice: random.Random, fixture: InstanceTypeFixture) -> None:
    fixture.clock.advance(minutes=dice.choice((1, 3, 31)))


def _reservation(dice: random.Random, fixture: InstanceTypeFixture) -> None:
    fixture.memories.reservations.set_available_count("cr-1", dice.randrange(3))


def _lesson(dice: random.Random, fixture: InstanceTypeFixture) -> None:
    fixture.memories.discovered_capacity.record(
        dice.choice(NAMES), image_set(PLAIN.status.amis), dice.randrange(1, 9) * 2**30
    )


def _shift(dice: random.Random, fixture: InstanceTypeFixture) -> None:
    fixture.shifted = frozenset(dice.sample(sorted(IDS.values()), dice.randrange(3)))


def _group(dice: random.Random, fixture: InstanceTypeFixture) -> None:
    fixture.group = dice.choice((None, GROUP))


def _spot(dice: random.Random, fixture: InstanceTypeFixture) -> None:
    pairs = dice.sample([(name, zone) for name in NAMES for zone in ZONES], 9)
    fixture.region.spot = [spot(name, zone, dice.randrange(1, 4)) for name, zone in pairs]
    asyncio.run(fixture.provider.refresh_spot())


def _listed(dice: random.Random, fixture: InstanceTypeFixture) -> None:
    fixture.region.products = {
        "Shared": (product(dice.choice(NAMES), dice.randrange(1, 9)),),
        "Dedicated": (product("m5.metal", dice.randrange(1, 9)),),
    }
    asyncio.run(fixture.provider.refresh_on_demand())


def _sold(dice: random.Random, fixture: InstanceTypeFixture) -> None:
    fixture.region.names = dice.sample(NAMES, 4)
    fixture.region.offered_in = {name: dice.sample(ZONES, 2) for name in dice.sample(NAMES, 2)}
    asyncio.run(fixture.provider.refresh_types())


EVENTS: tuple[Callable[[random.Random, InstanceTypeFixture], None], ...] = (
    *(_stock_out, _stock_out, _whole_type, _subnet, _time, _time, _reservation, _lesson, _shift, _group),
    *(_spot, _listed, _sold),
)


def lists(fixture: InstanceTypeFixture) -> list[tuple[InstanceType, ...]]:
    return [fixture.provider.types_for(node_class) for node_class in CLASSES]


@pytest.mark.parametrize("seed", series(range(30), *range(5)))
def test_incremental_updates_equal_a_full_rebuild(seed: int) -> None:
    """AWS-353, AWS-379: and repeated reads return the identical lists."""
    twins = Twins(
        random.Random(seed), InstanceTypeFixture(FakeRegion(names=NAMES)), InstanceTypeFixture(FakeRegion(names=NAMES))
    )
    for fixture in (twins.asked, twins.late):
        asyncio.run(fixture.provider.refresh_types())
        # Zone ids come from classes, and the other fixture is not read.
        fixture.provider.types_for(PLAIN)
    for _ in range(30):
        twins.happen()
        before = lists(twins.asked)
        assert all(again is once for again, once in zip(lists(twins.asked), before, strict=True))
    assert lists(twins.asked) == lists(twins.late)


@pytest.mark.speed
async def test_a_full_refresh_takes_less_than_a_second_of_cpu() -> None:
    """All types in three zones, every spot and every on-demand price another, for two classes."""
    names = [
        name for name, info in raw().items() if {"x86_64", "arm64"} & set(info.processor_info.supported_architectures)
    ]
    region = FakeRegion(names=names, products={"Dedicated": (product("m5.metal", 1),)})
    fixture = InstanceTypeFixture(region)
    classes: tuple[EC2NodeClass, ...] = CLASSES[:2]
    begun = time.process_time()
    for price in (1, 2):
        region.spot = [spot(name, zone, price) for name in names for zone in ZONES]
        region.products["Shared"] = tuple(product(name, price) for name in names)
        await fixture.provider.refresh_types()
        await fixture.provider.refresh_on_demand()
        await fixture.provider.refresh_spot()
        for node_class in classes:
            fixture.provider.types_for(node_class)
    assert len(names) > 1370
    assert time.process_time() - begun < 2.0
