"""Empty machines under schedules and freezes: when they stay, when they go, and what is said about it (DIS §6)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import pytest

from karpenter.api import kinds
from karpenter.api.core import ConfigMap
from karpenter.api.karpenter import Budget, Disruption, NodePool
from karpenter.api.meta import ObjectMeta
from karpenter.metrics.exposition import render_sync
from karpenter.model import clock, conditions, freezes, labels
from support.metrics_scrape import Scrape
from support.world import START, World, story, until

FROZEN, INVALID = "DisruptionFrozen", "DisruptionSettingsValid"
OPEN = Budget(nodes="100%")
#: The story begins at midnight UTC on a Thursday: nine in the morning in Seoul.
NIGHT = Budget(nodes="0", schedule="0 0 * * *", duration="1h")


async def machine(world: World, *budgets: Budget, notes: Mapping[str, str] = {}) -> None:
    """A running controller and an empty machine of a pool with these budgets and annotations."""
    await world.node_class()
    await world.pool(disruption=Disruption(budgets=budgets))
    await annotate(world, dict(notes))
    await world.start()
    await world.claim("n0", pool="np")
    await asyncio.sleep(0.1)
    await world.join("n0", "n0")
    await asyncio.sleep(6)


async def annotate(world: World, notes: Mapping[str, str | None]) -> None:
    await world.kube.patch(kinds.NODE_POOL, "np", {"metadata": {"annotations": dict(notes)}})


async def freeze_cluster(world: World, **data: str) -> None:
    meta = ObjectMeta(name=freezes.FREEZE_CONFIG_MAP, namespace=freezes.FREEZE_NAMESPACE)
    await world.kube.create(kinds.CONFIG_MAP, ConfigMap(metadata=meta, data=data))


async def thaw_cluster(world: World) -> None:
    await world.kube.delete(kinds.CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, freezes.FREEZE_NAMESPACE)


async def is_there(world: World) -> bool:
    return await world.has(kinds.NODE, "n0")


async def goes(world: World, within: timedelta = timedelta(minutes=1)) -> None:
    async def gone() -> bool:
        return not await is_there(world)

    await until(gone, within.total_seconds())


async def said(world: World, type_: str) -> tuple[str, str, str] | None:
    """Status, reason and message of a condition of the pool."""
    pool: NodePool = await world.kube.get(kinds.NODE_POOL, "np")
    condition = conditions.find_condition(pool.status.conditions, type_)
    return None if condition is None else (condition.status, condition.reason, condition.message)


def after(hours: float) -> str:
    return clock.rfc3339(START + timedelta(hours=hours))


# -- windows ------------------------------------------------------------------------------------------------------------------


@story
async def test_a_closed_window_keeps_a_node_until_its_end(world: World) -> None:
    """DIS-141: closed from midnight, when the story begins, to one."""
    await machine(world, OPEN, NIGHT)
    await asyncio.sleep(3500 - world.elapsed)
    assert await is_there(world)
    await goes(world, timedelta(minutes=3))
    assert 3600 <= world.elapsed <= 3700


@story
async def test_a_schedule_is_read_in_its_time_zone(world: World) -> None:
    """API-083 Beyond: midnight in UTC is no midnight in Seoul."""
    await machine(world, OPEN, NIGHT, notes={labels.BUDGET_WINDOWS: '[null, {"timeZone": "Asia/Seoul"}]'})
    await goes(world)


@story
async def test_a_date_opens_a_closed_pool(world: World) -> None:
    await machine(world, Budget(nodes="0"), notes={labels.BUDGET_WINDOWS: f'[{{"until": "{after(0.5)}"}}]'})
    await asyncio.sleep(1700 - world.elapsed)
    assert await is_there(world)
    await goes(world, timedelta(minutes=3))


@story
async def test_settings_that_cannot_be_read_close_the_pool_and_are_said(world: World) -> None:
    """API-086, API-088 (Beyond), DIS-052, DIS-143, DIS-S009"""
    await machine(world, OPEN, NIGHT, notes={labels.BUDGET_WINDOWS: '[null, {"timeZone": "Asia/Soul"}]'})
    await asyncio.sleep(1800)
    assert await is_there(world)
    path = f"metadata.annotations[{labels.BUDGET_WINDOWS}][1].timeZone"
    actual = await said(world, INVALID)
    assert actual is not None
    assert actual[:2] == ("False", "DisruptionSettingsInvalid")
    assert actual[2].startswith(path)
    assert any(path in event.message for event in await world.events("NodePoolAdvice"))
    (line,) = world.lines("detected disruption budget errors")
    assert line["level"] == "ERROR"
    assert line["error"].startswith(f"NodePool np: {path}")
    assert (await world.pool_condition("Ready"))[0] == "True"
    await annotate(world, {labels.BUDGET_WINDOWS: '[null, {"timeZone": "Asia/Seoul"}]'})
    await goes(world)
    assert await said(world, INVALID) is None


@story
async def test_an_annotation_that_is_mended_wrongly_is_said_again(world: World) -> None:
    await machine(world, OPEN, notes={labels.MINIMUM_NODE_AGE: "old"})
    before = await world.events("NodePoolAdvice")
    await annotate(world, {labels.MINIMUM_NODE_AGE: "older"})
    await asyncio.sleep(1)
    texts = [event.message for event in await world.events("NodePoolAdvice")]
    assert len(texts) == len(before) + 1
    assert any("'older'" in text for text in texts)


# -- freezes ------------------------------------------------------------------------------------------------------------------


@story
async def test_a_frozen_pool_keeps_its_nodes_until_the_freeze_ends(world: World) -> None:
    await machine(world, OPEN, notes={labels.FREEZE: "release", labels.FREEZE_UNTIL: after(1)})
    text = f"frozen by metadata.annotations[{labels.FREEZE}] until {after(1)}: release"
    assert await said(world, FROZEN) == ("True", "NodePoolFrozen", text)
    (event,) = await world.events(FROZEN)
    assert (event.type, event.message) == ("Normal", f"No node is disrupted: {text}")
    assert world.manager is not None
    assert Scrape(render_sync(world.manager.metrics.registry)).value("karpenter_nodepools_frozen", nodepool="np") == 1
    await asyncio.sleep(3550 - world.elapsed)
    assert await is_there(world)
    assert await world.events("DisruptionBlocked", "NodePool") == []
    await goes(world, timedelta(minutes=3))
    assert await said(world, FROZEN) is None
    assert len(await world.events("DisruptionThawed")) == 1


@story
async def test_one_config_map_freezes_everything_at_once(world: World) -> None:
    """A machine that was chosen already is spared by the second look."""
    await machine(world, OPEN)
    await asyncio.sleep(8)
    await freeze_cluster(world, reason="audit")
    await asyncio.sleep(600)
    assert await is_there(world)
    text = "frozen by ConfigMap kube-system/karpenter-freeze: audit"
    assert await said(world, FROZEN) == ("True", "ClusterFrozen", text)
    (line,) = world.lines("freeze of the cluster")
    assert line["freeze"] == text
    await thaw_cluster(world)
    await goes(world)
    assert await said(world, FROZEN) is None
    assert len(world.lines("freeze of the cluster taken away")) == 1


@story
async def test_a_new_process_knows_of_the_freeze_before_it_decides_anything(world: World) -> None:
    await freeze_cluster(world)
    await machine(world, OPEN)
    await world.stop()
    await world.start()
    await asyncio.sleep(600)
    assert await is_there(world)


@pytest.mark.parametrize("data", [{"until": "tomorrow"}, {"untill": "2026-01-01T00:00:00Z"}, {"enabled": "false"}])
@story
async def test_a_freeze_that_cannot_be_read_freezes_and_says_so(world: World, data: dict[str, str]) -> None:
    await freeze_cluster(world, **data)
    await machine(world, OPEN)
    await asyncio.sleep(1800)
    assert await is_there(world)
    actual = await said(world, FROZEN)
    assert actual is not None
    assert actual[:2] == ("True", "FreezeUnreadable")
    assert f"data.{next(iter(data))}" in actual[2]
    (event,) = await world.events(FROZEN)
    assert event.type == "Warning"
    assert len(world.lines("freeze of the cluster cannot be read in full")) == 1


@story
async def test_other_config_maps_freeze_nothing(world: World) -> None:
    for name, namespace in ((freezes.FREEZE_CONFIG_MAP, "default"), ("other", freezes.FREEZE_NAMESPACE)):
        await world.kube.create(kinds.CONFIG_MAP, ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace)))
    await machine(world, OPEN)
    await goes(world)
