"""What a pod is and needs: effective requests, ownership, and whether it waits for, holds or leaves a node.

The rules for requests are those kube-scheduler applies (SCH-195): sidecars run beside everything that starts after them, other
init containers run alone, a running container may hold more than its specification says, pod-level requests win.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from karpenter.api.core import Container, ContainerStatus, Pod, PodSpec
from karpenter.api.meta import ObjectMeta, OwnerReference
from karpenter.model import resources as res

_POD_LEVEL_PREFIX = "hugepages-"
_FINISHED_PHASES = frozenset({"Succeeded", "Failed"})
#: API version and kind of owners whose pods need no other place when their node goes.
_GOING_WITH_THE_NODE = frozenset({("apps/v1", "DaemonSet"), ("v1", "Node")})

#: What one container needs.
_ContainerRequests = Callable[[Container], dict[str, int]]


def pod_requests(pod: Pod) -> dict[str, int]:
    """Effective requests of one pod, ``pods: 1`` included (SCH-195). Raises ``quantity.QuantityError``."""
    total = _lifetime_maximum(pod.spec, _requests_while_resizing(pod))
    if pod.spec.resources is not None:
        total.update(_with_pod_level_resources(pod))
    return _with_overhead(total, pod.spec)


def template_requests(spec: PodSpec) -> dict[str, int]:
    """Effective requests of a pod made from a template, missing requests filled from limits (SCH-211)."""
    total = _lifetime_maximum(spec, _requests_or_limits)
    if spec.resources is not None:
        wanted = {**spec.resources.limits, **spec.resources.requests}
        total.update(_pod_level_resources(res.parse_resources(wanted)))
    return _with_overhead(total, spec)


def _with_overhead(total: dict[str, int], spec: PodSpec) -> dict[str, int]:
    total = res.add(total, res.parse_resources(spec.overhead)) if spec.overhead else total
    total[res.PODS] = res.ONE_UNIT
    return total


def _with_pod_level_resources(pod: Pod) -> dict[str, int]:
    """Pod-level requests, never below what a running pod already holds at pod level (SCH-195 step 5 and §7 Beyond)."""
    assert pod.spec.resources is not None
    spec = _pod_level_resources(res.parse_resources(pod.spec.resources.requests))
    allocated = res.parse_resources(pod.status.allocated_resources)
    if pod.status.resources is not None:
        allocated = res.maximum((allocated, res.parse_resources(pod.status.resources.requests)))
    return {name: max(amount, allocated.get(name, 0)) for name, amount in spec.items()}


def _pod_level_resources(resources: Mapping[str, int]) -> dict[str, int]:
    return {
        name: amount
        for name, amount in resources.items()
        if name in (res.CPU, res.MEMORY) or name.startswith(_POD_LEVEL_PREFIX)
    }


def _lifetime_maximum(spec: PodSpec, container_requests: _ContainerRequests) -> dict[str, int]:
    """The most of each resource that what runs together at any moment needs."""
    if len(spec.containers) == 1 and not spec.init_containers:
        return container_requests(spec.containers[0])
    sidecars: dict[str, int] = {}
    peaks: list[dict[str, int]] = []
    for container in spec.init_containers:
        together = res.add(sidecars, container_requests(container))
        peaks.append(together)
        if container.restart_policy == "Always":
            sidecars = together
    return res.maximum((res.add(sidecars, *map(container_requests, spec.containers)), *peaks))


def _container_requests(container: Container) -> dict[str, int]:
    return res.parse_resources(container.resources.requests)


def _requests_or_limits(container: Container) -> dict[str, int]:
    return res.parse_resources({**container.resources.limits, **container.resources.requests})


def _requests_while_resizing(pod: Pod) -> _ContainerRequests:
    """What a container needs while resizing: the most of what it asks for and what it has, unless it cannot get the former."""
    running = {status.name: status for status in (*pod.status.container_statuses, *pod.status.init_container_statuses)}
    if not running:
        return _container_requests
    infeasible = any(c.type == "PodResizePending" and c.reason == "Infeasible" for c in pod.status.conditions)

    def needs(container: Container) -> dict[str, int]:
        held = _allocated_resources(running[container.name]) if container.name in running else []
        asked = [] if infeasible and held else [_container_requests(container)]
        return res.maximum((*asked, *held))

    return needs


def _allocated_resources(status: ContainerStatus) -> list[dict[str, int]]:
    """What a running container has, as far as its status says."""
    if status.resources is None and not status.allocated_resources:
        return []
    actual = status.resources.requests if status.resources is not None else {}
    return [res.parse_resources(status.allocated_resources), res.parse_resources(actual)]


def is_provisionable(pod: Pod) -> bool:
    """Whether the pod waits for a node (SCH-040, SCH-041 Beyond: finished and terminating pods do not).

    Whether the scheduler is making room for it on a node is judged by the decision, which sees that node.
    """
    return (
        not pod.spec.node_name
        and is_active(pod)
        and is_unschedulable(pod)
        and not is_daemonset_pod(pod)
        and not is_mirror_pod(pod)
    )


def is_unschedulable(pod: Pod) -> bool:
    """Whether kube-scheduler has marked the pod unschedulable (SCH-040a)."""
    return ("PodScheduled", "Unschedulable") in [(each.type, each.reason) for each in pod.status.conditions]


def controller_of(metadata: ObjectMeta) -> OwnerReference | None:
    """The owner that controls the pod (or another object of a workload), if any."""
    for owner in metadata.owner_references:
        if owner.controller:
            return owner
    return None


def workload_id(pod: Pod) -> str:
    """What tells apart the workloads of pods: the uid of the controlling owner, else its kind and name; empty without one."""
    owner = controller_of(pod.metadata)
    return "" if owner is None else owner.uid or f"{pod.metadata.namespace}/{owner.kind}/{owner.name}"


def is_daemonset_pod(pod: Pod) -> bool:
    """Whether a DaemonSet owns the pod."""
    return _owned_by(pod.metadata.owner_references, "apps/v1", "DaemonSet")


def is_mirror_pod(pod: Pod) -> bool:
    """Whether the pod is a mirror of a static pod, owned by its node."""
    return _owned_by(pod.metadata.owner_references, "v1", "Node")


def is_statefulset_pod(pod: Pod) -> bool:
    """Whether a StatefulSet owns the pod."""
    return _owned_by(pod.metadata.owner_references, "apps/v1", "StatefulSet")


def _owned_by(references: Sequence[OwnerReference], api_version: str, kind: str) -> bool:
    # Asked of every pod there is: a list of the one owner most have costs less than a generator.
    return bool(references) and (kind, api_version) in [(owner.kind, owner.api_version) for owner in references]


def is_finished(pod: Pod) -> bool:
    """Whether the pod has succeeded or failed and holds nothing any more."""
    return pod.status.phase in _FINISHED_PHASES


def is_active(pod: Pod) -> bool:
    """Whether the pod is neither finished nor terminating."""
    return not is_finished(pod) and pod.metadata.deletion_timestamp is None


def is_ready(pod: Pod) -> bool:
    """Whether the kubelet reports the pod ready."""
    return any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)


def volume_claim_names(pod: Pod) -> list[str]:
    """Names of the PersistentVolumeClaims the pod uses; those made for it alone are called after pod and volume."""
    claims = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            claims.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            claims.append(f"{pod.metadata.name}-{volume.name}")
    return claims


def is_reschedulable(pod: Pod) -> bool:
    """Whether the pod keeps its node from being empty (DIS-007): it, or its successor, will have to run somewhere."""
    for owner in pod.metadata.owner_references:
        if (owner.api_version, owner.kind) in _GOING_WITH_THE_NODE:
            return False
    if is_finished(pod):
        return False
    return pod.metadata.deletion_timestamp is None or is_statefulset_pod(pod)
