"""Garbage collection of claims whose instance is gone (OPS §1.11): which are checked, and what an unreadable one costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.kube.errors import KubeError, ServerUnavailable
from karpenter.providers.contract import ProviderError
from support.virtual_cluster import VirtualCluster, in_virtual_time

LINE = "garbage collecting nodeclaim with no cloudprovider representation"


async def up(cluster: VirtualCluster, count: int = 1) -> None:
    """A running controller and so many initialized nodes whose kubelets are silent now."""
    await cluster.start()
    for number in range(count):
        await cluster.claim(f"c{number}")
    await asyncio.sleep(0.1)
    for number in range(count):
        await cluster.join(f"c{number}")
    await asyncio.sleep(1)
    for number in range(count):
        await cluster.set_ready(f"node-c{number}", "False")


async def left(cluster: VirtualCluster) -> list[str]:
    return [obj.metadata.name for obj in await cluster.all(kinds.NODE_CLAIM)]


@in_virtual_time
async def test_a_collected_claim_is_counted_and_logged_with_its_node(cluster: VirtualCluster) -> None:
    """OPS-091, DIS-365"""
    await up(cluster)
    provider_id = (await cluster.get_claim("c0")).status.provider_id
    cluster.cloud.instances.clear()
    await asyncio.sleep(125)
    assert await left(cluster) == []
    assert cluster.ended_for("garbage_collected") == 1
    (line,) = cluster.lines(LINE)
    assert (line["NodeClaim"], line["Node"], line["provider-id"]) == ({"name": "c0"}, {"name": "node-c0"}, provider_id)


@in_virtual_time
async def test_a_terminating_instance_is_as_good_as_none(cluster: VirtualCluster) -> None:
    """OPS-090"""
    await up(cluster)
    (instance,) = cluster.cloud.instances
    cluster.cloud.instances[instance] = replace(cluster.cloud.instances[instance], terminating=True)
    await asyncio.sleep(125)
    assert cluster.ended_for("garbage_collected") == 1


@in_virtual_time
async def test_a_node_that_cannot_be_read_keeps_its_claim_and_no_other(cluster: VirtualCluster) -> None:
    """OPS §1.11 Beyond: the next round judges it."""
    await up(cluster, 3)
    cluster.cloud.instances.clear()
    failing = refuse_reading(cluster, "node-c1", ServerUnavailable("broken", status=500))
    await asyncio.sleep(125)
    assert await left(cluster) == ["c1"]
    failing.clear()
    await asyncio.sleep(120)
    assert await left(cluster) == []
    assert cluster.ended_for("garbage_collected") == 3


def refuse_reading(cluster: VirtualCluster, name: str, error: KubeError) -> list[str]:
    """Reading the Node fails as long as its name is in the list that is returned."""
    failing = [name]
    read: Callable[..., Any] = cluster.connection.get

    async def get(kind: Any, wanted: str, *more: Any, **named: Any) -> Any:
        if kind is kinds.NODE and wanted in failing:
            raise error
        return await read(kind, wanted, *more, **named)

    cluster.connection.get = get
    return failing


@in_virtual_time
async def test_a_node_that_the_watch_shows_not_ready_is_read_again(cluster: VirtualCluster) -> None:
    """OPS-090: a node's life hangs on it, so the API server has the word."""
    await up(cluster)
    cluster.cloud.instances.clear()
    manager = cluster.manager
    assert manager is not None
    manager.state.set_node = lambda node: None
    await cluster.set_ready("node-c0", "True")
    await asyncio.sleep(125)
    assert await left(cluster) == ["c0"]


@in_virtual_time
async def test_twin_nodes_of_which_one_lives_keep_their_claim(cluster: VirtualCluster) -> None:
    await up(cluster)
    await cluster.join("c0", "twin")
    cluster.cloud.instances.clear()
    await asyncio.sleep(250)
    assert await left(cluster) == ["c0"]


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
@in_virtual_time
async def test_a_cloud_that_cannot_list_collects_nothing_and_is_retried(cluster: VirtualCluster, hangs: bool) -> None:
    await up(cluster)
    instances = dict(cluster.cloud.instances)
    if hangs:
        cluster.cloud.hangs.add(("list", "*"))
    else:
        cluster.cloud.refuse("list", ProviderError("no"), ProviderError("no"))
    cluster.cloud.instances.clear()
    await asyncio.sleep(200)
    assert await left(cluster) == ["c0"]
    assert cluster.lines("listing instances failed")
    cluster.cloud.instances.update(instances)
    cluster.cloud.hangs.clear()
    await asyncio.sleep(200)
    assert await left(cluster) == ["c0"]
    cluster.cloud.instances.clear()
    await asyncio.sleep(130)
    assert await left(cluster) == []


@in_virtual_time
async def test_many_claims_are_checked_together_but_not_all_at_once(cluster: VirtualCluster) -> None:
    """OPS-090: twenty in parallel."""
    await up(cluster, 50)
    cluster.cloud.instances.clear()
    at_once, most = 0, 0
    delete: Callable[..., Any] = cluster.connection.delete

    async def slowly(kind: Any, *more: Any, **named: Any) -> None:
        nonlocal at_once, most
        if kind is kinds.NODE_CLAIM:
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.5)
            at_once -= 1
        await delete(kind, *more, **named)

    cluster.connection.delete = slowly
    await asyncio.sleep(125)
    assert most == 20
    assert cluster.ended_for("garbage_collected") == 50
