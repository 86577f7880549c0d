"""The virtual pods of a capacity buffer: how many, and what they look like (SCH §25).

Virtual pods are scheduled like real ones but never stored in the API server. Code that reports, counts or patches pods must skip
them (``state.virtual_pods.is_virtual_pod``).
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from karpenter.api.capacity_buffer import CapacityBuffer, CapacityBufferSpec
from karpenter.api.core import Container, Pod, PodSpec, PodTemplateSpec, ResourceRequirements
from karpenter.api.meta import ObjectMeta
from karpenter.api.storage import Volume
from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.state.virtual_pods import VIRTUAL_POD_PRIORITY, virtual_pod


def target_replicas(spec: CapacityBufferSpec, scalable_replicas: int | None, requests: Resources) -> int:
    """Number of virtual pods of the buffer (SCH-722, API-190). Raises ``quantity.QuantityError``.

    ``scalable_replicas`` are the replicas of the workload, None with a pod template; ``requests`` those of one pod. Beyond: a
    percentage of a workload without replicas is 0, also if limits are given.
    """
    candidates = [] if spec.replicas is None else [spec.replicas]
    if spec.percentage is not None and scalable_replicas is not None:
        candidates.append(-(-scalable_replicas * spec.percentage // 100))
    limit = _replicas_within_limits(res.parse_resources(spec.limits), requests)
    if not candidates:
        return limit or 0
    return max(candidates) if limit is None else min(max(candidates), limit)


def _replicas_within_limits(limits: Resources, requests: Resources) -> int | None:
    """How many pods fit the limits; None if the limits concern no requested resource."""
    replicas = [limit // requests[name] for name, limit in limits.items() if requests.get(name, 0) > 0]
    return max(0, min(replicas)) if replicas else None


def build_virtual_pods(buffer: CapacityBuffer, template: PodTemplateSpec, count: int, now: datetime) -> tuple[Pod, ...]:
    """The virtual pods of a buffer (SCH-730), without node name and pod-specific volumes, which would restrict their placement.

    Beyond: missing requests of a container default to its limits, as the API server does for real pods of the template.
    """
    spec, owner = virtual_pod_spec(template.spec), (buffer.metadata.namespace, buffer.metadata.name)
    return tuple(virtual_pod(_metadata(buffer, template, number, now), spec, owner) for number in range(1, count + 1))


def _metadata(buffer: CapacityBuffer, template: PodTemplateSpec, number: int, now: datetime) -> ObjectMeta:
    buffer_meta = buffer.metadata
    return ObjectMeta(
        name=f"capacity-buffer-{buffer_meta.name}-{number}",
        namespace=buffer_meta.namespace,
        uid=f"{buffer_meta.uid}-{number}",
        labels=template.metadata.labels,
        creation_timestamp=now,
    )


def virtual_pod_spec(spec: PodSpec) -> PodSpec:
    """The spec of a virtual pod of a template: of the lowest priority, bound nowhere, without volumes of single pods."""
    return msgspec.structs.replace(
        spec,
        node_name="",
        priority=VIRTUAL_POD_PRIORITY,
        priority_class_name="",
        containers=tuple(_with_requests(container) for container in spec.containers),
        init_containers=tuple(_with_requests(container) for container in spec.init_containers),
        volumes=tuple(volume for volume in spec.volumes if not _is_pod_specific(volume)),
    )


def _with_requests(container: Container) -> Container:
    resources = container.resources
    filled = ResourceRequirements(requests={**resources.limits, **resources.requests}, limits=resources.limits)
    return msgspec.structs.replace(container, resources=filled)


def _is_pod_specific(volume: Volume) -> bool:
    return volume.persistent_volume_claim is not None or volume.ephemeral is not None
