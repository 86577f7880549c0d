"""Load that follows office hours: it rises within a minute in the morning and falls within a minute in the evening."""

from __future__ import annotations

import asyncio

from karpenter.api import kinds
from support.consolidation_cases import begin, deployment, runs, scale
from support.drift_cases import launches
from support.world import World, story, until

_APPS = {"web": "900m", "api": "1700m", "worker": "400m"}
_NIGHT, _DAY = 2, 8
_QUIET_SECONDS = 900.0


async def _scale_all(world: World, replicas: int) -> None:
    """One workload after the other, as autoscalers do."""
    for app in _APPS:
        await scale(world, app, replicas)
        await asyncio.sleep(4)


async def _pods(world: World) -> set[str]:
    """Pods that stay, by uid."""
    return {pod.metadata.uid for pod in await world.all(kinds.POD) if pod.metadata.deletion_timestamp is None}


async def _nodes(world: World) -> set[str]:
    return {claim.metadata.name for claim in await world.all(kinds.NODE_CLAIM)}


@story
async def test_nodes_come_in_the_morning_go_in_the_evening_and_rest_in_between(world: World) -> None:
    """DIS-487: two days. The nights need no more nodes than the first one, nothing moves by day, and few pods restart at all."""
    await begin(world, *(deployment(app, _NIGHT, cpu) for app, cpu in _APPS.items()))
    await asyncio.sleep(_QUIET_SECONDS)
    at_night = len(await _nodes(world))
    for _ in range(2):
        await _scale_all(world, _DAY)
        await until(lambda: runs(world, _DAY * len(_APPS)), 120)
        await asyncio.sleep(_QUIET_SECONDS)
        by_day = await _nodes(world), await _pods(world), launches(world)
        await asyncio.sleep(_QUIET_SECONDS)
        assert (await _nodes(world), await _pods(world), launches(world)) == by_day
        await _scale_all(world, _NIGHT)
        await asyncio.sleep(1)
        remaining = await _pods(world)
        await asyncio.sleep(_QUIET_SECONDS)
        assert len(await _nodes(world)) <= at_night < len(by_day[0])
        assert len(remaining & await _pods(world)) >= len(remaining) / 2
    assert await runs(world, _NIGHT * len(_APPS))
