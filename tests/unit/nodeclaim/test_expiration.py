"""Expiration: nodes are deleted exactly at the time that their claim sets (OPS §1.12, DIS §15)."""

from __future__ import annotations

import asyncio

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption
from karpenter.kube.errors import ServerUnavailable
from karpenter.model import labels
from support.virtual_cluster import VirtualCluster, in_virtual_time, refusing, until

CLOSED = Disruption(consolidate_after="Never", budgets=(Budget(nodes="0"),))


async def up(cluster: VirtualCluster, **spec: object) -> None:
    """A running controller, a pool that allows no disruption at all, and one initialized node of it."""
    await cluster.node_class()
    pool = await cluster.pool(disruption=CLOSED)
    await cluster.start()
    await cluster.owned_claim(pool, **spec)
    await asyncio.sleep(0.1)
    await cluster.join()
    await asyncio.sleep(1)


async def is_leaving(cluster: VirtualCluster) -> bool:
    if not await cluster.has(kinds.NODE_CLAIM, "c"):
        return True
    return (await cluster.get_claim()).metadata.deletion_timestamp is not None


@in_virtual_time
async def test_a_claim_goes_when_its_time_is_over_and_is_counted_once(cluster: VirtualCluster) -> None:
    """OPS-L39, OPS-095, OPS-096, DIS-360, DIS-S260, DIS-S262: budgets do not apply, and it is counted once while it is held."""
    await up(cluster, expire_after="30s", metadata={"finalizers": ("example.com/hold",)})
    await cluster.running("busy", "node-c")
    await asyncio.sleep(60)
    assert (await cluster.get_claim()).metadata.deletion_timestamp is not None
    assert cluster.ended_for("expired", "np") == 1
    moved = {"reason": "expired", "nodepool": "np", "capacity_type": "on-demand"}
    more = {"consolidation_policy": "", "termination_mode": "graceful"}
    assert cluster.counted("pods_disruption_initiated_total", **moved, **more) == 1
    assert len(cluster.lines("deleting expired nodeclaim")) == 1
    await cluster.gone("busy")
    await asyncio.sleep(60)
    assert await cluster.has(kinds.NODE_CLAIM, "c")
    assert cluster.ended_for("expired", "np") == 1
    assert len(cluster.lines("deleting expired nodeclaim")) == 1


@pytest.mark.parametrize("after", ["200s", "3m20s", "0h3m20s"])
@in_virtual_time
async def test_a_claim_goes_exactly_then_and_not_before(cluster: VirtualCluster, after: str) -> None:
    """OPS-L40, OPS-095, DIS-S261"""
    await up(cluster, expire_after=after)
    created = (await cluster.get_claim()).metadata.creation_timestamp
    assert created is not None
    await asyncio.sleep(100)
    assert not await is_leaving(cluster)
    await until(lambda: is_leaving(cluster), 200, 0.05)
    assert (cluster.clock.now() - created).total_seconds() == pytest.approx(200, abs=0.1)


@pytest.mark.parametrize("after", ["Never", "99999999999h"])
@in_virtual_time
async def test_a_claim_that_never_expires_stays(cluster: VirtualCluster, after: str) -> None:
    """OPS-L40, DIS-S263, API-028"""
    await up(cluster, expire_after=after)
    await asyncio.sleep(2 * 3600)
    assert not await is_leaving(cluster)


@in_virtual_time
async def test_what_the_pool_says_later_does_not_concern_a_claim(cluster: VirtualCluster) -> None:
    """DIS-360, DIS-356: only the claim's own value counts."""
    await up(cluster, expire_after="Never")
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"template": {"spec": {"expireAfter": "30s"}}}})
    await asyncio.sleep(300)
    assert not await is_leaving(cluster)


@pytest.mark.parametrize("state", ["unregistered", "uninitialised", "protected"])
@in_virtual_time
async def test_readiness_and_protection_do_not_keep_an_expired_node(cluster: VirtualCluster, state: str) -> None:
    """OPS-095, DIS-360"""
    await cluster.node_class()
    pool = await cluster.pool(disruption=CLOSED)
    await cluster.start()
    await cluster.owned_claim(pool, expire_after="60s")
    await asyncio.sleep(0.1)
    if state != "unregistered":
        await cluster.join(ready="False" if state == "uninitialised" else "True")
        await cluster.edit(kinds.NODE, "node-c", annotations={labels.DO_NOT_DISRUPT: "true"})
    await asyncio.sleep(58)
    assert not await is_leaving(cluster)
    await asyncio.sleep(3)
    assert await is_leaving(cluster)


@in_virtual_time
async def test_a_new_process_expires_what_grew_old_meanwhile(cluster: VirtualCluster) -> None:
    await up(cluster, expire_after="10m")
    await cluster.stop()
    await asyncio.sleep(3600)
    await cluster.start()
    await asyncio.sleep(1)
    assert await is_leaving(cluster)
    assert cluster.ended_for("expired", "np") == 1


@in_virtual_time
async def test_an_expiry_the_server_refuses_is_tried_again_and_counted_once(cluster: VirtualCluster) -> None:
    await up(cluster, expire_after="30s")
    cluster.connection.refuse = refusing(lambda: ServerUnavailable("broken", status=500), 3, "delete NodeClaim")
    await asyncio.sleep(29 + 20)
    assert await is_leaving(cluster)
    assert cluster.ended_for("expired", "np") == 1


@in_virtual_time
async def test_a_deleted_pool_takes_its_nodes_along(cluster: VirtualCluster) -> None:
    """DIS-368, API-069: by its claims' owner references, drained like any other."""
    await up(cluster)
    await cluster.running("busy", "node-c")
    await cluster.kube.delete(kinds.NODE_POOL, "np")
    await asyncio.sleep(5)
    assert await is_leaving(cluster)
    assert [write.name for write in cluster.connection.writes if write.verb == "evict"] == ["busy"]
    await cluster.gone("busy")
    await asyncio.sleep(30)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    assert cluster.cloud.instances == {}
