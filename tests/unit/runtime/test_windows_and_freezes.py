"""Empty nodes under budget schedules and freezes: when they stay, when they go, and which events and logs say so (DIS §6)."""

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
from support.virtual_cluster import START, VirtualCluster, in_virtual_time, until

FROZEN, INVALID = "DisruptionFrozen", "DisruptionSettingsValid"
OPEN = Budget(nodes="100%")
#: Tests begin at midnight UTC on a Thursday: nine in the morning in Seoul.
NIGHT = Budget(nodes="0", schedule="0 0 * * *", duration="1h")


async def start_with_empty_node(cluster: VirtualCluster, *budgets: Budget, notes: Mapping[str, str] = {}) -> None:
    """A running controller and an empty node of a pool with these budgets and annotations."""
    await cluster.node_class()
    await cluster.pool(disruption=Disruption(budgets=budgets))
    await annotate(cluster, dict(notes))
    await cluster.start()
    await cluster.claim("n0", pool="np")
    await asyncio.sleep(0.1)
    await cluster.join("n0", "n0")
    await asyncio.sleep(6)


async def annotate(cluster: VirtualCluster, notes: Mapping[str, str | None]) -> None:
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"metadata": {"annotations": dict(notes)}})


async def freeze_cluster(cluster: VirtualCluster, **data: str) -> None:
    meta = ObjectMeta(name=freezes.FREEZE_CONFIG_MAP, namespace=freezes.FREEZE_NAMESPACE)
    await cluster.kube.create(kinds.CONFIG_MAP, ConfigMap(metadata=meta, data=data))


async def thaw_cluster(cluster: VirtualCluster) -> None:
    await cluster.kube.delete(kinds.CONFIG_MAP, freezes.FREEZE_CONFIG_MAP, freezes.FREEZE_NAMESPACE)


async def is_there(cluster: VirtualCluster) -> bool:
    return await cluster.has(kinds.NODE, "n0")


async def goes(cluster: VirtualCluster, within: timedelta = timedelta(minutes=1)) -> None:
    async def gone() -> bool:
        return not await is_there(cluster)

    await until(gone, within.total_seconds())


async def said(cluster: VirtualCluster, type_: str) -> tuple[str, str, str] | None:
    """Status, reason and message of a condition of the pool."""
    pool: NodePool = await cluster.kube.get(kinds.NODE_POOL, "np")
    condition = conditions.find_condition(pool.status.conditions, type_)
    return None if condition is None else (condition.status, condition.reason, condition.message)


def after(hours: float) -> str:
    return clock.rfc3339(START + timedelta(hours=hours))


# -- windows ------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_closed_window_keeps_a_node_until_its_end(cluster: VirtualCluster) -> None:
    """DIS-141: closed from midnight, when the test begins, to one."""
    await start_with_empty_node(cluster, OPEN, NIGHT)
    await asyncio.sleep(3500 - cluster.elapsed)
    assert await is_there(cluster)
    await goes(cluster, timedelta(minutes=3))
    assert 3600 <= cluster.elapsed <= 3700


@in_virtual_time
async def test_a_schedule_is_read_in_its_time_zone(cluster: VirtualCluster) -> None:
    """API-083 Beyond: midnight in UTC is no midnight in Seoul."""
    await start_with_empty_node(
        cluster, OPEN, NIGHT, notes={labels.BUDGET_WINDOWS: '[null, {"timeZone": "Asia/Seoul"}]'}
    )
    await goes(cluster)


@in_virtual_time
async def test_a_date_opens_a_closed_pool(cluster: VirtualCluster) -> None:
    await start_with_empty_node(
        cluster, Budget(nodes="0"), notes={labels.BUDGET_WINDOWS: f'[{{"until": "{after(0.5)}"}}]'}
    )
    await asyncio.sleep(1700 - cluster.elapsed)
    assert await is_there(cluster)
    await goes(cluster, timedelta(minutes=3))


@in_virtual_time
async def test_settings_that_cannot_be_parsed_close_the_pool_and_are_reported(cluster: VirtualCluster) -> None:
    """API-086, API-088 (Beyond), DIS-052, DIS-143, DIS-S009"""
    await start_with_empty_node(
        cluster, OPEN, NIGHT, notes={labels.BUDGET_WINDOWS: '[null, {"timeZone": "Asia/Soul"}]'}
    )
    await asyncio.sleep(1800)
    assert await is_there(cluster)
    path = f"metadata.annotations[{labels.BUDGET_WINDOWS}][1].timeZone"
    actual = await said(cluster, INVALID)
    assert actual is not None
    assert actual[:2] == ("False", "DisruptionSettingsInvalid")
    assert actual[2].startswith(path)
    assert any(path in event.message for event in await cluster.events("NodePoolAdvice"))
    (line,) = cluster.lines("detected disruption budget errors")
    assert line["level"] == "ERROR"
    assert line["error"].startswith(f"NodePool np: {path}")
    assert (await cluster.pool_condition("Ready"))[0] == "True"
    await annotate(cluster, {labels.BUDGET_WINDOWS: '[null, {"timeZone": "Asia/Seoul"}]'})
    await goes(cluster)
    assert await said(cluster, INVALID) is None


