"""What a pod is and needs: effective requests, ownership, and whether it waits for, holds or leaves a node.

The rules for requests are those kube-scheduler applies (SCH-195): sidecars run beside everything that starts after them, other
init containers run alone, a running container may hold more than its specification says, pod-level requests win.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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

#: Says which pods of a workload to give up first (DIS-110).
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_LARGEST_COST = 10.0
_OLD_PROTECTION = ("karpenter.sh/do-not-evict", "karpenter.sh/do-not-consolidate")

#: What one container needs.
_Needs = Callable[[Container], dict[str, int]]


def requests(pod: Pod) -> dict[str, int]:
    """Effective requests of one pod, ``pods: 1`` included (SCH-195). Raises ``quantity.QuantityError``."""
    total = _over_its_life(pod.spec, _asked_or_held(pod))
    if pod.spec.resources is not None:
        total.update(_pod_level(pod))
    return _with_overhead(total, pod.spec)


def template_requests(spec: PodSpec) -> dict[str, int]:
    """Effective requests of a pod made from a template, missing requests filled from limits (SCH-211)."""
    total = _over_its_life(spec, _asked_or_limited)
    if spec.resources is not None:
        wanted = {**spec.resources.limits, **spec.resources.requests}
        total.update(_settable(res.parse(wanted)))
    return _with_overhead(total, spec)


def _with_overhead(total: dict[str, int], spec: PodSpec) -> dict[str, int]:
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


def _over_its_life(spec: PodSpec, needs: _Needs) -> dict[str, int]:
    """The most of each resource that what runs together at any moment needs."""
    if len(spec.containers) == 1 and not spec.init_containers:
        return needs(spec.containers[0])
    sidecars: dict[str, int] = {}
    peaks: list[dict[str, int]] = []
    for container in spec.init_containers:
        together = res.add(sidecars, needs(container))
        peaks.append(together)
        if container.restart_policy == "Always":
            sidecars = together
    return res.maximum((res.add(sidecars, *map(needs, spec.containers)), *peaks))


def _asked(container: Container) -> dict[str, int]:
    return res.parse(container.resources.requests)


def _asked_or_limited(container: Container) -> dict[str, int]:
    return res.parse({**container.resources.limits, **container.resources.requests})


def _asked_or_held(pod: Pod) -> _Needs:
    """What a container needs while resizing: the most of what it asks for and what it has, unless it cannot get the former."""
    running = {status.name: status for status in (*pod.status.container_statuses, *pod.status.init_container_statuses)}
    if not running:
        return _asked
    infeasible = any(c.type == "PodResizePending" and c.reason == "Infeasible" for c in pod.status.conditions)

    def needs(container: Container) -> dict[str, int]:
        held = _held(running[container.name]) if container.name in running else []
        asked = [] if infeasible and held else [_asked(container)]
        return res.maximum((*asked, *held))

    return needs


def _held(status: ContainerStatus) -> list[dict[str, int]]:
    """What a running container has, as far as its status says."""
    if status.resources is None and not status.allocated_resources:
        return []
    actual = status.resources.requests if status.resources is not None else {}
    return [res.parse(status.allocated_resources), res.parse(actual)]


def is_provisionable(pod: Pod) -> bool:
    """Whether the pod waits for a machine (SCH-040, SCH-041 Beyond: finished and terminating pods do not).

    Whether the scheduler is making room for it on a node is judged by the decision, which sees that node.
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


def workload(pod: Pod) -> str:
    """What tells apart the workloads of pods: the uid of the controlling owner, else its kind and name; empty without one."""
    for owner in pod.metadata.owner_references:
        if owner.controller:
            return owner.uid or f"{pod.metadata.namespace}/{owner.kind}/{owner.name}"
    return ""


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
    # Asked of every pod there is: a list of the one owner most have costs less than a generator.
    return (kind, api_version) in [(owner.kind, owner.api_version) for owner in references]


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


@dataclass(frozen=True, slots=True)
class Protection:
    """What a pod's ``karpenter.sh/do-not-disrupt`` says (DIS-090 to DIS-094).

    ``until`` is the end of a protection that has one, known once the pod has started; ``fault`` says why the annotation counts
    for nothing.
    """

    active: bool
    until: datetime | None = None
    fault: str = ""


def protection(pod: Pod, now: datetime) -> Protection | None:
    """The pod's protection from disruption, None without annotation; old spellings count when ``"true"`` (API-450, API-464).

    Whether the pod still runs is not asked: terminating and finished pods block nothing whatever they carry (DIS-095).
    """
    annotations = pod.metadata.annotations
    if not annotations:
        return None
    value = annotations.get(labels.DO_NOT_DISRUPT)
    if value == "true" or any(annotations.get(old) == "true" for old in _OLD_PROTECTION):
        return Protection(active=True)
    return None if value is None else _limited(value, pod.status.start_time, now)


def _limited(value: str, started: datetime | None, now: datetime) -> Protection:
    """The protection of a value other than ``true``: for so long after the pod's start."""
    try:
        period = durations.parse(value)
    except durations.DurationError:
        return Protection(active=False, fault=f"{value!r} is neither true nor a duration such as 30m or 1h30m")
    if period <= timedelta(0):
        return Protection(active=False, fault=f"{value!r} is not a positive duration")
    if started is None:
        return Protection(active=True)
    return Protection(active=now - started < period, until=started + period)


def is_protected(pod: Pod, now: datetime) -> bool:
    """Whether ``karpenter.sh/do-not-disrupt`` is active on the pod (SCH-061)."""
    found = protection(pod, now)
    return found is not None and found.active


def eviction_cost(pod: Pod) -> float:
    """How much it hurts to evict the pod, 1 for an ordinary one, between -10 and 10 (DIS-110).

    A deletion cost that is no decimal number counts as none.
    """
    wanted = _decimal(pod.metadata.annotations.get(DELETION_COST, ""))
    cost = 1.0 + wanted / 2**27 + (pod.spec.priority or 0) / 2**25
    return min(max(cost, -_LARGEST_COST), _LARGEST_COST)


def _decimal(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


def tolerates_disruption(pod: Pod) -> bool:
    """Whether the pod tolerates the disruption taint and so stays on a draining node."""
    return taints.tolerates(pod.spec.tolerations, labels.DISRUPTED_TAINT)


def needs_draining(pod: Pod, now: datetime) -> bool:
    """Whether a drain waits for the pod (DIS-520)."""
    return not (is_finished(pod) or is_static(pod) or tolerates_disruption(pod) or is_stuck_terminating(pod, now))


def volume_claims(pod: Pod) -> list[str]:
    """Names of the PersistentVolumeClaims the pod uses; those made for it alone are called after pod and volume."""
    claims = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            claims.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            claims.append(f"{pod.metadata.name}-{volume.name}")
    return claims


def needs_a_place(pod: Pod) -> bool:
    """Whether the pod keeps its node from being empty (DIS-007): it, or its successor, will have to run somewhere."""
    if is_daemon(pod) or is_static(pod) or is_finished(pod):
        return False
    return pod.metadata.deletion_timestamp is None or is_stateful(pod)


def is_reschedulable(pod: Pod, now: datetime) -> bool:
    """Whether the pod will need another place when its node goes (SCH-060, without disruption budgets)."""
    return needs_a_place(pod) and not (is_active(pod) and is_protected(pod, now))
