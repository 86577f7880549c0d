"""What a cluster's controllers would have written by now, for objects that were never in a cluster.

NodePools are ready; a pod that no scheduler has looked at counts as looked at and found without a node; pods have the priority of
their class; disruption budgets are counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from karpenter.api.core import Pod, PodDisruptionBudget, PodDisruptionBudgetStatus, PodStatus
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import Condition, ObjectMeta, OwnerReference
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.model import selectors
from karpenter.model.pdb_counts import ExpectedPodsUnknown, count_pods
from karpenter.model.pod_defaults import priority_classes_of
from karpenter.model.pods import controller_of, is_active
from karpenter.model.texts import count_text

_UNSCHEDULABLE = Condition(type="PodScheduled", status="False", reason="Unschedulable")
_READY = Condition(type="Ready", status="True", reason="Assumed")
#: The status of a pod that waits for a node.
UNSCHEDULED_POD_STATUS = PodStatus(phase="Pending", conditions=(_UNSCHEDULABLE,))


def assumed_uid(kind: str, metadata: ObjectMeta) -> str:
    """A uid for an object without one: decisions tell objects apart by it."""
    return f"{kind}/{metadata.namespace}/{metadata.name}"


def ready_pool(pool: NodePool) -> NodePool:
    """The NodePool with nothing in its status but that it is ready."""
    return msgspec.structs.replace(pool, status=msgspec.structs.replace(pool.status, conditions=(_READY,)))


def with_scheduling_result(pod: Pod) -> Pod:
    """The pod as a scheduler leaves it; a pod that one has looked at, or that nothing waits with, stays as it is."""
    if not _awaits_first_scheduling(pod):
        return pod
    status = msgspec.structs.replace(pod.status, conditions=(*pod.status.conditions, _UNSCHEDULABLE))
    return msgspec.structs.replace(pod, status=status)


def _awaits_first_scheduling(pod: Pod) -> bool:
    """Whether no scheduler has said anything about the pod, and nothing keeps it from one."""
    return (
        not pod.spec.node_name
        and not pod.spec.scheduling_gates
        and pod.status.phase in ("", "Pending")
        and all(condition.type != "PodScheduled" for condition in pod.status.conditions)
    )


def assign_priorities(objects: ClusterObjects) -> None:
    """Give pods without a priority that of their class. A class that is not among the objects is noted and counts as none."""
    classes = priority_classes_of(objects.priority_classes)
    missing: Counter[str] = Counter()
    for index, pod in enumerate(objects.pods):
        if pod.spec.priority is not None:
            continue
        priority = classes.priority_of(pod.spec.priority_class_name)
        if priority is None:
            missing[pod.spec.priority_class_name] += 1
            priority = classes.default
        if priority:
            objects.pods[index] = msgspec.structs.replace(
                pod, spec=msgspec.structs.replace(pod.spec, priority=priority)
            )
    objects.notices += [
        f"PriorityClass {name} is not in the input: {count_text(count, 'pod')} with priority {classes.default} for it; add it"
        for name, count in sorted(missing.items())
    ]


def count_budgets(objects: ClusterObjects, replicas_by_owner: Mapping[str, int]) -> None:
    """Fill in the status of disruption budgets that no controller has counted. ``replicas_by_owner``: by uid, where known."""
    uncounted = [budget for budget in objects.budgets if budget.status == PodDisruptionBudgetStatus()]
    if not uncounted:
        return
    counter = _BudgetCounter(objects.pods, replicas_by_owner)
    counted = {id(budget): counter.counted(budget) for budget in uncounted}
    objects.budgets = [counted.get(id(budget), budget) for budget in objects.budgets]


class _BudgetCounter:
    """Counts budgets over these pods. An owner of unknown size counts with the pods it has."""

    def __init__(self, pods: Iterable[Pod], replicas_by_owner: Mapping[str, int]) -> None:
        self._by_namespace: defaultdict[str, list[Pod]] = defaultdict(list)
        self._replicas = Counter(replicas_by_owner)
        for pod in pods:
            if is_active(pod):
                self._by_namespace[pod.metadata.namespace].append(_with_assumed_readiness(pod))
                owner = controller_of(pod.metadata)
                if owner is not None and owner.uid not in replicas_by_owner:
                    self._replicas[owner.uid] += 1

    def counted(self, budget: PodDisruptionBudget) -> PodDisruptionBudget:
        """The budget with its counts; one that cannot be counted allows nothing."""
        pods = [
            pod
            for pod in self._by_namespace[budget.metadata.namespace]
            if selectors.selector_matches(budget.spec.selector, pod.metadata.labels)
        ]
        try:
            count = count_pods(budget.spec, pods, (), self._replicas_of)
        except ExpectedPodsUnknown:
            return budget
        status = PodDisruptionBudgetStatus(
            disruptions_allowed=count.allowed,
            current_healthy=count.healthy,
            desired_healthy=count.desired,
            expected_pods=count.expected,
        )
        return msgspec.structs.replace(budget, status=status)

    def _replicas_of(self, _namespace: str, owner: OwnerReference) -> int | None:
        return self._replicas[owner.uid]


def _with_assumed_readiness(pod: Pod) -> Pod:
    """A pod on a node of which nothing else is said is ready."""
    if not pod.spec.node_name or any(condition.type == _READY.type for condition in pod.status.conditions):
        return pod
    status = msgspec.structs.replace(pod.status, conditions=(*pod.status.conditions, _READY))
    return msgspec.structs.replace(pod, status=status)
