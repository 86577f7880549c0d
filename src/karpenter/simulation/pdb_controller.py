"""The simulated disruption controller: it writes the status of PodDisruptionBudgets, which the Eviction API reads.

`model.pdb_counts` says how it counts.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from karpenter.api import kinds
from karpenter.api.core import Pod, PodDisruptionBudget, PodDisruptionBudgetStatus
from karpenter.api.meta import Condition
from karpenter.kube.informer import ObjectKey, key_of
from karpenter.kube.protocol import JsonObject
from karpenter.model import selectors
from karpenter.model.clock import Clock
from karpenter.model.pdb_counts import ExpectedPodsUnknown, ReplicasOf, count_pods
from karpenter.runtime.patching import merge_patch
from karpenter.simulation.owned_objects import WorkloadKube

#: How long a granted eviction may take to show before its pod counts as healthy again.
GRANTED_EVICTION_SECONDS: Final = 120.0

_DISRUPTION_ALLOWED: Final = "DisruptionAllowed"


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
