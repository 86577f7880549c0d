"""In-flight claims: they count as capacity and block no pod (SCH-071, OPS-110; scenarios OPS-S6 to OPS-S20).

The reference closes a barrier over all decisions while any claim lacks a provider ID; these are its rows as they hold here.
"""

from __future__ import annotations

import asyncio

import pytest

from karpenter.api import kinds
from karpenter.kube.errors import ServerUnavailable
from karpenter.metrics.exposition import render_sync
from karpenter.providers.contract import ProviderError
from support.builders import claim, existing, left, new_types, node_pool, plan, pod, pods
from support.metrics_scrape import Scrape
from support.virtual_cluster import VirtualCluster, in_virtual_time

REFUSALS = 10**4


async def stuck(cluster: VirtualCluster) -> str:
    """A controller whose cloud launches nothing, a pod, and the claim that was made for it; the claim's name."""
    cluster.cloud.refuse("create", *(ProviderError("not yet") for _ in range(REFUSALS)))
    await cluster.node_class()
    await cluster.pool()
    await cluster.start()
    await cluster.waiting(pod("first", {"cpu": "7"}))
    await asyncio.sleep(2)
    (made,) = await cluster.all(kinds.NODE_CLAIM)
    return str(made.metadata.name)


def figure(cluster: VirtualCluster, name: str) -> float:
    assert cluster.manager is not None
    return Scrape(render_sync(cluster.manager.metrics.registry)).value(f"karpenter_cluster_state_{name}")


async def names(cluster: VirtualCluster) -> list[str]:
    return [obj.metadata.name for obj in await cluster.all(kinds.NODE_CLAIM)]


@in_virtual_time
async def test_a_claim_without_a_provider_id_delays_no_pass(cluster: VirtualCluster) -> None:
    """OPS-S6, SCH-071, OPS-110: other pods get claims of their own, its pod gets no second one."""
    first = await stuck(cluster)
    await cluster.waiting(pod("second", {"cpu": "7"}))
    await asyncio.sleep(2)
    assert len(await names(cluster)) == 2
    await asyncio.sleep(60)
    assert len(await names(cluster)) == 2
    assert first in await names(cluster)
    assert figure(cluster, "synced") == 1


@in_virtual_time
async def test_when_the_claim_goes_its_pod_is_planned_anew(cluster: VirtualCluster) -> None:
    """OPS-S6, OPS-050"""
    first = await stuck(cluster)
    await cluster.kube.delete(kinds.NODE_CLAIM, first)
    await asyncio.sleep(5)
    actual = await names(cluster)
    assert len(actual) == 1


def test_a_claim_known_only_from_its_creation_counts_at_once() -> None:
    """OPS-S7, OPS-112: the next pass cannot launch nodes for the same pods again."""
    waiting = pods(3, {"cpu": "1"})
    result = plan(node_pool("np"), *waiting)
    (made,) = result.new_claims
    again = plan(node_pool("np"), *waiting, made.claim)
    assert again.new_claims == ()
    assert list(existing(again).values()) == [3]
    assert left(again) == []


@pytest.mark.parametrize("launched", [False, True], ids=["in-flight", "launched"])
def test_what_a_claim_in_flight_may_become_counts_against_limits(launched: bool) -> None:
    """OPS-110 Beyond, SCH-384: capacity that will come is launched already."""
    limited = node_pool("np", limits={"nodes": 1})
    coming = claim("c", {"cpu": "1"} if launched else None, provider_id="p://c" if launched else "")
    result = plan(limited, coming, pod("p", {"cpu": "3"}))
    assert new_types(result) == []
    assert left(result) == ["p"] or list(existing(result).values()) == [1]


@in_virtual_time
async def test_a_node_the_watch_has_not_shown_does_not_close_anything(cluster: VirtualCluster) -> None:
    """OPS-S8: the picture is complete while the watches bring news."""
    await cluster.node_class()
    await cluster.pool()
    await cluster.start()
    cluster.server.close_watches()
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await asyncio.sleep(5)
    assert figure(cluster, "synced") == 1
    assert len(await names(cluster)) == 1


@in_virtual_time
async def test_a_claim_two_minutes_in_launch_leaves_the_picture_complete(cluster: VirtualCluster) -> None:
    """OPS-S9: what is counted as not synced is a watch that fails, and that is named."""
    await stuck(cluster)
    await asyncio.sleep(120)
    assert figure(cluster, "synced") == 1
    assert figure(cluster, "unsynced_time_seconds") == 0


@in_virtual_time
async def test_a_watch_that_fails_is_named_as_what_blocks(cluster: VirtualCluster) -> None:
    """OPS-S9, OPS-110 Beyond (b), OPS-111"""
    cluster.server.inject_fault(ServerUnavailable("slow", status=503), verb="list", plural="nodes", times=10**6)
    await cluster.node_class()
    await cluster.pool()
    await cluster.start()
    await asyncio.sleep(120)
    assert cluster.manager is not None
    assert "nodes" in cluster.manager.informers.unready()
    assert figure(cluster, "synced") == 0
    assert figure(cluster, "unsynced_time_seconds") >= 119


@in_virtual_time
async def test_an_unlaunched_claim_that_exists_stays_known(cluster: VirtualCluster) -> None:
    """OPS-S19, OPS-094, K15-382: only what the API server does not have is forgotten."""
    first = await stuck(cluster)
    await asyncio.sleep(60)
    assert cluster.manager is not None
    assert cluster.manager.state.claim(first) is not None
    assert cluster.lines("garbage collecting stale unlaunched nodeclaim from cluster state") == []


@pytest.mark.parametrize("provider_id", ["", "fake:///ghost"], ids=["unlaunched", "OPS-S20-launched"])
@in_virtual_time
async def test_a_claim_neither_the_watch_nor_the_server_has_is_forgotten(
    cluster: VirtualCluster, provider_id: str
) -> None:
    """OPS-S20, OPS-094, K15-382: also a launched one; no watch has anything to say about what it never showed."""
    await cluster.node_class()
    await cluster.pool()
    await cluster.start()
    manager = cluster.manager
    assert manager is not None
    manager.state.set_claim(claim("ghost", {"cpu": "8"}, provider_id=provider_id))
    await asyncio.sleep(6)
    assert manager.state.claim("ghost") is None
    assert len(cluster.lines("garbage collecting stale unlaunched nodeclaim from cluster state")) == 1
