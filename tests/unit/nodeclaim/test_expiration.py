"""Expiration: nodes grow old, and go at the very moment their claim says (OPS §1.12, DIS §15)."""

from __future__ import annotations

import asyncio

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption
from karpenter.kube.errors import ServerUnavailable
from karpenter.model import labels
from support.world import World, refusing, story, until

CLOSED = Disruption(consolidate_after="Never", budgets=(Budget(nodes="0"),))


async def up(world: World, **spec: object) -> None:
    """A running controller, a pool that allows no disruption at all, and one initialised node of it."""
    await world.node_class()
    pool = await world.pool(disruption=CLOSED)
    await world.start()
    await world.owned_claim(pool, **spec)
    await asyncio.sleep(0.1)
    await world.join()
    await asyncio.sleep(1)


async def is_leaving(world: World) -> bool:
    if not await world.has(kinds.NODE_CLAIM, "c"):
        return True
    return (await world.get_claim()).metadata.deletion_timestamp is not None


@story
async def test_a_claim_goes_when_its_time_is_over_and_is_counted_once(world: World) -> None:
    """OPS-L39, OPS-095, OPS-096, DIS-360, DIS-S260, DIS-S262: budgets do not apply, and it is counted once while it is held."""
    await up(world, expire_after="30s", metadata={"finalizers": ("example.com/hold",)})
    await world.running("busy", "node-c")
    await asyncio.sleep(60)
    assert (await world.get_claim()).metadata.deletion_timestamp is not None
    assert world.ended_for("expired", "np") == 1
    moved = {"reason": "expired", "nodepool": "np", "capacity_type": "on-demand"}
    more = {"consolidation_policy": "", "termination_mode": "graceful"}
    assert world.counted("pods_disruption_initiated_total", **moved, **more) == 1
    assert len(world.lines("deleting expired nodeclaim")) == 1
    await world.gone("busy")
    await asyncio.sleep(60)
    assert await world.has(kinds.NODE_CLAIM, "c")
    assert world.ended_for("expired", "np") == 1
    assert len(world.lines("deleting expired nodeclaim")) == 1


@pytest.mark.parametrize("after", ["200s", "3m20s", "0h3m20s"])
@story
async def test_a_claim_goes_exactly_then_and_not_before(world: World, after: str) -> None:
    """OPS-L40, OPS-095, DIS-S261"""
    await up(world, expire_after=after)
    created = (await world.get_claim()).metadata.creation_timestamp
    assert created is not None
    await asyncio.sleep(100)
    assert not await is_leaving(world)
    await until(lambda: is_leaving(world), 200, 0.05)
    assert (world.clock.now() - created).total_seconds() == pytest.approx(200, abs=0.1)


@pytest.mark.parametrize("after", ["Never", "99999999999h"])
@story
async def test_a_claim_that_never_expires_stays(world: World, after: str) -> None:
    """OPS-L40, DIS-S263, API-028"""
    await up(world, expire_after=after)
    await asyncio.sleep(2 * 3600)
    assert not await is_leaving(world)


@story
async def test_what_the_pool_says_later_does_not_concern_a_claim(world: World) -> None:
    """DIS-360, DIS-356: only the claim's own value counts."""
    await up(world, expire_after="Never")
    await world.kube.patch(kinds.NODE_POOL, "np", {"spec": {"template": {"spec": {"expireAfter": "30s"}}}})
    await asyncio.sleep(300)
    assert not await is_leaving(world)


@pytest.mark.parametrize("state", ["unregistered", "uninitialised", "protected"])
@story
async def test_readiness_and_protection_do_not_keep_an_expired_node(world: World, state: str) -> None:
    """OPS-095, DIS-360"""
    await world.node_class()
    pool = await world.pool(disruption=CLOSED)
    await world.start()
    await world.owned_claim(pool, expire_after="60s")
    await asyncio.sleep(0.1)
    if state != "unregistered":
        await world.join(ready="False" if state == "uninitialised" else "True")
        await world.edit(kinds.NODE, "node-c", annotations={labels.DO_NOT_DISRUPT: "true"})
    await asyncio.sleep(58)
    assert not await is_leaving(world)
    await asyncio.sleep(3)
    assert await is_leaving(world)


@story
async def test_a_new_process_expires_what_grew_old_meanwhile(world: World) -> None:
    await up(world, expire_after="10m")
    await world.stop()
    await asyncio.sleep(3600)
    await world.start()
    await asyncio.sleep(1)
    assert await is_leaving(world)
    assert world.ended_for("expired", "np") == 1


@story
async def test_an_expiry_the_server_refuses_is_tried_again_and_counted_once(world: World) -> None:
    await up(world, expire_after="30s")
    world.wire.refuse = refusing(lambda: ServerUnavailable("broken", status=500), 3, "delete NodeClaim")
    await asyncio.sleep(29 + 20)
    assert await is_leaving(world)
    assert world.ended_for("expired", "np") == 1


@story
async def test_a_deleted_pool_takes_its_nodes_along(world: World) -> None:
    """DIS-368, API-069: by its claims' owner references, drained like any other."""
    await up(world)
    await world.running("busy", "node-c")
    await world.kube.delete(kinds.NODE_POOL, "np")
    await asyncio.sleep(5)
    assert await is_leaving(world)
    assert [write.name for write in world.wire.writes if write.verb == "evict"] == ["busy"]
    await world.gone("busy")
    await asyncio.sleep(30)
    assert not await world.has(kinds.NODE_CLAIM, "c")
    assert world.cloud.instances == {}
