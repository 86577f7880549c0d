"""Keeping capacity buffers: what they come to, which virtual pods that makes, and how those fare (SCH-721 to SCH-741).

One look at a buffer reads its template, computes its target, puts its virtual pods into the next plans and writes all of its
status, so that nobody else writes it. A plan that changed how its pods fare wakes the look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog

from karpenter.api.apps import Deployment, ReplicaSet, StatefulSet
from karpenter.api.capacity_buffer import (
    ACTIVE_CAPACITY,
    CapacityBuffer,
    CapacityBufferStatus,
    PodTemplateReference,
    ScalableReference,
)
from karpenter.api.core import Pod, PodTemplate, PodTemplateSpec
from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import CAPACITY_BUFFER, DEPLOYMENT, POD_TEMPLATE, REPLICA_SET, STATEFUL_SET
from karpenter.api.meta import Condition
from karpenter.capacitybuffer import buffer_placements
from karpenter.capacitybuffer import buffer_pods as model
from karpenter.capacitybuffer.buffer_placements import BufferPlacement
from karpenter.kube.errors import Conflict, NotFound
from karpenter.model import conditions, pods
from karpenter.model.quantity import QuantityError
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.patching import merge_patch
from karpenter.scheduling.solution import Solution
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode

#: How often a buffer is looked at without news (SCH-721).
BUFFER_REQUEUE_SECONDS = 30.0
_CONFLICT_REQUEUE_SECONDS = 1.0
_APPS = ("", "apps")
_log = structlog.get_logger()


class BufferUnresolved(Exception):
    """A buffer that comes to nothing; ``reason`` is that of its condition (API-191)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class _ResolvedTemplate:
    """What the pods of a buffer look like, and the replicas of their workload (None for a PodTemplate)."""

    spec: PodTemplateSpec
    replicas: int | None = None
    generation: int | None = None


@dataclass(frozen=True)
class _BufferPods:
    """The virtual pods of a buffer, and what they were made from."""

    uid: str
    template: PodTemplateSpec
    pods: tuple[Pod, ...]


class FindBuffer(Protocol):
    """Finds a buffer by name and namespace; None when it does not exist."""

    def __call__(self, name: str, namespace: str) -> CapacityBuffer | None:
        """The buffer."""


