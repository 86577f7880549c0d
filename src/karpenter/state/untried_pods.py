"""Pods that kube-scheduler has not tried yet, of workloads it found no place for.

Karpenter plans for a pod once the scheduler has marked it unschedulable. The scheduler tries one pod after the other, some
hundred a second, and each failed try is a write: the last of 2 000 new pods is marked many seconds after the first. What the
scheduler said of one pod holds for its siblings, which no scheduler can tell apart: the same workload, class, labels, scheduler
and priority. So they count as pending with the first of them that is marked, until they are tried themselves. Machines come
sooner, in one decision instead of several, and the scheduler is spared the tries that would have failed.

A sibling for which there is room after all is no purchase: a plan puts pods on the nodes there are before it buys. Left out are
pods whose own objects decide where they may run (volume claims, device claims), gangs, which have a rule of their own, pods
without a controller, and pods of which the scheduler has said anything.

An event costs O(1); a snapshot visits the siblings of marked pods.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from karpenter.api.core import Pod
from karpenter.model import pods
from karpenter.state.gangs import gang_key_of
from karpenter.state.pod_counts import NamespacedLabels
from karpenter.state.pod_signature import PodSignature
from karpenter.state.snapshot import PodKey, pod_key

PodGroupKey = tuple[PodSignature, NamespacedLabels]


@dataclass(frozen=True)
class _Siblings:
    """What pods have in common that no scheduler can tell apart."""

    group: PodGroupKey
    workload: str
    scheduler_name: str
    priority: int


class UntriedPods:
    """Follows unbound pods with a controller. Until it is enabled, only marked pods are pending."""

    def __init__(self) -> None:
        self._is_enabled = False
        self._siblings_by_pod: dict[PodKey, _Siblings] = {}
        self._untried: dict[_Siblings, dict[PodKey, Pod]] = {}
        self._marked: dict[_Siblings, set[PodKey]] = {}
        #: Siblings of which one was marked while others have yet to be tried, even if that one is bound by now.
        self._unschedulable: set[_Siblings] = set()

    def enable(self) -> None:
        """Count siblings of marked pods as pending from now on. Called before the first pod is set."""
        self._is_enabled = True

    # -- events -------------------------------------------------------------------------------------------------------

    def set_unbound_pod(self, group: PodGroupKey, pod: Pod) -> None:
        """An unbound pod of that group appeared, or has changed since ``remove_pod``."""
        siblings = _siblings_of(group, pod) if self._is_enabled else None
        if siblings is None:
            return
        key = pod_key(pod)
        if pods.is_provisionable(pod):
            self._marked.setdefault(siblings, set()).add(key)
            self._unschedulable.add(siblings)
        elif _is_untried(pod):
            self._untried.setdefault(siblings, {})[key] = pod
        else:
            return
        self._siblings_by_pod[key] = siblings

    def remove_pod(self, key: PodKey) -> None:
        """A pod is gone, bound, or will be set anew."""
        siblings = self._siblings_by_pod.pop(key, None)
        if siblings is None:
            return
        marked, untried = self._marked.get(siblings, set()), self._untried.get(siblings, {})
        marked.discard(key)
        untried.pop(key, None)
        if not marked:
            self._marked.pop(siblings, None)
        if not untried:
            self._untried.pop(siblings, None)

    # -- look-ups -----------------------------------------------------------------------------------------------------

    def pending(self) -> Iterator[tuple[PodGroupKey, Pod]]:
        """The pods that count as pending without a mark of their own, each with its group."""
        self._unschedulable &= self._marked.keys() | self._untried.keys()
        for siblings in self._unschedulable:
            for pod in self._untried.get(siblings, {}).values():
                yield siblings.group, pod

    def is_pending(self, key: PodKey) -> bool:
        """Whether the pod counts as pending without a mark of its own."""
        siblings = self._siblings_by_pod.get(key)
        return siblings in self._unschedulable and key not in self._marked.get(siblings, ())

    def pending_because_of(self, key: PodKey) -> tuple[Pod, ...]:
        """The pods that count as pending because of this one's mark alone: none while a sibling is marked as well."""
        siblings = self._siblings_by_pod.get(key)
        if siblings is None or self._marked.get(siblings) != {key}:
            return ()
        return tuple(self._untried.get(siblings, {}).values())

    def was_pending(self, key: PodKey, before: Pod) -> bool:
        """Whether a pod that is marked now counted as pending before, when it was ``before``."""
        siblings = self._siblings_by_pod.get(key)
        others = self._marked.get(siblings, set()) - {key} if siblings is not None else set()
        return bool(others) and _is_untried(before)


def _siblings_of(group: PodGroupKey, pod: Pod) -> _Siblings | None:
    workload = pods.workload_id(pod)
    return _Siblings(group, workload, pod.spec.scheduler_name, pod.spec.priority or 0) if workload else None


def _is_untried(pod: Pod) -> bool:
    """Whether the scheduler has said nothing of the pod, and nothing but its class decides where it may run."""
    return (
        pods.is_active(pod)
        and not any(condition.type == "PodScheduled" for condition in pod.status.conditions)
        and not pod.spec.scheduling_gates
        and not pod.spec.resource_claims
        and not pods.volume_claim_names(pod)
        and not pods.is_daemonset_pod(pod)
        and not pods.is_mirror_pod(pod)
        and gang_key_of(pod) is None
    )
