"""Stand-in for the controller that writes the status of PodDisruptionBudgets, which is all that evictions go by.

How it counts, which surprises people more than once:

* Expected are, for a number of pods that must stay, the pods there are. For everything else (a share, or pods that may be
  missing) it is what the controllers behind those pods are set to, a Deployment rather than its ReplicaSet. A pod without a
  controller adds nothing, so over bare pods such a budget allows nothing.
* A controller whose replicas cannot be told, a DaemonSet for one, makes the whole count fail; then nothing may go.
* Healthy are the ready pods that nobody is deleting and no eviction has been granted for within the last two minutes.
* A share is rounded up, of those that must stay as of those that may go.
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
from karpenter.kube.informer import Key
from karpenter.kube.protocol import Json, JsonObject
from karpenter.model import selectors
from karpenter.model.clock import Clock
from karpenter.sim.following import key_of
from karpenter.sim.ownership import WorkloadKube, controller_of, is_ready

#: How long a granted eviction may take to show before its pod counts as healthy again.
GRANTED_SECONDS: Final = 120.0

_ALLOWED: Final = "DisruptionAllowed"

#: Replicas a controller in a namespace is set to, None when there is no such controller. Raises ``CannotTell``.
Scale = Callable[[str, OwnerReference], int | None]


class CannotTell(Exception):
    """How many pods a budget has to expect cannot be found out. The message goes into its condition."""


@dataclass(frozen=True, slots=True)
class Count:
    """What a budget comes to, in pods."""

    expected: int
    healthy: int
    desired: int

    @property
    def allowed(self) -> int:
        """How many may go now."""
        return max(0, self.healthy - self.desired) if self.expected > 0 else 0


def count(spec: PodDisruptionBudgetSpec, pods: Collection[Pod], granted: Collection[str], scale: Scale) -> Count:
    """Count the pods a budget selects; ``granted`` names those an eviction has been granted for. Raises ``CannotTell``."""
    healthy = sum(
        pod.metadata.deletion_timestamp is None and pod.metadata.name not in granted and is_ready(pod) for pod in pods
    )
    if spec.max_unavailable is not None:
        expected = _wanted(pods, scale)
        return Count(expected, healthy, max(0, expected - _share(spec.max_unavailable, expected)))
    if isinstance(spec.min_available, str):
        expected = _wanted(pods, scale)
        return Count(expected, healthy, _share(spec.min_available, expected))
    return Count(len(pods) if spec.min_available is not None else 0, healthy, spec.min_available or 0)


def _share(value: str | int, total: int) -> int:
    if isinstance(value, int):
        return value
    number = value.removesuffix("%")
    if number == value or not number.isdecimal():
        raise CannotTell("invalid value for IntOrString: invalid type: string is not a percentage")
    return -(-int(number) * total // 100)


def _wanted(pods: Iterable[Pod], scale: Scale) -> int:
    wanted: dict[str, int] = {}
    for pod in pods:
        owner = controller_of(pod.metadata)
        if owner is None or owner.uid in wanted:
            continue
        replicas = scale(pod.metadata.namespace, owner)
        if replicas is None:
            raise CannotTell(f'found no controllers for pod "{pod.metadata.name}"')
        wanted[owner.uid] = replicas
    return sum(wanted.values())


@dataclass(slots=True)
class _Kept:
    """A budget, the pods it selects, and when to look at it again because a granted eviction takes too long."""

    budget: PodDisruptionBudget
    pods: dict[Key, Pod]
    recheck: asyncio.TimerHandle | None = None

    def take(self, key: Key, pod: Pod | None) -> bool:
        """Take a pod's new state, None when it is gone; whether the budget has or had that pod."""
        had = self.pods.pop(key, None) is not None
        if pod is not None and _covers(self.budget, pod):
            self.pods[key] = pod
            return True
        return had


