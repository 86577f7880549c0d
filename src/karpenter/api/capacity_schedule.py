"""CapacitySchedule (``karpenter.sh/v1alpha1``): when NodePools have capacity, and when they sleep."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from karpenter.api.karpenter import DURATION_PATTERN
from karpenter.api.meta import Condition, ObjectMeta, Wire, WireResources

#: Days as windows name them: ``daily``, or names and ranges of weekdays.
DAYS_PATTERN = (
    r"^(daily|(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?"
    r"(,(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?)*)$"
)
TIME_PATTERN = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
END_TIME_PATTERN = r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"
DATE_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"

CapacityState = Literal["Awake", "Asleep"]
Respected = Literal["PodDisruptionBudgets", "DoNotDisrupt"]
ScaleDown = Literal["None", "Workloads"]


class NodePoolSelection(Wire, frozen=True, kw_only=True):
    """The NodePools of a schedule: those named, and those whose labels match."""

    names: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    match_labels: Mapping[str, str] = {}


class ScheduleHolidays(Wire, frozen=True, kw_only=True):
    """Holidays: the public ones of a country, more dates, and dates that are none."""

    country: Annotated[str, Meta(pattern=r"^[A-Z]{2}$")] | None = None
    subdivision: Annotated[str, Meta(max_length=10)] | None = None
    extra: Annotated[tuple[Annotated[str, Meta(pattern=DATE_PATTERN)], ...], Meta(max_length=366)] = ()
    excluded: Annotated[tuple[Annotated[str, Meta(pattern=DATE_PATTERN)], ...], Meta(max_length=366)] = msgspec.field(
        name="except", default=()
    )


class ScheduleWindow(Wire, frozen=True, kw_only=True):
    """A stretch of wall time on certain days. One that ends at or before its beginning ends on the next day."""

    days: Annotated[str, Meta(pattern=DAYS_PATTERN)]
    begin: Annotated[str, Meta(pattern=TIME_PATTERN)] = msgspec.field(name="from")
    until: Annotated[str, Meta(pattern=END_TIME_PATTERN)]
    state: CapacityState = "Awake"
    name: Annotated[str, Meta(max_length=63)] = ""


class SleepSettings(Wire, frozen=True, kw_only=True):
    """How NodePools fall asleep. Both durations count from the beginning of the window.

    Until ``grace`` is over no node is drained. From ``deadline`` on what ``respect`` leaves out no longer holds a node.
    """

    grace: Annotated[str, Meta(pattern=DURATION_PATTERN)] = "10m"
    deadline: Annotated[str, Meta(pattern=DURATION_PATTERN)] = "30m"
    respect: Annotated[tuple[Respected, ...], Meta(max_length=2)] = ("PodDisruptionBudgets", "DoNotDisrupt")
    scale_down: ScaleDown = "None"


class WakeSettings(Wire, frozen=True, kw_only=True):
    """How NodePools wake up: ``ahead`` of the window, or by the usual launch delay of their nodes if that is longer.

    ``warm`` is capacity beside that for pending pods: ``None``, ``AsBefore`` (what pods had before sleep), ``buffer`` (what
    CapacityBuffers ask for) or ``{nodes: N}``.
    """

    ahead: Annotated[str, Meta(pattern=DURATION_PATTERN)] = "5m"
    # Of any type: a structural schema has no word for a choice of types, so the controller checks it.
    warm: object = "None"
    stagger: Annotated[str, Meta(pattern=DURATION_PATTERN)] = "0s"


class CapacityScheduleSpec(Wire, frozen=True, kw_only=True):
    """Which NodePools have capacity when. Where windows overlap, Awake wins."""

    node_pools: NodePoolSelection
    windows: Annotated[tuple[ScheduleWindow, ...], Meta(max_length=50)] = ()
    time_zone: Annotated[str, Meta(min_length=1, max_length=64)] = "UTC"
    holidays: ScheduleHolidays = ScheduleHolidays()
    otherwise: CapacityState = "Asleep"
    on_holidays: CapacityState | None = None
    sleep: SleepSettings = SleepSettings()
    wake: WakeSettings = WakeSettings()


class RememberedPods(Wire, frozen=True, kw_only=True):
    """Pods of one size that ran on a NodePool before it slept."""

    node_pool: str
    requests: WireResources = {}
    count: int


class RememberedCapacity(Wire, frozen=True, kw_only=True):
    """What pods ran on NodePools when the sleep began that ``since`` names."""

    since: datetime
    pods: tuple[RememberedPods, ...] = ()


class CapacityScheduleStatus(Wire, frozen=True, kw_only=True):
    """What the schedule says now, and when that changes."""

    state: str = ""
    next_state: str = ""
    next_change: datetime | None = None
    node_pools: int = 0
    nodes: int = 0
    launch_delay_seconds: int = 0
    before_sleep: RememberedCapacity | None = None
    conditions: tuple[Condition, ...] = ()


class CapacitySchedule(Wire, frozen=True, kw_only=True):
    """A calendar for the capacity of NodePools: outside its windows they sleep."""

    spec: CapacityScheduleSpec
    metadata: ObjectMeta = ObjectMeta()
    status: CapacityScheduleStatus = CapacityScheduleStatus()
