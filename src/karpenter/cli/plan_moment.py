"""Plans for another moment than now: NodePools that sleep then buy nothing (``karpenter plan --at``)."""

from __future__ import annotations

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
