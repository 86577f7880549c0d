"""Capacity buffers as arithmetic and as pods (SCH §25).

A buffer comes to a number of pods, and those pods are planned like real ones although no API server ever sees them. Whoever
tells users about pods, counts them or patches them leaves these out: ``is_virtual``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from karpenter.api.buffer import CapacityBuffer, CapacityBufferSpec
from karpenter.api.core import Container, Pod, PodSpec, PodStatus, PodTemplateSpec, ResourceRequirements, Volume
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.model import resources as res
from karpenter.model.resources import Resources

VIRTUAL = "karpenter.sh/capacity-buffer-fake-pod"
BUFFER_NAME = "karpenter.sh/capacity-buffer-name"
BUFFER_NAMESPACE = "karpenter.sh/capacity-buffer-namespace"
#: Below every priority a real pod can have.
PRIORITY = -(2**31)

_WAITING = PodStatus(conditions=(Condition(type="PodScheduled", status="False", reason="Unschedulable"),))


def target(spec: CapacityBufferSpec, scalable_replicas: int | None, requests: Resources) -> int:
    """For how many pods the buffer keeps room (SCH-722, API-190). Raises ``quantity.QuantityError``.

    ``scalable_replicas`` are those of the workload, None with a pod template; ``requests`` are one pod's. Beyond: a percentage of
    a workload with no replicas is 0, also where limits are given.
    """
    given = [] if spec.replicas is None else [spec.replicas]
    if spec.percentage is not None and scalable_replicas is not None:
        given.append(-(-scalable_replicas * spec.percentage // 100))
    room = _room(res.parse(spec.limits), requests)
    if not given:
        return room or 0
    return max(given) if room is None else min(max(given), room)


def _room(limits: Resources, requests: Resources) -> int | None:
    """How many pods limits have room for; None where they limit nothing a pod requests."""
    found = [limit // requests[name] for name, limit in limits.items() if requests.get(name, 0) > 0]
    return max(0, min(found)) if found else None


def virtual_pods(buffer: CapacityBuffer, template: PodTemplateSpec, count: int, now: datetime) -> tuple[Pod, ...]:
    """The pods a buffer keeps room for (SCH-730), without what binds a pod to one place: a node's name and volumes of its own.

    Beyond: requests a container leaves out are filled in from its limits, as they are for the real pods of the template.
    """
    spec = _unbound(template.spec)
    return tuple(
        Pod(metadata=_metadata(buffer, template, number, now), spec=spec, status=_WAITING)
        for number in range(1, count + 1)
    )


def _metadata(buffer: CapacityBuffer, template: PodTemplateSpec, number: int, now: datetime) -> ObjectMeta:
    own = buffer.metadata
    return ObjectMeta(
        name=f"capacity-buffer-{own.name}-{number}",
        namespace=own.namespace,
        uid=f"{own.uid}-{number}",
        labels=template.metadata.labels,
        annotations={VIRTUAL: "true", BUFFER_NAME: own.name, BUFFER_NAMESPACE: own.namespace},
        creation_timestamp=now,
    )


def _unbound(spec: PodSpec) -> PodSpec:
    return msgspec.structs.replace(
        spec,
        node_name="",
        priority=PRIORITY,
        priority_class_name="",
        containers=tuple(_with_requests(container) for container in spec.containers),
        init_containers=tuple(_with_requests(container) for container in spec.init_containers),
        volumes=tuple(volume for volume in spec.volumes if not _is_its_own(volume)),
    )


def _with_requests(container: Container) -> Container:
    own = container.resources
    filled = ResourceRequirements(requests={**own.limits, **own.requests}, limits=own.limits)
    return msgspec.structs.replace(container, resources=filled)


def _is_its_own(volume: Volume) -> bool:
    return volume.persistent_volume_claim is not None or volume.ephemeral is not None


def is_virtual(pod: Pod) -> bool:
    """Whether the pod stands for room a buffer keeps. What an API server has stored is real, whatever it carries."""
    return not pod.metadata.resource_version and pod.metadata.annotations.get(VIRTUAL) == "true"


def buffer_of(pod: Pod) -> str:
    """``namespace/name`` of the buffer a virtual pod belongs to."""
    annotations = pod.metadata.annotations
    return f"{annotations[BUFFER_NAMESPACE]}/{annotations[BUFFER_NAME]}"


def count_by_buffer(pods: Iterable[Pod]) -> Mapping[str, int]:
    """How many virtual pods of each buffer there are."""
    found: dict[str, int] = {}
    for pod in pods:
        if is_virtual(pod):
            found[buffer_of(pod)] = found.get(buffer_of(pod), 0) + 1
    return found
