"""Consistency of nodes with their NodeClaim (OPS §1.10), and what blocks their initialization (OPS §1.5 Beyond)."""

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
from support.virtual_cluster import VirtualCluster, in_virtual_time, startup

TYPE = "ConsistentStateFound"
LAUNCHED = {"cpu": "16", "memory": "128Gi", "pods": "10"}


async def up(cluster: VirtualCluster, shown: Mapping[str, str] = {}, **spec: Any) -> None:
    """A running controller and an instance launched as 16 cpu, 128Gi and 10 pods whose Node shows this instead."""
    cluster.cloud.capacity = dict(LAUNCHED)
    await cluster.start()
    await cluster.claim(**{"requests": {"cpu": "1", "memory": "1Gi", "pods": "1"}, **spec})
    await asyncio.sleep(0.1)
    await cluster.join(amounts=shown)
    await asyncio.sleep(0.5)


async def found(cluster: VirtualCluster) -> tuple[str, str]:
    return (await cluster.condition("c", TYPE) or ("", ""))[:2]


@in_virtual_time
async def test_a_node_that_is_what_was_launched_is_found_consistent_at_initialisation(cluster: VirtualCluster) -> None:
    """OPS-L41, OPS-085 Beyond: not before there was anything to compare."""
    await cluster.start()
    await cluster.claim(requests={"cpu": "1"})
    await asyncio.sleep(0.1)
    await cluster.join(ready="False")
    await asyncio.sleep(60)
    assert await cluster.condition("c", TYPE) is None
    await cluster.set_ready("node-c", "True")
    await asyncio.sleep(0.5)
    assert await cluster.condition("c", TYPE) == ("True", TYPE, "")
    assert (await cluster.condition("c", "Ready") or ("",))[0] == "True"


@in_virtual_time
async def test_a_node_with_too_little_is_reported(cluster: VirtualCluster) -> None:
    """OPS-087, OPS-088, OPS-513, DIS-326; API-128: ConsistentStateFound is False."""
    await up(cluster, {"memory": "64Gi"})
    assert await cluster.condition("c", TYPE) == ("False", "ConsistencyCheckFailed", "Consistency Check Failed")
    text = "expected 128Gi of resource memory, but found 64Gi (50.0% of expected)"
    assert [line["issue"] for line in cluster.lines("failed consistency check")] == [text]
    (event,) = await cluster.events("FailedConsistencyCheck")
    assert (event.type, event.message, event.involved_object.kind) == ("Warning", text, "NodeClaim")
    assert (await cluster.condition("c", "Ready") or ("",))[0] == "True"


@in_virtual_time
async def test_a_node_is_compared_again_every_ten_minutes_and_not_sooner(cluster: VirtualCluster) -> None:
    """OPS-085"""
    await up(cluster, {"memory": "64Gi"})
    started = cluster.elapsed
    better = {"status": {"capacity": LAUNCHED}}
    await cluster.kube.patch(kinds.NODE, "node-c", better, subresource="status")
    await asyncio.sleep(9 * 60)
    assert await found(cluster) == ("False", "ConsistencyCheckFailed")
    await asyncio.sleep(62)
    assert await found(cluster) == ("True", TYPE)
    assert cluster.elapsed - started < 10 * 60 + 5


@in_virtual_time
async def test_a_node_that_disappears_or_exists_twice_is_not_checked(cluster: VirtualCluster) -> None:
    """OPS-085"""
    await up(cluster)
    await cluster.stop()
    await cluster.edit(kinds.NODE, "node-c", finalizers=[])
    await cluster.kube.delete(kinds.NODE, "node-c")
    await cluster.start()
    await asyncio.sleep(1500)
    assert await found(cluster) == ("True", TYPE)
    assert cluster.lines("failed consistency check") == []


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
def test_only_requested_and_expected_resources_are_compared(
    requests: Any, capacity: Any, shown: Any, count: int
) -> None:
    """OPS-086"""
    claim = msgspec.structs.replace(built_claim("c", requests=requests), status=NodeClaimStatus(capacity=capacity))
    node = Node(metadata=ObjectMeta(name="n"), spec=NodeSpec(), status=NodeStatus(capacity=shown))
    assert len(tuple(consistency_issues(node, claim))) == count


# -- what holds initialisation up --------------------------------------------------------------------------------------------


@in_virtual_time
async def test_what_is_still_missing_is_logged_after_five_minutes_and_then_less_and_less_often(
    cluster: VirtualCluster,
) -> None:
    """OPS-040, and the Beyond of OPS §1.5"""
    await up(cluster, startup_taints=(startup("network"),))
    await asyncio.sleep(280)
    assert await cluster.events("FailedInitialization") == []
    await asyncio.sleep(3300)
    events = await cluster.events("FailedInitialization")
    at = [
        (time - cluster.clock.now()).total_seconds()
        for time in cluster.event_times("FailedInitialization", "NodeClaim")
    ]
    assert [round((moment - at[0]) / 60) for moment in at] == [0, 5, 15, 35]
    assert {(event.type, event.involved_object.kind) for event in events} == {("Warning", "NodeClaim")}
    assert all('StartupTaint "network:NoSchedule" still exists' in event.message for event in events)
    lines = cluster.lines("initialization is held up")
    assert len(lines) == 4
    assert lines[0]["reason"] == "StartupTaintsExist"


@in_virtual_time
async def test_a_node_that_comes_up_in_time_is_not_talked_about(cluster: VirtualCluster) -> None:
    await up(cluster, startup_taints=(startup("network"),))
    await asyncio.sleep(200)
    await cluster.set_taints("node-c", ())
    await asyncio.sleep(3600)
    assert await cluster.events("FailedInitialization") == []
    assert cluster.lines("initialization is held up") == []
