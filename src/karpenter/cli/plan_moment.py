"""Plans for another moment than now: NodePools that sleep then buy nothing (``karpenter plan --at``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from karpenter.cli.terminal import WrongInput

if TYPE_CHECKING:
    from karpenter.cli.cluster_objects import ClusterObjects
    from karpenter.model.pool_sleep import PoolSleep
    from karpenter.state.snapshot import ClusterSnapshot


def parse_moment(text: str) -> datetime:
    """The moment that ``--at`` names. Raises ``WrongInput``."""
    from karpenter.model import clock

    try:
        return clock.parse_timestamp(text)
    except clock.TimestampError as error:
        raise WrongInput(f"--at: {error}") from None


def asleep_at(snapshot: ClusterSnapshot, objects: ClusterObjects, moment: datetime) -> ClusterSnapshot:
    """The snapshot with the NodePools that CapacitySchedules and annotations put to sleep at a moment.

    Raises ``WrongInput`` for a schedule that cannot be used.
    """
    return replace(snapshot, sleeping_pools=_sleeping(objects, moment))


def passed_over_sleep(objects: ClusterObjects, now: datetime) -> Iterator[str]:
    """A line for each NodePool that was sent to sleep, for plans that take it for awake."""
    from karpenter.capacityschedule.sleep_overrides import sleep_overrides
    from karpenter.model import clock

    for name, until in sorted(sleep_overrides(objects.pools, (), {}).asleep_until.items()):
        if until > now:
            yield (
                f"NodePool {name} is sent to sleep until {clock.rfc3339(until)} and counts as awake here; "
                "with --feature-gates CapacitySchedule=true it sleeps, as with a controller that has the gate"
            )


def _sleeping(objects: ClusterObjects, moment: datetime) -> dict[str, PoolSleep]:
    from karpenter.capacityschedule.sleep_decision import ActiveSchedule, decide_sleep
    from karpenter.capacityschedule.sleep_overrides import sleep_overrides
    from karpenter.model.capacity_calendar import CapacityScheduleError, capacity_calendar
    from karpenter.model.durations import DurationError

    active = []
    for schedule in objects.schedules:
        delay = timedelta(seconds=schedule.status.launch_delay_seconds)
        try:
            made = ActiveSchedule(schedule, capacity_calendar(schedule.spec), delay)
            made.check()
        except (CapacityScheduleError, DurationError) as error:
            raise WrongInput(f"CapacitySchedule {schedule.metadata.name}: {error}") from None
        active.append(made)
    return dict(decide_sleep(active, objects.pools, sleep_overrides(objects.pools, (), {}), moment).sleeping)