class CapacityBufferReconciler:
    """Looks at buffers by ``namespace/name``. ``find`` knows them; ``plan_again`` asks for a plan, for the sake of a uid."""

    def __init__(
        self, context: ControllerContext, find_buffer: FindBuffer, trigger_provisioning: Callable[[str], None]
    ) -> None:
        self._context = context
        self._find_buffer = find_buffer
        self._trigger_provisioning = trigger_provisioning
        self._buffer_pods: dict[str, _BufferPods] = {}
        self._placements: Mapping[str, BufferPlacement] = {}
        #: What the last plan was made of; while it is all the same, another plan would be as well.
        self._last_planned_input: tuple[object, ...] = ()

    async def reconcile(self, key: str) -> float | None:
        """Bring a buffer's pods and status up to date; seconds until the next look, None to wait for events.

        Raises ``KubeError``.
        """
        namespace, _, name = key.rpartition("/")
        buffer = self._find_buffer(name, namespace)
        if buffer is None or buffer.metadata.deletion_timestamp is not None or not _is_ours(buffer):
            self._remove_pods(key)
            return None
        try:
            template = await self._template(buffer)
            count = self._target(buffer, template)
        except BufferUnresolved as fault:
            self._remove_pods(key)
            status = _unresolved_status(buffer.status, fault)
        else:
            self._set_pods(key, buffer, template.spec, count)
            status = _resolved_status(buffer, template, count)
            self._trigger_if_changed(key, buffer)
        return await self._write_status(buffer, status, self._provisioning_condition(key, status))

    def record_plan(self, snapshot: ClusterSnapshot, plan: Solution) -> frozenset[str]:
        """A plan was made of the snapshot: remember how the virtual pods fare; the buffers for which that is news."""
        ready = frozenset(node.key for node in snapshot.nodes if _is_ready(node))
        before, self._placements = self._placements, buffer_placements.buffer_placements(plan, ready)
        self._context.virtual_pods.pod_counts_by_node = buffer_placements.buffer_pods_by_node(plan)
        self._last_planned_input = _plan_input(snapshot.nodes, snapshot.pools)
        changed = {key for key in self._placements if self._placements[key] != before.get(key)}
        return frozenset(changed)

    # -- what it comes to -----------------------------------------------------------------------------------------------

    async def _template(self, buffer: CapacityBuffer) -> _ResolvedTemplate:
        spec, namespace = buffer.spec, buffer.metadata.namespace
        if spec.pod_template_ref is not None:
            return await self._pod_template(spec.pod_template_ref.name, namespace)
        if spec.scalable_ref is not None:
            return await self._scalable(spec.scalable_ref, namespace)
        raise BufferUnresolved("ResolutionFailed", "neither podTemplateRef nor scalableRef is set")

    async def _pod_template(self, name: str, namespace: str) -> _ResolvedTemplate:
        try:
            found: PodTemplate = await self._context.kube.get(POD_TEMPLATE, name, namespace)
        except NotFound:
            raise BufferUnresolved("PodTemplateNotFound", f"PodTemplate {namespace}/{name} does not exist") from None
        return _ResolvedTemplate(found.template, generation=found.metadata.generation)

    async def _scalable(self, reference: ScalableReference, namespace: str) -> _ResolvedTemplate:
        try:
            found = await self._workload(reference, namespace)
        except NotFound:
            what = f"{reference.kind} {namespace}/{reference.name}"
            raise BufferUnresolved("ScalableRefNotFound", f"{what} does not exist") from None
        replicas = 1 if found.spec.replicas is None else found.spec.replicas
        return _ResolvedTemplate(found.spec.template, replicas)

    async def _workload(self, reference: ScalableReference, namespace: str) -> Deployment | StatefulSet | ReplicaSet:
        kube, name = self._context.kube, reference.name
        if reference.api_group in _APPS:
            match reference.kind:
                case "Deployment":
                    return await kube.get(DEPLOYMENT, name, namespace)
                case "StatefulSet":
                    return await kube.get(STATEFUL_SET, name, namespace)
                case "ReplicaSet":
                    return await kube.get(REPLICA_SET, name, namespace)
        kind = f"{reference.api_group}/{reference.kind}".lstrip("/")
        raise BufferUnresolved(
            "ResolutionFailed", f"scalableRef names a {kind}; use a Deployment, StatefulSet or ReplicaSet"
        )

    @staticmethod
    def _target(buffer: CapacityBuffer, template: _ResolvedTemplate) -> int:
        try:
            return model.target_replicas(buffer.spec, template.replicas, pods.template_requests(template.spec.spec))
        except QuantityError as error:
            raise BufferUnresolved("ResolutionFailed", str(error)) from None

    # -- its pods -------------------------------------------------------------------------------------------------------

    def _set_pods(self, key: str, buffer: CapacityBuffer, template: PodTemplateSpec, count: int) -> None:
        """Make the buffer's pods, unless they are as they were."""
        known = self._buffer_pods.get(key)
        uid = buffer.metadata.uid
        if known is None or (known.uid, known.template, len(known.pods)) != (uid, template, count):
            made = model.build_virtual_pods(buffer, template, count, self._context.clock.now())
            self._buffer_pods[key] = _BufferPods(uid, template, made)
            self._context.virtual_pods.set_pods(key, made)
            self._last_planned_input = ()

    def _remove_pods(self, key: str) -> None:
        if self._buffer_pods.pop(key, None) is not None:
            self._context.virtual_pods.set_pods(key, ())
            self._trigger_provisioning(key)

    def _trigger_if_changed(self, key: str, buffer: CapacityBuffer) -> None:
        """Ask for a plan (SCH-003). Beyond: not while another one would come to the same."""
        if not self._buffer_pods[key].pods and key not in self._placements:
            return
        has_failed = self._placements.get(key, BufferPlacement()).unschedulable > 0
        now = _plan_input(self._context.state.state_nodes(), self._context.state.pools())
        if has_failed or not _is_identical(self._last_planned_input, now):
            self._trigger_provisioning(buffer.metadata.uid)

    # -- its status -----------------------------------------------------------------------------------------------------

    def _provisioning_condition(self, key: str, status: CapacityBufferStatus) -> Condition | None:
        """The condition Provisioning (SCH-740); None to leave it as it is."""
        if not conditions.is_true(status.conditions, "ReadyForProvisioning"):
            return _not_provisioned_condition("NotReadyForProvisioning", "the buffer is not ready for provisioning")
        if not status.replicas:
            return _not_provisioned_condition("BufferEmpty", "the buffer is for no pods")
        found = self._placements.get(key)
        if found is None:
            return None
        total = status.replicas
        if found.on_new_nodes or found.unschedulable or found.on_ready_nodes < total:
            text = f"{found.on_new_nodes}/{total} virtual pods required new capacity, {found.unschedulable} failed"
            return _not_provisioned_condition("RequiresNewCapacity", text)
        text = f"All {total} virtual pods fit on existing capacity"
        return Condition(type="Provisioning", status=conditions.TRUE, reason="FitsExistingCapacity", message=text)

    async def _write_status(
        self, buffer: CapacityBuffer, status: CapacityBufferStatus, provisioning: Condition | None
    ) -> float:
        meta, now = buffer.metadata, self._context.clock.now()
        found = buffer.status.conditions
        ready = conditions.find_condition(status.conditions, "ReadyForProvisioning")
        for wish in (ready, provisioning):
            if wish is not None:
                found = conditions.set_rootless_condition(found, wish, meta.generation, now)
        wanted = msgspec.structs.replace(buffer, status=msgspec.structs.replace(status, conditions=found))
        patch = merge_patch(buffer, wanted)
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


