"""The simulated disruption controller: it writes the status of PodDisruptionBudgets, which the Eviction API reads.

How it counts:

* With an absolute ``minAvailable``, the expected pods are the selected pods. Otherwise they are the replicas of the controllers
  that own those pods, a Deployment rather than its ReplicaSet. A pod without a controller adds nothing, so such a budget over
  bare pods allows no eviction.
* If a controller has no known replicas, for example a DaemonSet, the count fails and no eviction is allowed.
* Healthy pods are ready, not being deleted, and had no eviction granted within the last two minutes.
* Percentages are rounded up, of ``minAvailable`` and of ``maxUnavailable``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from karpenter.api import kinds
from karpenter.api.core import Pod, PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from karpenter.api.meta import Condition, OwnerReference
from karpenter.kube.informer import ObjectKey, key_of
from karpenter.kube.protocol import JsonObject
from karpenter.model import selectors
from karpenter.model.clock import Clock
from karpenter.runtime.patching import merge_patch
from karpenter.simulation.owned_objects import WorkloadKube, controller_of, is_ready

#: How long a granted eviction may take to show before its pod counts as healthy again.
GRANTED_EVICTION_SECONDS: Final = 120.0

_DISRUPTION_ALLOWED: Final = "DisruptionAllowed"

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
    healthy = sum(
        pod.metadata.deletion_timestamp is None and pod.metadata.name not in granted and is_ready(pod) for pod in pods
    )
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


@dataclass(slots=True)
class _TrackedPdb:
    """A budget, the pods it selects, and the timer after which a granted eviction no longer counts."""

    budget: PodDisruptionBudget
    pods: dict[ObjectKey, Pod]
    recheck: asyncio.TimerHandle | None = None

    def on_pod(self, key: ObjectKey, pod: Pod | None) -> bool:
        """Update with a pod's new state, None when it is gone. Returns whether the budget selects or selected the pod."""
        had = self.pods.pop(key, None) is not None
        if pod is not None and _selects(self.budget, pod):
            self.pods[key] = pod
            return True
        return had


class PdbController:
    """Writes the status of all budgets. ``enqueue`` requests a reconcile of a budget."""

    def __init__(
        self, kube: WorkloadKube, clock: Clock, replicas_of: ReplicasOf, enqueue: Callable[[ObjectKey], None]
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._replicas_of = replicas_of
        self._enqueue = enqueue
        self._tracked: defaultdict[str, dict[ObjectKey, _TrackedPdb]] = defaultdict(dict)

    def on_pod(self, before: Pod | None, after: Pod | None) -> None:
        """Handle a change of a pod."""
        pod = after or before
        assert pod is not None
        key = key_of(pod.metadata)
        for budget_key, kept in self._tracked.get(key.namespace, {}).items():
            if kept.on_pod(key, after):
                self._enqueue(budget_key)

    def on_budget(self, after: PodDisruptionBudget, pods: Iterable[Pod]) -> None:
        """Handle a new or changed budget; ``pods`` are all pods of the cluster."""
        key = key_of(after.metadata)
        kept = self._tracked[key.namespace].get(key)
        if kept is None or kept.budget.spec.selector != after.spec.selector:
            kept = self._tracked[key.namespace][key] = _TrackedPdb(after, {})
            for pod in pods:
                if pod.metadata.namespace == key.namespace:
                    kept.on_pod(key_of(pod.metadata), pod)
        kept.budget = after
        self._enqueue(key)

    def forget(self, key: ObjectKey) -> None:
        """Handle a deleted budget."""
        kept = self._tracked[key.namespace].pop(key, None)
        if kept is not None and kept.recheck is not None:
            kept.recheck.cancel()

    async def reconcile(self, key: ObjectKey) -> None:
        """Write the status of a budget if it differs. Raises ``KubeError``."""
        kept = self._tracked[key.namespace].get(key)
        if kept is None:
            return
        before, wanted = kept.budget.status, self._status(key, kept)
        if wanted != before:
            await self._kube.patch(
                kinds.POD_DISRUPTION_BUDGET,
                key.name,
                {"status": _status_patch(before, wanted)},
                key.namespace,
                subresource="status",
                resource_version=kept.budget.metadata.resource_version,
            )

    def _status(self, key: ObjectKey, kept: _TrackedPdb) -> PodDisruptionBudgetStatus:
        budget, pods = kept.budget, kept.pods.values()
        granted = self._granted_evictions(key, kept)
        try:
            result = count_pods(budget.spec, pods, granted, self._replicas_of)
        except ExpectedPodsUnknown as problem:
            condition = self._condition(budget.status, "False", "SyncFailed", str(problem))
            return msgspec.structs.replace(budget.status, disruptions_allowed=0, conditions=(condition,))
        counted = PodDisruptionBudgetStatus(
            disruptions_allowed=result.allowed,
            current_healthy=result.healthy,
            desired_healthy=result.desired,
            expected_pods=result.expected,
            observed_generation=budget.metadata.generation,
            disrupted_pods=granted,
        )
        word = ("True", "SufficientPods") if result.allowed else ("False", "InsufficientPods")
        condition = msgspec.structs.replace(
            self._condition(budget.status, *word, ""), observed_generation=counted.observed_generation
        )
        return msgspec.structs.replace(counted, conditions=(condition,))

    def _granted_evictions(self, key: ObjectKey, kept: _TrackedPdb) -> dict[str, datetime]:
        """Pods with an eviction granted lately that are not being deleted yet."""
        begin = self._clock.now() - timedelta(seconds=GRANTED_EVICTION_SECONDS)
        staying = {pod.metadata.name for pod in kept.pods.values() if pod.metadata.deletion_timestamp is None}
        disrupted = kept.budget.status.disrupted_pods
        granted = {name: since for name, since in disrupted.items() if name in staying and since > begin}
        if kept.recheck is not None:
            kept.recheck.cancel()
            kept.recheck = None
        if granted:
            seconds = (min(granted.values()) - begin).total_seconds()
            kept.recheck = asyncio.get_running_loop().call_later(seconds, self._enqueue, key)
        return granted

    def _condition(self, status: PodDisruptionBudgetStatus, value: str, reason: str, message: str) -> Condition:
        old = next((condition for condition in status.conditions if condition.type == _DISRUPTION_ALLOWED), None)
        since = old.last_transition_time if old is not None and old.status == value else self._clock.now()
        return Condition(
            type=_DISRUPTION_ALLOWED,
            status=value,
            reason=reason,
            message=message,
            last_transition_time=since,
            observed_generation=status.observed_generation,
        )


def _selects(budget: PodDisruptionBudget, pod: Pod) -> bool:
    return selectors.selector_matches(budget.spec.selector, pod.metadata.labels)


def _status_patch(before: PodDisruptionBudgetStatus, after: PodDisruptionBudgetStatus) -> JsonObject:
    """The difference as a merge patch, with all counts: the schema requires them, and the wire form of a struct omits zeros."""
    return {
        **merge_patch(before, after),
        "disruptionsAllowed": after.disruptions_allowed,
        "currentHealthy": after.current_healthy,
        "desiredHealthy": after.desired_healthy,
        "expectedPods": after.expected_pods,
        "observedGeneration": after.observed_generation,
    }
