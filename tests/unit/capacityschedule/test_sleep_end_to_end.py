"""NodePools that sleep, under a running controller: protections, exceptions, restarts, and many nodes."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from karpenter.api import kinds
from karpenter.api.capacity_schedule import ScheduleWindow, SleepSettings
from karpenter.api.core import PodDisruptionBudget, PodDisruptionBudgetSpec
from karpenter.api.karpenter import NodeSelectorRequirementWithMinValues
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.model import labels
from karpenter.runtime.intervals import Intervals
from support.consolidation_cases import OPEN, begin, deployment
from support.fake_cloud import TYPES
from support.sleep_cases import (
    WriteTimes,
    annotate,
    capacity_schedule,
    running_pods,
    settings_with_schedules,
    sleep_until,
)
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

_SEOUL = ZoneInfo("Asia/Seoul")
#: The first evening and morning after the test begins on New Year's Day.
_MORNING, _EVENING = datetime(2026, 1, 2, 7, tzinfo=_SEOUL), datetime(2026, 1, 2, 22, tzinfo=_SEOUL)
_RARE = Intervals(
    nodepool_counter=timedelta(minutes=15),
    provisioning_retry=timedelta(minutes=30),
    disruption_poll=timedelta(seconds=30),
    disruption_recheck=timedelta(hours=2),
    garbage_collection=timedelta(hours=1),
    metrics_refresh=timedelta(hours=1),
)
_SMALLEST = NodeSelectorRequirementWithMinValues(key=labels.INSTANCE_TYPE, operator="In", values=(TYPES[0].name,))


async def _office(cluster: VirtualCluster, *workloads: object, **schedule: object) -> None:
    """Workloads on nodes of the smallest type, and a schedule that comes when they run."""
    cluster.settings = settings_with_schedules(intervals=_RARE)
    await begin(cluster, *workloads, policy="WhenEmpty", requirements=(_SMALLEST,))
    await cluster.kube.create(kinds.CAPACITY_SCHEDULE, capacity_schedule(**schedule))


def _pdb(name: str, max_unavailable: int | str) -> PodDisruptionBudget:
    spec = PodDisruptionBudgetSpec(max_unavailable=max_unavailable, selector=LabelSelector(match_labels={"app": name}))
    return PodDisruptionBudget(metadata=ObjectMeta(name=name, namespace="default"), spec=spec)


async def _nodes(cluster: VirtualCluster) -> int:
    return len(await cluster.all(kinds.NODE_CLAIM))


@in_virtual_time
async def test_pods_of_a_sleeping_pool_say_until_when_they_wait_and_the_status_says_so_too(
    cluster: VirtualCluster,
) -> None:
    await _office(cluster, deployment("web", 2, "500m"))
    await asyncio.sleep(1200)
    assert await _nodes(cluster) == 0
    (event, *_) = await cluster.events("FailedScheduling")
    assert "NodePool is asleep: CapacitySchedule office until 2026-01-02T07:00:00+09:00" in event.message
    assert [event.message for event in await cluster.events("Asleep", "NodePool")]
    status = (await cluster.kube.get(kinds.CAPACITY_SCHEDULE, "office")).status
    assert (status.state, status.next_state, status.next_change) == ("Asleep", "Awake", _MORNING)
    assert (status.node_pools, status.nodes) == (1, 0)


@in_virtual_time
async def test_a_pool_is_woken_by_hand_for_a_while_and_sleeps_again_with_grace(cluster: VirtualCluster) -> None:
    """A waiting pod with the annotation wakes it as well."""
    await _office(cluster, deployment("web", 2, "500m"))
    await asyncio.sleep(1200)
    assert await _nodes(cluster) == 0
    end = cluster.clock.now() + timedelta(hours=2)
    await annotate(cluster, kinds.NODE_POOL, "np", labels.KEEP_AWAKE_UNTIL, end.isoformat())
    await asyncio.sleep(30)
    assert await running_pods(cluster) == 2
    await sleep_until(cluster, end + timedelta(minutes=9))
    assert await running_pods(cluster) == 2
    await sleep_until(cluster, end + timedelta(minutes=20))
    assert await _nodes(cluster) == 0
    (waiting, _) = await cluster.all(kinds.POD)
    later = (cluster.clock.now() + timedelta(hours=1)).isoformat()
    name = waiting.metadata.name
    await annotate(cluster, kinds.POD, name, labels.KEEP_AWAKE_UNTIL, later, "default")
    await asyncio.sleep(30)
    assert await running_pods(cluster) == 2


@pytest.mark.parametrize(
    ("respect", "remaining"), [(("PodDisruptionBudgets", "DoNotDisrupt"), 2), (("DoNotDisrupt",), 1), ((), 0)]
)
@in_virtual_time
async def test_what_the_schedule_respects_holds_nodes_past_the_deadline(
    cluster: VirtualCluster, respect: tuple[str, ...], remaining: int
) -> None:
    """Three nodes: one without protection, one under a PodDisruptionBudget, one with a pod that must not be disrupted."""
    guarded, kept = deployment("guarded", 1, "500m"), deployment("kept", 1, "500m")
    await _office(cluster, deployment("web", 1, "500m"), guarded, kept, sleep=SleepSettings(respect=respect))
    await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, _pdb("guarded", 0))
    for pod in await cluster.all(kinds.POD):
        if pod.metadata.labels["app"] == "kept":
            await annotate(cluster, kinds.POD, pod.metadata.name, labels.DO_NOT_DISRUPT, "true", "default")
    before = await _nodes(cluster)
    await asyncio.sleep(25 * 60)
    assert (before, await _nodes(cluster)) == (3, 2), "until the deadline both protections hold"
    await asyncio.sleep(20 * 60)
    assert await _nodes(cluster) == remaining


@in_virtual_time
async def test_a_controller_that_was_down_at_the_edges_catches_up_and_does_not_thrash(cluster: VirtualCluster) -> None:
    daily = ScheduleWindow(days="daily", begin="07:00", until="22:00")
    await _office(cluster, deployment("web", 2, "500m"), windows=(daily,))
    await sleep_until(cluster, _MORNING + timedelta(minutes=5))
    assert await running_pods(cluster) == 2
    await sleep_until(cluster, _EVENING - timedelta(minutes=5))
    await cluster.stop()
    await sleep_until(cluster, _EVENING + timedelta(hours=1))
    assert await running_pods(cluster) == 2
    await cluster.start()
    await asyncio.sleep(300)
    assert await _nodes(cluster) == 0
    await cluster.stop()
    await sleep_until(cluster, datetime(2026, 1, 3, 9, tzinfo=_SEOUL))
    await cluster.start()
    times = WriteTimes(cluster)
    await until(lambda: _runs(cluster, 2), 60)
    launched = len(times.orders)
    await asyncio.sleep(3600)
    assert (len(times.orders), times.evictions) == (launched, [])
    tainted = [node for node in await cluster.all(kinds.NODE) if labels.ASLEEP_TAINT in node.spec.taints]
    assert tainted == []


async def _runs(cluster: VirtualCluster, count: int) -> bool:
    return await running_pods(cluster) == count


@pytest.mark.parametrize("nodes", [40, pytest.param(500, marks=pytest.mark.soak)])
@in_virtual_time
async def test_many_nodes_fall_asleep_with_few_writes_and_no_budget_is_violated(
    cluster: VirtualCluster, nodes: int
) -> None:
    """Pods leave by eviction alone, so the API server holds the PodDisruptionBudget: 12 of its 15 pods stay."""
    await _office(cluster, deployment("web", nodes, "500m"), deployment("guarded", 15, "500m"))
    await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, _pdb("guarded", 3))
    assert await _nodes(cluster) == nodes + 15
    times = WriteTimes(cluster)
    await asyncio.sleep(30 * 60)
    guarded = [pod for pod in await cluster.all(kinds.POD) if pod.metadata.labels["app"] == "guarded"]
    assert sum(pod.status.phase == "Running" for pod in guarded) == 12
    assert await _nodes(cluster) == 12
    assert len(times.evictions) <= (nodes + 3) * 1.1
    terminating = [
        claim for claim in await cluster.all(kinds.NODE_CLAIM) if claim.metadata.deletion_timestamp is not None
    ]
    assert terminating == [], "a node whose drain could only wait is left alone"
    gone = nodes + 3
    writes = len([write for write in cluster.connection.writes[-times.count :] if write.kind != "Event"])
    print(f"{gone} nodes fell asleep with {writes} writes and {times.count - writes} writes of events")
    assert writes <= gone * 18
    assert times.count - writes <= gone * 25
    assert not [write for write in cluster.connection.writes if (write.verb, write.kind) == ("delete", "Pod")]


assert OPEN[0].nodes == "100%", "the pools of these tests let all nodes go at once"
