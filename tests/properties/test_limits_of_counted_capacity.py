"""Limits of NodePools beside reservations and stocks: what could be launched within all of them is launched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements, requirement, requirements_from_labels
from support.builders import ANY_CAPACITY, node_pool, pods, wanted
from support.exact_within_limits import NodeForm, PodGroupSize, most_served
from support.examples import examples
from support.instance_types import shape
from support.plans_on_types import plan_on_types

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_ZONES = ("z1", "z2")


@dataclass(frozen=True)
class Counted:
    """Types of which some have a known number of nodes left, NodePools with limits, and pods as groups."""

    types: tuple[InstanceType, ...]
    pools: tuple[NodePool, ...]
    sizes: tuple[PodGroupSize, ...]

    @property
    def units(self) -> dict[str, int]:
        """What is left of every reservation and stock."""
        offerings = (offering for each in self.types for offering in each.offerings)
        return {_counted(each): each.reservation_capacity for each in offerings if _counted(each)}

    @property
    def waiting(self) -> list[Pod]:
        """The pods."""
        return [each for number, size in enumerate(self.sizes) for each in _pods(number, size)]

    def forms(self) -> Iterator[NodeForm]:
        """Every form of node the pools may launch."""
        for pool in self.pools:
            asked = {each.key: each for each in pool.spec.template.spec.requirements}
            zones = asked[labels.ZONE].values if labels.ZONE in asked else _ZONES
            for each in self.types:
                sold = {(offering.zone, _counted(offering)) for offering in each.offerings if offering.zone in zones}
                for zone, counted in sorted(sold):
                    yield NodeForm(pool.metadata.name, zone, each.allocatable, each.capacity, counted)


def _counted(offering: Offering) -> str:
    return offering.stock or offering.reservation_id


@st.composite
def counted(draw: st.DrawFn) -> Counted:
    random = Random(draw(st.integers(0, 2**32)))
    types = tuple(_type(random, number) for number in range(draw(st.integers(2, 5))))
    pools = tuple(_pool(random, number) for number in range(draw(st.integers(1, 2))))
    sizes, most = [], draw(st.sampled_from([6, 12, 30, 60]))
    for _ in range(draw(st.integers(1, 4))):
        cpu, gib = random.choice(["250m", "500m", "1", "1500m", "3"]), random.choice([1, 3, 6])
        requests = res.parse_resources({"cpu": cpu, "memory": f"{gib}Gi", "pods": "1"})
        zone = random.choice([None, None, None, *_ZONES])
        sizes.append(PodGroupSize(requests, zone, random.randint(1, max(1, most // 4))))
    return Counted(types, pools, tuple(sizes))


def _type(random: Random, number: int) -> InstanceType:
    """A type with a stock in one zone, with a reservation beside what is sold freely, or sold freely alone."""
    cpu = random.choice([1, 2, 4, 8])
    gib, price = cpu * random.choice([2, 4]), round(cpu * random.uniform(0.04, 0.06), 4)
    own = shape(f"t{number}", {"cpu": cpu, "memory": f"{gib}Gi", "pods": random.choice([4, 15])}, overhead={})
    kind, zone, units = (
        random.choice(["stock", "stock", "reservation", "free"]),
        random.choice(_ZONES),
        random.randint(1, 4),
    )
    place = {labels.ZONE: zone, labels.CAPACITY_TYPE: "on-demand"}
    if kind == "stock":
        sold = Offering(requirements_from_labels(place), price, reservation_capacity=units, stock=f"hosts/t{number}")
        return replace(own, offerings=(sold,))
    free = tuple(Offering(requirements_from_labels({**place, labels.ZONE: each}), price) for each in _ZONES)
    if kind == "free":
        return replace(own, offerings=free)
    reserved = {labels.ZONE: zone, labels.CAPACITY_TYPE: "reserved", labels.RESERVATION_ID: f"r{number}"}
    first = Offering(requirements_from_labels(reserved), price / 100, available=True, reservation_capacity=units)
    named = requirement(labels.RESERVATION_ID, "In", (f"r{number}",))
    kinds = requirement(labels.CAPACITY_TYPE, "In", ("on-demand", "reserved"))
    together = own.requirements.without((labels.CAPACITY_TYPE, labels.ZONE))
    everywhere = requirement(labels.ZONE, "In", _ZONES)
    return replace(
        own, requirements=together.intersect(Requirements((named, kinds, everywhere))), offerings=(first, *free)
    )


def _pool(random: Random, number: int) -> NodePool:
    zones = random.choice([(), (), ("z1",)])
    limits = random.choice(
        [{}, {"cpu": "6"}, {"cpu": "14"}, {"memory": "20Gi"}, {"nodes": "3"}, {"cpu": "10", "memory": "40Gi"}]
    )
    asked = [ANY_CAPACITY, *([wanted(labels.ZONE, "In", *zones)] if zones else [])]
    return node_pool(f"p{number}", asked, weight=random.choice([None, None, 10]), limits=limits)


def _pods(number: int, size: PodGroupSize) -> list[Pod]:
    requests = {name: str(amount / res.ONE_UNIT) for name, amount in size.requests.items() if name != res.PODS}
    selector = {labels.ZONE: size.zone} if size.zone else {}
    return pods(size.count, requests, prefix=f"g{number}", node_selector=selector)


def check(case: Counted) -> None:
    limits = {pool.metadata.name: res.parse_resources(pool.spec.limits) for pool in case.pools}
    possible = most_served(case.sizes, list(case.forms()), limits, case.units)
    solution = plan_on_types([*case.pools, *case.waiting], case.types, well_known_labels_of)
    drawn = [_counted(each.cheapest_offering) for each in solution.new_claims]
    assert all(drawn.count(name) <= left for name, left in case.units.items())
    served = len(case.waiting) - len(solution.unschedulable)
    assert possible is None or served == possible


@settings(max_examples=examples(800), deadline=None, suppress_health_check=_QUIET)
@given(counted())
def test_what_can_be_launched_within_limits_reservations_and_stocks_is_launched(case: Counted) -> None:
    """SCH-382, SCH-384, SCH-581, SCH-585."""
    check(case)


@pytest.mark.soak
@settings(max_examples=examples(5_000), deadline=None, suppress_health_check=_QUIET)
@given(counted())
def test_nor_in_a_long_series(case: Counted) -> None:
    """SCH-382, SCH-384, SCH-581, SCH-585."""
    check(case)
