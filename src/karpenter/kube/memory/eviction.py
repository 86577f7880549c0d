"""Whether the disruption budgets of a namespace let a pod go, computed from the pods as they are now.

On a real cluster a controller writes the arithmetic into the budget's status and the eviction reads it there, which leaves a
window between the two. Here every eviction computes it anew, so no controller has to run for budgets to hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from karpenter.api.core import Pod, PodDisruptionBudget
from karpenter.api.meta import ObjectMeta, OwnerReference
from karpenter.model import selectors

_IGNORED_PHASES = ("Succeeded", "Failed", "Pending")

#: Replicas the controller of a pod wants, None when that cannot be told.
Scale = Callable[[str, OwnerReference], int | None]


@dataclass(frozen=True, slots=True)
class Headroom:
    """The arithmetic of one budget, in pods."""

    expected: int
    healthy: int
    desired: int

    @property
    def disruptions_allowed(self) -> int:
        """How many pods may go now."""
        return max(0, self.healthy - self.desired) if self.expected else 0


def is_healthy(pod: Pod) -> bool:
    """Ready and not on its way out."""
    return pod.metadata.deletion_timestamp is None and is_ready(pod)


def is_ready(pod: Pod) -> bool:
    """Whether the pod's Ready condition is True."""
    return any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)


def ignores_budgets(pod: Pod) -> bool:
    """Whether the pod serves nobody (finished, not started, or leaving already), so that no budget speaks for it."""
    return pod.status.phase in _IGNORED_PHASES or pod.metadata.deletion_timestamp is not None


def covers(budget: PodDisruptionBudget, pod: Pod) -> bool:
    """Whether the budget selects the pod."""
    return selectors.matches(budget.spec.selector, pod.metadata.labels)


def headroom(budget: PodDisruptionBudget, pods: Iterable[Pod], scale: Scale) -> Headroom:
    """What the budget allows, given all pods of its namespace."""
    counted = [pod for pod in pods if covers(budget, pod) and pod.status.phase not in ("Succeeded", "Failed")]
    healthy = sum(1 for pod in counted if is_healthy(pod))
    spec = budget.spec
    if spec.max_unavailable is not None:
        expected = _wanted(budget.metadata.namespace, counted, scale)
        return Headroom(expected, healthy, max(0, expected - _share(spec.max_unavailable, expected)))
    if isinstance(spec.min_available, str):
        expected = _wanted(budget.metadata.namespace, counted, scale)
        return Headroom(expected, healthy, _share(spec.min_available, expected))
    return Headroom(len(counted), healthy, spec.min_available or 0)


def permits(budget: PodDisruptionBudget, pod: Pod, room: Headroom) -> bool:
    """Whether this pod may go now: room in the budget, or a pod that is not ready anyway and whose policy lets it go."""
    if not is_ready(pod):
        if budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow":
            return True
        if room.healthy >= room.desired > 0:
            return True
    return room.disruptions_allowed > 0


def _share(value: str | int, total: int) -> int:
    """A count, or a percentage of ``total`` rounded up."""
    if isinstance(value, int):
        return value
    return -(-int(value.removesuffix("%")) * total // 100) if value.endswith("%") else int(value)


def _wanted(namespace: str, pods: Iterable[Pod], scale: Scale) -> int:
    """How many pods the controllers behind these pods want; a pod without one counts itself."""
    total, seen = 0, set[str]()
    unknown: dict[str, int] = {}
    for pod in pods:
        owner = controller_of(pod.metadata)
        if owner is None:
            total += 1
        elif owner.uid in unknown:
            unknown[owner.uid] += 1
        elif owner.uid not in seen:
            wanted = scale(namespace, owner)
            if wanted is None:
                unknown[owner.uid] = 1
            else:
                seen.add(owner.uid)
                total += wanted
    return total + sum(unknown.values())


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    """The owner that controls the object, if any."""
    return next((owner for owner in meta.owner_references if owner.controller), None)