class Budgets:
    """Keeps the status of all budgets. Told of changes, it asks through ``mark`` to be made to ``attend`` to a budget."""

    def __init__(self, kube: WorkloadKube, clock: Clock, scale: Scale, mark: Callable[[Key], None]) -> None:
        self._kube = kube
        self._clock = clock
        self._scale = scale
        self._mark = mark
        self._kept: defaultdict[str, dict[Key, _Kept]] = defaultdict(dict)

    def see_pod(self, before: Pod | None, after: Pod | None) -> None:
        """Take a change from the watch."""
        known = after or before
        assert known is not None
        key = key_of(known.metadata)
        for budget_key, kept in self._kept.get(key.namespace, {}).items():
            if kept.take(key, after):
                self._mark(budget_key)

    def see_budget(self, after: PodDisruptionBudget, pods: Iterable[Pod]) -> None:
        """Take a new or changed budget from the watch, and the pods there are."""
        key = key_of(after.metadata)
        kept = self._kept[key.namespace].get(key)
        if kept is None or kept.budget.spec.selector != after.spec.selector:
            kept = self._kept[key.namespace][key] = _Kept(after, {})
            for pod in pods:
                if pod.metadata.namespace == key.namespace:
                    kept.take(key_of(pod.metadata), pod)
        kept.budget = after
        self._mark(key)

    def forget(self, key: Key) -> None:
        """The budget is gone."""
        kept = self._kept[key.namespace].pop(key, None)
        if kept is not None and kept.recheck is not None:
            kept.recheck.cancel()

    async def attend(self, key: Key) -> None:
        """Write the status of a budget if it differs. Raises ``KubeError``."""
        kept = self._kept[key.namespace].get(key)
        if kept is None:
            return
        before, wanted = kept.budget.status, self._status(key, kept)
        if wanted != before:
            await self._kube.patch(
                kinds.POD_DISRUPTION_BUDGET,
                key.name,
                {"status": _change(before, wanted)},
                key.namespace,
                subresource="status",
                resource_version=kept.budget.metadata.resource_version,
            )

    def _status(self, key: Key, kept: _Kept) -> PodDisruptionBudgetStatus:
        budget, pods = kept.budget, kept.pods.values()
        granted = self._granted(key, kept)
        try:
            result = count(budget.spec, pods, granted, self._scale)
        except CannotTell as problem:
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

    def _granted(self, key: Key, kept: _Kept) -> dict[str, datetime]:
        """The pods an eviction was granted for lately and that nobody has begun to delete."""
        begin = self._clock.now() - timedelta(seconds=GRANTED_SECONDS)
        staying = {pod.metadata.name for pod in kept.pods.values() if pod.metadata.deletion_timestamp is None}
        disrupted = kept.budget.status.disrupted_pods
        granted = {name: since for name, since in disrupted.items() if name in staying and since > begin}
        if kept.recheck is not None:
            kept.recheck.cancel()
            kept.recheck = None
        if granted:
            seconds = (min(granted.values()) - begin).total_seconds()
            kept.recheck = asyncio.get_running_loop().call_later(seconds, self._mark, key)
        return granted

    def _condition(self, status: PodDisruptionBudgetStatus, value: str, reason: str, message: str) -> Condition:
        old = next((item for item in status.conditions if item.type == _ALLOWED), None)
        since = old.last_transition_time if old is not None and old.status == value else self._clock.now()
        return Condition(
            type=_ALLOWED,
            status=value,
            reason=reason,
            message=message,
            last_transition_time=since,
            observed_generation=status.observed_generation,
        )


def _covers(budget: PodDisruptionBudget, pod: Pod) -> bool:
    return selectors.matches(budget.spec.selector, pod.metadata.labels)


def _change(before: PodDisruptionBudgetStatus, after: PodDisruptionBudgetStatus) -> JsonObject:
    """The whole status as a patch: a merge patch would keep granted evictions that are left out."""
    gone: dict[str, Json] = {name: None for name in before.disrupted_pods if name not in after.disrupted_pods}
    granted: dict[str, Json] = msgspec.to_builtins(after.disrupted_pods)
    conditions: list[Json] = msgspec.to_builtins(after.conditions)
    return {
        "disruptionsAllowed": after.disruptions_allowed,
        "currentHealthy": after.current_healthy,
        "desiredHealthy": after.desired_healthy,
        "expectedPods": after.expected_pods,
        "observedGeneration": after.observed_generation,
        "disruptedPods": {**granted, **gone} or None,
        "conditions": conditions,
    }