def _is_ready(node: StateNode) -> bool:
    return node.claim is None or conditions.is_true(node.claim.status.conditions, "Initialized")


def _is_ours(buffer: CapacityBuffer) -> bool:
    """Whether the buffer follows the strategy we know; others are somebody else's (API-180 Beyond)."""
    return buffer.spec.provisioning_strategy in ("", ACTIVE_CAPACITY)


def _resolved_status(buffer: CapacityBuffer, template: _ResolvedTemplate, count: int) -> CapacityBufferStatus:
    reference = buffer.spec.pod_template_ref
    return CapacityBufferStatus(
        pod_template_ref=PodTemplateReference(name=reference.name) if reference is not None else None,
        pod_template_generation=template.generation,
        replicas=count,
        provisioning_strategy=buffer.spec.provisioning_strategy or ACTIVE_CAPACITY,
        conditions=(Condition(type="ReadyForProvisioning", status=conditions.TRUE, reason="Resolved"),),
    )


def _unresolved_status(status: CapacityBufferStatus, error: BufferUnresolved) -> CapacityBufferStatus:
    told = Condition(type="ReadyForProvisioning", status=conditions.FALSE, reason=error.reason, message=str(error))
    return msgspec.structs.replace(status, conditions=(told,))


def _not_provisioned_condition(reason: str, message: str) -> Condition:
    return Condition(type="Provisioning", status=conditions.FALSE, reason=reason, message=message)


def _plan_input(views: tuple[StateNode, ...], pools: tuple[NodePool, ...]) -> tuple[object, ...]:
    """What plans depend on, as objects that are replaced when they change."""
    return (*views, None, *pools)


def _is_identical(first: tuple[object, ...], second: tuple[object, ...]) -> bool:
    return len(first) == len(second) and all(mine is other for mine, other in zip(first, second, strict=True))
