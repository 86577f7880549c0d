"""Which NodePools of a listed cluster sleep: the controller's decision, outside of the controller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from karpenter.api.capacity_schedule import CapacitySchedule
from karpenter.api.core import Namespace, Node, Pod
from karpenter.api.karpenter import NodePool
from karpenter.capacityschedule.sleep_decision import ActiveSchedule, check_warm_mode, decide_sleep
from karpenter.capacityschedule.sleep_overrides import listed_overrides
from karpenter.model.capacity_calendar import CapacityScheduleError, capacity_calendar
from karpenter.model.durations import DurationError
from karpenter.model.feature_gates import FeatureGate, FeatureGates
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


def read_schedules(
    schedules: Iterable[CapacitySchedule], gates: FeatureGates
) -> Iterator[ActiveSchedule | ScheduleFault]:
    """Each schedule that is not being deleted, with its calendar, or with why a controller with these gates cannot use it."""
    has_buffers = FeatureGate.CAPACITY_BUFFER in gates
    for schedule in schedules:
        if schedule.metadata.deletion_timestamp is not None:
            continue
        try:
            delay = timedelta(seconds=schedule.status.launch_delay_seconds)
            active = ActiveSchedule(schedule, capacity_calendar(schedule.spec), delay)
            active.check()
            check_warm_mode(active, has_buffers=has_buffers)
        except (CapacityScheduleError, DurationError) as error:
            yield ScheduleFault(schedule.metadata.name, str(error))
        else:
            yield active


@dataclass(frozen=True)
class CurrentSleep:
    """The NodePools that sleep at a moment, by name, and the schedules that cannot be used and count for nothing."""

    pools: Mapping[str, PoolSleep]
    faults: tuple[ScheduleFault, ...]


def current_sleep(
    schedules: Iterable[CapacitySchedule], gates: FeatureGates, annotated: AnnotatedObjects, moment: datetime
) -> CurrentSleep:
    """What a controller with these gates decides about the sleep of NodePools."""
    read = tuple(read_schedules(schedules, gates))
    active = [each for each in read if isinstance(each, ActiveSchedule)]
    overrides = listed_overrides(annotated.pools, annotated.pods, annotated.nodes, annotated.namespaces)
    sleeping = decide_sleep(active, annotated.pools, overrides, moment).sleeping
    return CurrentSleep(sleeping, tuple(each for each in read if isinstance(each, ScheduleFault)))
