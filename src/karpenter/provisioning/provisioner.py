"""The provisioning loop: wait for a batch, take a snapshot, decide, carry out (SCH §§1-2). Passes never overlap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import structlog

from karpenter.api.core import Pod, PodSpec
from karpenter.api.karpenter import NodePool
from karpenter.capacitybuffer.buffer_placements import without_buffer_pods
from karpenter.controller_context import ControllerContext
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.model import labels
from karpenter.model.backoff import Backoff
from karpenter.providers.contract import NodeClassNotReady, ProviderError, UnevaluatedNodePool
from karpenter.provisioning.awaited_room import AwaitedRoom
from karpenter.provisioning.batcher import ProvisioningBatcher
from karpenter.provisioning.cluster_autoscaler import ClusterAutoscalerScaleUps
from karpenter.provisioning.plan_executor import PlanExecutor, PlanOutcome
from karpenter.provisioning.problem_recorder import ProblemRecorder
from karpenter.runtime.events import shortened
from karpenter.runtime.reconciler import SingletonReconciler, run_supervised
from karpenter.scheduling.decision_memory import DecisionMemory
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import PreferencePolicy, SchedulingOptions
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from karpenter.state.snapshot import ClusterSnapshot, PodGroup, creation_order
from karpenter.state.virtual_pods import VirtualPods, is_virtual_pod

_BASE_RETRY_SECONDS = 1.0
#: Packings of the latest small batches are remembered: pods that come one by one are often alike.
_REMEMBERED_PACKERS, _REMEMBERED_PODS = 64, 100
_log = structlog.get_logger()


class PoolTypeIndexes:
    """Instance types of each pool, prepared once per distinct list."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._indexes_by_list: dict[int, tuple[tuple[InstanceType, ...], TypeIndex]] = {}
        #: The last line about each pool: it is logged again when it changes.
        self._logged_reasons: dict[str, str] = {}

    async def by_pool(self, pools: tuple[NodePool, ...]) -> dict[str, TypeIndex]:
        """Prepared types by pool name; pools whose types cannot be resolved are left out (SCH-115)."""
        type_indexes: dict[str, TypeIndex] = {}
        used: set[int] = set()
        for pool in pools:
            if not self._context.is_managed(pool):
                continue
            try:
                types = await self._context.provider.instance_types(pool)
            except UnevaluatedNodePool:
                self._log_skipped(pool, "skipping, awaiting nodeoverlay evaluation")
                continue
            except NodeClassNotReady:
                continue  # as every class begins: its own conditions and the pool's say what is missing
            except ProviderError as error:
                self._log_skipped(pool, "skipping, unable to resolve instance types", str(error))
                continue
            self._log_skipped(pool, "" if types else "skipping, no resolved instance types found")
            type_indexes[pool.metadata.name] = self._index(types)
            used.add(id(types))
        self._indexes_by_list = {key: value for key, value in self._indexes_by_list.items() if key in used}
        return type_indexes

    def _log_skipped(self, pool: NodePool, message: str, error: str = "") -> None:
        """Log why a pool takes no part, when that changes."""
        name = pool.metadata.name
        if self._logged_reasons.get(name, "") != message + error:
            self._logged_reasons[name] = message + error
            if error:
                _log.error(message, NodePool={"name": name}, error=error)
            elif message:
                _log.info(message, NodePool={"name": name})

    def _index(self, types: tuple[InstanceType, ...]) -> TypeIndex:
        index = self._indexes_by_list.get(id(types))
        if index is None or index[0] is not types:
            index = (types, TypeIndex(types, labels.WELL_KNOWN | well_known_labels_of(types)))
            self._indexes_by_list[id(types)] = index
        return index[1]


