"""Scales workloads of opted-in namespaces down while their schedule sleeps, and back when it wakes up.

What a workload had is kept on the workload itself, in the write that scales it down: nothing is lost with the controller. The
workloads of a namespace are read when its sleep begins and every few minutes after that, not on every pass.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import structlog

from karpenter.api.apps import ScalableWorkload
from karpenter.api.core import Namespace
from karpenter.api.kinds import (
    CAPACITY_SCHEDULE,
    HORIZONTAL_POD_AUTOSCALER,
    SCALABLE_DEPLOYMENT,
    SCALABLE_STATEFUL_SET,
    Kind,
)
from karpenter.api.meta import ObjectMeta
from karpenter.capacityschedule.downscaler_annotations import ORIGINAL_REPLICAS
from karpenter.capacityschedule.workload_replicas import (
    ReplicasChange,
    ScaleDownRules,
    change_for_sleep,
    change_for_waking,
)
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import Conflict, Forbidden, KubeError, NotFound, ServerUnavailable, TooManyRequests
from karpenter.model import labels
from karpenter.runtime.events import NORMAL, WARNING, InvolvedObject, ObjectEvent

_KINDS = (SCALABLE_DEPLOYMENT, SCALABLE_STATEFUL_SET)
#: How often the workloads of a sleeping namespace are read, and those that wait for kube-downscaler's uptime.
_RECHECK = timedelta(minutes=5)
#: Workloads come back in steps of this length while ``wake.stagger`` lasts.
_STEP = timedelta(seconds=10)
_CONFLICT_SECONDS = 1.0
_CONCURRENT_WRITES = 10
_CONFLICT_EVENT_TIMEOUT = timedelta(hours=12)
_log = structlog.get_logger()


class SleepPhase(StrEnum):
    """How far the sleep of all NodePools of a schedule has come."""

    AWAKE = "Awake"
    GRACE = "Grace"
    ASLEEP = "Asleep"


@dataclass(frozen=True)
class ScheduleSleep:
    """A schedule with ``scaleDown: Workloads``, as its NodePools are now. ``began_at``: since when they sleep, if known."""

    metadata: ObjectMeta
    phase: SleepPhase
    began_at: datetime | None
    spares_do_not_disrupt: bool
    stagger: timedelta


@dataclass(frozen=True)
class _Workload:
    kind: Kind[ScalableWorkload]
    object: ScalableWorkload

    @property
    def order(self) -> tuple[str, str, str]:
        meta = self.object.metadata
        return (meta.namespace, meta.name, self.kind.name)


_Change = Callable[[_Workload], ReplicasChange | None]


class WorkloadScaler:
    """Keeps replicas of workloads in step with schedules. ``find_namespaces`` gives all namespaces there are."""

    def __init__(self, context: ControllerContext, find_namespaces: Callable[[], Iterable[Namespace]]) -> None:
        self._context = context
        self._find_namespaces = find_namespaces
        self._writes = asyncio.Semaphore(_CONCURRENT_WRITES)
        #: When the workloads of sleeping namespaces were read last, by namespace.
        self._read_at: dict[str, datetime] = {}
        #: Namespaces that slept in the last pass; None before the first, when workloads of any namespace may have to come back.
        self._held: frozenset[str] | None = None
        #: Since when workloads come back; None while all are back.
        self._waking_since: datetime | None = None

    async def reconcile(self, schedules: Iterable[ScheduleSleep], now: datetime) -> float | None:
        """Scale what is due; returns seconds until the next pass, None if no time matters. Raises ``KubeError``."""
        by_name = {schedule.metadata.name: schedule for schedule in schedules}
        namespaces = {
            namespace.metadata.name: (namespace, schedule)
            for namespace in self._find_namespaces()
            if (schedule := by_name.get(namespace.metadata.labels.get(labels.CAPACITY_SCHEDULE, ""))) is not None
        }
        held = frozenset(name for name, (_, own) in namespaces.items() if own.phase is not SleepPhase.AWAKE)
        if self._held is None or self._held - held:
            self._waking_since = now
        self._held = held
        asleep = {name: pair for name, pair in namespaces.items() if pair[1].phase is SleepPhase.ASLEEP}
        self._read_at = {name: moment for name, moment in self._read_at.items() if name in asleep}
        try:
            back = await self._scale_back(namespaces, held, now)
            waits = [back, *[await self._scale_down(namespace, own, now) for namespace, own in asleep.values()]]
        except Forbidden as error:
            self._say_forbidden(by_name.values(), error)
            return _RECHECK.total_seconds()
        return min((wait for wait in waits if wait is not None), default=None)

    # -- down -----------------------------------------------------------------------------------------------------------

    async def _scale_down(self, namespace: Namespace, schedule: ScheduleSleep, now: datetime) -> float:
        name = namespace.metadata.name
        read_at = self._read_at.get(name)
        if read_at is not None and now - read_at < _RECHECK:
            return (read_at + _RECHECK - now).total_seconds()
        autoscalers = await self._context.kube.list(HORIZONTAL_POD_AUTOSCALER, name)
        rules = ScaleDownRules(
            schedule.began_at or now,
            namespace.metadata.annotations,
            schedule.spares_do_not_disrupt,
            autoscalers.items,
        )
        workloads = await self._list(name)
        wait = await self._apply(
            workloads, lambda workload: change_for_sleep(workload.kind.name, workload.object, rules, now), "down"
        )
        if wait is not None and wait < _RECHECK.total_seconds():
            return wait
        self._read_at[name] = now
        return _RECHECK.total_seconds()

    # -- back -----------------------------------------------------------------------------------------------------------

    async def _scale_back(
        self, namespaces: Mapping[str, tuple[Namespace, ScheduleSleep]], held: Collection[str], now: datetime
    ) -> float | None:
        if self._waking_since is None:
            return None
        annotations = {name: namespace.metadata.annotations for name, (namespace, _) in namespaces.items()}
        waiting = [w for w in await self._scaled_down(namespaces) if w.object.metadata.namespace not in held]
        stagger = max((own.stagger for name, (_, own) in namespaces.items() if name not in held), default=timedelta())
        due = waiting[: _share(len(waiting), self._waking_since + stagger - now)]

        def change(workload: _Workload) -> ReplicasChange | None:
            return change_for_waking(workload.object, annotations.get(workload.object.metadata.namespace, {}), now)

        unchanged = sum(change(workload) is None for workload in due)
        wait = await self._apply(due, change, "up")
        if len(due) < len(waiting):
            return min(_STEP.total_seconds(), wait or math.inf)
        if wait is not None:
            return wait
        if unchanged:
            return _RECHECK.total_seconds()
        self._waking_since = None
        return None

    async def _scaled_down(self, namespaces: Collection[str]) -> list[_Workload]:
        """Workloads that have to come back, in any namespace, and those of opted-in ones that kube-downscaler left behind."""
        marked = await self._list("", label_selector=f"{labels.SCALED_DOWN}=true")
        for name in namespaces:
            marked += [w for w in await self._list(name) if ORIGINAL_REPLICAS in w.object.metadata.annotations]
        return list({workload.order: workload for workload in sorted(marked, key=lambda w: w.order)}.values())

    # -- common ---------------------------------------------------------------------------------------------------------

    async def _list(self, namespace: str, *, label_selector: str = "") -> list[_Workload]:
        kube = self._context.kube
        workloads = []
        for kind in _KINDS:
            listing = await kube.list(kind, namespace, label_selector=label_selector)
            workloads += [_Workload(kind, workload) for workload in listing.items]
        return sorted(workloads, key=lambda workload: workload.order)

    async def _apply(self, workloads: Iterable[_Workload], change: _Change, direction: str) -> float | None:
        """Write the changes, against the versions that were read; seconds until those that failed are due again."""
        changes = [(workload, wanted) for workload in workloads if (wanted := change(workload)) is not None]
        results = await asyncio.gather(*(self._write(workload, wanted, direction) for workload, wanted in changes))
        return min((wait for wait in results if wait is not None), default=None)

    async def _write(self, workload: _Workload, change: ReplicasChange, direction: str) -> float | None:
        meta = workload.object.metadata
        if change.patch is not None:
            async with self._writes:
                try:
                    await self._context.kube.patch(
                        workload.kind, meta.name, change.patch, meta.namespace, resource_version=meta.resource_version
                    )
                except Conflict:
                    return _CONFLICT_SECONDS
                except NotFound:
                    return None
                except KubeError as error:
                    return self._refused(workload, error)
            self._context.metrics.capacity_schedules_scaled_workloads_total.labels(direction=direction).inc()
        self._say(workload, change)
        return None

    def _refused(self, workload: _Workload, error: KubeError) -> float:
        """Say that one workload cannot be written; seconds until it is tried again. Raises ``Forbidden`` without permission."""
        if isinstance(error, Forbidden) and not _is_denied_by_policy(error):
            raise error
        text = f"not scaled, tried again: {error}"
        _log.error(text, **{workload.kind.name: "/".join(workload.order[:2])})
        involved = InvolvedObject(workload.kind, workload.object.metadata)
        event = ObjectEvent(involved, WARNING, "ScaleConflict", text, (text,), _CONFLICT_EVENT_TIMEOUT)
        self._context.events.publish(event)
        is_passing = isinstance(error, ServerUnavailable | TooManyRequests)
        return (_STEP if is_passing else _RECHECK).total_seconds()

    def _say(self, workload: _Workload, change: ReplicasChange) -> None:
        """An event of the workload; a conflict is said once a night."""
        is_conflict = change.patch is None
        type_, reason = (WARNING, "ScaleConflict") if is_conflict else (NORMAL, "CapacityScheduleScaled")
        involved = InvolvedObject(workload.kind, workload.object.metadata)
        if not is_conflict:
            _log.info(change.message, **{workload.kind.name: "/".join(workload.order[:2])})
            self._context.events.publish(ObjectEvent(involved, type_, reason, change.message))
            return
        values = (change.message,)
        event = ObjectEvent(involved, type_, reason, change.message, values, _CONFLICT_EVENT_TIMEOUT)
        self._context.events.publish(event)

    def _say_forbidden(self, schedules: Iterable[ScheduleSleep], error: Forbidden) -> None:
        text = f"workloads are not scaled: {error}; the chart adds the role with scaleDownWorkloads=true"
        _log.error(text)
        for schedule in schedules:
            involved = InvolvedObject(CAPACITY_SCHEDULE, schedule.metadata)
            self._context.events.publish(ObjectEvent(involved, WARNING, "ScaleForbidden", text))


def _is_denied_by_policy(error: Forbidden) -> bool:
    """Whether admission denied this one object: the server has the same status for a missing permission."""
    return "denied the request" in str(error) or "denied request" in str(error)


def _share(count: int, left: timedelta) -> int:
    """How many of the workloads come back in this step, so that all are back when the time that is left is over."""
    return count if left <= timedelta() else math.ceil(count * min(1.0, _STEP / left))
