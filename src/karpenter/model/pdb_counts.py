"""How many pods a PodDisruptionBudget selects and expects, how many are healthy, and how many evictions it allows.

How it counts:

* With an absolute ``minAvailable``, the expected pods are the selected pods. Otherwise they are the replicas of the controllers
  that own those pods, a Deployment rather than its ReplicaSet. A pod without a controller adds nothing, so such a budget over
  bare pods allows no eviction.
* If a controller has no known replicas, for example a DaemonSet, the count fails and no eviction is allowed.
* Healthy pods are ready, not being deleted, and had no eviction granted within the last two minutes.
* Percentages are rounded up, of ``minAvailable`` and of ``maxUnavailable``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from karpenter.api.core import Pod, PodDisruptionBudgetSpec
from karpenter.api.meta import OwnerReference
from karpenter.model.pods import controller_of, is_ready

#: Replicas a controller in a namespace is set to, None when there is no such controller. Raises ``ExpectedPodsUnknown``.
ReplicasOf = Callable[[str, OwnerReference], int | None]


class ExpectedPodsUnknown(Exception):
    """The expected pods of a budget are unknown. The message goes into its condition."""


@dataclass(frozen=True, slots=True)
class PdbCount:
    """The counts of a budget, in pods."""

    expected: int
    healthy: int
    desired: int

    @property
    def allowed(self) -> int:
        """How many evictions are allowed now."""
        return max(0, self.healthy - self.desired) if self.expected > 0 else 0


def count_pods(
    spec: PodDisruptionBudgetSpec, pods: Collection[Pod], granted: Collection[str], scale: ReplicasOf
) -> PdbCount:
    """The counts of a budget over the pods it selects; ``granted`` names pods with a granted eviction.

    Raises ``ExpectedPodsUnknown``.
    """
    staying = [pod for pod in pods if pod.metadata.deletion_timestamp is None and pod.metadata.name not in granted]
    healthy = sum(map(is_ready, staying))
    if spec.max_unavailable is not None:
        expected = _expected_replicas(pods, scale)
        return PdbCount(expected, healthy, max(0, expected - _resolve_percentage(spec.max_unavailable, expected)))
    if isinstance(spec.min_available, str):
        expected = _expected_replicas(pods, scale)
        return PdbCount(expected, healthy, _resolve_percentage(spec.min_available, expected))
    return PdbCount(len(pods) if spec.min_available is not None else 0, healthy, spec.min_available or 0)


def _resolve_percentage(value: str | int, total: int) -> int:
    if isinstance(value, int):
        return value
    number = value.removesuffix("%")
    if number == value or not number.isdecimal():
        raise ExpectedPodsUnknown("invalid value for IntOrString: invalid type: string is not a percentage")
    return -(-int(number) * total // 100)


def _expected_replicas(pods: Iterable[Pod], scale: ReplicasOf) -> int:
    wanted: dict[str, int] = {}
    for pod in pods:
        owner = controller_of(pod.metadata)
        if owner is None or owner.uid in wanted:
            continue
        replicas = scale(pod.metadata.namespace, owner)
        if replicas is None:
            raise ExpectedPodsUnknown(f'found no controllers for pod "{pod.metadata.name}"')
        wanted[owner.uid] = replicas
    return sum(wanted.values())
