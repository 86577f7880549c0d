"""The ceiling on claims created per minute: it holds, it says so, and nothing waits longer than it must."""

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
from support.world import START, World, story

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


async def big_pods(world: World, count: int) -> None:
    """Pods of which no machine holds two."""
    world.cloud.capacity["cpu"] = "8"
    await world.waiting(*pods(count, {"cpu": "5"}))


async def start_with_pool(world: World, per_minute: int) -> None:
    await world.node_class()
    await world.pool(disruption=CALM)
    await world.start(Settings(claims_per_minute=per_minute))


async def bought(world: World) -> int:
    return len(await world.all(kinds.NODE_CLAIM))


@story
async def test_claims_beyond_the_ceiling_are_created_when_the_minute_is_over(world: World) -> None:
    await start_with_pool(world, per_minute=2)
    await big_pods(world, 5)
    counts = []
    for _ in range(3):
        await asyncio.sleep(59)
        counts.append(await bought(world))
    assert counts == [2, 4, 5]


@story
async def test_a_ceiling_that_binds_is_reported_on_the_pool_and_in_the_log(world: World) -> None:
    await start_with_pool(world, per_minute=2)
    await big_pods(world, 5)
    await asyncio.sleep(5)
    line = world.lines("nodeclaim creation ceiling reached")[0]
    assert (line["claims-per-minute"], line["deferred"]) == (2, 3)
    event = (await world.events("NodeClaimCeilingReached"))[0]
    assert (event.involved_object.kind, event.involved_object.name, event.type) == ("NodePool", "np", "Warning")
    assert "3 nodeclaim(s) have to wait" in event.message


@story
async def test_a_ceiling_that_does_not_bind_says_nothing(world: World) -> None:
    await start_with_pool(world, per_minute=5)
    await big_pods(world, 5)
    await asyncio.sleep(5)
    assert await bought(world) == 5
    assert world.lines("nodeclaim creation ceiling reached") == []


@story
async def test_a_cloud_that_refuses_every_claim_is_asked_no_faster_than_the_ceiling(world: World) -> None:
    """What the ceiling is for: create, refuse, delete, plan again must not run away."""
    created: list[Any] = []
    await start_with_pool(world, per_minute=6)
    world.wire.after = lambda write: created.append(write) if str(write) == "create NodeClaim" else None
    world.cloud.refuse("create", *(InsufficientCapacity("sold out") for _ in range(1000)))
    await big_pods(world, 3)
    await asyncio.sleep(300)
    assert 6 < len(created) <= 6 * 5 + 6
