"""Which NodePools of a listed cluster sleep: the controller's decision, outside of the controller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from karpenter.api.capacity_schedule import CapacitySchedule
from karpenter.api.core import Namespace, Node, Pod
from karpenter.api.karpenter import NodePool
from karpenter.capacityschedule.sleep_decision import ActiveSchedule, decide_sleep
from karpenter.capacityschedule.sleep_overrides import listed_overrides
from karpenter.model.capacity_calendar import CapacityScheduleError, capacity_calendar
from karpenter.model.durations import DurationError
from karpenter.model.pool_sleep import PoolSleep


@dataclass(frozen=True)
class AnnotatedObjects:
    """The objects whose annotations overrule schedules, as they are listed."""

    pools: Sequence[NodePool]
    pods: Iterable[Pod]
    nodes: Iterable[Node]
    namespaces: Iterable[Namespace]


@dataclass(frozen=True)
class ScheduleFault:
    """A CapacitySchedule that cannot be used: the controller ignores it."""

    name: str
    message: str

    def __str__(self) -> str:
        return f"CapacitySchedule {self.name}: {self.message}"


def read_schedules(schedules: Iterable[CapacitySchedule]) -> Iterator[ActiveSchedule | ScheduleFault]:
    """Each schedule that is not being deleted, with its calendar or with what is wrong with it."""
    for schedule in schedules:
        if schedule.metadata.deletion_timestamp is not None:
            continue
        try:
            delay = timedelta(seconds=schedule.status.launch_delay_seconds)
            active = ActiveSchedule(schedule, capacity_calendar(schedule.spec), delay)
            active.check()
        except (CapacityScheduleError, DurationError) as error:
            yield ScheduleFault(schedule.metadata.name, str(error))
        else:
            yield active


def sleeping_pools(
    schedules: Iterable[ActiveSchedule], annotated: AnnotatedObjects, moment: datetime
) -> dict[str, PoolSleep]:
    """The NodePools that sleep at a moment, by name."""
    overrides = listed_overrides(annotated.pools, annotated.pods, annotated.nodes, annotated.namespaces)
    return dict(decide_sleep(schedules, annotated.pools, overrides, moment).sleeping)
