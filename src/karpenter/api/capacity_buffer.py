"""CapacityBuffer (``autoscaling.x-k8s.io/v1beta1``): room kept free for pods to come (API §6)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from karpenter.api.meta import Condition, ObjectMeta, Wire, WireResources

#: The strategy Karpenter follows: real nodes, empty until they are needed.
ACTIVE_CAPACITY = "buffer.x-k8s.io/active-capacity"


class PodTemplateReference(Wire, frozen=True, kw_only=True):
    """A PodTemplate of the buffer's namespace."""

    name: Annotated[str, Meta(min_length=1)]


class ScalableReference(Wire, frozen=True, kw_only=True):
    """A Deployment, StatefulSet or ReplicaSet of the buffer's namespace; the group may be left out."""

    kind: str
    name: str
    api_group: str = ""


class CapacityBufferSpec(Wire, frozen=True, kw_only=True):
    """For how many pods of which kind room is kept.

    As many as ``replicas`` says or ``percentage`` of the workload's replicas, whichever is more, as far as their requests stay
    within ``limits``; without either as many as ``limits`` allow.
    """

    provisioning_strategy: str = ACTIVE_CAPACITY
    pod_template_ref: PodTemplateReference | None = None
    scalable_ref: ScalableReference | None = None
    replicas: Annotated[int, Meta(ge=0)] | None = None
    percentage: Annotated[int, Meta(ge=0)] | None = None
    limits: WireResources = {}


class CapacityBufferStatus(Wire, frozen=True, kw_only=True):
    """What the buffer came to (API-187)."""

    pod_template_ref: PodTemplateReference | None = None
    pod_template_generation: int | None = None
    replicas: int | None = None
    provisioning_strategy: str = ""
    conditions: tuple[Condition, ...] = ()


class CapacityBuffer(Wire, frozen=True, kw_only=True):
    """Capacity for pods to come, on nodes that are launched before they are needed."""

    spec: CapacityBufferSpec
    metadata: ObjectMeta = ObjectMeta()
    status: CapacityBufferStatus = CapacityBufferStatus()
