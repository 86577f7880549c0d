"""The controller of CapacitySchedules: it publishes which NodePools sleep, closes their nodes to pods, and writes statuses.

All schedules are evaluated together. Nothing is remembered between passes but what the API server holds, so a controller that was
down at the edge of a window catches up with its first pass. ``workload_scaler`` scales workloads, ``waking_capacity`` keeps
capacity for pods that are to come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import msgspec
import structlog

from karpenter.api.capacity_schedule import CapacitySchedule, CapacityScheduleStatus
from karpenter.api.core import Namespace, Node, Pod
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import CAPACITY_SCHEDULE, NODE, NODE_CLAIM
from karpenter.api.meta import Condition
from karpenter.api.scheduling_constraints import Taint
from karpenter.capacityschedule.sleep_decision import (
    ActiveSchedule,
    SleepDecision,
    SleepOverrides,
    UnusableSchedule,
    decide_sleep,
    launch_delay,
    read_schedule,
    selects,
)
from karpenter.capacityschedule.sleep_overrides import kept_awake_namespaces, kept_awake_pods, sleep_overrides
from karpenter.capacityschedule.waking_capacity import WakingCapacity
from karpenter.capacityschedule.workload_scaler import ScheduleSleep, SleepPhase, WorkloadScaler
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import Conflict, NotFound
from karpenter.kube.informer import Informer
from karpenter.model import conditions, labels, taints
from karpenter.model.budget_windows import TimeSpan
from karpenter.model.capacity_calendar import CapacityCalendar, CapacityState
from karpenter.model.clock import rfc3339
from karpenter.model.pool_sleep import PoolSleep
from karpenter.runtime.events import NORMAL, ObjectEvent, involved_pool
from karpenter.runtime.patching import merge_patch
from karpenter.runtime.reconciler import Reconciler
from karpenter.state.snapshot import pod_key

#: All schedules are evaluated together, so the queue has one key.
_ALL_SCHEDULES_KEY = "all"
#: Longest time between two passes.
_REQUEUE_SECONDS = 3600.0
_CONFLICT_REQUEUE_SECONDS = 1.0
#: How long statuses may lag behind nodes that come and go.
_STATUS_DELAY_SECONDS = 30.0
#: How many nodes are patched at the same time.
_CONCURRENT_PATCHES = 20
_STATUS_HORIZON = timedelta(days=21)
_log = structlog.get_logger()


@dataclass(frozen=True)
class ScheduleInformers:
    """The objects that schedules depend on beside the cluster state."""

    schedules: Informer[CapacitySchedule]
    namespaces: Informer[Namespace]
    pods: Informer[Pod]


class CapacityScheduleReconciler:
    """Evaluates all schedules. ``on_wake`` is called when a NodePool may launch nodes again."""

    def __init__(
        self,
        context: ControllerContext,
        informers: ScheduleInformers,
        on_wake: Callable[[], None],
        waking_capacity: WakingCapacity,
    ) -> None:
        self._context = context
        self._informers = informers
        self._on_wake = on_wake
        self._patches = asyncio.Semaphore(_CONCURRENT_PATCHES)
        self._waking_capacity = waking_capacity
        self._scaler = WorkloadScaler(context, lambda: informers.namespaces)

    async def reconcile(self, _key: str) -> float:
        """Evaluate, act and write statuses; returns seconds until the next pass. Raises ``KubeError``."""
        now = self._context.clock.now()
        pools = tuple(pool for pool in self._context.state.pools() if self._context.is_managed(pool))
        usable, unusable = self._calendars()
        decision = decide_sleep(usable, pools, self._overrides(pools), now)
        self._waking_capacity.remember(usable, pools, decision.sleeping, self._pods_by_pool)
        self._publish(pools, decision.sleeping)
        warm_wait = self._waking_capacity.keep(usable, pools, decision.sleeping, self._pods_by_pool, now)
        await self._close_nodes(decision.sleeping)
        # Nodes are drained once they are closed: evicted pods would come back otherwise.
        self._context.state.set_sleeping_pools(decision.sleeping)
        await self._force_overdue(decision.sleeping, now)
        has_conflict = False
        for active in usable:
            ready = _ready_condition(active, usable, pools)
            has_conflict |= await self._write_status(active.schedule, self._status(active, pools, now), ready)
        for other in unusable:
            condition = Condition(type="Ready", status=conditions.FALSE, reason="Invalid", message=other.error)
            has_conflict |= await self._write_status(other.schedule, CapacityScheduleStatus(), condition)
        # Workloads come last: what refuses them never holds up nodes and statuses.
        scale_wait = await self._scaler.reconcile(self._schedule_sleeps(usable, pools, decision), now)
        if has_conflict:
            return _CONFLICT_REQUEUE_SECONDS
        waits = (_seconds_until_next(decision, now), warm_wait, scale_wait)
        return min(wait for wait in waits if wait is not None)

    def _calendars(self) -> tuple[list[ActiveSchedule], list[UnusableSchedule]]:
        """The schedules that can be used, and the others."""
        usable: list[ActiveSchedule] = []
        unusable: list[UnusableSchedule] = []
        for schedule in sorted(self._informers.schedules, key=lambda schedule: schedule.metadata.name):
            if schedule.metadata.deletion_timestamp is not None:
                continue
            delay = self._launch_delay(schedule)
            match read_schedule(schedule, delay, has_buffers=self._waking_capacity.has_buffers):
                case ActiveSchedule() as active:
                    usable.append(active)
                case UnusableSchedule() as other:
                    unusable.append(other)
        return usable, unusable

    def _launch_delay(self, schedule: CapacitySchedule) -> timedelta:
        """Learned from the nodes there are; while all sleep, what was learned before."""
        selected = {pool.metadata.name for pool in self._context.state.pools() if selects(schedule, pool)}
        claims = (c for c in self._context.state.claims() if c.metadata.labels.get(labels.NODE_POOL, "") in selected)
        learned = launch_delay(claims)
        return timedelta(seconds=schedule.status.launch_delay_seconds) if learned is None else learned

    def _overrides(self, pools: tuple[NodePool, ...]) -> SleepOverrides:
        namespaces = kept_awake_namespaces(self._informers.namespaces)
        state = self._context.state
        pods = (
            (pod, self._pool_of_node(pod.spec.node_name))
            for pod in kept_awake_pods(self._informers.pods, namespaces)
            if state.pod(pod_key(pod)) is not None
        )
        return sleep_overrides(pools, pods, namespaces)

    def _pods_by_pool(self) -> Iterator[tuple[str, Pod]]:
        """All pods that are not over, with the NodePool of their node; empty for pods without a node."""
        state = self._context.state
        for pod in self._informers.pods:
            if state.pod(pod_key(pod)) is not None:
                pool = self._pool_of_node(pod.spec.node_name)
                if pool or not pod.spec.node_name:
                    yield pool, pod

    def _schedule_sleeps(
        self, usable: Iterable[ActiveSchedule], pools: Iterable[NodePool], decision: SleepDecision
    ) -> list[ScheduleSleep]:
        """How far the sleep of schedules that scale workloads has come: workloads sleep while all NodePools of theirs do."""
        sleeps = []
        for active in usable:
            selected = [pool.metadata.name for pool in pools if selects(active.schedule, pool)]
            if active.spec.sleep.scale_down == "Workloads" and selected:
                own = [decision.sleeping.get(name) for name in selected]
                sleeps.append(_schedule_sleep(active, [sleep for sleep in own if sleep is not None], len(own)))
        return sleeps

    def _pool_of_node(self, name: str) -> str:
        node = self._context.state.node(name) if name else None
        return node.metadata.labels.get(labels.NODE_POOL, "") if node is not None else ""

    # -- acting -----------------------------------------------------------------------------------------------------------

    def _publish(self, pools: Iterable[NodePool], sleeping: Mapping[str, PoolSleep]) -> None:
        """Events and log lines about NodePools that fall asleep or wake up, and sleep without draining from now on."""
        before = self._context.state.sleeping_pools
        self._context.metrics.nodepools_asleep.clear()
        for pool in pools:
            name = pool.metadata.name
            self._context.metrics.nodepools_asleep.labels(nodepool=name).set(name in sleeping)
            old, new = before.get(name), sleeping.get(name)
            if (old is None) == (new is None):
                continue
            why = pool.metadata.annotations.get(labels.KEEP_AWAKE_REASON, "")
            awake = f"NodePool is awake: {why}" if why else "NodePool is awake"
            reason, text = ("Asleep", f"NodePool is asleep: {new}") if new is not None else ("Awake", awake)
            _log.info(text, NodePool={"name": name})
            self._context.events.publish(ObjectEvent(involved_pool(pool.metadata), NORMAL, reason, text))
        kept = {name: before.get(name) or replace(sleep, is_draining=False) for name, sleep in sleeping.items()}
        if self._context.state.set_sleeping_pools(kept) and before.keys() - kept.keys():
            self._on_wake()

    async def _close_nodes(self, sleeping: Mapping[str, PoolSleep]) -> None:
        """Taint the nodes of draining NodePools, and take the taint off all others."""
        changes = []
        for view in self._context.state.state_nodes():
            node = view.node
            if node is None or not view.managed or node.metadata.deletion_timestamp is not None:
                continue
            sleep = sleeping.get(view.pool)
            is_closed = any(taints.is_same_taint(taint, labels.ASLEEP_TAINT) for taint in node.spec.taints)
            if is_closed != (sleep is not None and sleep.is_draining):
                changes.append(self._patch_node(node, _opened(node) if is_closed else _closed(node)))
        await asyncio.gather(*changes)

    async def _patch_node(self, node: Node, desired: Node) -> None:
        async with self._patches:
            try:
                version = node.metadata.resource_version
                await self._context.kube.patch(
                    NODE, node.metadata.name, merge_patch(node, desired), resource_version=version
                )
            except (Conflict, NotFound):
                # The watch delivers the change, and the node is in the next pass.
                return

    async def _force_overdue(self, sleeping: Mapping[str, PoolSleep], now: datetime) -> None:
        """Give drains an end where the deadline has passed and PodDisruptionBudgets no longer count."""
        for claim in self._context.state.claims():
            sleep = sleeping.get(claim.metadata.labels.get(labels.NODE_POOL, ""))
            is_going = claim.metadata.deletion_timestamp is not None
            if sleep is not None and sleep.ignores_disruption_budgets and is_going:
                await self._set_drain_deadline(claim, now)

    async def _set_drain_deadline(self, claim: NodeClaim, now: datetime) -> None:
        if labels.TERMINATION_TIMESTAMP not in claim.metadata.annotations:
            patch = {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: rfc3339(now)}}}
            try:
                await self._context.kube.patch(NODE_CLAIM, claim.metadata.name, patch)
            except NotFound:
                return

    # -- status -----------------------------------------------------------------------------------------------------------

    def _status(self, active: ActiveSchedule, pools: Iterable[NodePool], now: datetime) -> CapacityScheduleStatus:
        selected = {pool.metadata.name for pool in pools if selects(active.schedule, pool)}
        nodes = sum(view.pool in selected for view in self._context.state.state_nodes())
        state, change = active.calendar.state(now), next_calendar_change(active.calendar, now)
        following = CapacityState.AWAKE if state is CapacityState.ASLEEP else CapacityState.ASLEEP
        return CapacityScheduleStatus(
            state=state.value,
            next_state=following.value if change is not None else "",
            next_change=change,
            node_pools=len(selected),
            nodes=nodes,
            launch_delay_seconds=round(active.launch_delay.total_seconds()),
            before_sleep=self._waking_capacity.remembered(active),
        )

    async def _write_status(self, schedule: CapacitySchedule, status: CapacityScheduleStatus, ready: Condition) -> bool:
        """Write the status if it changed; returns whether another client wrote it meanwhile."""
        meta = schedule.metadata
        written = conditions.set_rootless_condition(
            schedule.status.conditions, ready, meta.generation, self._context.clock.now()
        )
        desired = msgspec.structs.replace(schedule, status=msgspec.structs.replace(status, conditions=written))
        patch = merge_patch(schedule, desired)
        if not patch:
            return False
        version = meta.resource_version
        try:
            await self._context.kube.patch(
                CAPACITY_SCHEDULE, meta.name, patch, subresource="status", resource_version=version
            )
        except Conflict:
            return True
        except NotFound:
            return False
        return False


def _schedule_sleep(active: ActiveSchedule, sleeping: list[PoolSleep], pool_count: int) -> ScheduleSleep:
    phase = SleepPhase.AWAKE
    if len(sleeping) == pool_count:
        phase = SleepPhase.ASLEEP if all(sleep.is_draining for sleep in sleeping) else SleepPhase.GRACE
    return ScheduleSleep(
        active.schedule.metadata,
        phase,
        min((sleep.began_at for sleep in sleeping if sleep.began_at is not None), default=None),
        not all(sleep.ignores_do_not_disrupt for sleep in sleeping),
        active.stagger,
    )


def _ready_condition(active: ActiveSchedule, others: Iterable[ActiveSchedule], pools: Iterable[NodePool]) -> Condition:
    """Ready; its message names the schedules that select some of the same NodePools."""
    name = active.schedule.metadata.name
    selected = [pool for pool in pools if selects(active.schedule, pool)]
    overlaps = [
        f"{pool.metadata.name} (also {other.schedule.metadata.name})"
        for pool in selected
        for other in others
        if other.schedule.metadata.name != name and selects(other.schedule, pool)
    ]
    if not overlaps:
        return Condition(type="Ready", status=conditions.TRUE, reason="Evaluated")
    text = f"NodePools of several schedules are awake while one of them is: {', '.join(sorted(overlaps))}"
    return Condition(type="Ready", status=conditions.TRUE, reason="Overlapping", message=text)


def next_calendar_change(calendar: CapacityCalendar, now: datetime) -> datetime | None:
    """When the calendar changes its state next; None if not within three weeks."""
    end = now + _STATUS_HORIZON
    spans = calendar.awake_spans(TimeSpan(now, end))
    edges = (edge for span in spans for edge in (span.begin, span.end))
    return next((edge for edge in edges if now < edge < end), None)


def _seconds_until_next(decision: SleepDecision, now: datetime) -> float:
    if decision.next_change is None:
        return _REQUEUE_SECONDS
    return min(_REQUEUE_SECONDS, max(0.01, (decision.next_change - now).total_seconds()))


def _closed(node: Node) -> Node:
    return _with_taints(node, (*node.spec.taints, labels.ASLEEP_TAINT))


def _opened(node: Node) -> Node:
    return _with_taints(node, [t for t in node.spec.taints if not taints.is_same_taint(t, labels.ASLEEP_TAINT)])


def _with_taints(node: Node, kept: Iterable[Taint]) -> Node:
    return msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=tuple(kept)))


class CapacityScheduleController:
    """Queues the evaluation of all schedules. Its handlers receive events after the cluster state."""

    def __init__(
        self,
        context: ControllerContext,
        informers: ScheduleInformers,
        on_wake: Callable[[], None],
        waking_capacity: WakingCapacity,
    ) -> None:
        self._state = context.state
        reconciler = CapacityScheduleReconciler(context, informers, on_wake, waking_capacity)
        self._queue = Reconciler("capacityschedule", reconciler.reconcile, 1, metrics=context.metrics)
        self._queue.add(_ALL_SCHEDULES_KEY)

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The loops to run, by name."""
        return {self._queue.name: self._queue.run}

    def on_schedule(self, old: CapacitySchedule | None, new: CapacitySchedule | None) -> None:
        """A schedule was added, changed or removed. Our own status writes are ignored."""
        if old is None or new is None or old.spec != new.spec or new.metadata.deletion_timestamp is not None:
            self._queue.add(_ALL_SCHEDULES_KEY)

    def on_pool(self, old: NodePool | None, new: NodePool | None) -> None:
        """A pool was added, changed or removed."""
        if old is None or new is None or _pool_inputs(old) != _pool_inputs(new):
            self._queue.add(_ALL_SCHEDULES_KEY)

    def on_node(self, _old: Node | None, new: Node | None) -> None:
        """A node of a draining NodePool appeared, or one of another still has the taint."""
        if new is None:
            return
        sleep = self._state.sleeping_pools.get(new.metadata.labels.get(labels.NODE_POOL, ""))
        is_closed = any(taints.is_same_taint(taint, labels.ASLEEP_TAINT) for taint in new.spec.taints)
        if is_closed != (sleep is not None and sleep.is_draining):
            self._queue.add(_ALL_SCHEDULES_KEY)

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """A NodeClaim came or went, or it goes and its NodePool is past its deadline."""
        if new is None or old is None:
            self._queue.queue.add_after(_ALL_SCHEDULES_KEY, _STATUS_DELAY_SECONDS)
            return
        sleep = self._state.sleeping_pools.get(new.metadata.labels.get(labels.NODE_POOL, ""))
        is_late = sleep is not None and sleep.ignores_disruption_budgets
        if is_late and new.metadata.deletion_timestamp is not None and old.metadata.deletion_timestamp is None:
            self._queue.add(_ALL_SCHEDULES_KEY)

    def on_annotated(self, old: Pod | Namespace | None, new: Pod | Namespace | None) -> None:
        """A pod or namespace came, changed or went that keeps NodePools awake."""
        before, after = (None if obj is None else _exceptions_of(obj) for obj in (old, new))
        if (before or ("", "")) != (after or ("", "")):
            self._queue.add(_ALL_SCHEDULES_KEY)


def _exceptions_of(obj: Pod | Namespace) -> tuple[str, str]:
    """What schedules read of a pod or namespace."""
    schedule = obj.metadata.labels.get(labels.CAPACITY_SCHEDULE, "") if isinstance(obj, Namespace) else ""
    return (obj.metadata.annotations.get(labels.KEEP_AWAKE_UNTIL, ""), schedule)


def _pool_inputs(pool: NodePool) -> tuple[object, ...]:
    """What schedules read of a NodePool."""
    overrides = (pool.metadata.annotations.get(key) for key in (labels.KEEP_AWAKE_UNTIL, labels.ASLEEP_UNTIL))
    return (pool.metadata.labels, pool.spec.replicas, *overrides)
