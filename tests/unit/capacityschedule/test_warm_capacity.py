"""Capacity that is there when a window begins although no pod asks for it: as before the night, or a number of nodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from karpenter.api import kinds
from karpenter.api.capacity_buffer import CapacityBuffer, CapacityBufferSpec, ScalableReference
from karpenter.api.capacity_schedule import ScheduleWindow, WakeSettings
from karpenter.api.karpenter import NodePoolTaint
from karpenter.api.meta import ObjectMeta
from karpenter.capacityschedule.sleep_decision import ActiveSchedule
from karpenter.capacityschedule.warm_capacity import is_warming, pod_sizes, remembered_capacity, warm_groups
from karpenter.model.capacity_calendar import capacity_calendar
from karpenter.model.feature_gate_flags import ParsedFeatureGates
from karpenter.model.feature_gates import FeatureGate
from karpenter.settings import Settings
from support.builders import node_pool, pod
from support.consolidation_cases import begin, deployment, scale
from support.sleep_cases import (
    GATES,
    capacity_schedule,
    price_per_hour,
    running_pods,
    settings_with_schedules,
    sleep_until,
)
from support.virtual_cluster import RARE, VirtualCluster, in_virtual_time

_SEOUL = ZoneInfo("Asia/Seoul")
#: The first morning after the holiday.
_MORNING = datetime(2026, 1, 2, 7, tzinfo=_SEOUL)
#: Stories begin at 9:00, an hour before the window, asleep.
_OPENING = datetime(2026, 1, 1, 10, tzinfo=_SEOUL)
_DAILY = {"windows": (ScheduleWindow(days="daily", begin="10:00", until="22:00"),), "on_holidays": None}
_NIGHT = datetime(2026, 1, 1, 15, tzinfo=UTC)


def _active(**wake: object) -> ActiveSchedule:
    schedule = capacity_schedule(wake=WakeSettings(ahead="5m", **wake))
    return ActiveSchedule(schedule, capacity_calendar(schedule.spec))


def test_a_schedule_warms_from_its_lead_until_a_quarter_of_an_hour_into_the_window() -> None:
    active = _active()
    minutes = [minute for minute in range(-10, 20) if is_warming(active, _MORNING + timedelta(minutes=minute))]
    assert (minutes[0], minutes[-1]) == (-5, 14)


def test_what_ran_before_comes_back_less_the_pods_that_are_there_again() -> None:
    """Pods that wait are counted once, whichever NodePool they will be on; DaemonSets bring their own pods."""
    small, large = {"cpu": "500m"}, {"cpu": "2", "memory": "1Gi"}
    ran = [("np", pod(f"s-{number}", small, node_name="n")) for number in range(4)] + [
        ("np", pod("l", large, node_name="n"))
    ]
    remembered = remembered_capacity(_NIGHT, pod_sizes(ran))
    assert [(entry.count, dict(entry.requests)) for entry in remembered.pods] == [
        (4, {"cpu": "500m"}),
        (1, {"cpu": "2", "memory": "1Gi"}),
    ]
    there = pod_sizes([("np", pod("s", small, node_name="n")), ("", pod("w", small))])
    groups = warm_groups(_active(warm="AsBefore"), remembered, [node_pool("np")], there, _NIGHT)
    assert [len(group.pods) for group in groups] == [2, 1]
    assert warm_groups(_active(warm="AsBefore"), remembered, [node_pool("other")], there, _NIGHT) == ()
    assert warm_groups(_active(), remembered, [node_pool("np")], there, _NIGHT) == ()


def test_virtual_pods_tolerate_the_taints_of_their_pools() -> None:
    tainted = node_pool("np", template={"taints": (NodePoolTaint(key="team", effect="NoSchedule", value="dev"),)})
    (group,) = warm_groups(_active(warm={"nodes": 3}), None, [tainted], Counter(), _NIGHT)
    assert len(group.pods) == 3
    assert [(t.key, t.effect) for t in group.pods[0].spec.tolerations] == [("team", "NoSchedule")]


@in_virtual_time
async def test_nodes_are_as_before_the_night_although_no_pod_asks_for_them(cluster: VirtualCluster) -> None:
    """A tool of its own scaled the workload down in the evening; its pods find room at once in the morning."""
    cluster.settings = settings_with_schedules(intervals=RARE)
    await begin(cluster, deployment("web", 6, "900m"), policy="WhenEmpty")
    before = await price_per_hour(cluster)
    await cluster.kube.create(
        kinds.CAPACITY_SCHEDULE, capacity_schedule(**_DAILY, wake=WakeSettings(ahead="5m", warm="AsBefore"))
    )
    await asyncio.sleep(60)
    remembered = (await cluster.kube.get(kinds.CAPACITY_SCHEDULE, "office")).status.before_sleep
    assert remembered is not None
    assert [(entry.node_pool, entry.count) for entry in remembered.pods] == [("np", 6)]
    await scale(cluster, "web", 0)
    await asyncio.sleep(30 * 60)
    assert not await cluster.all(kinds.NODE_CLAIM)
    await cluster.stop()
    await cluster.start()
    await sleep_until(cluster, _OPENING)
    assert await price_per_hour(cluster) == pytest.approx(before)
    await scale(cluster, "web", 6)
    await asyncio.sleep(15)
    assert await running_pods(cluster) == 6
    await asyncio.sleep(20 * 60)
    assert await price_per_hour(cluster) == pytest.approx(before)


@in_virtual_time
async def test_a_number_of_nodes_is_warm_and_goes_when_no_pod_comes(cluster: VirtualCluster) -> None:
    cluster.settings = settings_with_schedules(intervals=RARE)
    await begin(cluster, policy="WhenEmpty")
    wake = WakeSettings(ahead="5m", warm={"nodes": 3})
    await cluster.kube.create(kinds.CAPACITY_SCHEDULE, capacity_schedule(**_DAILY, wake=wake))
    await sleep_until(cluster, _OPENING - timedelta(minutes=6))
    assert not await cluster.all(kinds.NODE_CLAIM)
    await sleep_until(cluster, _OPENING + timedelta(minutes=10))
    assert len(await cluster.all(kinds.NODE)) == 3
    await sleep_until(cluster, _OPENING + timedelta(minutes=30))
    assert not await cluster.all(kinds.NODE)


@pytest.mark.parametrize(
    ("warm", "message"),
    [
        ("always", "'always' is none of None, AsBefore, buffer or {nodes: N}"),
        ({"nodes": 0}, "{'nodes': 0} is none of"),
        (5, "5 is none of"),
        ("buffer", "needs the feature gate CapacityBuffer"),
    ],
)
@in_virtual_time
async def test_an_unknown_mode_is_reported_in_the_condition(
    cluster: VirtualCluster, warm: object, message: str
) -> None:
    cluster.settings = settings_with_schedules(intervals=RARE)
    await begin(cluster)
    await cluster.kube.create(kinds.CAPACITY_SCHEDULE, capacity_schedule(**_DAILY, wake=WakeSettings(warm=warm)))
    await asyncio.sleep(5)
    (condition,) = (await cluster.kube.get(kinds.CAPACITY_SCHEDULE, "office")).status.conditions
    assert (condition.status, condition.reason) == ("False", "Invalid")
    assert message in condition.message


@in_virtual_time
async def test_buffer_means_that_capacity_buffers_are_there_in_the_morning(cluster: VirtualCluster) -> None:
    gates = GATES | {FeatureGate.CAPACITY_BUFFER}
    cluster.settings = Settings(feature_gates=ParsedFeatureGates(gates), intervals=RARE)
    await begin(cluster, policy="WhenEmpty")
    await cluster.kube.create(kinds.DEPLOYMENT, deployment("web", 0))
    scalable = ScalableReference(kind="Deployment", name="web", api_group="apps")
    spec = CapacityBufferSpec(scalable_ref=scalable, replicas=4)
    buffer = CapacityBuffer(metadata=ObjectMeta(name="room", namespace="default"), spec=spec)
    await cluster.kube.create(kinds.CAPACITY_BUFFER, buffer)
    await cluster.kube.create(
        kinds.CAPACITY_SCHEDULE, capacity_schedule(**_DAILY, wake=WakeSettings(ahead="5m", warm="buffer"))
    )
    await asyncio.sleep(45 * 60)
    assert not await cluster.all(kinds.NODE_CLAIM)
    await sleep_until(cluster, _OPENING)
    status = (await cluster.kube.get(kinds.CAPACITY_BUFFER, "room", "default")).status
    assert [c.status for c in status.conditions if c.type == "Provisioning"] == ["True"]
