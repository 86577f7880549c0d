"""The reconciler of capacity buffers: template, target replicas, virtual pods and status (SCH-721 to SCH-741).

One pass over a buffer reads its template, computes its target, adds its virtual pods to the next scheduling passes and writes its
whole status, so that the status has one writer. A scheduling pass that changed the placement of its pods requeues the buffer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog

from karpenter.api.apps import ChangingWorkload
from karpenter.api.capacity_buffer import ACTIVE_CAPACITY, CapacityBuffer, CapacityBufferStatus, PodTemplateReference
from karpenter.api.core import Pod, PodTemplate, PodTemplateSpec
from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import CAPACITY_BUFFER
from karpenter.api.meta import Condition
from karpenter.capacitybuffer import buffer_placements
from karpenter.capacitybuffer import buffer_pods as model
from karpenter.capacitybuffer.buffer_placements import BufferPlacement
from karpenter.capacitybuffer.buffer_resolution import (
    BufferTemplateOwner,
    BufferUnresolved,
    ResolvedTemplate,
    buffer_reference,
    buffer_target,
    is_handled,
    resolved_template,
)
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import Conflict, NotFound
from karpenter.kube.informer import ChangeHandler, Informer
from karpenter.model import conditions
from karpenter.runtime.patching import merge_patch
from karpenter.runtime.reconciler import Reconciler
from karpenter.scheduling.solution import Solution
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode
from karpenter.state.virtual_pods import VirtualPods

#: Interval of passes over a buffer without events (SCH-721).
BUFFER_REQUEUE_SECONDS = 30.0
_CONFLICT_REQUEUE_SECONDS = 1.0
_WORKERS = 10
_log = structlog.get_logger()


@dataclass(frozen=True)
class _BufferPods:
    """The virtual pods of a buffer, and the inputs they were built from."""

    uid: str
    template: PodTemplateSpec
    pods: tuple[Pod, ...]


class FindBuffer(Protocol):
    """Finds a buffer by name and namespace; None when it does not exist."""

    def __call__(self, name: str, namespace: str) -> CapacityBuffer | None:
        """The buffer."""


class CapacityBufferReconciler:
    """Reconciles buffers by ``namespace/name``. ``trigger_provisioning`` requests a scheduling pass for a uid."""

    def __init__(
        self,
        context: ControllerContext,
        virtual_pods: VirtualPods,
        find_buffer: FindBuffer,
        trigger_provisioning: Callable[[str], None],
    ) -> None:
        self._context = context
        self._virtual_pods = virtual_pods
        self._find_buffer = find_buffer
        self._trigger_provisioning = trigger_provisioning
        self._buffer_pods: dict[str, _BufferPods] = {}
        self._placements: Mapping[str, BufferPlacement] = {}
        #: Keys of buffers whose workload or template does not exist, by namespace.
        self._unresolved: dict[str, set[str]] = {}
        #: Nodes and pools of the last scheduling pass; another pass over the same input would give the same placements.
        self._last_planned_input: tuple[object, ...] = ()

    async def reconcile(self, key: str) -> float | None:
        """Update a buffer's pods and status; returns seconds until the next pass, None to wait for events.

        Raises ``KubeError``.
        """
        namespace, _, name = key.rpartition("/")
        buffer = self._find_buffer(name, namespace)
        if buffer is None or buffer.metadata.deletion_timestamp is not None or not is_handled(buffer):
            self._remove_pods(key)
            self._note_resolved(key, namespace)
            return None
        try:
            template = await self._template(buffer)
            count = buffer_target(buffer, template)
        except BufferUnresolved as error:
            self._remove_pods(key)
            status = _unresolved_status(buffer.status, error)
            self._unresolved.setdefault(namespace, set()).add(key)
        else:
            self._note_resolved(key, namespace)
            self._set_pods(key, buffer, template.spec, count)
            status = _resolved_status(buffer, template, count)
            self._trigger_if_changed(key, buffer)
        return await self._write_status(buffer, status, self._provisioning_condition(key, status))

    def record_plan(self, snapshot: ClusterSnapshot, plan: Solution) -> frozenset[str]:
        """Record the placements of virtual pods in a solution; returns the keys of buffers whose placement changed."""
        ready = buffer_placements.nodes_with_room_now(snapshot.nodes, plan)
        previous, self._placements = self._placements, buffer_placements.buffer_placements(plan, ready)
        # Where pods that are being deleted do not end, the next pass plans nodes although only the time has changed.
        awaits = bool(plan.awaiting_terminating_pods)
        self._last_planned_input = () if awaits else _plan_input(snapshot.nodes, snapshot.pools)
        changed = {key for key in self._placements if self._placements[key] != previous.get(key)}
        return frozenset(changed)

    def unresolved_in(self, namespace: str) -> frozenset[str]:
        """Keys of the buffers of a namespace whose workload or template did not exist when they were last reconciled."""
        return frozenset(self._unresolved.get(namespace, ()))

    def _note_resolved(self, key: str, namespace: str) -> None:
        unresolved = self._unresolved.get(namespace, set())
        unresolved.discard(key)
        if not unresolved:
            self._unresolved.pop(namespace, None)

    # -- template and target --------------------------------------------------------------------------------------------

    async def _template(self, buffer: CapacityBuffer) -> ResolvedTemplate:
        reference, namespace = buffer_reference(buffer), buffer.metadata.namespace
        try:
            owner: BufferTemplateOwner = await self._context.kube.get(reference.kind, reference.name, namespace)
        except NotFound:
            raise reference.not_found(namespace) from None
        return resolved_template(owner)

    # -- virtual pods ---------------------------------------------------------------------------------------------------

    def _set_pods(self, key: str, buffer: CapacityBuffer, template: PodTemplateSpec, count: int) -> None:
        """Build the buffer's pods, unless its template and count are unchanged."""
        previous = self._buffer_pods.get(key)
        uid = buffer.metadata.uid
        if previous is None or (previous.uid, previous.template, len(previous.pods)) != (uid, template, count):
            virtual_pods = model.build_virtual_pods(buffer, template, count, self._context.clock.now())
            self._buffer_pods[key] = _BufferPods(uid, template, virtual_pods)
            self._virtual_pods.set_pods(key, virtual_pods)
            self._last_planned_input = ()

    def _remove_pods(self, key: str) -> None:
        if self._buffer_pods.pop(key, None) is not None:
            self._virtual_pods.set_pods(key, ())
            self._trigger_provisioning(key)

    def _trigger_if_changed(self, key: str, buffer: CapacityBuffer) -> None:
        """Request a scheduling pass (SCH-003). Beyond: not if its input is unchanged."""
        if not self._buffer_pods[key].pods and key not in self._placements:
            return
        has_failed = self._placements.get(key, BufferPlacement()).unschedulable > 0
        plan_input = _plan_input(self._context.state.state_nodes(), self._context.state.pools())
        if has_failed or not _is_identical(self._last_planned_input, plan_input):
            self._trigger_provisioning(buffer.metadata.uid)

    # -- status ---------------------------------------------------------------------------------------------------------

    def _provisioning_condition(self, key: str, status: CapacityBufferStatus) -> Condition | None:
        """The condition Provisioning (SCH-740); None to keep the current one."""
        if not conditions.is_true(status.conditions, "ReadyForProvisioning"):
            return _not_provisioned_condition("NotReadyForProvisioning", "the buffer is not ready for provisioning")
        if not status.replicas:
            return _not_provisioned_condition("BufferEmpty", "the buffer is for no pods")
        placement = self._placements.get(key)
        if placement is None:
            return None
        total = status.replicas
        if placement.on_new_nodes or placement.unschedulable or placement.on_ready_nodes < total:
            text = (
                f"{placement.on_new_nodes}/{total} virtual pods required new capacity, {placement.unschedulable} failed"
            )
            return _not_provisioned_condition("RequiresNewCapacity", text)
        text = f"All {total} virtual pods fit on existing capacity"
        return Condition(type="Provisioning", status=conditions.TRUE, reason="FitsExistingCapacity", message=text)

    async def _write_status(
        self, buffer: CapacityBuffer, status: CapacityBufferStatus, provisioning: Condition | None
    ) -> float:
        meta, now = buffer.metadata, self._context.clock.now()
        buffer_conditions = buffer.status.conditions
        ready = conditions.find_condition(status.conditions, "ReadyForProvisioning")
        for condition in (ready, provisioning):
            if condition is not None:
                buffer_conditions = conditions.set_rootless_condition(
                    buffer_conditions, condition, meta.generation, now
                )
        desired = msgspec.structs.replace(buffer, status=msgspec.structs.replace(status, conditions=buffer_conditions))
        patch = merge_patch(buffer, desired)
        if patch:
            version = meta.resource_version
            try:
                await self._context.kube.patch(
                    CAPACITY_BUFFER, meta.name, patch, meta.namespace, subresource="status", resource_version=version
                )
            except Conflict:
                return _CONFLICT_REQUEUE_SECONDS
            except NotFound:
                return BUFFER_REQUEUE_SECONDS
        return BUFFER_REQUEUE_SECONDS


