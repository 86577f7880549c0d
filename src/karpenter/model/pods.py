"""What a pod is and needs: effective requests, ownership, and whether it waits for, holds or leaves a node.

The rules for requests are those kube-scheduler applies (SCH-195): sidecars run beside everything that starts after them, other
init containers run alone, a running container may hold more than its specification says, pod-level requests win.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from karpenter.api.core import Container, ContainerStatus, Pod, PodSpec
from karpenter.api.meta import OwnerReference
from karpenter.model import durations, labels, taints
from karpenter.model import resources as res

_POD_LEVEL_PREFIX = "hugepages-"
_FINISHED = frozenset({"Succeeded", "Failed"})
_CRITICAL = frozenset({"system-cluster-critical", "system-node-critical"})
#: A pod this long past its deletion time is not waited for any more (DIS-S302).
STUCK_TERMINATING = timedelta(minutes=1)


def requests(pod: Pod) -> dict[str, int]:
    """Effective requests of one pod, ``pods: 1`` included (SCH-195). Raises ``quantity.QuantityError``."""
    infeasible = any(c.type == "PodResizePending" and c.reason == "Infeasible" for c in pod.status.conditions)
    running = {status.name: status for status in (*pod.status.container_statuses, *pod.status.init_container_statuses)}
    total = _from_containers(pod.spec, running, infeasible=infeasible)
    if pod.spec.resources is not None:
        total.update(_pod_level(pod))
    total = res.add(total, res.parse(pod.spec.overhead)) if pod.spec.overhead else total
    total[res.PODS] = res.ONE
    return total


def template_requests(spec: PodSpec) -> dict[str, int]:
    """Effective requests of a pod made from a template, missing requests filled from limits (SCH-211)."""
    total = _from_containers(spec, {}, infeasible=False, defaulted=True)
    if spec.resources is not None:
        wanted = {**spec.resources.limits, **spec.resources.requests}
        total.update(_settable(res.parse(wanted)))
    total = res.add(total, res.parse(spec.overhead)) if spec.overhead else total
    total[res.PODS] = res.ONE
    return total


def _pod_level(pod: Pod) -> dict[str, int]:
    """Pod-level requests, never below what a running pod already holds at pod level (SCH-195 step 5 and §7 Beyond)."""
    assert pod.spec.resources is not None
    spec = _settable(res.parse(pod.spec.resources.requests))
    held = res.parse(pod.status.allocated_resources)
    if pod.status.resources is not None:
        held = res.maximum((held, res.parse(pod.status.resources.requests)))
    return {name: max(amount, held.get(name, 0)) for name, amount in spec.items()}


def _settable(resources: Mapping[str, int]) -> dict[str, int]:
    return {
        name: amount
        for name, amount in resources.items()
        if name in (res.CPU, res.MEMORY) or name.startswith(_POD_LEVEL_PREFIX)
    }


def _from_containers(
    spec: PodSpec, running: Mapping[str, ContainerStatus], *, infeasible: bool, defaulted: bool = False
) -> dict[str, int]:
    if len(spec.containers) == 1 and not spec.init_containers and not running:
        return _of_container(spec.containers[0], None, infeasible=infeasible, defaulted=defaulted)
    sidecars: dict[str, int] = {}
    peaks: list[dict[str, int]] = []
    for container in spec.init_containers:
        own = _of_container(container, running.get(container.name), infeasible=infeasible, defaulted=defaulted)
        if container.restart_policy == "Always":
            sidecars = res.add(sidecars, own)
            peaks.append(sidecars)
        else:
            peaks.append(res.add(sidecars, own))
    regular = [
        _of_container(container, running.get(container.name), infeasible=infeasible, defaulted=defaulted)
        for container in spec.containers
    ]
    return res.maximum((res.add(sidecars, *regular), *peaks))


def _of_container(
    container: Container, status: ContainerStatus | None, *, infeasible: bool, defaulted: bool
) -> dict[str, int]:
    wire = container.resources.requests
    spec = res.parse({**container.resources.limits, **wire} if defaulted else wire)
    if status is None or (status.resources is None and not status.allocated_resources):
        return spec
    held = [res.parse(status.allocated_resources)]
    if status.resources is not None:
        held.append(res.parse(status.resources.requests))
    return res.maximum(held if infeasible else (spec, *held))


def is_provisionable(pod: Pod) -> bool:
    """Whether the pod waits for a machine (SCH-040, without its nomination rule; terminating pods are left out, SCH-041 Beyond).

    A nomination is judged against the cluster, see ``cluster.nominations``.
    """
    return (
        not pod.spec.node_name
        and is_active(pod)
        and is_unschedulable(pod)
        and not is_daemon(pod)
        and not is_static(pod)
    )


def is_unschedulable(pod: Pod) -> bool:
    """Whether the scheduler has looked at the pod and found no node (SCH-040a)."""
    return any(c.type == "PodScheduled" and c.reason == "Unschedulable" for c in pod.status.conditions)


def is_daemon(pod: Pod) -> bool:
    """Whether a DaemonSet owns the pod."""
    return _owned_by(pod.metadata.owner_references, "apps/v1", "DaemonSet")


def is_static(pod: Pod) -> bool:
    """Whether the pod is a mirror of a static pod, owned by its node."""
    return _owned_by(pod.metadata.owner_references, "v1", "Node")


def is_stateful(pod: Pod) -> bool:
    """Whether a StatefulSet owns the pod."""
    return _owned_by(pod.metadata.owner_references, "apps/v1", "StatefulSet")


def _owned_by(references: Iterable[OwnerReference], api_version: str, kind: str) -> bool:
    return any(owner.api_version == api_version and owner.kind == kind for owner in references)


def is_finished(pod: Pod) -> bool:
    """Whether the pod has succeeded or failed and holds nothing any more."""
    return pod.status.phase in _FINISHED


def is_active(pod: Pod) -> bool:
    """Whether the pod is neither finished nor terminating."""
    return not is_finished(pod) and pod.metadata.deletion_timestamp is None


def is_critical(pod: Pod) -> bool:
    """Whether the pod is evicted last (DIS-522)."""
    return pod.spec.priority_class_name in _CRITICAL


def is_stuck_terminating(pod: Pod, now: datetime) -> bool:
    """Whether the pod should have been gone for over a minute."""
    deleted = pod.metadata.deletion_timestamp
    return deleted is not None and now - deleted > STUCK_TERMINATING


def is_protected(pod: Pod, now: datetime) -> bool:
    """Whether ``karpenter.sh/do-not-disrupt`` is active on the pod (SCH-061); old spellings count when ``"true"`` (API-464)."""
    annotations = pod.metadata.annotations
    if any(annotations.get(old) == "true" for old in ("karpenter.sh/do-not-evict", "karpenter.sh/do-not-consolidate")):
        return True
    value = annotations.get(labels.DO_NOT_DISRUPT)
    if value is None:
        return False
    if value == "true":
        return True
    try:
        period = durations.parse(value)
    except durations.DurationError:
        return False
    if period <= timedelta(0):
        return False
    return pod.status.start_time is None or now - pod.status.start_time < period


def tolerates_disruption(pod: Pod) -> bool:
    """Whether the pod tolerates the disruption taint and so stays on a draining node."""
    return taints.tolerates(pod.spec.tolerations, labels.DISRUPTED_TAINT)


def needs_draining(pod: Pod, now: datetime) -> bool:
    """Whether a drain waits for the pod (DIS-520)."""
    return not (is_finished(pod) or is_static(pod) or tolerates_disruption(pod) or is_stuck_terminating(pod, now))


def needs_a_place(pod: Pod) -> bool:
    """Whether the pod keeps its node from being empty (DIS-007): it, or its successor, will have to run somewhere."""
    if is_daemon(pod) or is_static(pod) or is_finished(pod):
        return False
    return pod.metadata.deletion_timestamp is None or is_stateful(pod)


def is_reschedulable(pod: Pod, now: datetime) -> bool:
    """Whether the pod will need another place when its node goes (SCH-060, without disruption budgets)."""
    return needs_a_place(pod) and not (is_active(pod) and is_protected(pod, now))
