"""Beyond validity: does a plan follow the rules of precedence? For pods without spread, affinity and anti-affinity.

The rules: weights of NodePools, preferences of pods, existing nodes before new ones, and no pod left out that could be placed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from karpenter.api.core import Pod, PodSpec
from karpenter.api.karpenter import NodePool
from karpenter.api.scheduling_constraints import Taint
from karpenter.scheduling.solution import Solution
from support.kube_filters import Amounts, Expression, NodeInfo, accepts, expressions, fit_failures, tolerated
from support.missed_placements import new_node_variants
from support.plan_checker import remaining
from support.plan_checker_cluster import ClusterObjects, placement_targets, variants_of_claim


@dataclass(frozen=True)
class Want:
    """One relaxation step of a pod: expressions that must hold, and whether soft taints are tolerated."""

    expressions: tuple[Expression, ...]
    soft: bool = False

    def met_on(self, node_info: NodeInfo, spec: PodSpec) -> bool:
        """Whether a node gives all that is wanted; here soft taints have to be tolerated, too."""
        return self.tolerates(node_info.taints, spec) and all(
            accepts(operator, values, node_info.labels.get(key)) for key, operator, values in self.expressions
        )

    def tolerates(self, taints: Sequence[Taint], spec: PodSpec) -> bool:
        return all((self.soft and taint.effect == "PreferNoSchedule") or tolerated(taint, spec) for taint in taints)


def wants(spec: PodSpec) -> list[Want]:
    """All relaxation steps of a pod in order: every required term at each level of preferences, soft taints last."""
    selector = tuple((key, "In", (value,)) for key, value in spec.node_selector.items())
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required.node_selector_terms if affinity and affinity.required else ()
    terms = [(*selector, *expressions(term.match_expressions)) for term in required] or [selector]
    preferred = sorted(affinity.preferred if affinity else (), key=lambda scheduling_term: -scheduling_term.weight)
    levels = [expressions(scheduling_term.preference.match_expressions) for scheduling_term in preferred]
    result = [Want((*term, *level)) for level in (*levels, ()) for term in terms]
    return result + [Want(term, soft=True) for term in terms]


def missed_chances(cluster: ClusterObjects, plan: Solution) -> list[str]:
    """Where a plan drops a preference, takes a lighter pool or leaves a pod out without need."""
    return list(_missed(cluster, plan))


def _missed(cluster: ClusterObjects, plan: Solution) -> Iterator[str]:
    left = remaining(cluster, plan)
    rooms = {
        target.key: (target.variants[0], target.planned)
        for target in placement_targets(cluster, replace(plan, new_claims=()))
        if not target.leaving and len(target.variants) == 1 and not target.variants[0].type
    }
    for planned in plan.new_claims:
        variants = variants_of_claim(cluster, planned.claim, planned.instance_types)
        weight = next(pool.spec.weight or 0 for pool in cluster.pools if pool.metadata.name == planned.node_pool)
        for pod in planned.pods:
            yield from _better(cluster, left, rooms, pod, variants, weight)
    for unschedulable_pod in plan.unschedulable:
        yield from _better(cluster, left, rooms, unschedulable_pod.pod, [], -1)


def _better(
    cluster: ClusterObjects,
    left: Mapping[str, Amounts],
    rooms: Mapping[str, tuple[NodeInfo, Sequence[Pod]]],
    pod: Pod,
    variants: Sequence[NodeInfo],
    weight: int,
) -> Iterator[str]:
    """Each earlier relaxation step, on any pool or node; the step reached, on nodes and on heavier pools."""
    for want in wants(pod.spec):
        reached = bool(variants) and all(want.met_on(variant, pod.spec) for variant in variants)
        for name, (node_info, planned) in rooms.items():
            if want.met_on(node_info, pod.spec) and not any(fit_failures((*planned, pod), node_info, {})):
                yield f"{pod.metadata.name} could go to node {name} ({want})"
        for pool in cluster.pools:
            heavier = not reached or (pool.spec.weight or 0) > weight
            if heavier and _could_take(cluster, pool, left[pool.metadata.name], pod, want):
                yield f"{pod.metadata.name} could get a node of pool {pool.metadata.name} ({want})"
        if reached:
            return


def _could_take(cluster: ClusterObjects, pool: NodePool, left: Amounts, pod: Pod, want: Want) -> bool:
    """Whether a new claim of the pool alone could take the pod within what its limits leave."""
    taints = tuple(nodepool_taint.as_taint() for nodepool_taint in pool.spec.template.spec.taints)
    return want.tolerates(taints, pod.spec) and any(
        new_node_variants(cluster, pool, left, pod, want.expressions, want.expressions)
    )
