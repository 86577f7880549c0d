"""Events of pods while other components create their volumes (SCH-450 Beyond), and log lines about pods left out for them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from karpenter.provisioning.claim_creation import ClaimCreationLimit, ClaimCreationPace
from karpenter.provisioning.nomination import DisabledNominator
from karpenter.provisioning.plan_executor import PlanExecutor
from karpenter.scheduling.solution import Solution, UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import UnschedulableReason, VolumeUnusable
from support.builders import pod
from support.virtual_cluster import START, VirtualCluster, in_virtual_time

TEXT = "failed to validate pvc, pvc with immediate volume binding mode must be bound"
PASSING = UnschedulableReason(VolumeUnusable(TEXT, is_transient=True))
DELETED = "persistentvolumeclaim is being deleted"
LASTING = UnschedulableReason(VolumeUnusable(DELETED))


async def events_after(cluster: VirtualCluster, seconds: float, *reasons: UnschedulableReason) -> int:
    """How many events a pod has of a pass that comes so many seconds after it was made."""
    await cluster.start()
    await asyncio.sleep(seconds)
    assert cluster.manager is not None
    executor = PlanExecutor(
        cluster.manager.context, DisabledNominator(), ClaimCreationPace(timedelta(seconds=10), ClaimCreationLimit(100))
    )
    waiting = pod("p", meta={"creation_timestamp": START})
    await executor.execute(Solution(unschedulable=(UnschedulablePod(waiting, reasons),)), 0.1)
    await asyncio.sleep(1)
    return len(await cluster.events("FailedScheduling"))


@pytest.mark.parametrize(
    ("seconds", "reasons", "events"),
    [
        (5, (PASSING,), 0),
        (31, (PASSING,), 1),
        (5, (LASTING,), 1),
        (5, (PASSING, LASTING), 1),
    ],
    ids=["young", "old", "lasting", "both"],
)
@in_virtual_time
async def test_a_volume_that_is_being_made_is_worth_an_event_only_after_a_while(
    cluster: VirtualCluster, seconds: float, reasons: tuple[UnschedulableReason, ...], events: int
) -> None:
    assert await events_after(cluster, seconds, *reasons) == events


@in_virtual_time
async def test_a_pod_left_out_for_its_volume_is_logged_as_ignored(cluster: VirtualCluster) -> None:
    """SCH-050, SCH-054: its own fault is no error of ours."""
    await events_after(cluster, 5, LASTING)
    assert cluster.lines("could not schedule pod") == []
    assert [line["error"] for line in cluster.lines("ignoring pod")] == [DELETED]
