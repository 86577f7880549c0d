"""Load that follows office hours: it rises within a minute in the morning and falls within a minute in the evening."""

from __future__ import annotations

import asyncio

from karpenter.api import kinds
from support.consolidation_cases import begin, deployment, runs, scale
from support.drift_cases import launches
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

_APPS = {"web": "900m", "api": "1700m", "worker": "400m"}
_NIGHT, _DAY = 2, 8
_QUIET_SECONDS = 900.0


async def _scale_all(cluster: VirtualCluster, replicas: int) -> None:
    """One workload after the other, as autoscalers do."""
    for app in _APPS:
        await scale(cluster, app, replicas)
        await asyncio.sleep(4)


async def _pods(cluster: VirtualCluster) -> set[str]:
    """Pods that stay, by uid."""
    return {pod.metadata.uid for pod in await cluster.all(kinds.POD) if pod.metadata.deletion_timestamp is None}


async def _nodes(cluster: VirtualCluster) -> set[str]:
    return {claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM)}


@in_virtual_time
async def test_nodes_come_in_the_morning_go_in_the_evening_and_rest_in_between(cluster: VirtualCluster) -> None:
    """DIS-487: two days. The nights need no more nodes than the first one, nothing moves by day, and few pods restart at all."""
    await begin(cluster, *(deployment(app, _NIGHT, cpu) for app, cpu in _APPS.items()))
    await asyncio.sleep(_QUIET_SECONDS)
    at_night = len(await _nodes(cluster))
    for _ in range(2):
        await _scale_all(cluster, _DAY)
        await until(lambda: runs(cluster, _DAY * len(_APPS)), 120)
        await asyncio.sleep(_QUIET_SECONDS)
        by_day = await _nodes(cluster), await _pods(cluster), launches(cluster)
        await asyncio.sleep(_QUIET_SECONDS)
        assert (await _nodes(cluster), await _pods(cluster), launches(cluster)) == by_day
        await _scale_all(cluster, _NIGHT)
        await asyncio.sleep(1)
        remaining = await _pods(cluster)
        await asyncio.sleep(_QUIET_SECONDS)
        assert len(await _nodes(cluster)) <= at_night < len(by_day[0])
        assert len(remaining & await _pods(cluster)) >= len(remaining) / 2
    assert await runs(cluster, _NIGHT * len(_APPS))
