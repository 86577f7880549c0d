"""Drift of a NodePool that has reached its limits (DIS-160, SCH-381, SCH-385)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption
from karpenter.settings import Settings
from support.drift_cases import all_running, drift, errors, is_renewed, launches, start_pool
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

TOGETHER = Disruption(consolidate_after="30s", budgets=(Budget(nodes="100%"),))
ONE_BY_ONE = Disruption(consolidate_after="30s", budgets=(Budget(nodes="1"),))


async def limit_to(cluster: VirtualCluster, limits: dict[str, str]) -> None:
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"limits": limits}})
    await asyncio.sleep(30)


async def exact_limits(cluster: VirtualCluster) -> dict[str, str]:
    """What the pool's nodes have, as its limits."""
    pool = await cluster.kube.get(kinds.NODE_POOL, "np")
    return {name: pool.status.resources[name] for name in ("cpu", "memory", "nodes")}


@pytest.mark.parametrize("disruption", [ONE_BY_ONE, TOGETHER], ids=["budget 1", "budget 100%"])
@in_virtual_time
async def test_a_pool_exactly_at_its_limits_drifts(cluster: VirtualCluster, disruption: Disruption) -> None:
    """DIS-160, SCH-385: what goes does not count, and usage that just reaches a limit blocks no creation."""
    nodes = await start_pool(cluster, disruption=disruption)
    await limit_to(cluster, await exact_limits(cluster))
    await drift(cluster)
    await until(lambda: is_renewed(cluster), 1800, 5)
    await asyncio.sleep(120)
    assert launches(cluster) == 2 * nodes
    assert await all_running(cluster)
    assert errors(cluster) == []


@in_virtual_time
async def test_at_limits_a_node_is_emptied_first_where_the_setting_says_so(cluster: VirtualCluster) -> None:
    """Setting empty-drifted-nodes-at-limits: nodes that stay and nodes that come never exceed the limit together."""
    nodes = await start_pool(cluster, settings=Settings(empty_drifted_nodes_at_limits=True), disruption=TOGETHER)
    await limit_to(cluster, await exact_limits(cluster))
    largest = [0, 0]
    cluster.also(watch_nodes(cluster, largest))
    await drift(cluster)
    await until(lambda: is_renewed(cluster), 1800, 5)
    await asyncio.sleep(120)
    assert launches(cluster) == 2 * nodes
    assert await all_running(cluster)
    assert largest == [nodes, 1]
    assert any("is at its limits: another node is emptied first" in text for text in await blocked(cluster))


async def watch_nodes(cluster: VirtualCluster, largest: list[int]) -> None:
    """Keep the largest number of NodeClaims that stay, and of those that are being deleted."""
    while True:
        await asyncio.sleep(0.5)
        claims = await cluster.all(kinds.NODE_CLAIM)
        leaving = sum(claim.metadata.deletion_timestamp is not None for claim in claims)
        largest[:] = [max(largest[0], len(claims) - leaving), max(largest[1], leaving)]


@in_virtual_time
async def test_with_room_for_one_more_node_its_replacement_comes_first(cluster: VirtualCluster) -> None:
    """The setting matters only where the limit does not allow a node and its replacement together."""
    nodes = await start_pool(cluster, settings=Settings(empty_drifted_nodes_at_limits=True))
    await limit_to(cluster, {"nodes": str(nodes + 1)})
    await drift(cluster)
    await until(lambda: is_renewed(cluster), 1800, 5)
    assert launches(cluster) == 2 * nodes
    assert {line["decision"] for line in cluster.lines("disrupting node(s)")} == {"replace"}


@pytest.mark.parametrize("limits", [{"nodes": "2"}, {"cpu": "1"}])
@in_virtual_time
async def test_a_pool_beyond_its_limits_says_so(cluster: VirtualCluster, limits: dict[str, Any]) -> None:
    """DIS-304: nothing may be created there; the message names the NodePool and the limit, and no command fails for it."""
    await start_pool(cluster, disruption=TOGETHER)
    await limit_to(cluster, limits)
    await drift(cluster)
    await asyncio.sleep(300)
    (resource,) = limits
    texts = await blocked(cluster)
    assert f'NodePool "np" exceeds its limits on {resource}: no replacement may be created' in " ".join(texts)
    assert errors(cluster) == []


async def blocked(cluster: VirtualCluster) -> list[str]:
    return [event.message for event in await cluster.events("DisruptionBlocked")]
