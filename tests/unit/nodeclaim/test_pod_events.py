"""``status.lastPodEventTime``: which changes of a pod count, and where they are written (OPS §1.13, DIS-330 ff.)."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.core import Pod
from karpenter.api.karpenter import Disruption, NodeClassReference
from karpenter.api.meta import OwnerReference
from karpenter.model.clock import rfc3339
from karpenter.nodeclaim.consolidatable import is_pod_event
from support.builders import NOW, pod
from support.virtual_cluster import VirtualCluster, in_virtual_time

DAEMON = OwnerReference(api_version="apps/v1", kind="DaemonSet", name="d", uid="d", controller=True)
MIRROR = OwnerReference(api_version="v1", kind="Node", name="n", uid="n", controller=True)

WAITING = pod("p")
BOUND = pod("p", node_name="n")
ENDED = pod("p", node_name="n", status={"phase": "Succeeded"})
FAILED = pod("p", node_name="n", status={"phase": "Failed"})
LEAVING = pod("p", node_name="n", meta={"deletion_timestamp": NOW})
OF_DAEMON = pod("p", node_name="n", meta={"owner_references": (DAEMON,)})
OF_NODE = pod("p", node_name="n", meta={"owner_references": (MIRROR,)})
RELABELLED = pod("p", node_name="n", meta={"labels": {"a": "b"}})


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        (WAITING, BOUND, True),
        (None, BOUND, True),
        (BOUND, ENDED, True),
        (BOUND, FAILED, True),
        (BOUND, LEAVING, True),
        (None, OF_NODE, True),
        (None, WAITING, False),
        (BOUND, RELABELLED, False),
        (LEAVING, LEAVING, False),
        (ENDED, ENDED, False),
        (None, ENDED, False),
        (None, OF_DAEMON, False),
        (BOUND, None, False),
        (LEAVING, None, False),
        (WAITING, None, False),
    ],
    ids=[
        "bound",
        "appears-bound",
        "succeeded",
        "failed",
        "leaving",
        "DIS-331-mirror",
        "appears-waiting",
        "relabelled",
        "still-leaving",
        "still-ended",
        "appears-ended",
        "daemon",
        "gone",
        "gone-after-leaving",
        "gone-while-waiting",
    ],
)
def test_what_counts_as_an_event(old: Pod | None, new: Pod | None, counts: bool) -> None:
    """OPS-098, DIS-330, DIS-331"""
    assert is_pod_event(old, new) is counts


async def up(cluster: VirtualCluster, **spec: Any) -> None:
    """A running controller and one initialized node that stays."""
    await cluster.node_class()
    await cluster.pool(disruption=Disruption(consolidate_after="Never"))
    await cluster.start()
    await cluster.claim(pool="np", **spec)
    await asyncio.sleep(0.1)
    await cluster.join()
    await asyncio.sleep(1)


async def last(cluster: VirtualCluster) -> datetime | None:
    return (await cluster.get_claim()).status.last_pod_event_time


@in_virtual_time
async def test_an_old_event_gives_way_to_a_new_one(cluster: VirtualCluster) -> None:
    """OPS-L43, OPS-099"""
    await up(cluster)
    old = cluster.clock.now() - timedelta(minutes=5)
    await cluster.edit(kinds.NODE_CLAIM, "c", {"lastPodEventTime": rfc3339(old)})
    await cluster.running("p", "node-c")
    await asyncio.sleep(0.5)
    actual = await last(cluster)
    assert actual is not None
    assert (cluster.clock.now() - actual).total_seconds() < 2


@pytest.mark.parametrize("missing", ["node", "claim"])
@in_virtual_time
async def test_a_pod_whose_node_or_claim_is_missing_writes_nothing(cluster: VirtualCluster, missing: str) -> None:
    """OPS-L42"""
    await up(cluster)
    if missing == "claim":
        await cluster.kube.create(kinds.NODE, msgspec.convert({"metadata": {"name": "elsewhere"}}, kinds.NODE.type))
    written = len(cluster.writes("NodeClaim"))
    stray = msgspec.structs.replace(pod("p").spec, node_name="elsewhere")
    await cluster.kube.create(kinds.POD, msgspec.structs.replace(pod("p"), spec=stray))
    await asyncio.sleep(5)
    assert len(cluster.writes("NodeClaim")) == written
    assert cluster.lines("Reconciler error") == []


@in_virtual_time
async def test_a_claim_of_another_providers_class_is_not_written(cluster: VirtualCluster) -> None:
    """OPS-002"""
    await cluster.start()
    foreign = NodeClassReference(group="other.example", kind="OtherClass", name="default")
    await cluster.claim(node_class_ref=foreign)
    await cluster.edit(kinds.NODE_CLAIM, "c", {"providerID": "other://1"})
    await cluster.join()
    await cluster.running("p", "node-c")
    await asyncio.sleep(5)
    assert await last(cluster) is None
    assert cluster.writes("NodeClaim") == []


@in_virtual_time
async def test_a_restart_is_no_event(cluster: VirtualCluster) -> None:
    """OPS-098 Beyond: quiet times do not start anew."""
    await up(cluster)
    await cluster.running("p", "node-c")
    await asyncio.sleep(60)
    before = await last(cluster)
    await cluster.crash()
    await cluster.start()
    await asyncio.sleep(60)
    assert before is not None
    assert await last(cluster) == before


@in_virtual_time
async def test_a_claim_that_goes_meanwhile_is_no_error(cluster: VirtualCluster) -> None:
    """OPS-098"""
    await up(cluster)
    await cluster.running("p", "node-c")
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await cluster.gone("p")
    await asyncio.sleep(60)
    assert cluster.lines("Reconciler error") == []
