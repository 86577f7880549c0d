"""The virtual pods of a ProvisioningRequest, and the gang they are: all get a place, or none (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from karpenter.api.core import Pod, PodTemplateSpec
from karpenter.api.meta import ObjectMeta
from karpenter.api.provisioning_request import CHECK_CAPACITY, ProvisioningRequest
from karpenter.capacitybuffer.buffer_pods import virtual_pod_spec
from karpenter.model import pods
from karpenter.state.gangs import Gang, GangKey, GangSource
from karpenter.state.virtual_pods import virtual_pod

#: No namespace can have this name, so no CapacityBuffer has the same key.
_NAMESPACE = "provisioningrequests.autoscaling.x-k8s.io"


@dataclass(frozen=True)
class RequestPods:
    """The virtual pods of one pod set, which are all alike. ``key`` names the set among all virtual pods."""

    key: str
    pods: tuple[Pod, ...]


def placement_key(request: ProvisioningRequest) -> str:
    """Under which key ``buffer_placements`` counts the pods of the request."""
    return "/".join(_owner(request))


def _owner(request: ProvisioningRequest) -> tuple[str, str]:
    return _NAMESPACE, f"{request.metadata.namespace}.{request.metadata.name}"


def gang_name(request: ProvisioningRequest) -> str:
    """The name of the request's gang in plans and reasons."""
    return str(GangKey(GangSource.PROVISIONING_REQUEST, request.metadata.namespace, request.metadata.name))


def build_request_pods(
    request: ProvisioningRequest, templates: Sequence[PodTemplateSpec], now: datetime
) -> tuple[RequestPods, ...]:
    """The pods of every set; ``templates`` are those of the sets, in their order."""
    sets = zip(request.spec.pod_sets, templates, strict=True)
    return tuple(
        RequestPods(
            f"{placement_key(request)}/{index}",
            tuple(_pod(request, template, f"{index}-{number}", now) for number in range(pod_set.count)),
        )
        for index, (pod_set, template) in enumerate(sets)
    )


def _pod(request: ProvisioningRequest, template: PodTemplateSpec, suffix: str, now: datetime) -> Pod:
    meta, spec = request.metadata, template.spec
    return virtual_pod(
        ObjectMeta(
            name=f"{meta.name}-{suffix}",
            namespace=meta.namespace,
            uid=f"{meta.uid}-{suffix}",
            labels=template.metadata.labels,
            creation_timestamp=meta.creation_timestamp or now,
        ),
        msgspec.structs.replace(
            virtual_pod_spec(spec), priority=spec.priority, priority_class_name=spec.priority_class_name
        ),
        _owner(request),
    )


def without_consumed(sets: Sequence[RequestPods], consumers: Iterable[Pod]) -> tuple[RequestPods, ...]:
    """The pods for which no real pod exists yet. A real pod takes the place of a pod with equal requests, else of any."""
    taken: Counter[str] = Counter()
    for consumer in consumers:
        free = [each for each in sets if taken[each.key] < len(each.pods)]
        requests = pods.pod_requests(consumer)
        alike = (each for each in free if pods.pod_requests(each.pods[0]) == requests)
        for each in (next(alike, free[0]),) if free else ():
            taken[each.key] += 1
    return tuple(RequestPods(each.key, each.pods[taken[each.key] :]) for each in sets)


def request_gang(
    request: ProvisioningRequest, sets: Iterable[RequestPods], paused_until: datetime | None
) -> Gang | None:
    """The gang of the virtual pods; None where no pod is left."""
    members = [pod for each in sets for pod in each.pods]
    if not members:
        return None
    return Gang(
        name=gang_name(request),
        members=tuple(sorted(pod.metadata.uid for pod in members)),
        minimum=len(members),
        priority=max(pod.spec.priority or 0 for pod in members),
        created=request.metadata.creation_timestamp,
        paused_until=paused_until,
        on_existing_nodes_only=request.spec.provisioning_class_name == CHECK_CAPACITY,
    )
