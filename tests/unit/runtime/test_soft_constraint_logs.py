"""Two lines about pods whose preferences can keep machines from being given back (SCH-672)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from karpenter.scheduling.scheduling_options import PreferencePolicy
from karpenter.settings import Settings
from support.topology_builders import apart, app_pods, even, to
from support.world import RARE, World, story

APART = "pod(s) have a preferred Anti-Affinity which can prevent consolidation"
SPREAD = "pod(s) have a preferred TopologySpreadConstraint which can prevent consolidation"
#: What no pool offers, so that the pods wait on.
NOWHERE = {"node_selector": {"kubernetes.io/arch": "none"}}


def told(world: World, text: str) -> list[str]:
    return [line["pods"] for line in world.lines(text)]


async def begin(world: World, settings: Settings | None = None) -> None:
    await world.node_class()
    await world.pool()
    await world.start(settings)


@story
async def test_each_pod_is_mentioned_once_a_day(world: World) -> None:
    """SCH-672. DIS-438: for each of the two preferences."""
    await begin(world, Settings(intervals=RARE))
    await world.waiting(*app_pods(1, spread=[even(soft=True)], **NOWHERE))
    await asyncio.sleep(4 * RARE.provisioning_retry.total_seconds())
    assert told(world, SPREAD) == ["default/web-000"]
    await world.waiting(*app_pods(1, prefix="late", spread=[even(soft=True)], **NOWHERE))
    await asyncio.sleep(60)
    assert told(world, SPREAD) == ["default/web-000", "default/late-000"]
    await asyncio.sleep((timedelta(days=1) + 2 * RARE.provisioning_retry).total_seconds())
    assert sorted(told(world, SPREAD)) == sorted(["default/web-000", "default/late-000"] * 2)
    assert told(world, APART) == []


@story
async def test_ten_pods_are_named_and_the_others_counted(world: World) -> None:
    await begin(world)
    await world.waiting(*app_pods(12, affinity=apart(wished=[to()]), **NOWHERE))
    await asyncio.sleep(5)
    (line,) = told(world, APART)
    assert (line.count("default/"), line.rpartition(" and ")[2]) == (10, "2 other(s)")


@story
async def test_wishes_nobody_grants_prevent_nothing(world: World) -> None:
    """SCH-672, policy Ignore"""
    await begin(world, Settings(preference_policy=PreferencePolicy.IGNORE))
    await world.waiting(*app_pods(1, affinity=apart(wished=[to()]), spread=[even(soft=True)]))
    await asyncio.sleep(5)
    assert (told(world, APART), told(world, SPREAD)) == ([], [])


@story
async def test_what_must_hold_is_no_wish(world: World) -> None:
    await begin(world)
    await world.waiting(*app_pods(1, affinity=apart(to()), spread=[even()]))
    await asyncio.sleep(5)
    assert (told(world, APART), told(world, SPREAD)) == ([], [])