def _resolved_status(buffer: CapacityBuffer, template: ResolvedTemplate, count: int) -> CapacityBufferStatus:
    reference = buffer.spec.pod_template_ref
    return CapacityBufferStatus(
        pod_template_ref=PodTemplateReference(name=reference.name) if reference is not None else None,
        pod_template_generation=template.generation,
        replicas=count,
        provisioning_strategy=buffer.spec.provisioning_strategy or ACTIVE_CAPACITY,
        conditions=(Condition(type="ReadyForProvisioning", status=conditions.TRUE, reason="Resolved"),),
    )


def _unresolved_status(status: CapacityBufferStatus, error: BufferUnresolved) -> CapacityBufferStatus:
    condition = Condition(type="ReadyForProvisioning", status=conditions.FALSE, reason=error.reason, message=str(error))
    return msgspec.structs.replace(status, conditions=(condition,))


def _not_provisioned_condition(reason: str, message: str) -> Condition:
    return Condition(type="Provisioning", status=conditions.FALSE, reason=reason, message=message)


def _plan_input(state_nodes: tuple[StateNode, ...], pools: tuple[NodePool, ...]) -> tuple[object, ...]:
    """The input of a scheduling pass, as objects that are replaced when they change."""
    return (*state_nodes, None, *pools)


