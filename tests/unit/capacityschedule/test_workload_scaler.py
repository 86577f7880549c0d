"""Workloads of opted-in namespaces under a running controller: down at night, back in the morning, never against others."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec

from karpenter.api import kinds
from karpenter.api.capacity_schedule import ScheduleWindow, SleepSettings, WakeSettings
from karpenter.kube.errors import Forbidden, Invalid
from karpenter.model import labels
from support.consolidation_cases import begin, deployment, scale
from support.sleep_cases import annotate, capacity_schedule, running_pods, settings_with_schedules, sleep_until
from support.virtual_cluster import RARE, VirtualCluster, in_virtual_time

_SEOUL = ZoneInfo("Asia/Seoul")
#: Tests begin at 9:00, two hours before the window, with NodePools asleep.
_MORNING = datetime(2026, 1, 1, 11, tzinfo=_SEOUL)
_DAILY = ScheduleWindow(days="daily", begin="11:00", until="22:00")
_WORKLOADS = SleepSettings(grace="10m", deadline="30m", scale_down="Workloads")
_MINUTE = timedelta(minutes=1)


async def _office(cluster: VirtualCluster, **schedule: object) -> None:
    """Two workloads in a namespace that opted in."""
    cluster.settings = settings_with_schedules(intervals=RARE)
    await cluster.kube.patch(kinds.NAMESPACE, "default", {"metadata": {"labels": {labels.CAPACITY_SCHEDULE: "office"}}})
    await begin(cluster, deployment("web", 4, "500m"), deployment("api", 2, "500m"), policy="WhenEmpty")
    await cluster.kube.create(
        kinds.CAPACITY_SCHEDULE, capacity_schedule(sleep=_WORKLOADS, windows=(_DAILY,), on_holidays=None, **schedule)
    )


async def _replicas(cluster: VirtualCluster) -> dict[str, int | None]:
    return {obj.metadata.name: obj.spec.replicas for obj in await cluster.all(kinds.DEPLOYMENT)}


@in_virtual_time
async def test_workloads_sleep_after_grace_and_come_back_staggered_before_the_window(cluster: VirtualCluster) -> None:
    """Those of other namespaces keep their replicas."""
    await _office(cluster, wake=WakeSettings(ahead="5m", stagger="60s"))
    other = deployment("other", 1, "100m")
    moved = msgspec.structs.replace(other.metadata, namespace="kube-system")
    await cluster.kube.create(kinds.DEPLOYMENT, msgspec.structs.replace(other, metadata=moved))
    await asyncio.sleep(9 * 60)
    assert await _replicas(cluster) == {"api": 2, "other": 1, "web": 4}
    await asyncio.sleep(3 * 60)
    assert await _replicas(cluster) == {"api": 0, "other": 1, "web": 0}
    assert len(await cluster.all(kinds.POD)) == 1
    await asyncio.sleep(10 * 60)
    assert not await cluster.all(kinds.NODE_CLAIM)
    assert cluster.counted("capacity_schedules_scaled_workloads_total", direction="down") == 2
    assert cluster.counted("nodepools_asleep", nodepool="np") == 1
    await sleep_until(cluster, _MORNING - 5 * _MINUTE + timedelta(seconds=5))
    assert await _replicas(cluster) == {"api": 2, "other": 1, "web": 0}, "one in the first ten seconds"
    await sleep_until(cluster, _MORNING - 3 * _MINUTE)
    assert await _replicas(cluster) == {"api": 2, "other": 1, "web": 4}
    await sleep_until(cluster, _MORNING)
    assert await running_pods(cluster) == 7
    (web, *_) = [obj for obj in await cluster.all(kinds.DEPLOYMENT) if obj.metadata.name == "web"]
    assert labels.SCALED_DOWN not in web.metadata.labels
    assert labels.REPLICAS_BEFORE_SLEEP not in web.metadata.annotations
    assert cluster.counted("nodepools_asleep", nodepool="np") == 0


@in_virtual_time
async def test_a_workload_scaled_up_at_night_is_reported_once_and_not_changed_again(cluster: VirtualCluster) -> None:
    """Whether a user or a GitOps tool changed it: no second write."""
    await _office(cluster)
    await asyncio.sleep(12 * 60)
    await scale(cluster, "web", 3)
    before = len([write for write in cluster.writes("Deployment") if "web" in write])
    await asyncio.sleep(60 * 60)
    assert await _replicas(cluster) == {"api": 0, "web": 3}
    assert len([write for write in cluster.writes("Deployment") if "web" in write]) == before
    messages = [event.message for event in await cluster.events("ScaleConflict", "web")]
    assert messages == ["somebody scaled to 3 while asleep; left alone until NodePools wake up"]
    await sleep_until(cluster, _MORNING)
    assert await _replicas(cluster) == {"api": 2, "web": 3}


@in_virtual_time
async def test_a_controller_that_is_new_at_night_or_in_the_morning_carries_on(cluster: VirtualCluster) -> None:
    await _office(cluster)
    await asyncio.sleep(12 * 60)
    await cluster.stop()
    await cluster.start()
    await asyncio.sleep(60)
    assert await _replicas(cluster) == {"api": 0, "web": 0}
    await cluster.stop()
    await sleep_until(cluster, _MORNING + timedelta(hours=1))
    await cluster.start()
    await asyncio.sleep(30)
    assert await _replicas(cluster) == {"api": 2, "web": 4}


@in_virtual_time
async def test_workloads_come_back_when_a_pool_is_woken_or_the_schedule_goes(cluster: VirtualCluster) -> None:
    await _office(cluster)
    await asyncio.sleep(12 * 60)
    until = (cluster.clock.now() + timedelta(minutes=20)).isoformat()
    await annotate(cluster, kinds.NODE_POOL, "np", labels.KEEP_AWAKE_UNTIL, until)
    await asyncio.sleep(30)
    assert await _replicas(cluster) == {"api": 2, "web": 4}
    await asyncio.sleep(35 * 60)
    assert await _replicas(cluster) == {"api": 0, "web": 0}
    await cluster.kube.delete(kinds.CAPACITY_SCHEDULE, "office")
    await asyncio.sleep(30)
    assert await _replicas(cluster) == {"api": 2, "web": 4}


@in_virtual_time
async def test_a_missing_permission_is_reported_and_nodes_sleep_all_the_same(cluster: VirtualCluster) -> None:
    await _office(cluster)

    def refuse(write: object) -> None:
        if (write.verb, write.kind) == ("patch", "Deployment"):  # type: ignore[attr-defined]
            raise Forbidden("deployments.apps is forbidden")

    cluster.connection.refuse = refuse
    await asyncio.sleep(30 * 60)
    (event, *_) = await cluster.events("ScaleForbidden", "office")
    assert "scaleDownWorkloads=true" in event.message
    assert await _replicas(cluster) == {"api": 2, "web": 4}
    assert not await cluster.all(kinds.NODE_CLAIM)


@in_virtual_time
async def test_a_workload_that_a_webhook_refuses_delays_neither_the_others_nor_the_nodes(
    cluster: VirtualCluster,
) -> None:
    """Whether it refuses with 422 or with 403, as webhooks do that name no status."""
    await _office(cluster)

    def refuse(write: object) -> None:
        if (write.verb, write.kind) == ("patch", "Deployment"):  # type: ignore[attr-defined]
            if write.name == "web":  # type: ignore[attr-defined]
                raise Forbidden('admission webhook "policy.example" denied the request: frozen')
            if write.name == "api":  # type: ignore[attr-defined]
                raise Invalid("spec.replicas: at least 2")

    await cluster.kube.create(kinds.DEPLOYMENT, deployment("late", 1, "100m"))
    cluster.connection.refuse = refuse
    await asyncio.sleep(30 * 60)
    assert await _replicas(cluster) == {"api": 2, "late": 0, "web": 4}
    assert "frozen" in (await cluster.events("ScaleConflict", "web"))[0].message
    assert "at least 2" in (await cluster.events("ScaleConflict", "api"))[0].message
    assert not await cluster.events("ScaleForbidden", "office")
    assert not await cluster.all(kinds.NODE_CLAIM)
