"""Capacity buffers as arithmetic and as pods (SCH §25).

A buffer comes to a number of pods, and those pods are planned like real ones although no API server ever sees them. Whoever
tells users about pods, counts them or patches them leaves these out: ``is_virtual``.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from karpenter.api.capacity_buffer import CapacityBuffer, CapacityBufferSpec
from karpenter.api.core import Container, Pod, PodSpec, PodStatus, PodTemplateSpec, ResourceRequirements
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.api.storage import Volume
from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.state.virtual_pods import BUFFER_NAME_ANNOTATION, BUFFER_NAMESPACE_ANNOTATION, VIRTUAL_POD_ANNOTATION

#: Below every priority a real pod can have.
VIRTUAL_POD_PRIORITY = -(2**31)

_UNSCHEDULABLE_STATUS = PodStatus(conditions=(Condition(type="PodScheduled", status="False", reason="Unschedulable"),))


def target_replicas(spec: CapacityBufferSpec, scalable_replicas: int | None, requests: Resources) -> int:
    """For how many pods the buffer keeps room (SCH-722, API-190). Raises ``quantity.QuantityError``.

    ``scalable_replicas`` are those of the workload, None with a pod template; ``requests`` are one pod's. Beyond: a percentage of
    a workload with no replicas is 0, also where limits are given.
    """
    given = [] if spec.replicas is None else [spec.replicas]
    if spec.percentage is not None and scalable_replicas is not None:
        given.append(-(-scalable_replicas * spec.percentage // 100))
    room = _replicas_within_limits(res.parse_resources(spec.limits), requests)
    if not given:
        return room or 0
    return max(given) if room is None else min(max(given), room)


def _replicas_within_limits(limits: Resources, requests: Resources) -> int | None:
    """How many pods limits have room for; None where they limit nothing a pod requests."""
    found = [limit // requests[name] for name, limit in limits.items() if requests.get(name, 0) > 0]
    return max(0, min(found)) if found else None


def build_virtual_pods(buffer: CapacityBuffer, template: PodTemplateSpec, count: int, now: datetime) -> tuple[Pod, ...]:
    """The pods a buffer keeps room for (SCH-730), without what binds a pod to one place: a node's name and volumes of its own.

    Beyond: requests a container leaves out are filled in from its limits, as they are for the real pods of the template.
    """
    spec = _virtual_pod_spec(template.spec)
    return tuple(
        Pod(metadata=_metadata(buffer, template, number, now), spec=spec, status=_UNSCHEDULABLE_STATUS)
        for number in range(1, count + 1)
    )


def _metadata(buffer: CapacityBuffer, template: PodTemplateSpec, number: int, now: datetime) -> ObjectMeta:
    own = buffer.metadata
    return ObjectMeta(
        name=f"capacity-buffer-{own.name}-{number}",
        namespace=own.namespace,
        uid=f"{own.uid}-{number}",
        labels=template.metadata.labels,
        annotations={
            VIRTUAL_POD_ANNOTATION: "true",
            BUFFER_NAME_ANNOTATION: own.name,
            BUFFER_NAMESPACE_ANNOTATION: own.namespace,
        },
        creation_timestamp=now,
    )


def _virtual_pod_spec(spec: PodSpec) -> PodSpec:
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
    own = container.resources
    filled = ResourceRequirements(requests={**own.limits, **own.requests}, limits=own.limits)
    return msgspec.structs.replace(container, resources=filled)


def _is_pod_specific(volume: Volume) -> bool:
    return volume.persistent_volume_claim is not None or volume.ephemeral is not None
