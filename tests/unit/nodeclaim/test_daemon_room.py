"""DaemonSets without room on a node that is older than they are: reported, and the node replaced where the pool opts in."""

from __future__ import annotations

import asyncio

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption
from karpenter.model import labels
from support.builders import daemon_set
from support.virtual_cluster import VirtualCluster, in_virtual_time

CLOSED = Disruption(consolidate_after="Never", budgets=(Budget(nodes="0"),))
_LOOKED_AT_ALL = 400
_LASTS = 301


async def start_with_node(cluster: VirtualCluster) -> None:
    """A running controller, a pool and one initialized node with a pod."""
    await cluster.node_class()
    await cluster.pool(disruption=CLOSED)
    await cluster.start()
    await cluster.claim("c", pool="np")
    await asyncio.sleep(0.1)
    await cluster.join()
    await asyncio.sleep(1)
    await cluster.running("p", "node-c", requests={"cpu": "100m"})
    await asyncio.sleep(1)


async def opt(cluster: VirtualCluster, value: str) -> None:
    note = {"metadata": {"annotations": {labels.REPLACE_FOR_DAEMON_SETS: value}}}
    await cluster.kube.patch(kinds.NODE_POOL, "np", note)


async def drifted(cluster: VirtualCluster) -> str:
    condition = await cluster.condition("c", "Drifted")
    return "" if condition is None else condition[1]


@in_virtual_time
async def test_a_daemon_set_without_room_is_reported_on_claim_and_node(cluster: VirtualCluster) -> None:
    """DIS-482"""
    await start_with_node(cluster)
    assert await cluster.condition("c", "DaemonSetsFit") is None
    await cluster.kube.create(kinds.DAEMON_SET, daemon_set("agent", {"cpu": "1k"}))
    await asyncio.sleep(_LOOKED_AT_ALL)
    status, reason, message = await cluster.condition("c", "DaemonSetsFit") or ("", "", "")
    assert (status, reason) == ("False", "DaemonSetsLackRoom")
    assert "default/agent" in message
    for about in ("c", "node-c"):
        assert [event.message for event in await cluster.events("DaemonSetsLackRoom", about)] == [message]
    await cluster.kube.delete(kinds.DAEMON_SET, "agent", "default")
    await asyncio.sleep(_LOOKED_AT_ALL)
    assert await cluster.condition("c", "DaemonSetsFit") is None


@in_virtual_time
async def test_a_daemon_set_with_room_is_not_reported(cluster: VirtualCluster) -> None:
    await start_with_node(cluster)
    await cluster.kube.create(kinds.DAEMON_SET, daemon_set("agent", {"cpu": "1m"}))
    await asyncio.sleep(_LOOKED_AT_ALL)
    assert await cluster.condition("c", "DaemonSetsFit") is None
    assert await cluster.events("DaemonSetsLackRoom") == []


@pytest.mark.parametrize(("value", "reason"), [("true", "DaemonSetsLackRoom"), ("false", ""), ("yes", ""), ("", "")])
@in_virtual_time
async def test_the_node_drifts_for_it_where_the_pool_says_so(cluster: VirtualCluster, value: str, reason: str) -> None:
    """DIS-482: only who asks for it has nodes replaced, and only when it has lasted."""
    await start_with_node(cluster)
    await opt(cluster, value)
    await cluster.kube.create(kinds.DAEMON_SET, daemon_set("agent", {"cpu": "1k"}))
    while await cluster.condition("c", "DaemonSetsFit") is None:
        await asyncio.sleep(1)
    await asyncio.sleep(_LASTS - 20)
    assert await drifted(cluster) == ""
    await asyncio.sleep(30)
    assert await drifted(cluster) == reason
    await opt(cluster, "false")
    await asyncio.sleep(1)
    assert await drifted(cluster) == ""
