"""Which NodePools sleep at a moment, by all schedules together (pure).

A NodePool that several schedules select is awake while one of them is (awake wins). It wakes up some time ahead of its window, so
that nodes are ready when the window begins. A NodePool that is kept awake longer falls asleep when that ends, grace included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from karpenter.api.capacity_schedule import CapacitySchedule, CapacityScheduleSpec
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.model import durations
from karpenter.model.budget_windows import TimeSpan, merged_spans
from karpenter.model.capacity_calendar import CapacityCalendar, CapacityScheduleError, capacity_calendar
from karpenter.model.conditions import find_condition
from karpenter.model.durations import DurationError
from karpenter.model.pool_sleep import PoolSleep

#: How far ahead the next window is looked for, and how far back the last one.
HORIZON = timedelta(days=21)
#: What planning, and the start of pods on a node that is ready, take beside the launch.
POD_START = timedelta(seconds=15)
#: What ``wake.warm`` may be beside a number of nodes.
WARM_NONE, WARM_AS_BEFORE, WARM_BUFFER = WARM_MODES = ("None", "AsBefore", "buffer")
MOST_WARM_NODES = 1000
#: Share of the launches that are as fast as the launch delay, or faster.
_PERCENTILE = 0.9


@dataclass(frozen=True)
class ActiveSchedule:
    """A schedule with its calendar. ``launch_delay``: how long nodes of its NodePools take to be ready, zero if unknown."""

    schedule: CapacitySchedule
    calendar: CapacityCalendar
    launch_delay: timedelta = timedelta()

    @property
    def spec(self) -> CapacityScheduleSpec:
        """What the user wrote."""
        return self.schedule.spec

    def check(self, *, has_buffers: bool) -> None:
        """Raise ``DurationError`` where a duration cannot be read, ``CapacityScheduleError`` for an unusable warm mode.

        ``has_buffers``: CapacityBuffers are kept.
        """
        wake = self.spec.wake
        for text in (wake.ahead, wake.stagger, self.spec.sleep.grace, self.spec.sleep.deadline):
            durations.parse_duration(text)
        self.warm_nodes()
        if wake.warm == WARM_BUFFER and not has_buffers:
            raise CapacityScheduleError("spec.wake.warm: buffer needs the feature gate CapacityBuffer")

    def warm_nodes(self) -> int | None:
        """The number of nodes that ``wake.warm`` asks for, None for a word. Raises ``CapacityScheduleError``."""
        warm = self.spec.wake.warm
        if warm in WARM_MODES:
            return None
        nodes = warm.get("nodes") if isinstance(warm, dict) and len(warm) == 1 else None
        if not isinstance(nodes, int) or isinstance(nodes, bool) or not 1 <= nodes <= MOST_WARM_NODES:
            choices = f"{', '.join(WARM_MODES)} or {{nodes: N}} with N from 1 to {MOST_WARM_NODES}"
            raise CapacityScheduleError(f"spec.wake.warm: {warm!r} is none of {choices}")
        return nodes

    @property
    def stagger(self) -> timedelta:
        """Over what time workloads that were scaled down come back."""
        return durations.parse_duration(self.spec.wake.stagger)

    @property
    def lead(self) -> timedelta:
        """How long before a window NodePools wake up."""
        learned = self.launch_delay + POD_START if self.launch_delay else timedelta()
        return max(durations.parse_duration(self.spec.wake.ahead), learned)

    @property
    def grace(self) -> timedelta:
        """From the beginning of sleep until the first node is drained."""
        return durations.parse_duration(self.spec.sleep.grace)

    @property
    def deadline(self) -> timedelta:
        """From the beginning of sleep until protections that are not respected end."""
        return durations.parse_duration(self.spec.sleep.deadline)


@dataclass(frozen=True)
class UnusableSchedule:
    """A schedule that counts for nothing, and why."""

    schedule: CapacitySchedule
    error: str

    def __str__(self) -> str:
        return f"CapacitySchedule {self.schedule.metadata.name}: {self.error}"


def read_schedule(
    schedule: CapacitySchedule, launch_delay: timedelta, *, has_buffers: bool
) -> ActiveSchedule | UnusableSchedule:
    """A schedule with its calendar, or with why it cannot be used. ``has_buffers``: see ``ActiveSchedule.check``."""
    try:
        active = ActiveSchedule(schedule, capacity_calendar(schedule.spec), launch_delay)
        active.check(has_buffers=has_buffers)
    except (CapacityScheduleError, DurationError) as error:
        return UnusableSchedule(schedule, str(error))
    return active


@dataclass(frozen=True)
class SleepOverrides:
    """What overrules schedules, by name of the NodePool: it stays awake, or sleeps, until a moment. Awake wins."""

    awake_until: Mapping[str, datetime] = field(default_factory=dict)
    asleep_until: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True)
class SleepDecision:
    """The NodePools that sleep, by name, and when time alone changes that next (None: not within the horizon)."""

    sleeping: Mapping[str, PoolSleep]
    next_change: datetime | None = None


@dataclass(frozen=True)
class _PoolState:
    sleep: PoolSleep | None
    changes: tuple[datetime, ...] = ()


def selects(schedule: CapacitySchedule, pool: NodePool) -> bool:
    """Whether a schedule is about a NodePool. Static NodePools never sleep: their number of nodes is fixed."""
    if pool.spec.replicas is not None:
        return False
    selection, own = schedule.spec.node_pools, pool.metadata.labels
    labelled = bool(selection.match_labels) and all(own.get(k) == v for k, v in selection.match_labels.items())
    return pool.metadata.name in selection.names or labelled


def decide_sleep(
    schedules: Iterable[ActiveSchedule], pools: Iterable[NodePool], overrides: SleepOverrides, now: datetime
) -> SleepDecision:
    """Which NodePools sleep at ``now``."""
    active = tuple(schedules)
    states: dict[str, _PoolState] = {}
    for pool in pools:
        own = tuple(schedule for schedule in active if selects(schedule.schedule, pool))
        states[pool.metadata.name] = _pool_state(pool, own, overrides, now)
    changes = [moment for state in states.values() for moment in state.changes if moment > now]
    sleeping = {name: state.sleep for name, state in states.items() if state.sleep is not None}
    return SleepDecision(sleeping, min(changes, default=None))


def _pool_state(
    pool: NodePool, schedules: tuple[ActiveSchedule, ...], overrides: SleepOverrides, now: datetime
) -> _PoolState:
    name = pool.metadata.name
    awake_until, asleep_until = overrides.awake_until.get(name), overrides.asleep_until.get(name)
    if awake_until is not None and awake_until > now:
        return _PoolState(None, (awake_until,))
    if asleep_until is not None and asleep_until > now and pool.spec.replicas is None:
        cause = f"NodePool {name} is sent to sleep"
        return _PoolState(PoolSleep(cause, asleep_until, is_draining=True), (asleep_until,))
    if not schedules:
        return _PoolState(None)
    return _scheduled_state(schedules, max(filter(None, (awake_until, asleep_until)), default=None), now)


def _scheduled_state(schedules: tuple[ActiveSchedule, ...], override_end: datetime | None, now: datetime) -> _PoolState:
    grace, deadline = (max(getattr(schedule, name) for schedule in schedules) for name in ("grace", "deadline"))
    period = TimeSpan(now - max(grace, deadline, HORIZON), now + HORIZON)
    spans = tuple(merged_spans(sorted(_awake_spans(schedules, period), key=lambda span: span.begin)))
    current = next((span for span in spans if span.begin <= now < span.end), None)
    if current is not None:
        return _PoolState(None, (current.end,))
    begin = max((span.end for span in spans if span.end <= now), default=period.begin)
    begin = max(begin, _first_creation(schedules, begin))
    begin = max(begin, override_end) if override_end is not None and override_end <= now else begin
    wake = next((span.begin for span in spans if span.begin > now), None)
    sleep = PoolSleep(
        _cause(schedules),
        _window_begin(schedules, wake),
        is_draining=now >= begin + grace,
        ignores_do_not_disrupt=now >= begin + deadline and not _respected(schedules, "DoNotDisrupt"),
        ignores_disruption_budgets=now >= begin + deadline and not _respected(schedules, "PodDisruptionBudgets"),
        began_at=begin if begin > period.begin else None,
    )
    return _PoolState(sleep, tuple(filter(None, (begin + grace, begin + deadline, wake))))


def _awake_spans(schedules: Iterable[ActiveSchedule], period: TimeSpan) -> Iterator[TimeSpan]:
    """The spans of all schedules, each beginning earlier by what it takes to wake up."""
    for schedule in schedules:
        for span in schedule.calendar.awake_spans(period):
            yield TimeSpan(span.begin - schedule.lead, span.end)


def _first_creation(schedules: Iterable[ActiveSchedule], default: datetime) -> datetime:
    """Since when the NodePool has a schedule: a schedule that is created at night lets the grace period begin then."""
    return min(schedule.schedule.metadata.creation_timestamp or default for schedule in schedules)


def _window_begin(schedules: Iterable[ActiveSchedule], wake: datetime | None) -> datetime | None:
    """When the first window begins after waking up, with the offset its schedule's clocks have then."""
    if wake is None:
        return None
    begins = (
        (span.begin, schedule)
        for schedule in schedules
        for span in schedule.calendar.awake_spans(TimeSpan(wake, wake + schedule.lead + timedelta(minutes=1)))
    )
    moment, schedule = min(begins, key=lambda begin: begin[0], default=(wake, None))
    if schedule is None:
        return moment
    local = moment.astimezone(schedule.calendar.zone)
    return local.replace(tzinfo=timezone(local.utcoffset() or timedelta()))


def _cause(schedules: Iterable[ActiveSchedule]) -> str:
    return "CapacitySchedule " + ", ".join(sorted(schedule.schedule.metadata.name for schedule in schedules))


def _respected(schedules: Iterable[ActiveSchedule], protection: str) -> bool:
    return any(protection in schedule.spec.sleep.respect for schedule in schedules)


def launch_delay(claims: Iterable[NodeClaim]) -> timedelta | None:
    """From order to initialization: the delay that nine of ten launches keep, None without any initialized NodeClaim."""
    delays = sorted(filter(None, map(_delay_of, claims)))
    return delays[min(len(delays) - 1, int(len(delays) * _PERCENTILE))] if delays else None


def _delay_of(claim: NodeClaim) -> timedelta | None:
    initialized = find_condition(claim.status.conditions, "Initialized")
    created = claim.metadata.creation_timestamp
    if (
        initialized is None
        or initialized.status != "True"
        or initialized.last_transition_time is None
        or created is None
    ):
        return None
    return max(timedelta(), initialized.last_transition_time - created)
