"""Two simulated weeks of office hours in Seoul, which begin with a public holiday."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from karpenter.api import kinds
from karpenter.runtime.intervals import Intervals
from support.consolidation_cases import begin, deployment
from support.sleep_cases import (
    WriteTimes,
    capacity_schedule,
    price_per_hour,
    running_pods,
    settings_with_schedules,
    sleep_until,
)
from support.virtual_cluster import VirtualCluster, in_virtual_time

_SEOUL = ZoneInfo("Asia/Seoul")
_LAUNCH = timedelta(seconds=90)
_GRACE = timedelta(minutes=10)
#: New Year's Day 2026, when the test begins, is a Thursday and a holiday.
_NEW_YEAR = date(2026, 1, 1)
_INTERVALS = Intervals(
    nodepool_counter=timedelta(minutes=15),
    provisioning_retry=timedelta(minutes=30),
    disruption_poll=timedelta(minutes=1),
    disruption_recheck=timedelta(hours=6),
    garbage_collection=timedelta(hours=1),
    metrics_refresh=timedelta(hours=1),
)


def _at(day: date, hour: int) -> datetime:
    return datetime(day.year, day.month, day.day, hour, tzinfo=_SEOUL)


def _is_working_day(day: date) -> bool:
    return day.weekday() < 5 and day != _NEW_YEAR


@pytest.mark.parametrize("days", [6, pytest.param(14, marks=pytest.mark.soak)])
@in_virtual_time
async def test_a_fortnight_in_seoul_with_a_holiday_costs_what_its_office_hours_cost(
    cluster: VirtualCluster, days: int
) -> None:
    """DIS-492: hours in a time zone, holidays, graceful sleep to zero and a wake-up ahead of the morning.

    All pods run within launch delay + 30 s of 07:00; nothing is evicted inside grace, nothing launched while asleep.
    """
    cluster.settings = settings_with_schedules(intervals=_INTERVALS)
    await begin(cluster, deployment("web", 6), deployment("api", 4, "1700m"), policy="WhenEmpty")
    always_on = await price_per_hour(cluster)
    assert always_on > 0
    times = WriteTimes(cluster)
    await cluster.kube.patch(kinds.KWOK_NODE_CLASS, "default", {"spec": {"nodeRegistrationDelay": "90s"}})
    await cluster.kube.create(kinds.CAPACITY_SCHEDULE, capacity_schedule())
    begin_of_story = cluster.clock.now()
    await sleep_until(cluster, cluster.clock.now() + timedelta(hours=1))
    assert not await cluster.all(kinds.NODE_CLAIM), "asleep on the holiday"
    cost, mornings = 0.0, 0
    for number in range(1, days):
        day = _NEW_YEAR + timedelta(days=number)
        if not _is_working_day(day):
            await sleep_until(cluster, _at(day, 12))
            assert not await cluster.all(kinds.NODE_CLAIM)
            continue
        await sleep_until(cluster, _at(day, 7))
        if mornings:
            assert await running_pods(cluster) == 10, f"the launch delay was learned by {day}"
        await sleep_until(cluster, _at(day, 7) + _LAUNCH + timedelta(seconds=30))
        assert await running_pods(cluster) == 10, day
        price = await price_per_hour(cluster)
        await sleep_until(cluster, _at(day, 22) + _GRACE - timedelta(seconds=1))
        assert await running_pods(cluster) == 10, f"grace on {day}"
        await sleep_until(cluster, _at(day, 22) + timedelta(minutes=30))
        assert not await cluster.all(kinds.NODE_CLAIM), day
        cost += price * (15.5 + 2 * _LAUNCH / timedelta(hours=1))
        mornings += 1
    assert mornings == {6: 3, 14: 9}[days]
    for moment in (moment.astimezone(_SEOUL) for moment in times.orders):
        lead = moment + _LAUNCH * 2
        assert _is_working_day(lead.date())
        assert 7 <= lead.hour < 22, f"launched at {moment}"
    for moment in (
        moment.astimezone(_SEOUL) for moment in times.evictions if moment > begin_of_story + timedelta(hours=1)
    ):
        assert moment >= _at(moment.date(), 22) + _GRACE, f"evicted at {moment}"
    whole = always_on * 24 * days
    print(f"{days} days: {cost:.2f} USD asleep at night, {whole:.2f} USD always on, {1 - cost / whole:.0%} saved")
    assert cost < whole / 2
