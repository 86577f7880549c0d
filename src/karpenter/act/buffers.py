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

from karpenter.act.patching import difference
from karpenter.act.world import World
from karpenter.api.buffer import (
    ACTIVE_CAPACITY,
    CapacityBuffer,
    CapacityBufferStatus,
    PodTemplateReference,
    ScalableReference,
)
from karpenter.api.core import Deployment, Pod, PodTemplate, PodTemplateSpec, ReplicaSet, StatefulSet
from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import CAPACITY_BUFFER, DEPLOYMENT, POD_TEMPLATE, REPLICA_SET, STATEFUL_SET
from karpenter.api.meta import Condition
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Snapshot
from karpenter.decide import buffers
from karpenter.decide.buffers import Placement
from karpenter.decide.plan import Plan
from karpenter.kube.errors import Conflict, NotFound
from karpenter.model import buffers as model
from karpenter.model import conditions, pods
from karpenter.model.quantity import QuantityError

#: How often a buffer is looked at without news (SCH-721).
LOOK_AGAIN_SECONDS = 30.0
_CHANGED_MEANWHILE_SECONDS = 1.0
_APPS = ("", "apps")
_log = structlog.get_logger()


class Unresolved(Exception):
    """A buffer that comes to nothing; ``reason`` is that of its condition (API-191)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class _Template:
    """What the pods of a buffer look like, and the replicas of their workload (None for a PodTemplate)."""

    spec: PodTemplateSpec
    replicas: int | None = None
    generation: int | None = None


@dataclass(frozen=True)
class _Made:
    """The virtual pods of a buffer, and what they were made from."""

    uid: str
    template: PodTemplateSpec
    pods: tuple[Pod, ...]


class FindBuffer(Protocol):
    """Finds a buffer by name and namespace; None when it does not exist."""

    def __call__(self, name: str, namespace: str) -> CapacityBuffer | None:
        """The buffer."""


class BufferKeeper:
    """Looks at buffers by ``namespace/name``. ``find`` knows them; ``plan_again`` asks for a plan, for the sake of a uid."""

    def __init__(self, world: World, find: FindBuffer, plan_again: Callable[[str], None]) -> None:
        self._world = world
        self._find = find
        self._plan_again = plan_again
        self._made: dict[str, _Made] = {}
        self._placements: Mapping[str, Placement] = {}
        #: What the last plan was made of; while it is all the same, another plan would be as well.
        self._planned_on: tuple[object, ...] = ()

    async def look(self, key: str) -> float | None:
        """Bring a buffer's pods and status up to date; seconds until the next look, None to wait for events.

        Raises ``KubeError``.
        """
        namespace, _, name = key.rpartition("/")
        buffer = self._find(name, namespace)
        if buffer is None or buffer.metadata.deletion_timestamp is not None or not _is_ours(buffer):
            self._drop(key)
            return None
        try:
            template = await self._template(buffer)
            count = self._target(buffer, template)
        except Unresolved as fault:
            self._drop(key)
            status = _failed(buffer.status, fault)
        else:
            self._put(key, buffer, template.spec, count)
            status = _resolved(buffer, template, count)
            self._wake(key, buffer)
        return await self._write(buffer, status, self._provisioning(key, status))

    def decided(self, snapshot: Snapshot, plan: Plan) -> frozenset[str]:
        """A plan was made of the snapshot: remember how the virtual pods fare; the buffers for which that is news."""
        before, self._placements = self._placements, buffers.placements(plan, self._is_ready)
        self._world.virtual.held = buffers.held(plan)
        self._planned_on = _picture(snapshot.nodes, snapshot.pools)
        changed = {key for key in self._placements if self._placements[key] != before.get(key)}
        return frozenset(changed)

    # -- what it comes to -----------------------------------------------------------------------------------------------

    async def _template(self, buffer: CapacityBuffer) -> _Template:
        spec, namespace = buffer.spec, buffer.metadata.namespace
        if spec.pod_template_ref is not None:
            return await self._pod_template(spec.pod_template_ref.name, namespace)
        if spec.scalable_ref is not None:
            return await self._scalable(spec.scalable_ref, namespace)
        raise Unresolved("ResolutionFailed", "neither podTemplateRef nor scalableRef is set")

    async def _pod_template(self, name: str, namespace: str) -> _Template:
        try:
            found: PodTemplate = await self._world.kube.get(POD_TEMPLATE, name, namespace)
        except NotFound:
            raise Unresolved("PodTemplateNotFound", f"PodTemplate {namespace}/{name} does not exist") from None
        return _Template(found.template, generation=found.metadata.generation)

    async def _scalable(self, reference: ScalableReference, namespace: str) -> _Template:
        try:
            found = await self._workload(reference, namespace)
        except NotFound:
            what = f"{reference.kind} {namespace}/{reference.name}"
            raise Unresolved("ScalableRefNotFound", f"{what} does not exist") from None
        replicas = 1 if found.spec.replicas is None else found.spec.replicas
        return _Template(found.spec.template, replicas)

    async def _workload(self, reference: ScalableReference, namespace: str) -> Deployment | StatefulSet | ReplicaSet:
        kube, name = self._world.kube, reference.name
        if reference.api_group in _APPS:
            match reference.kind:
                case "Deployment":
                    return await kube.get(DEPLOYMENT, name, namespace)
                case "StatefulSet":
                    return await kube.get(STATEFUL_SET, name, namespace)
                case "ReplicaSet":
                    return await kube.get(REPLICA_SET, name, namespace)
        kind = f"{reference.api_group}/{reference.kind}".lstrip("/")
        raise Unresolved("ResolutionFailed", f"scalableRef names a {kind}; use a Deployment, StatefulSet or ReplicaSet")

    @staticmethod
    def _target(buffer: CapacityBuffer, template: _Template) -> int:
        try:
            return model.target(buffer.spec, template.replicas, pods.template_requests(template.spec.spec))
        except QuantityError as error:
            raise Unresolved("ResolutionFailed", str(error)) from None

    # -- its pods -------------------------------------------------------------------------------------------------------

    def _put(self, key: str, buffer: CapacityBuffer, template: PodTemplateSpec, count: int) -> None:
        """Make the buffer's pods, unless they are as they were."""
        known = self._made.get(key)
        uid = buffer.metadata.uid
        if known is None or (known.uid, known.template, len(known.pods)) != (uid, template, count):
            made = model.virtual_pods(buffer, template, count, self._world.clock.now())
            self._made[key] = _Made(uid, template, made)
            self._world.virtual.put(key, made)
            self._planned_on = ()

    def _drop(self, key: str) -> None:
        if self._made.pop(key, None) is not None:
            self._world.virtual.put(key, ())
            self._plan_again(key)

    def _wake(self, key: str, buffer: CapacityBuffer) -> None:
        """Ask for a plan (SCH-003). Beyond: not while another one would come to the same."""
        if not self._made[key].pods and key not in self._placements:
            return
        has_failed = self._placements.get(key, Placement()).failed > 0
        now = _picture(self._world.state.views(), self._world.state.pools())
        if has_failed or not _same(self._planned_on, now):
            self._plan_again(buffer.metadata.uid)

    def _is_ready(self, key: str) -> bool:
        claim = self._world.state.claim(key)
        return claim is None or conditions.is_true(claim.status.conditions, "Initialized")

    # -- its status -----------------------------------------------------------------------------------------------------

    def _provisioning(self, key: str, status: CapacityBufferStatus) -> Condition | None:
        """The condition Provisioning (SCH-740); None to leave it as it is."""
        if not conditions.is_true(status.conditions, "ReadyForProvisioning"):
            return _not_provisioned("NotReadyForProvisioning", "the buffer is not ready for provisioning")
        if not status.replicas:
            return _not_provisioned("BufferEmpty", "the buffer is for no pods")
        found = self._placements.get(key)
        if found is None:
            return None
        total = status.replicas
        if found.new or found.failed or found.fitting < total:
            text = f"{found.new}/{total} virtual pods required new capacity, {found.failed} failed"
            return _not_provisioned("RequiresNewCapacity", text)
        text = f"All {total} virtual pods fit on existing capacity"
        return Condition(type="Provisioning", status=conditions.TRUE, reason="FitsExistingCapacity", message=text)

    async def _write(
        self, buffer: CapacityBuffer, status: CapacityBufferStatus, provisioning: Condition | None
    ) -> float:
        meta, now = buffer.metadata, self._world.clock.now()
        found = buffer.status.conditions
        ready = conditions.find(status.conditions, "ReadyForProvisioning")
        for wish in (ready, provisioning):
            if wish is not None:
                found = conditions.put_alone(found, wish, meta.generation, now)
        wanted = msgspec.structs.replace(buffer, status=msgspec.structs.replace(status, conditions=found))
        patch = difference(buffer, wanted)
        if patch:
            version = meta.resource_version
            try:
                await self._world.kube.patch(
                    CAPACITY_BUFFER, meta.name, patch, meta.namespace, subresource="status", resource_version=version
                )
            except Conflict:
                return _CHANGED_MEANWHILE_SECONDS
            except NotFound:
                return LOOK_AGAIN_SECONDS
        return LOOK_AGAIN_SECONDS


