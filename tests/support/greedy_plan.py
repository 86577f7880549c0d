"""The simplest valid plan: each pod in turn goes to the first node that passes the plan checker's filters, else to a new one.

Wasteful, but made of the plan checker's filters alone. So tests can compare these filters with the real scheduler without any
plan of the product.
"""

from __future__ import annotations

from dataclasses import replace

from karpenter.api.core import Pod
from karpenter.model import labels
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods, Solution, UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import NoNodePool, UnschedulableReason
from support.builders import claim, wanted
from support.kube_filters import HOST, NodeInfo, SchedulerSnapshot, fit_failures, node_filter_failures
from support.missed_placements import new_node_variants, pod_expressions
from support.plan_checker import pending_pods, remaining
from support.plan_checker_cluster import POOL, ClusterObjects, placement_targets

_OPEN = (labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE)


def planned(cluster: ClusterObjects) -> Solution:
    """Each pending pod in turn, on the first node that takes it."""
    plan = Solution()
    for pod in pending_pods(cluster).values():
        plan = _with(cluster, plan, pod)
    return plan


def places(cluster: ClusterObjects, plan: Solution, pod: Pod) -> list[str]:
    """Existing and planned nodes that take the pod now, by the key plans use.

    The scheduler counts pods nominated to a node before they are bound. So pods planned on the node must still pass beside it.
    """
    usable = [target for target in placement_targets(cluster, plan) if target.variants]
    scheduler_snapshot = SchedulerSnapshot(
        [target.variants[0] for target in usable],
        [(other, target.variants[0]) for target in usable for other in (*target.bound, *target.planned)],
        cluster.namespaces,
    )
    return [
        target.key
        for target in usable
        if not target.leaving
        and not any(node_filter_failures(pod, target.variants[0], cluster.disks))
        and not any(fit_failures((*target.planned, pod), target.variants[0], cluster.disks))
        and not any(scheduler_snapshot.topology_failures(pod, target.variants[0]))
        and not any(_blocks_planned_pod(scheduler_snapshot, other, pod, target.variants[0]) for other in target.planned)
    ]


def _blocks_planned_pod(
    scheduler_snapshot: SchedulerSnapshot, planned: Pod, newcomer: Pod, node_info: NodeInfo
) -> bool:
    """Whether a pod planned on a node could not be bound there after another pod."""
    others = [(other, where) for other, where in scheduler_snapshot.bound if other is not planned]
    return any(
        replace(scheduler_snapshot, bound=(*others, (newcomer, node_info))).topology_failures(planned, node_info)
    )


def _with(cluster: ClusterObjects, plan: Solution, pod: Pod) -> Solution:
    for key in places(cluster, plan, pod):
        return _joined(plan, key, pod)
    for pool in cluster.pools:
        left = remaining(cluster, plan)[pool.metadata.name]
        for variant in new_node_variants(cluster, pool, left, pod, pod_expressions(pod.spec)):
            launched = _launched(cluster, variant, len(plan.new_claims))
            grown = replace(plan, new_claims=(*plan.new_claims, launched))
            if launched.name in places(cluster, grown, pod):
                return _joined(grown, launched.name, pod)
    return replace(
        plan, unschedulable=(*plan.unschedulable, UnschedulablePod(pod, (UnschedulableReason(NoNodePool()),)))
    )


def _joined(plan: Solution, key: str, pod: Pod) -> Solution:
    if any(new_nodeclaim.name == key for new_nodeclaim in plan.new_claims):
        grown = (
            replace(new_nodeclaim, pods=(*new_nodeclaim.pods, pod)) if new_nodeclaim.name == key else new_nodeclaim
            for new_nodeclaim in plan.new_claims
        )
        return replace(plan, new_claims=tuple(grown))
    placed = {placed_pods.node_key: placed_pods for placed_pods in plan.placed_on_existing}
    there = placed.get(key, PlacedPods(key, key, ()))
    placed[key] = replace(there, pods=(*there.pods, pod))
    return replace(plan, placed_on_existing=tuple(placed.values()))


def _launched(cluster: ClusterObjects, variant: NodeInfo, number: int) -> NewNodeClaim:
    name = variant.labels[POOL]
    pool = next(nodepool for nodepool in cluster.pools if nodepool.metadata.name == name)
    asked = [wanted(key, "In", variant.labels[key]) for key in _OPEN]
    custom = {key: value for key, value in variant.labels.items() if key not in cluster.well_known | {HOST, POOL}}
    made = claim(f"{name}-{number}", None, asked, pool=name, labels=custom, taints=pool.spec.template.spec.taints)
    kind = next(instance_type for instance_type in cluster.types_of(name) if instance_type.name == variant.type)
    return NewNodeClaim(made, name, (variant.type,), kind.offerings[0], ())