class Provisioner:
    """Runs provisioning passes. ``options`` are the decision's settings; ``on_plan`` receives every plan with its snapshot.

    ``scale_ups``: what Cluster Autoscaler does for pods, which are left to it; None where nothing is.
    """

    def __init__(
        self,
        context: ControllerContext,
        virtual_pods: VirtualPods,
        batcher: ProvisioningBatcher,
        executor: PlanExecutor,
        options: SchedulingOptions,
        on_plan: Callable[[ClusterSnapshot, Solution], None],
        recorder: ProblemRecorder | None = None,
        scale_ups: ClusterAutoscalerScaleUps | None = None,
    ) -> None:
        self._context = context
        self._scale_ups = scale_ups
        self._virtual_pods = virtual_pods
        self._on_plan = on_plan
        self._recorder = recorder
        self._batcher = batcher
        self._executor = executor
        self._options = options
        self._awaited_room = AwaitedRoom(options)
        self._type_indexes = PoolTypeIndexes(context)
        self._memory = DecisionMemory(_REMEMBERED_PACKERS, _REMEMBERED_PODS)
        self._preference_warnings = PreferenceWarnings()
        self.last_plan = Solution()
        self._retry_backoff = Backoff(_BASE_RETRY_SECONDS, context.intervals.provisioning_retry.total_seconds())
        self._failed_passes = 0
        self._retry_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Reconcile whenever a batch closes, until cancelled."""
        controller = SingletonReconciler(
            "provisioner", self._reconcile_batch, self._context.metrics, queue=self._batcher.queue
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run_supervised("provisioner", self._retrigger))
            tasks.create_task(controller.run())

    async def _reconcile_batch(self) -> None:
        try:
            await self.reconcile()
        finally:
            self._batcher.release()

    async def _retrigger(self) -> None:
        """Pending pods, and pods of nodes that are being removed, are in a pass every ten seconds (SCH-001, SCH-002)."""
        while True:
            await asyncio.sleep(self._context.intervals.provisioning_retry.total_seconds())
            for pod in self._context.state.pending_pods():
                self._batcher.trigger(pod.metadata.uid)
            for view in self._context.state.state_nodes():
                if view.marked_for_deletion and view.node is not None and view.pods:
                    self._batcher.trigger(view.node.metadata.uid)

    async def reconcile(self) -> Solution:
        """One pass: snapshot, decision, execution."""
        ours = tuple(pool for pool in self._context.state.pools() if self._context.is_managed(pool))
        indexes = await self._type_indexes.by_pool(ours)
        # From here to the plan nothing may wait: the snapshot would grow old.
        started, now = time.perf_counter(), self._context.clock.now()
        snapshot = self._virtual_pods.added_to(self._context.state.snapshot())
        if self._scale_ups is not None:
            snapshot = self._scale_ups.removed_from(snapshot, now)
        waiting = sum(len(group.pods) for group in snapshot.pod_groups)
        _log.debug("computing scheduling decision for provisionable pod(s)", **{"pending-pods": waiting})
        if self._options.preferences is PreferencePolicy.RESPECT:
            self._preference_warnings.warn(snapshot.pod_groups, now)
        problem = build_problem(snapshot, indexes, now, self._awaited_room.options_at(now, snapshot))
        plan = solve(problem, indexes, self._memory)
        self._awaited_room.note(plan, now)
        seconds = time.perf_counter() - started
        self._context.metrics.scheduler_scheduling_duration_seconds.labels(controller="provisioner").observe(seconds)
        outcome = await self._executor.execute(without_buffer_pods(plan), seconds)
        self.last_plan = plan
        self._on_plan(snapshot, plan)
        self._schedule_retry(self._retry_delay_seconds(outcome))
        if self._recorder is not None:
            await self._recorder.record(problem, plan)
        return plan

    def _retry_delay_seconds(self, outcome: PlanOutcome) -> float | None:
        """How soon to plan again without further news, in seconds; None when nothing is left to do.

        After failed claims soon, with growing pauses while they keep failing (SCH-008, SCH-630).
        """
        if outcome.failures:
            self._failed_passes += 1
            return self._retry_backoff.delay(self._failed_passes)
        self._failed_passes = 0
        return outcome.retry_after_seconds if outcome.deferred else None

    def _schedule_retry(self, seconds: float | None) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        loop = asyncio.get_running_loop()
        self._retry_timer = (
            None if seconds is None else loop.call_later(seconds, self._batcher.trigger, "claims to create")
        )


#: A pod is not mentioned again for so long.
_REPEAT_INTERVAL = timedelta(hours=24)
_PODS_NAMED = 10


class PreferenceWarnings:
    """Mentions each pod at most once a day for each of the two preferences."""

    def __init__(self) -> None:
        self._anti_affinity = _WarnedPods()
        self._topology_spread = _WarnedPods()

    def warn(self, groups: Iterable[PodGroup], now: datetime) -> None:
        """These wait now."""
        anti_affine: list[Pod] = []
        spread: list[Pod] = []
        for group in groups:
            if not is_virtual_pod(group.pods[0]):
                anti_affine += group.pods if _prefers_anti_affinity(group.signature.spec) else ()
                spread += group.pods if _prefers_spread(group.signature.spec) else ()
        if news := self._anti_affinity.due(anti_affine, now):
            _log.info("pod(s) have a preferred Anti-Affinity which can prevent consolidation", pods=_pod_names(news))
        if news := self._topology_spread.due(spread, now):
            text = "pod(s) have a preferred TopologySpreadConstraint which can prevent consolidation"
            _log.info(text, pods=_pod_names(news))


class _WarnedPods:
    """Until when pods, by uid, are not mentioned again."""

    def __init__(self) -> None:
        self._silent_until: dict[str, datetime] = {}

    def due(self, pods: list[Pod], now: datetime) -> list[Pod]:
        """Those to mention now, oldest first; what was said of all others long ago is forgotten then."""
        due = [pod for pod in pods if self._silent_until.get(pod.metadata.uid, now) <= now]
        if due:
            self._silent_until = {uid: until for uid, until in self._silent_until.items() if until > now}
            self._silent_until.update((pod.metadata.uid, now + _REPEAT_INTERVAL) for pod in due)
        return sorted(due, key=creation_order)


def _prefers_anti_affinity(spec: PodSpec) -> bool:
    affinity = spec.affinity
    return (
        affinity is not None and affinity.pod_anti_affinity is not None and bool(affinity.pod_anti_affinity.preferred)
    )


def _prefers_spread(spec: PodSpec) -> bool:
    return any(
        spread_constraint.when_unsatisfiable == "ScheduleAnyway"
        for spread_constraint in spec.topology_spread_constraints
    )


def _pod_names(pods: list[Pod]) -> str:
    return shortened([f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in pods], _PODS_NAMED)
