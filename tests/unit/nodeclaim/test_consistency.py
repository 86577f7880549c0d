"""Whether nodes are what was bought (OPS §1.10), and what holds their initialisation up (OPS §1.5 Beyond)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.core import Node, NodeSpec, NodeStatus
from karpenter.api.karpenter import NodeClaimStatus
from karpenter.api.meta import ObjectMeta
from karpenter.nodeclaim.consistency import consistency_issues
from support.builders import claim as built_claim
from support.world import World, startup, story

TYPE = "ConsistentStateFound"
BOUGHT = {"cpu": "16", "memory": "128Gi", "pods": "10"}


async def up(world: World, shown: Mapping[str, str] = {}, **spec: Any) -> None:
    """A running controller and an instance launched as 16 cpu, 128Gi and 10 pods whose Node shows this instead."""
    world.cloud.capacity = dict(BOUGHT)
    await world.start()
    await world.claim(**{"requests": {"cpu": "1", "memory": "1Gi", "pods": "1"}, **spec})
    await asyncio.sleep(0.1)
    await world.join(amounts=shown)
    await asyncio.sleep(0.5)


async def found(world: World) -> tuple[str, str]:
    return (await world.condition("c", TYPE) or ("", ""))[:2]


@story
async def test_a_node_that_is_what_was_bought_is_found_consistent_at_initialisation(world: World) -> None:
    """OPS-L41, OPS-085 Beyond: not before there was anything to compare."""
    await world.start()
    await world.claim(requests={"cpu": "1"})
    await asyncio.sleep(0.1)
    await world.join(ready="False")
    await asyncio.sleep(60)
    assert await world.condition("c", TYPE) is None
    await world.set_ready("node-c", "True")
    await asyncio.sleep(0.5)
    assert await world.condition("c", TYPE) == ("True", TYPE, "")
    assert (await world.condition("c", "Ready") or ("",))[0] == "True"


@story
async def test_a_node_with_too_little_is_reported(world: World) -> None:
    """OPS-087, OPS-088, OPS-513, DIS-326; API-128: ConsistentStateFound is False."""
    await up(world, {"memory": "64Gi"})
    assert await world.condition("c", TYPE) == ("False", "ConsistencyCheckFailed", "Consistency Check Failed")
    text = "expected 128Gi of resource memory, but found 64Gi (50.0% of expected)"
    assert [line["issue"] for line in world.lines("failed consistency check")] == [text]
    (event,) = await world.events("FailedConsistencyCheck")
    assert (event.type, event.message, event.involved_object.kind) == ("Warning", text, "NodeClaim")
    assert (await world.condition("c", "Ready") or ("",))[0] == "True"


@story
async def test_a_node_is_compared_again_every_ten_minutes_and_not_sooner(world: World) -> None:
    """OPS-085"""
    await up(world, {"memory": "64Gi"})
    started = world.elapsed
    better = {"status": {"capacity": BOUGHT}}
    await world.kube.patch(kinds.NODE, "node-c", better, subresource="status")
    await asyncio.sleep(9 * 60)
    assert await found(world) == ("False", "ConsistencyCheckFailed")
    await asyncio.sleep(62)
    assert await found(world) == ("True", TYPE)
    assert world.elapsed - started < 10 * 60 + 5


@story
async def test_a_node_that_disappears_or_doubles_is_not_judged(world: World) -> None:
    """OPS-085"""
    await up(world)
    await world.stop()
    await world.edit(kinds.NODE, "node-c", finalizers=[])
    await world.kube.delete(kinds.NODE, "node-c")
    await world.start()
    await asyncio.sleep(1500)
    assert await found(world) == ("True", TYPE)
    assert world.lines("failed consistency check") == []


@pytest.mark.parametrize(
    ("requests", "capacity", "shown", "count"),
    [
        ({"cpu": "1"}, {"cpu": "10"}, {"cpu": "9"}, 0),
        ({"cpu": "1"}, {"cpu": "10"}, {"cpu": "8999m"}, 1),
        ({"cpu": "1"}, {"cpu": "10"}, {}, 1),
        ({"cpu": "0"}, {"cpu": "10"}, {"cpu": "1"}, 0),
        ({}, {"cpu": "10"}, {"cpu": "1"}, 0),
        ({"cpu": "1"}, {}, {"cpu": "1"}, 0),
        ({"cpu": "1"}, {"cpu": "0"}, {"cpu": "1"}, 0),
        ({"cpu": "1", "memory": "1Gi"}, {"cpu": "10", "memory": "10Gi"}, {"cpu": "1", "memory": "1Gi"}, 2),
        ({"cpu": "1e1.5"}, {"cpu": "10"}, {"cpu": "10"}, 1),
    ],
    ids=["90%", "below", "none", "zero", "not asked", "not promised", "promised zero", "two", "unreadable"],
)
def test_only_what_was_asked_for_and_promised_is_compared(requests: Any, capacity: Any, shown: Any, count: int) -> None:
    """OPS-086"""
    claim = msgspec.structs.replace(built_claim("c", requests=requests), status=NodeClaimStatus(capacity=capacity))
    node = Node(metadata=ObjectMeta(name="n"), spec=NodeSpec(), status=NodeStatus(capacity=shown))
    assert len(tuple(consistency_issues(node, claim))) == count


# -- what holds initialisation up --------------------------------------------------------------------------------------------


@story
async def test_what_is_still_missing_is_said_after_five_minutes_and_then_ever_less_often(world: World) -> None:
    """OPS-040, and the Beyond of OPS §1.5"""
    await up(world, startup_taints=(startup("network"),))
    await asyncio.sleep(280)
    assert await world.events("FailedInitialization") == []
    await asyncio.sleep(3300)
    events = await world.events("FailedInitialization")
    at = [(time - world.clock.now()).total_seconds() for time in world.event_times("FailedInitialization", "NodeClaim")]
    assert [round((moment - at[0]) / 60) for moment in at] == [0, 5, 15, 35]
    assert {(event.type, event.involved_object.kind) for event in events} == {("Warning", "NodeClaim")}
    assert all('StartupTaint "network:NoSchedule" still exists' in event.message for event in events)
    lines = world.lines("initialization is held up")
    assert len(lines) == 4
    assert lines[0]["reason"] == "StartupTaintsExist"


@story
async def test_a_node_that_comes_up_in_time_is_not_talked_about(world: World) -> None:
    await up(world, startup_taints=(startup("network"),))
    await asyncio.sleep(200)
    await world.set_taints("node-c", ())
    await asyncio.sleep(3600)
    assert await world.events("FailedInitialization") == []
    assert world.lines("initialization is held up") == []
