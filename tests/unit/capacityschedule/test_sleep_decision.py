"""Which NodePools sleep: several schedules, exceptions, the edges of grace and deadline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import msgspec

from karpenter.api.capacity_schedule import CapacitySchedule, ScheduleWindow, SleepSettings, WakeSettings
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import ObjectMeta
from karpenter.capacityschedule.sleep_decision import ActiveSchedule, SleepDecision, SleepOverrides, decide_sleep
from karpenter.capacityschedule.sleep_overrides import sleep_overrides
from karpenter.model import labels
from karpenter.model.capacity_calendar import capacity_calendar
from karpenter.model.pool_sleep import PoolSleep
from support.builders import annotated, node_pool, pod
from support.sleep_cases import capacity_schedule

#: A Tuesday evening; Seoul is nine hours ahead of UTC.
_EVENING = datetime(2026, 10, 6, 13, 0, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)
_NO_OVERRIDES = SleepOverrides()


def _decide(
    now: datetime, *schedules: CapacitySchedule, overrides: SleepOverrides = _NO_OVERRIDES, delay: float = 0.0
) -> SleepDecision:
    active = [ActiveSchedule(s, capacity_calendar(s.spec), timedelta(seconds=delay)) for s in schedules]
    return decide_sleep(active, [node_pool("np")], overrides, now)


def _sleep(decision: SleepDecision) -> PoolSleep | None:
    return decision.sleeping.get("np")


def test_the_end_of_a_sleep_is_written_in_its_time_zone_and_utc_as_kubernetes_writes_it() -> None:
    seoul = _EVENING.astimezone(timezone(timedelta(hours=9)))
    assert str(PoolSleep("NodePool np is sent to sleep", _EVENING)).endswith(" until 2026-10-06T13:00:00Z")
    assert str(PoolSleep("CapacitySchedule office", seoul)).endswith(" until 2026-10-06T22:00:00+09:00")
    assert str(PoolSleep("CapacitySchedule office")) == "CapacitySchedule office"


def test_the_night_has_a_beginning_a_grace_period_a_deadline_and_an_end() -> None:
    """Each is the next change of the one before."""
    schedule = capacity_schedule()
    assert _decide(_EVENING - _MINUTE, schedule) == SleepDecision({}, _EVENING)
    begun = _decide(_EVENING, schedule)
    assert str(_sleep(begun)) == "CapacitySchedule office until 2026-10-07T07:00:00+09:00"
    assert begun.next_change == _EVENING + 10 * _MINUTE
    grace_over = _decide(_EVENING + 10 * _MINUTE, schedule)
    assert (_sleep(begun).is_draining, _sleep(grace_over).is_draining) == (False, True)
    assert grace_over.next_change == _EVENING + 30 * _MINUTE
    late = _decide(_EVENING + 30 * _MINUTE, schedule)
    assert late.next_change == _EVENING + timedelta(hours=9) - _MINUTE, "one minute ahead of 07:00"
    assert _sleep(_decide(late.next_change, schedule)) is None


def test_protections_hold_after_the_deadline_unless_the_schedule_leaves_them_out() -> None:
    late = _EVENING + timedelta(hours=1)
    for respect, ignored in (
        (("PodDisruptionBudgets", "DoNotDisrupt"), (False, False)),
        (("DoNotDisrupt",), (False, True)),
        ((), (True, True)),
    ):
        schedule = capacity_schedule(sleep=SleepSettings(grace="1m", deadline="30m", respect=respect))
        early, sleep = _sleep(_decide(_EVENING + 20 * _MINUTE, schedule)), _sleep(_decide(late, schedule))
        assert early is not None
        assert sleep is not None
        assert not early.ignores_do_not_disrupt
        assert not early.ignores_disruption_budgets
        assert (sleep.ignores_do_not_disrupt, sleep.ignores_disruption_budgets) == ignored


def test_the_learned_launch_delay_counts_where_it_is_longer_than_ahead() -> None:
    ahead = capacity_schedule(wake=WakeSettings(ahead="2m"))
    morning = _EVENING + timedelta(hours=9)
    asleep = _EVENING + timedelta(hours=1)
    assert _decide(asleep, ahead, delay=30).next_change == morning - 2 * _MINUTE
    assert _decide(asleep, ahead, delay=285).next_change == morning - 5 * _MINUTE


def test_awake_wins_where_two_schedules_select_a_pool() -> None:
    late_shift = capacity_schedule("late", windows=(ScheduleWindow(days="tue", begin="20:00", until="02:00"),))
    both = (capacity_schedule(), late_shift)
    assert _sleep(_decide(_EVENING + timedelta(hours=3), *both)) is None
    sleep = _sleep(_decide(_EVENING + timedelta(hours=5), *both))
    assert str(sleep) == "CapacitySchedule late, office until 2026-10-07T07:00:00+09:00"


def test_exceptions_overrule_schedules_and_awake_wins() -> None:
    """After an exception the grace period begins anew."""
    end = _EVENING + timedelta(hours=2)
    awake = SleepOverrides({"np": end}, {"np": end})
    assert _decide(_EVENING, capacity_schedule(), overrides=awake) == SleepDecision({}, end)
    after = _sleep(_decide(end + 5 * _MINUTE, capacity_schedule(), overrides=awake))
    assert after is not None
    assert not after.is_draining
    asleep = SleepOverrides(asleep_until={"np": end})
    sent = _sleep(_decide(_EVENING - timedelta(hours=4), capacity_schedule(), overrides=asleep))
    assert sent == PoolSleep("NodePool np is sent to sleep", end, is_draining=True)


def test_static_pools_and_pools_of_no_schedule_stay_awake() -> None:
    static = node_pool("np", replicas=3)
    other = node_pool("other")
    active = ActiveSchedule(capacity_schedule(), capacity_calendar(capacity_schedule().spec))
    assert decide_sleep([active], [static, other], SleepOverrides(), _EVENING) == SleepDecision({})


def test_annotations_of_pools_namespaces_and_pods_keep_pools_awake() -> None:
    """A pod without a node keeps all awake, one on a node of others none; text that is no time counts as absent."""
    until, later = "2026-10-06T14:00:00Z", "2026-10-06T15:00:00Z"
    first = annotated(node_pool("first"), {labels.KEEP_AWAKE_UNTIL: until})
    second: NodePool = annotated(node_pool("second"), {labels.ASLEEP_UNTIL: until, labels.KEEP_AWAKE_UNTIL: "later"})
    waiting = pod("p", {"cpu": "1"})
    meta: ObjectMeta = msgspec.structs.replace(waiting.metadata, annotations={labels.KEEP_AWAKE_UNTIL: later})
    marked = msgspec.structs.replace(waiting, metadata=meta)
    hour = timedelta(hours=1)
    pools = (first, second)
    at = _EVENING
    assert sleep_overrides(pools, (), {}) == SleepOverrides({"first": at + hour}, {"second": at + hour})
    on_second = sleep_overrides(pools, [(marked, "second")], {}).awake_until
    assert on_second == {"first": at + hour, "second": at + 2 * hour}
    elsewhere = msgspec.structs.replace(marked, spec=msgspec.structs.replace(marked.spec, node_name="of-others"))
    assert sleep_overrides(pools, [(elsewhere, "")], {}) == sleep_overrides(pools, (), {})
    everywhere = sleep_overrides(pools, [(marked, "")], {}).awake_until
    assert everywhere == {"first": at + 2 * hour, "second": at + 2 * hour}
    by_namespace = sleep_overrides(pools, [(waiting, "second")], {waiting.metadata.namespace: later}).awake_until
    assert by_namespace["second"] == at + 2 * hour