def _is_identical(first: tuple[object, ...], second: tuple[object, ...]) -> bool:
    return len(first) == len(second) and all(left is right for left, right in zip(first, second, strict=True))


class CapacityBufferController:
    """Queues buffers. ``informer`` holds them; ``trigger_provisioning`` requests a scheduling pass for a uid."""

    def __init__(
        self,
        context: ControllerContext,
        virtual_pods: VirtualPods,
        informer: Informer[CapacityBuffer],
        trigger_provisioning: Callable[[str], None],
    ) -> None:
        self._informer = informer
        #: Keys of the buffers that scale with a workload, by its namespace, kind and name.
        self._buffers_of: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
        self._reconciler = CapacityBufferReconciler(context, virtual_pods, informer.get, trigger_provisioning)
        self._queue = Reconciler(
            "capacitybuffer", self._reconciler.reconcile, _WORKERS, CAPACITY_BUFFER, context.metrics
        )

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The loops to run, by name."""
        return {self._queue.name: self._queue.run}

    def on_buffer(self, old: CapacityBuffer | None, new: CapacityBuffer | None) -> None:
        """A buffer was added, changed or removed. Our own status writes are ignored."""
        self._follow_workload(old, new)
        buffer = new or old
        if buffer is not None and (old is None or new is None or _spec_changed(old, new)):
            self._queue.add(_key(buffer))

    def _follow_workload(self, old: CapacityBuffer | None, new: CapacityBuffer | None) -> None:
        if old is not None and (before := _workload_of(old)) is not None:
            self._buffers_of[before].discard(_key(old))
        if new is not None and (now := _workload_of(new)) is not None:
            self._buffers_of[now].add(_key(new))

    def on_pod_template(self, old: PodTemplate | None, new: PodTemplate | None) -> None:
        """A PodTemplate was added, changed or removed: requeue the buffers that refer to it."""
        template = new or old
        assert template is not None
        template_key = (template.metadata.namespace, template.metadata.name)
        for buffer in self._informer:
            reference = buffer.spec.pod_template_ref
            if reference is not None and (buffer.metadata.namespace, reference.name) == template_key:
                self._queue.add(_key(buffer))

    def workload_handler(self, kind: str) -> ChangeHandler[ChangingWorkload]:
        """A handler of workloads of a kind: those whose generation changed requeue the buffers that scale with them (K15-106)."""

        def on_workload(old: ChangingWorkload | None, new: ChangingWorkload | None) -> None:
            workload = new or old
            assert workload is not None
            if old is not None and new is not None and old.metadata.generation == new.metadata.generation:
                return
            for key in self._buffers_of.get((workload.metadata.namespace, kind, workload.metadata.name), ()):
                self._queue.add(key)

        return on_workload

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod was added: the workload that a buffer of its namespace waits for may exist now."""
        if old is None and new is not None:
            for key in self._reconciler.unresolved_in(new.metadata.namespace):
                self._queue.add(key)

    def on_plan(self, snapshot: ClusterSnapshot, plan: Solution) -> None:
        """A scheduling pass over the snapshot was executed: requeue the buffers whose placement changed."""
        for key in self._reconciler.record_plan(snapshot, plan):
            self._queue.add(key)


def _workload_of(buffer: CapacityBuffer) -> tuple[str, str, str] | None:
    """Namespace, kind and name of the workload that a buffer scales with; None without one that is followed."""
    reference = buffer.spec.scalable_ref
    if reference is None or reference.api_group not in ("", "apps"):
        return None
    return (buffer.metadata.namespace, reference.kind, reference.name)


def _key(buffer: CapacityBuffer) -> str:
    return f"{buffer.metadata.namespace}/{buffer.metadata.name}"


def _spec_changed(old: CapacityBuffer, new: CapacityBuffer) -> bool:
    return old.spec != new.spec or new.metadata.deletion_timestamp is not None
