"""The rate limit on created claims: it holds and is reported, and no claim waits longer than necessary."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from karpenter.api import kinds
from karpenter.api.karpenter import Disruption
from karpenter.providers.contract import InsufficientCapacity
from karpenter.provisioning.claim_creation import ClaimCreationLimit
from karpenter.settings import Settings
from support.builders import pods
from support.virtual_cluster import START, VirtualCluster, in_virtual_time

CALM = Disruption(consolidate_after="Never")


@given(
    per_minute=st.integers(1, 5),
    steps=st.lists(st.tuples(st.floats(0, 40), st.integers(0, 8)), min_size=1, max_size=30),
)
def test_no_minute_sees_more_creations_than_the_ceiling(per_minute: int, steps: list[tuple[float, int]]) -> None:
    ceiling = ClaimCreationLimit(per_minute)
    now, done = START, []
    for pause, wanted in steps:
        now += timedelta(seconds=pause)
        granted = min(wanted, ceiling.available(now))
        ceiling.record(granted, now)
        done += [now] * granted
        assert granted == wanted or ceiling.retry_after_seconds(now) > 0
    for first in done:
        assert sum(first <= at < first + timedelta(minutes=1) for at in done) <= per_minute


async def big_pods(cluster: VirtualCluster, count: int) -> None:
    """Pods so large that each needs its own node."""
    cluster.cloud.capacity["cpu"] = "8"
    await cluster.waiting(*pods(count, {"cpu": "5"}))


async def start_with_pool(cluster: VirtualCluster, per_minute: int) -> None:
    await cluster.node_class()
    await cluster.pool(disruption=CALM)
    await cluster.start(Settings(claims_per_minute=per_minute))


async def launched(cluster: VirtualCluster) -> int:
    return len(await cluster.all(kinds.NODE_CLAIM))


@in_virtual_time
async def test_claims_beyond_the_ceiling_are_created_when_the_minute_is_over(cluster: VirtualCluster) -> None:
    await start_with_pool(cluster, per_minute=2)
    await big_pods(cluster, 5)
    counts = []
    for _ in range(3):
        await asyncio.sleep(59)
        counts.append(await launched(cluster))
    assert counts == [2, 4, 5]


@in_virtual_time
async def test_a_ceiling_that_binds_is_reported_on_the_pool_and_in_the_log(cluster: VirtualCluster) -> None:
    await start_with_pool(cluster, per_minute=2)
    await big_pods(cluster, 5)
    await asyncio.sleep(5)
    line = cluster.lines("nodeclaim creation ceiling reached")[0]
    assert (line["claims-per-minute"], line["deferred"]) == (2, 3)
    event = (await cluster.events("NodeClaimCeilingReached"))[0]
    assert (event.involved_object.kind, event.involved_object.name, event.type) == ("NodePool", "np", "Warning")
    assert "3 nodeclaim(s) have to wait" in event.message


@in_virtual_time
async def test_a_ceiling_that_does_not_bind_says_nothing(cluster: VirtualCluster) -> None:
    await start_with_pool(cluster, per_minute=5)
    await big_pods(cluster, 5)
    await asyncio.sleep(5)
    assert await launched(cluster) == 5
    assert cluster.lines("nodeclaim creation ceiling reached") == []


@in_virtual_time
async def test_launches_that_are_all_refused_stay_below_the_rate_limit(cluster: VirtualCluster) -> None:
    """What the ceiling is for: create, refuse, delete, plan again must not run away."""
    created: list[Any] = []
    await start_with_pool(cluster, per_minute=6)
    cluster.connection.after = lambda write: created.append(write) if str(write) == "create NodeClaim" else None
    cluster.cloud.refuse("create", *(InsufficientCapacity("sold out") for _ in range(1000)))
    await big_pods(cluster, 3)
    await asyncio.sleep(300)
    assert 6 < len(created) <= 6 * 5 + 6
