"""NodePools wake up in the morning: one plan for all pending pods, missing spot capacity, two controllers, clock changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from karpenter.api import kinds
from karpenter.api.capacity_schedule import ScheduleWindow, SleepSettings
from karpenter.capacityschedule.schedule_controller import next_calendar_change
from karpenter.manager import Manager, ManagerOptions
from karpenter.model import labels
from karpenter.model.capacity_calendar import capacity_calendar
from karpenter.providers.decorators import TimeoutProvider
from karpenter.providers.simulated import Faults
from karpenter.providers.simulated.fault_rules import InsufficientCapacityRule
from support.consolidation_cases import begin, deployment
from support.sleep_cases import (
    WriteTimes,
    capacity_schedule,
    price_per_hour,
    running_pods,
    settings_with_schedules,
    sleep_until,
)
from support.virtual_cluster import RARE, VirtualCluster, in_virtual_time

_SEOUL = ZoneInfo("Asia/Seoul")
#: Tests begin at 9:00, an hour before the window, with NodePools asleep.
_OPENING = datetime(2026, 1, 1, 10, tzinfo=_SEOUL)
_DAILY: dict[str, Any] = {
    "windows": (ScheduleWindow(days="daily", begin="10:00", until="22:00"),),
    "on_holidays": None,
    "sleep": SleepSettings(grace="1m", deadline="5m"),
}


async def _asleep(cluster: VirtualCluster) -> None:
    cluster.settings = settings_with_schedules(intervals=RARE)
    await begin(cluster, deployment("web", 8, "900m"), deployment("api", 4, "400m"), policy="WhenEmpty")


@in_virtual_time
async def test_all_that_waits_is_launched_in_one_plan_and_costs_what_it_cost_before(cluster: VirtualCluster) -> None:
    """Twelve pods come back to as few nodes as they had, not to one each."""
    await _asleep(cluster)
    before, nodes = await price_per_hour(cluster), len(await cluster.all(kinds.NODE_CLAIM))
    await cluster.kube.create(kinds.CAPACITY_SCHEDULE, capacity_schedule(**_DAILY))
    await sleep_until(cluster, _OPENING - timedelta(minutes=10))
    assert not await cluster.all(kinds.NODE_CLAIM)
    times = WriteTimes(cluster)
    await sleep_until(cluster, _OPENING)
    assert await running_pods(cluster) == 12
    assert len(times.orders) == len(await cluster.all(kinds.NODE_CLAIM)) <= nodes
    assert max(times.orders) - min(times.orders) < timedelta(seconds=5)
    assert await price_per_hour(cluster) <= before * 1.0001


@in_virtual_time
async def test_on_demand_nodes_come_where_spot_is_short_in_the_morning(cluster: VirtualCluster) -> None:
    await _asleep(cluster)
    await cluster.kube.create(kinds.CAPACITY_SCHEDULE, capacity_schedule(**_DAILY))
    await sleep_until(cluster, _OPENING - timedelta(minutes=10))
    short = Faults(insufficient_capacity=(InsufficientCapacityRule(capacity_type="spot"),))
    cluster.simulated_provider.set_faults(short)
    await sleep_until(cluster, _OPENING + timedelta(seconds=30))
    assert await running_pods(cluster) == 12
    kinds_of_nodes = {claim.metadata.labels[labels.CAPACITY_TYPE] for claim in await cluster.all(kinds.NODE_CLAIM)}
    assert kinds_of_nodes == {labels.ON_DEMAND}


@in_virtual_time
async def test_two_controllers_at_the_same_edge_do_not_fight(cluster: VirtualCluster) -> None:
    """Leader election prevents it; if both act for a while all the same, nothing is launched or evicted back and forth."""
    await _asleep(cluster)
    provider = TimeoutProvider(cluster.simulated_provider)
    second = Manager(cluster.connection, provider, cluster.clock, cluster.settings, ManagerOptions())
    cluster.also(second.run())
    await cluster.kube.create(kinds.CAPACITY_SCHEDULE, capacity_schedule(**_DAILY))
    await sleep_until(cluster, _OPENING - timedelta(minutes=10))
    assert not await cluster.all(kinds.NODE_CLAIM)
    times = WriteTimes(cluster)
    await sleep_until(cluster, _OPENING + timedelta(minutes=30))
    assert await running_pods(cluster) == 12
    assert times.evictions == []
    tainted = [node for node in await cluster.all(kinds.NODE) if labels.ASLEEP_TAINT in node.spec.taints]
    assert tainted == []


def test_the_window_begins_by_the_clocks_of_the_place_after_they_were_changed() -> None:
    """Clocks in Lisbon go forward on 29 March 2026: seven o'clock there is 6:00 UTC then, and 7:00 UTC the day before."""
    daily = (ScheduleWindow(days="daily", begin="07:00", until="22:00"),)
    calendar = capacity_calendar(capacity_schedule(time_zone="Europe/Lisbon", windows=daily).spec)
    for night, expected in ((datetime(2026, 3, 28, 2, tzinfo=UTC), 7), (datetime(2026, 3, 29, 2, tzinfo=UTC), 6)):
        change = next_calendar_change(calendar, night)
        assert change is not None
        assert change.astimezone(UTC).hour == expected