def _is_ours(buffer: CapacityBuffer) -> bool:
    """Whether the buffer follows the strategy we know; others are somebody else's (API-180 Beyond)."""
    return buffer.spec.provisioning_strategy in ("", ACTIVE_CAPACITY)


def _resolved(buffer: CapacityBuffer, template: _Template, count: int) -> CapacityBufferStatus:
    reference = buffer.spec.pod_template_ref
    return CapacityBufferStatus(
        pod_template_ref=PodTemplateReference(name=reference.name) if reference is not None else None,
        pod_template_generation=template.generation,
        replicas=count,
        provisioning_strategy=buffer.spec.provisioning_strategy or ACTIVE_CAPACITY,
        conditions=(Condition(type="ReadyForProvisioning", status=conditions.TRUE, reason="Resolved"),),
    )


def _failed(status: CapacityBufferStatus, fault: Unresolved) -> CapacityBufferStatus:
    told = Condition(type="ReadyForProvisioning", status=conditions.FALSE, reason=fault.reason, message=str(fault))
    return msgspec.structs.replace(status, conditions=(told,))


def _not_provisioned(reason: str, message: str) -> Condition:
    return Condition(type="Provisioning", status=conditions.FALSE, reason=reason, message=message)


def _picture(views: tuple[NodeView, ...], pools: tuple[NodePool, ...]) -> tuple[object, ...]:
    """What plans depend on, as objects that are replaced when they change."""
    return (*views, None, *pools)


def _same(left: tuple[object, ...], right: tuple[object, ...]) -> bool:
    return len(left) == len(right) and all(mine is other for mine, other in zip(left, right, strict=True))
