"""The pod template of a capacity buffer, and for how many of its pods the buffer keeps room (SCH-722)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from karpenter.api.apps import Deployment, ReplicaSet, StatefulSet
from karpenter.api.capacity_buffer import ACTIVE_CAPACITY, CapacityBuffer, ScalableReference
from karpenter.api.core import PodTemplate, PodTemplateSpec
from karpenter.api.kinds import DEPLOYMENT, POD_TEMPLATE, REPLICA_SET, STATEFUL_SET, Kind
from karpenter.capacitybuffer.buffer_pods import target_replicas
from karpenter.model import pods
from karpenter.model.quantity import QuantityError
from karpenter.state.virtual_pods import MAX_PODS_PER_OBJECT

#: What a buffer may name.
BufferTemplateOwner = Deployment | StatefulSet | ReplicaSet | PodTemplate
_APPS = ("", "apps")
_SCALABLE_KINDS = {kind.name: cast(Kind[BufferTemplateOwner], kind) for kind in (DEPLOYMENT, STATEFUL_SET, REPLICA_SET)}


class BufferUnresolved(Exception):
    """The target of a buffer cannot be computed; ``reason`` is the reason of its condition (API-191)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class BufferReference:
    """The object that a buffer names, in the buffer's namespace."""

    kind: Kind[BufferTemplateOwner]
    name: str

    def not_found(self, namespace: str) -> BufferUnresolved:
        """The error where the object does not exist."""
        reason = "PodTemplateNotFound" if self.kind.name == POD_TEMPLATE.name else "ScalableRefNotFound"
        return BufferUnresolved(reason, f"{self.kind.name} {namespace}/{self.name} does not exist")


@dataclass(frozen=True)
class ResolvedTemplate:
    """The pod template of a buffer, and the replicas of its workload (None for a PodTemplate)."""

    spec: PodTemplateSpec
    replicas: int | None = None
    generation: int | None = None


def is_handled(buffer: CapacityBuffer) -> bool:
    """Whether the buffer has the supported provisioning strategy; others belong to other controllers (API-180 Beyond)."""
    return buffer.spec.provisioning_strategy in ("", ACTIVE_CAPACITY)


def buffer_reference(buffer: CapacityBuffer) -> BufferReference:
    """What the buffer names. Raises ``BufferUnresolved``."""
    spec = buffer.spec
    if spec.pod_template_ref is not None:
        return BufferReference(cast(Kind[BufferTemplateOwner], POD_TEMPLATE), spec.pod_template_ref.name)
    if spec.scalable_ref is not None:
        return _scalable_reference(spec.scalable_ref)
    raise BufferUnresolved("ResolutionFailed", "neither podTemplateRef nor scalableRef is set")


def _scalable_reference(reference: ScalableReference) -> BufferReference:
    kind = _SCALABLE_KINDS.get(reference.kind) if reference.api_group in _APPS else None
    if kind is None:
        name = f"{reference.api_group}/{reference.kind}".lstrip("/")
        raise BufferUnresolved(
            "ResolutionFailed", f"scalableRef names a {name}; use a Deployment, StatefulSet or ReplicaSet"
        )
    return BufferReference(kind, reference.name)


def resolved_template(owner: BufferTemplateOwner) -> ResolvedTemplate:
    """The template of the object that a buffer names."""
    if isinstance(owner, PodTemplate):
        return ResolvedTemplate(owner.template, generation=owner.metadata.generation)
    return ResolvedTemplate(owner.spec.template, 1 if owner.spec.replicas is None else owner.spec.replicas)


def buffer_target(buffer: CapacityBuffer, template: ResolvedTemplate) -> int:
    """For how many pods the buffer keeps room. Raises ``BufferUnresolved``."""
    try:
        target = target_replicas(buffer.spec, template.replicas, pods.template_requests(template.spec.spec))
    except QuantityError as error:
        raise BufferUnresolved("ResolutionFailed", str(error)) from None
    if target > MAX_PODS_PER_OBJECT:
        text = f"a buffer keeps room for at most {MAX_PODS_PER_OBJECT} pods, this one is for {target}: lower it, or add limits"
        raise BufferUnresolved("ResolutionFailed", text)
    return target
