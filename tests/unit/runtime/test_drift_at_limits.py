"""Drift of a NodePool that has reached its limits (DIS-160, SCH-381, SCH-385)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption
from karpenter.settings import Settings
from support.drift_cases import all_running, drift, errors, is_renewed, launches, start_pool
from support.world import World, story, until

TOGETHER = Disruption(consolidate_after="30s", budgets=(Budget(nodes="100%"),))
ONE_BY_ONE = Disruption(consolidate_after="30s", budgets=(Budget(nodes="1"),))


async def limit_to(world: World, limits: dict[str, str]) -> None:
    await world.kube.patch(kinds.NODE_POOL, "np", {"spec": {"limits": limits}})
    await asyncio.sleep(30)


async def exact_limits(world: World) -> dict[str, str]:
    """What the pool's nodes have, as its limits."""
    pool = await world.kube.get(kinds.NODE_POOL, "np")
    return {name: pool.status.resources[name] for name in ("cpu", "memory", "nodes")}


@pytest.mark.parametrize("disruption", [ONE_BY_ONE, TOGETHER], ids=["budget 1", "budget 100%"])
@story
async def test_a_pool_exactly_at_its_limits_drifts(world: World, disruption: Disruption) -> None:
    """DIS-160, SCH-385: what goes does not count, and usage that just reaches a limit blocks no creation."""
    nodes = await start_pool(world, disruption=disruption)
    await limit_to(world, await exact_limits(world))
    await drift(world)
    await until(lambda: is_renewed(world), 1800, 5)
    await asyncio.sleep(120)
    assert launches(world) == 2 * nodes
    assert await all_running(world)
    assert errors(world) == []


@story
async def test_at_limits_a_node_is_emptied_first_where_the_setting_says_so(world: World) -> None:
    """Setting empty-drifted-nodes-at-limits: nodes that stay and nodes that come never exceed the limit together."""
    nodes = await start_pool(world, settings=Settings(empty_drifted_nodes_at_limits=True), disruption=TOGETHER)
    await limit_to(world, await exact_limits(world))
    largest = [0, 0]
    world.also(watch_nodes(world, largest))
    await drift(world)
    await until(lambda: is_renewed(world), 1800, 5)
    await asyncio.sleep(120)
    assert launches(world) == 2 * nodes
    assert await all_running(world)
    assert largest == [nodes, 1]
    assert any("is at its limits: another node is emptied first" in text for text in await blocked(world))


async def watch_nodes(world: World, largest: list[int]) -> None:
    """Keep the largest number of NodeClaims that stay, and of those that are being deleted."""
    while True:
        await asyncio.sleep(0.5)
        claims = await world.all(kinds.NODE_CLAIM)
        leaving = sum(claim.metadata.deletion_timestamp is not None for claim in claims)
        largest[:] = [max(largest[0], len(claims) - leaving), max(largest[1], leaving)]


@story
async def test_with_room_for_one_more_node_its_replacement_comes_first(world: World) -> None:
    """The setting matters only where the limit does not allow a node and its replacement together."""
    nodes = await start_pool(world, settings=Settings(empty_drifted_nodes_at_limits=True))
    await limit_to(world, {"nodes": str(nodes + 1)})
    await drift(world)
    await until(lambda: is_renewed(world), 1800, 5)
    assert launches(world) == 2 * nodes
    assert {line["decision"] for line in world.lines("disrupting node(s)")} == {"replace"}


@pytest.mark.parametrize("limits", [{"nodes": "2"}, {"cpu": "1"}])
@story
async def test_a_pool_beyond_its_limits_says_so(world: World, limits: dict[str, Any]) -> None:
    """DIS-304: nothing may be created there; the message names the NodePool and the limit, and no command fails for it."""
    await start_pool(world, disruption=TOGETHER)
    await limit_to(world, limits)
    await drift(world)
    await asyncio.sleep(300)
    (resource,) = limits
    texts = await blocked(world)
    assert f'NodePool "np" exceeds its limits on {resource}: no replacement may be created' in " ".join(texts)
    assert errors(world) == []


async def blocked(world: World) -> list[str]:
    return [event.message for event in await world.events("DisruptionBlocked")]
