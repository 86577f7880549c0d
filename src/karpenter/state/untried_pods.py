"""Pods that kube-scheduler has not tried yet, of workloads it found no place for.

Karpenter plans for a pod once the scheduler has marked it unschedulable. The scheduler tries one pod after the other, some
hundred a second, and each failed try is a write: the last of 2 000 new pods is marked many seconds after the first. What the
scheduler said of one pod holds for its siblings, which no scheduler can tell apart: the same workload, class, labels, scheduler
and priority. Labels that only number the pods of a workload may differ: those of an indexed Job and of a StatefulSet. So they
count as pending with the first of them that is marked, until they are tried themselves. Machines come sooner, in one decision
instead of several, and the scheduler is spared the tries that would have failed.

A sibling for which there is room after all costs nothing: a plan fills the nodes there are before it adds new ones. Left out are
pods whose own objects decide where they may run (volume claims, device claims), gangs, which have a rule of their own, pods
without a controller, and pods of which the scheduler has said anything. Where the scheduler makes room for a pod by preemption,
its mark says nothing of the others: it may make room for them, too.

An event costs O(1); a snapshot visits the siblings of marked pods.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from karpenter.api.core import Pod
from karpenter.model import pods
from karpenter.model.workload_pods import COMPLETION_INDEX_LABEL, POD_INDEX_LABEL, STATEFUL_SET_POD_NAME_LABEL
from karpenter.state.gangs import gang_key_of
from karpenter.state.pod_counts import NamespacedLabels
from karpenter.state.pod_signature import PodSignature
from karpenter.state.snapshot import PodKey, pod_key

PodGroupKey = tuple[PodSignature, NamespacedLabels]

#: Labels that tell the pods of one workload from each other. A constraint that selects by them makes other pod signatures.
_NUMBERING_LABELS = frozenset({COMPLETION_INDEX_LABEL, POD_INDEX_LABEL, STATEFUL_SET_POD_NAME_LABEL})


@dataclass(frozen=True)
class _Siblings:
    """What pods have in common that no scheduler can tell apart. ``labels`` are those that do not number them."""

    signature: PodSignature
    labels: NamespacedLabels
    workload: str
    scheduler_name: str
    priority: int


class UntriedPods:
    """Follows unbound pods with a controller. Until it is enabled, only marked pods are pending."""

    def __init__(self) -> None:
        self._is_enabled = False
        self._siblings_by_pod: dict[PodKey, _Siblings] = {}
        self._untried: dict[_Siblings, dict[PodKey, tuple[PodGroupKey, Pod]]] = {}
        self._marked: dict[_Siblings, set[PodKey]] = {}
        #: Siblings of which one was marked, and which one was the first, even if that one is bound by now. They are forgotten
        #: when none of them is marked or untried.
        self._first_marked: dict[_Siblings, PodKey] = {}

    def enable(self) -> None:
        """Count siblings of marked pods as pending from now on. Called before the first pod is set."""
        self._is_enabled = True

    # -- events -------------------------------------------------------------------------------------------------------

    def set_pod(self, group: PodGroupKey | None, pod: Pod) -> None:
        """A pod appeared or changed. ``group`` is None where it is bound or cannot be planned for."""
        key = pod_key(pod)
        before = self._siblings_by_pod.get(key)
        siblings = _siblings_of(group, pod) if self._is_enabled and group is not None else None
        if before is None and siblings is None:
            return
        was_marked = key in self._marked.get(before, ()) if before is not None else False
        self._leave(key)
        if siblings is not None and group is not None:
            self._join(siblings, group, pod, is_first_mark=siblings != before or not was_marked)
        self._forget_if_none_waits(before)

    def remove_pod(self, key: PodKey) -> None:
        """A pod is gone."""
        before = self._siblings_by_pod.get(key)
        self._leave(key)
        self._forget_if_none_waits(before)

    def _join(self, siblings: _Siblings, group: PodGroupKey, pod: Pod, *, is_first_mark: bool) -> None:
        key = pod_key(pod)
        if pods.is_provisionable(pod):
            self._marked.setdefault(siblings, set()).add(key)
            # A mark that comes with a nomination is that of a preemption. The scheduler may make room for the others as well.
            if is_first_mark and not pod.status.nominated_node_name:
                self._first_marked.setdefault(siblings, key)
        elif _is_untried(pod):
            self._untried.setdefault(siblings, {})[key] = (group, pod)
        else:
            return
        self._siblings_by_pod[key] = siblings

    def _leave(self, key: PodKey) -> None:
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

    def _forget_if_none_waits(self, siblings: _Siblings | None) -> None:
        if siblings is not None and siblings not in self._marked and siblings not in self._untried:
            self._first_marked.pop(siblings, None)

    # -- look-ups -----------------------------------------------------------------------------------------------------

    def pending(self) -> Iterator[tuple[PodGroupKey, Pod]]:
        """The pods that count as pending without a mark of their own, each with its group."""
        for siblings in self._first_marked:
            yield from self._untried.get(siblings, {}).values()

    def is_pending(self, key: PodKey) -> bool:
        """Whether the pod counts as pending without a mark of its own."""
        siblings = self._siblings_by_pod.get(key)
        return siblings is not None and siblings in self._first_marked and key in self._untried.get(siblings, ())

    def pending_because_of(self, key: PodKey) -> tuple[Pod, ...]:
        """The pods that count as pending because of this one's mark: none where a sibling was marked before it."""
        siblings = self._siblings_by_pod.get(key)
        if siblings is None or self._first_marked.get(siblings) != key:
            return ()
        return tuple(pod for _, pod in self._untried.get(siblings, {}).values())

    def was_pending(self, key: PodKey, before: Pod) -> bool:
        """Whether a pod that is marked now counted as pending before, when it was ``before``."""
        siblings = self._siblings_by_pod.get(key)
        first = self._first_marked.get(siblings) if siblings is not None else None
        return first is not None and first != key and _is_untried(before)


def _siblings_of(group: PodGroupKey, pod: Pod) -> _Siblings | None:
    workload = pods.workload_id(pod)
    if not workload:
        return None
    signature, labels = group
    return _Siblings(signature, _without_numbers(labels), workload, pod.spec.scheduler_name, pod.spec.priority or 0)


def _without_numbers(namespaced: NamespacedLabels) -> NamespacedLabels:
    """The labels that all pods of the workload have."""
    if _NUMBERING_LABELS.isdisjoint(namespaced.labels):
        return namespaced
    shared = {name: value for name, value in namespaced.labels.items() if name not in _NUMBERING_LABELS}
    return NamespacedLabels(namespaced.namespace, shared)


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
