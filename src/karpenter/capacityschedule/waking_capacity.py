"""Keeps virtual pods for schedules that wake up with ``wake.warm``, and remembers what ran before they slept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from karpenter.api.capacity_schedule import RememberedCapacity
from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.capacityschedule.sleep_decision import (
    WARM_AS_BEFORE,
    WARM_BUFFER,
    WARM_NONE,
    ActiveSchedule,
    selects,
)
from karpenter.capacityschedule.warm_capacity import WarmGroup, is_warming, pod_sizes, remembered_capacity, warm_groups
from karpenter.model.pool_sleep import PoolSleep
from karpenter.state.virtual_pods import VirtualPods

#: How often warm capacity is compared with the pods that have come.
_RECHECK_SECONDS = 15.0


class WakingCapacity:
    """The virtual pods of all schedules. ``trigger`` asks for a scheduling pass; ``has_buffers``: CapacityBuffers are kept."""

    def __init__(self, virtual_pods: VirtualPods, trigger: Callable[[str], None], *, has_buffers: bool) -> None:
        self._virtual_pods = virtual_pods
        self._trigger = trigger
        self.has_buffers = has_buffers
        self._groups: dict[str, WarmGroup] = {}
        #: By uid of the schedule: what the status that is watched may not have yet.
        self._remembered: dict[str, RememberedCapacity] = {}

    def remembered(self, schedule: ActiveSchedule) -> RememberedCapacity | None:
        """What ran before the last sleep, for the status; None unless the schedule wants it back."""
        if schedule.spec.wake.warm != WARM_AS_BEFORE:
            return None
        stored = schedule.schedule.status.before_sleep
        noted = self._remembered.get(schedule.schedule.metadata.uid)
        return max(filter(None, (stored, noted)), key=lambda capacity: capacity.since, default=None)

    def remember(
        self,
        schedules: Iterable[ActiveSchedule],
        pools: Iterable[NodePool],
        sleeping: Mapping[str, PoolSleep],
        find_pods: Callable[[], Iterable[tuple[str, Pod]]],
    ) -> None:
        """Note what runs on NodePools whose sleep has begun since the last note. Called before anything is drained for it."""
        for schedule in schedules:
            if schedule.spec.wake.warm != WARM_AS_BEFORE:
                continue
            selected = {pool.metadata.name for pool in pools if selects(schedule.schedule, pool)}
            begins = [sleep.began_at for name, sleep in sleeping.items() if name in selected and sleep.began_at]
            noted = self.remembered(schedule)
            if begins and (noted is None or noted.since < max(begins)):
                sizes = pod_sizes((pool, pod) for pool, pod in find_pods() if pool in selected)
                self._remembered[schedule.schedule.metadata.uid] = remembered_capacity(max(begins), sizes)

    def keep(
        self,
        schedules: Iterable[ActiveSchedule],
        pools: Iterable[NodePool],
        sleeping: Mapping[str, PoolSleep],
        find_pods: Callable[[], Iterable[tuple[str, Pod]]],
        now: datetime,
    ) -> float | None:
        """Set the virtual pods that schedules want now; returns seconds until the next comparison, None if none is warming."""
        warming = [s for s in schedules if s.spec.wake.warm not in (WARM_NONE, WARM_BUFFER) and is_warming(s, now)]
        existing = pod_sizes(find_pods()) if warming else Counter()
        groups = [
            group
            for schedule in warming
            for group in warm_groups(
                schedule,
                self.remembered(schedule),
                [p for p in pools if selects(schedule.schedule, p) and p.metadata.name not in sleeping],
                existing,
                now,
            )
        ]
        self._set_groups({group.key: group for group in groups})
        return _RECHECK_SECONDS if warming else None

    def _set_groups(self, wanted: Mapping[str, WarmGroup]) -> None:
        before = {key: len(group.pods) for key, group in self._groups.items()}
        for key in self._groups.keys() - wanted.keys():
            self._virtual_pods.set_pods(key, ())
            self._trigger(key)
        for key, group in wanted.items():
            if before.get(key) != len(group.pods):
                self._virtual_pods.set_pods(key, group.pods)
                self._trigger(key)
        self._groups = dict(wanted)
