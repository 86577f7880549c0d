"""Says of which waiting pods it is known that their wishes can keep machines from being given back (SCH-672).

A wish about other pods is granted while there is a machine to buy for it; fewer machines would break it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import structlog

from karpenter.act.events import shortened
from karpenter.api.core import Pod, PodSpec
from karpenter.cluster.snapshot import PodGroup, age
from karpenter.model.buffers import is_virtual

#: A pod is not mentioned again for so long.
_SILENCE = timedelta(hours=24)
_NAMED = 10
_log = structlog.get_logger()


class Wishes:
    """Mentions each pod at most once a day for each of the two wishes."""

    def __init__(self) -> None:
        self._apart = _Said()
        self._spread = _Said()

    def hear(self, groups: Iterable[PodGroup], now: datetime) -> None:
        """These wait now."""
        apart: list[Pod] = []
        spread: list[Pod] = []
        for group in groups:
            if not is_virtual(group.pods[0]):
                apart += group.pods if _wishes_apart(group.pod_class.spec) else ()
                spread += group.pods if _wishes_spread(group.pod_class.spec) else ()
        if news := self._apart.new(apart, now):
            _log.info("pod(s) have a preferred Anti-Affinity which can prevent consolidation", pods=_names(news))
        if news := self._spread.new(spread, now):
            _log.info(
                "pod(s) have a preferred TopologySpreadConstraint which can prevent consolidation", pods=_names(news)
            )


class _Said:
    """Until when pods, by uid, are not mentioned again."""

    def __init__(self) -> None:
        self._until: dict[str, datetime] = {}

    def new(self, pods: list[Pod], now: datetime) -> list[Pod]:
        """Those to mention now, oldest first; what was said of all others long ago is forgotten then."""
        found = [pod for pod in pods if self._until.get(pod.metadata.uid, now) <= now]
        if found:
            self._until = {uid: until for uid, until in self._until.items() if until > now}
            self._until.update((pod.metadata.uid, now + _SILENCE) for pod in found)
        return sorted(found, key=age)


def _wishes_apart(spec: PodSpec) -> bool:
    affinity = spec.affinity
    return (
        affinity is not None and affinity.pod_anti_affinity is not None and bool(affinity.pod_anti_affinity.preferred)
    )


def _wishes_spread(spec: PodSpec) -> bool:
    return any(item.when_unsatisfiable == "ScheduleAnyway" for item in spec.topology_spread_constraints)


def _names(pods: list[Pod]) -> str:
    return shortened([f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods], _NAMED)
