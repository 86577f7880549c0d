"""What the choice among packings promises about price."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karpenter.api.core import Pod
from karpenter.catalog.types import InstanceType
from karpenter.decide.plan import Plan
from karpenter.decide.provision import Options, Outlook, PackingWay
from karpenter.decide.worth import UNLIMITED, Worth
from karpenter.model import labels
from support.builders import node_pool, plan, pod, wanted
from support.judge import World
from support.shapes import offering, shape
from support.worlds import worlds

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_ROUNDING = 1e-9


@st.composite
def catalogues(draw: st.DrawFn) -> tuple[InstanceType, ...]:
    """Types of one to four shapes in several sizes, priced by size with some noise, on demand and as spot."""
    found = []
    for family in range(draw(st.integers(1, 4))):
        gib, rate = draw(st.sampled_from([2, 4, 8])), draw(st.integers(30, 60))
        for cpu in draw(st.lists(st.sampled_from([1, 2, 4, 8, 16, 48]), min_size=1, max_size=4, unique=True)):
            price = cpu * (rate + draw(st.integers(-3, 3))) / 1000
            sold = [offering("on-demand", zone, price) for zone in ("z1", "z2")]
            sold += [offering("spot", "z1", round(price * draw(st.integers(25, 80)) / 100, 6))] * draw(st.booleans())
            capacity = {"cpu": cpu, "memory": f"{cpu * gib}Gi", "pods": draw(st.sampled_from([8, 29, 110]))}
            found.append(shape(f"f{family}.{cpu}", capacity, sold))
    return tuple(found)


@st.composite
def workloads(draw: st.DrawFn) -> list[Pod]:
    """A few kinds of pods, some of them many, some picky about how they are bought."""
    found = []
    for kind in range(draw(st.integers(1, 8))):
        requests = {"cpu": f"{draw(st.integers(1, 30)) * 100}m", "memory": f"{draw(st.integers(1, 40)) * 200}Mi"}
        selector: Mapping[str, str] = draw(
            st.sampled_from([{}, {}, {labels.ZONE: "z2"}, {labels.CAPACITY_TYPE: "on-demand"}])
        )
        count = draw(st.sampled_from([1, 3, 10, 40]))
        found += [pod(f"k{kind}-{number}", requests, node_selector=selector) for number in range(count)]
    return found


def both(objects: list[object], types: tuple[InstanceType, ...]) -> tuple[Plan, Plan]:
    """The plan chosen and the classic one, in dollars alone and without regard to pods to come."""
    free = Worth(node_fee_per_hour=0.0, cost_per_interruption=0.0, exposure=UNLIMITED)
    chosen, classic = (
        plan(objects, types=types, options=Options(worth=free, outlook=Outlook.NOTHING, packing=way))
        for way in (PackingWay.CHEAPEST, PackingWay.CLASSIC)
    )
    return chosen, classic


def check(chosen: Plan, classic: Plan) -> None:
    """Never dearer than the classic plan, unless it has a place for more pods; and no plan beats the bound."""
    if len(chosen.unplaced) >= len(classic.unplaced):
        assert chosen.price_per_hour <= classic.price_per_hour + _ROUNDING
    for found in (chosen, classic):
        assert found.lower_bound_per_hour is not None
        assert found.lower_bound_per_hour <= found.price_per_hour + 1e-6


@settings(max_examples=150, derandomize=True, deadline=None, suppress_health_check=_QUIET)
@given(catalogues(), workloads())
def test_the_chosen_plan_is_never_dearer_than_the_classic_one(
    types: tuple[InstanceType, ...], waiting: list[Pod]
) -> None:
    """SCH-865"""
    pool = node_pool("default", [wanted(labels.CAPACITY_TYPE, "Exists")])
    chosen, classic = both([pool, *waiting], types)
    check(chosen, classic)
    assert (not classic.claims) or classic.packing == "classic"


@settings(max_examples=150, derandomize=True, deadline=None, suppress_health_check=_QUIET)
@given(worlds())
def test_where_every_constraint_meets_every_other_it_is_not_dearer_either(world: World) -> None:
    """SCH-865"""
    check(*both(list(world.objects()), world.types))


@pytest.mark.soak
@settings(max_examples=5_000, deadline=None, suppress_health_check=_QUIET)
@given(worlds())
def test_nor_in_a_long_series(world: World) -> None:
    check(*both(list(world.objects()), world.types))
