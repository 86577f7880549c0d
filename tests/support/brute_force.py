"""The cheapest nodes for a few pods, found by trying every partition of the pods: shares no code with the engine.

A node is valid if all its pods pass the filters of the plan checker. It costs its cheapest offering, CPU beyond its baseline, and
a fee. The order in which the scheduler binds pods is unknown. So a pod counts as the first of its own affinity by host only where
no such pod is on another node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import inf

from karpenter.api.core import Pod
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.pods import pod_requests
from karpenter.scheduling.cpu_surplus import UNAVAILABLE_CPU_PRICE
from support.kube_filters import (
    HOST,
    Bound,
    NodeInfo,
    SchedulerSnapshot,
    fit_failures,
    node_filter_failures,
    required_affinity,
)
from support.missed_placements import new_node_variants, pod_expressions
from support.plan_checker_cluster import ClusterObjects

#: Amounts by resource, as the engine counts them.
Amounts = Mapping[str, int]


#: What a pod without a node counts as, in USD per hour: more than any node.
UNSERVED = 1_000.0


def cheapest_partition(cluster: ClusterObjects, fee: float) -> float:
    """USD per hour of the cheapest valid nodes for as many pods as can have one, fees and ``UNSERVED`` per other pod included."""
    pods = cluster.pods

    @cache
    def of_node(together: int) -> float:
        return _cheapest_node(cluster, [pod for at, pod in enumerate(pods) if together >> at & 1]) + fee

    @cache
    def least(left: int) -> float:
        if not left:
            return 0.0
        first = left & -left
        chosen = others = left ^ first
        best = least(others) + UNSERVED
        while True:
            best = min(best, of_node(chosen | first) + least(others ^ chosen))
            if not chosen:
                return best
            chosen = (chosen - 1) & others

    return least((1 << len(pods)) - 1)


def most_served(sizes: Sequence[Amounts], types: Sequence[InstanceType], limits: Mapping[str, int]) -> int:
    """The most pods of these sizes for which nodes can be launched within limits, by trying every set of pods on every type.

    Each node is of the one type it reserves for. ``sizes`` include the pod itself (``pods``).
    """
    nodes = {
        together: [dict(each.capacity) for each in types if _fits(sizes, together, each)]
        for together in range(1, 1 << len(sizes))
    }

    @cache
    def most(left: int, budget: tuple[int, ...]) -> int:
        if not left:
            return 0
        first = left & -left
        best, others = most(left ^ first, budget), left ^ first
        chosen = others
        while True:
            for capacity in nodes[chosen | first]:
                rest = tuple(
                    amount - (res.ONE_UNIT if name == res.NODES else capacity.get(name, 0))
                    for name, amount in zip(limits, budget, strict=True)
                )
                if min(rest, default=0) >= 0:
                    best = max(best, (chosen | first).bit_count() + most(others ^ chosen, rest))
            if not chosen:
                return best
            chosen = (chosen - 1) & others

    return most((1 << len(sizes)) - 1, tuple(limits.values()))


def _fits(sizes: Sequence[Amounts], together: int, instance_type: InstanceType) -> bool:
    total = res.add(*(size for at, size in enumerate(sizes) if together >> at & 1))
    return all(amount <= instance_type.allocatable.get(name, 0) for name, amount in total.items())


def _cheapest_node(cluster: ClusterObjects, pods: Sequence[Pod]) -> float:
    """The price of the cheapest node that may hold exactly these pods."""
    if not _may_be_together(cluster, pods):
        return inf
    mentioned = [expression for pod in pods for expression in pod_expressions(pod.spec)]
    return min(
        (
            _price(cluster, pool.metadata.name, variant, sum(pod_requests(pod).get("cpu", 0) for pod in pods))
            for pool in cluster.pools
            for variant in new_node_variants(cluster, pool, {}, pods[0], mentioned)
            if _holds(cluster, pods, variant)
        ),
        default=inf,
    )


def _holds(cluster: ClusterObjects, pods: Sequence[Pod], variant: NodeInfo) -> bool:
    if any(True for pod in pods for _ in node_filter_failures(pod, variant, cluster.disks)) or any(
        fit_failures(pods, variant, cluster.disks)
    ):
        return False
    domains = {HOST: frozenset(("a-new-host",))}
    for pod in pods:  # each as the last one bound: the scheduler's order is unknown
        scheduler_snapshot = SchedulerSnapshot(
            [variant], [(other, variant) for other in pods if other is not pod], cluster.namespaces, domains
        )
        if any(scheduler_snapshot.topology_failures(pod, variant)):
            return False
    return True


def _may_be_together(cluster: ClusterObjects, pods: Sequence[Pod]) -> bool:
    """Whether some order binds each pod to a new host after the pods that its affinity needs; all others are elsewhere."""
    if not any(required_affinity(pod.spec) for pod in pods):
        return True
    here, there = NodeInfo("a-new-host", {HOST: "a-new-host"}), NodeInfo("another", {HOST: "another"})
    bound: list[Bound] = [(pod, there) for pod in cluster.pods if pod not in pods]
    pending_pods = list(pods)
    while pending_pods:
        scheduler_snapshot = SchedulerSnapshot([here, there], bound, cluster.namespaces)
        joining = [pod for pod in pending_pods if not any(scheduler_snapshot.affinity_failures(pod, here))]
        if not joining:
            return False
        bound += [(pod, here) for pod in joining[:1]]
        pending_pods.remove(joining[0])
    return True


def _price(cluster: ClusterObjects, pool: str, variant: NodeInfo, cpu_millis: int) -> float:
    return min(
        offering.price_per_hour + _beyond_baseline(instance_type, cpu_millis)
        for instance_type in cluster.types_of(pool)
        if instance_type.name == variant.type
        for offering in instance_type.offerings
        if offering.available
        and offering.zone == variant.labels[labels.ZONE]
        and offering.capacity_type == variant.labels[labels.CAPACITY_TYPE]
    )


def _beyond_baseline(instance_type: InstanceType, cpu_millis: int) -> float:
    burstable = instance_type.burstable_cpu
    if burstable is None or cpu_millis <= burstable.baseline_millis:
        return 0.0
    price = burstable.surplus_price_per_vcpu_hour
    return (cpu_millis - burstable.baseline_millis) / 1000 * (UNAVAILABLE_CPU_PRICE if price is None else price)
