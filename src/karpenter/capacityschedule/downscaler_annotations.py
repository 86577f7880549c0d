"""Annotations of kube-downscaler on workloads and namespaces, so that a cluster can move to CapacitySchedules as it is.

They narrow what a schedule scales down: workloads that are excluded, or whose own uptime goes on, keep their replicas. A
workload that kube-downscaler left scaled down gets its replicas back. An annotation of the workload overrides its namespace's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

from karpenter.api.capacity_schedule import CapacityScheduleSpec, NodePoolSelection, ScheduleWindow
from karpenter.model.capacity_calendar import CapacityScheduleError, CapacityState, capacity_calendar
from karpenter.model.clock import parse_annotation_time

_PREFIX = "downscaler/"
ORIGINAL_REPLICAS = f"{_PREFIX}original-replicas"
_WEEKLY = re.compile(
    r"^\s*(?P<first>[A-Za-z]{3})(-(?P<last>[A-Za-z]{3}))?\s+(?P<begin>\d\d:\d\d)-(?P<end>\d\d:\d\d)\s+(?P<zone>\S+)\s*$"
)
_MOMENT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|[+-]\d\d:?\d\d)"
_ABSOLUTE = re.compile(rf"^\s*({_MOMENT})\s*-\s*({_MOMENT})\s*$")
_TRUE = frozenset({"true", "always"})


class DownscalerAnnotations:
    """What kube-downscaler's annotations of a workload and of its namespace say together. Unreadable ones count as absent."""

    def __init__(self, workload: Mapping[str, str], namespace: Mapping[str, str]) -> None:
        self._annotations = {**namespace, **workload}

    def keeps_up(self, now: datetime) -> str:
        """The name of the annotation because of which the workload keeps its replicas now; empty if there is none."""
        for name, holds in (
            ("exclude", self._is_true("exclude")),
            ("exclude-until", self._excluded_until(now)),
            ("force-uptime", self._is_forced("force-uptime", now)),
            ("uptime", self._covers("uptime", now) is True and not self._is_forced("force-downtime", now)),
            ("downtime", self._covers("downtime", now) is False and not self._is_forced("force-downtime", now)),
        ):
            if holds:
                return _PREFIX + name
        return ""

    def keeps_down(self, now: datetime) -> bool:
        """Whether kube-downscaler itself would keep the workload scaled down now. In that case its replicas are not restored."""
        if self._is_forced("force-uptime", now):
            return False
        if self._is_forced("force-downtime", now):
            return True
        return self._covers("uptime", now) is False or self._covers("downtime", now) is True

    @property
    def downtime_replicas(self) -> int:
        """The replicas of a workload that is scaled down, mostly 0."""
        return _number(self._annotations.get(f"{_PREFIX}downtime-replicas", "")) or 0

    def _is_true(self, name: str) -> bool:
        return self._annotations.get(_PREFIX + name, "").strip().lower() in _TRUE

    def _is_forced(self, name: str, now: datetime) -> bool:
        return self._is_true(name) or self._covers(name, now) is True

    def _excluded_until(self, now: datetime) -> bool:
        text = self._annotations.get(f"{_PREFIX}exclude-until", "").strip()
        return bool(text) and (moment := _loose_moment(text)) is not None and now < moment

    def _covers(self, name: str, now: datetime) -> bool | None:
        """Whether the time spans of an annotation cover a moment; None without a readable one."""
        text = self._annotations.get(_PREFIX + name, "").strip()
        if text.lower() in ("always", "never"):
            return text.lower() == "always"
        spans = [_span_covers(part, now) for part in text.split(",") if part.strip()]
        return None if not spans or None in spans else any(spans)


def original_replicas(annotations: Mapping[str, str]) -> int | None:
    """The replicas that kube-downscaler noted on a workload which it scaled down."""
    return _number(annotations.get(ORIGINAL_REPLICAS, ""))


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def _loose_moment(text: str) -> datetime | None:
    """A date, or a date with a time; without an offset it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _span_covers(text: str, now: datetime) -> bool | None:
    absolute = _ABSOLUTE.match(text)
    if absolute is not None:
        begin, end = (parse_annotation_time(moment) for moment in absolute.groups())
        return None if begin is None or end is None else begin <= now < end
    weekly = _WEEKLY.match(text)
    if weekly is None:
        return None
    first, last = weekly["first"].lower(), (weekly["last"] or weekly["first"]).lower()
    window = ScheduleWindow(days=f"{first}-{last}", begin=weekly["begin"], until=weekly["end"])
    spec = CapacityScheduleSpec(node_pools=NodePoolSelection(), windows=(window,), time_zone=weekly["zone"])
    try:
        return capacity_calendar(spec).state(now) is CapacityState.AWAKE
    except (CapacityScheduleError, ValueError):
        return None
