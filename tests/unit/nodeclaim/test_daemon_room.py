"""DaemonSets that find no room on a node that was launched before them: said, and mended where the pool's owner wants that."""

from __future__ import annotations

import asyncio

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption
from karpenter.model import labels
from support.builders import daemon_set
from support.world import World, story

CLOSED = Disruption(consolidate_after="Never", budgets=(Budget(nodes="0"),))
_LOOKED_AT_ALL = 400
_LASTS = 301


async def machine(world: World) -> None:
    """A running controller, a pool and one initialised node with a pod."""
    await world.node_class()
    await world.pool(disruption=CLOSED)
    await world.start()
    await world.claim("c", pool="np")
    await asyncio.sleep(0.1)
    await world.join()
    await asyncio.sleep(1)
    await world.running("p", "node-c", requests={"cpu": "100m"})
    await asyncio.sleep(1)


async def opt(world: World, value: str) -> None:
    note = {"metadata": {"annotations": {labels.REPLACE_FOR_DAEMON_SETS: value}}}
    await world.kube.patch(kinds.NODE_POOL, "np", note)


async def drifted(world: World) -> str:
    condition = await world.condition("c", "Drifted")
    return "" if condition is None else condition[1]


@story
async def test_a_daemon_set_without_room_is_told_on_claim_and_node(world: World) -> None:
    """DIS-482"""
    await machine(world)
    assert await world.condition("c", "DaemonSetsFit") is None
    await world.kube.create(kinds.DAEMON_SET, daemon_set("agent", {"cpu": "1k"}))
    await asyncio.sleep(_LOOKED_AT_ALL)
    status, reason, message = await world.condition("c", "DaemonSetsFit") or ("", "", "")
    assert (status, reason) == ("False", "DaemonSetsLackRoom")
    assert "default/agent" in message
    for about in ("c", "node-c"):
        assert [event.message for event in await world.events("DaemonSetsLackRoom", about)] == [message]
    await world.kube.delete(kinds.DAEMON_SET, "agent", "default")
    await asyncio.sleep(_LOOKED_AT_ALL)
    assert await world.condition("c", "DaemonSetsFit") is None


@story
async def test_a_daemon_set_with_room_is_not_told(world: World) -> None:
    await machine(world)
    await world.kube.create(kinds.DAEMON_SET, daemon_set("agent", {"cpu": "1m"}))
    await asyncio.sleep(_LOOKED_AT_ALL)
    assert await world.condition("c", "DaemonSetsFit") is None
    assert await world.events("DaemonSetsLackRoom") == []


@pytest.mark.parametrize(("value", "reason"), [("true", "DaemonSetsLackRoom"), ("false", ""), ("yes", ""), ("", "")])
@story
async def test_the_node_drifts_for_it_where_the_pool_says_so(world: World, value: str, reason: str) -> None:
    """DIS-482: only who asks for it has nodes replaced, and only when it has lasted."""
    await machine(world)
    await opt(world, value)
    await world.kube.create(kinds.DAEMON_SET, daemon_set("agent", {"cpu": "1k"}))
    while await world.condition("c", "DaemonSetsFit") is None:
        await asyncio.sleep(1)
    await asyncio.sleep(_LASTS - 20)
    assert await drifted(world) == ""
    await asyncio.sleep(30)
    assert await drifted(world) == reason
    await opt(world, "false")
    await asyncio.sleep(1)
    assert await drifted(world) == ""