@in_virtual_time
async def test_an_annotation_that_is_still_wrong_after_an_edit_is_reported_again(cluster: VirtualCluster) -> None:
    await start_with_empty_node(cluster, OPEN, notes={labels.MINIMUM_NODE_AGE: "old"})
    before = await cluster.events("NodePoolAdvice")
    await annotate(cluster, {labels.MINIMUM_NODE_AGE: "older"})
    await asyncio.sleep(1)
    texts = [event.message for event in await cluster.events("NodePoolAdvice")]
    assert len(texts) == len(before) + 1
    assert any("'older'" in text for text in texts)


# -- freezes ------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_frozen_pool_keeps_its_nodes_until_the_freeze_ends(cluster: VirtualCluster) -> None:
    await start_with_empty_node(cluster, OPEN, notes={labels.FREEZE: "release", labels.FREEZE_UNTIL: after(1)})
    text = f"frozen by metadata.annotations[{labels.FREEZE}] until {after(1)}: release"
    assert await said(cluster, FROZEN) == ("True", "NodePoolFrozen", text)
    (event,) = await cluster.events(FROZEN)
    assert (event.type, event.message) == ("Normal", f"No node is disrupted: {text}")
    assert cluster.manager is not None
    assert Scrape(render_sync(cluster.manager.metrics.registry)).value("karpenter_nodepools_frozen", nodepool="np") == 1
    await asyncio.sleep(3550 - cluster.elapsed)
    assert await is_there(cluster)
    assert await cluster.events("DisruptionBlocked", "NodePool") == []
    await goes(cluster, timedelta(minutes=3))
    assert await said(cluster, FROZEN) is None
    assert len(await cluster.events("DisruptionThawed")) == 1


@in_virtual_time
async def test_one_config_map_freezes_everything_at_once(cluster: VirtualCluster) -> None:
    """Validation keeps a node that was chosen before the freeze began."""
    await start_with_empty_node(cluster, OPEN)
    await asyncio.sleep(8)
    await freeze_cluster(cluster, reason="audit")
    await asyncio.sleep(600)
    assert await is_there(cluster)
    text = "frozen by ConfigMap kube-system/karpenter-freeze: audit"
    assert await said(cluster, FROZEN) == ("True", "ClusterFrozen", text)
    (line,) = cluster.lines("freeze of the cluster")
    assert line["freeze"] == text
    await thaw_cluster(cluster)
    await goes(cluster)
    assert await said(cluster, FROZEN) is None
    assert len(cluster.lines("freeze of the cluster taken away")) == 1


@in_virtual_time
async def test_a_new_process_reads_the_freeze_before_its_first_decision(cluster: VirtualCluster) -> None:
    await freeze_cluster(cluster)
    await start_with_empty_node(cluster, OPEN)
    await cluster.stop()
    await cluster.start()
    await asyncio.sleep(600)
    assert await is_there(cluster)


@pytest.mark.parametrize("data", [{"until": "tomorrow"}, {"untill": "2026-01-01T00:00:00Z"}, {"enabled": "false"}])
@in_virtual_time
async def test_a_freeze_that_cannot_be_read_freezes_and_says_so(cluster: VirtualCluster, data: dict[str, str]) -> None:
    await freeze_cluster(cluster, **data)
    await start_with_empty_node(cluster, OPEN)
    await asyncio.sleep(1800)
    assert await is_there(cluster)
    actual = await said(cluster, FROZEN)
    assert actual is not None
    assert actual[:2] == ("True", "FreezeUnreadable")
    assert f"data.{next(iter(data))}" in actual[2]
    (event,) = await cluster.events(FROZEN)
    assert event.type == "Warning"
    assert len(cluster.lines("freeze of the cluster cannot be read in full")) == 1


@in_virtual_time
async def test_other_config_maps_freeze_nothing(cluster: VirtualCluster) -> None:
    for name, namespace in ((freezes.FREEZE_CONFIG_MAP, "default"), ("other", freezes.FREEZE_NAMESPACE)):
        await cluster.kube.create(kinds.CONFIG_MAP, ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace)))
    await start_with_empty_node(cluster, OPEN)
    await goes(cluster)
