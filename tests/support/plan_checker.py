"""Is a plan valid? An independent checker that reads wire objects and shares no code with the decision it checks.

A node that is planned or not launched yet has several variants: each type left, in each accepted offering, with each value of
each open label. Filters that look at one node only must pass for every variant. Filters that count pods on other nodes (topology
spread, pod affinity and anti-affinity) are run for combinations of variants, one variant per node. For each combination there
must be *some* order in which every planned pod passes all filters when the scheduler binds it.

Where there are more than ``MAX_CHOICES`` combinations, each node takes each of its variants at least once; the rest is a
repeatable random sample.

``violations`` returns sentences; none means that the plan is valid. ``missed_placements.missed_placement`` finds, for a pod left
out, a node it could have had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import inf, prod
from random import Random

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.scheduling.solution import NewNodeClaim, Solution
from support.kube_filters import (
    Amounts,
    Bound,
    Namespaces,
    NodeInfo,
    SchedulerSnapshot,
    accepts,
    amounts,
    expressions,
    fit_failures,
    minus,
    most,
    node_filter_failures,
    required_affinity,
    required_anti_affinity,
    required_terms,
    spreads,
)
from support.plan_checker_cluster import (
    POOL,
    ClusterObjects,
    PlacementTarget,
    placed_pods,
    placement_targets,
    variants_of_claim,
)

MAX_CHOICES = 48
#: The search for an order stops after so many states; small plans never come near.
_STEPS = 4000


# -- the rules ----------------------------------------------------------------------------------------------------------


def violations(cluster: ClusterObjects, plan: Solution) -> list[str]:
    """Every rule that the plan breaks."""
    result = placement_targets(cluster, plan)
    return [
        *_placement_count_violations(cluster, plan),
        *_node_violations(cluster, plan, result),
        *_claim_violations(cluster, plan),
        *_limit_violations(cluster, plan),
        *_topology_violations(cluster, result),
    ]


def pending_pods(cluster: ClusterObjects) -> dict[str, Pod]:
    return {pod.metadata.uid: pod for pod in cluster.pods if not pod.spec.node_name}


def _placement_count_violations(cluster: ClusterObjects, plan: Solution) -> Iterator[str]:
    leaving = {
        target.variants[0].name
        for target in placement_targets(cluster, Solution())
        if target.leaving and target.variants
    }
    may_move = {pod.metadata.uid for pod in cluster.pods if pod.spec.node_name in leaving}
    named = [pod.metadata.uid for pod in placed_pods(plan)]
    named += [unschedulable.pod.metadata.uid for unschedulable in plan.unschedulable]
    owed = sorted(pending_pods(cluster))
    if sorted(uid for uid in named if uid not in may_move) != owed or len(named) != len(set(named)):
        yield f"pods are not planned exactly once: {sorted(named)} of {owed}"
    for unschedulable_pod in plan.unschedulable:
        if not unschedulable_pod.reasons:
            yield f"{unschedulable_pod.pod.metadata.name} stays pending without a reason"
    names = [new_nodeclaim.name for new_nodeclaim in plan.new_claims] + [
        claim.metadata.name for claim in cluster.claims
    ]
    if len(set(names)) != len(names):
        yield f"a claim name is used twice: {names}"


def _node_violations(cluster: ClusterObjects, plan: Solution, targets: Sequence[PlacementTarget]) -> Iterator[str]:
    open_keys = {target.key for target in targets if not target.leaving}
    for placement in plan.placed_on_existing:
        if placement.node_key not in open_keys:
            yield f"{placement.node_name} is not there or leaves"
    for target in targets:
        reported: set[str] = set()
        for variant in target.variants if target.planned else ():
            reported.update(
                f"{pod.metadata.name}: {why}"
                for pod in target.planned
                for why in node_filter_failures(pod, variant, cluster.disks)
            )
            reported.update(f"{variant.type}: {why}" for why in fit_failures(target.planned, variant, cluster.disks))
        yield from (f"{target.key}: {why}" for why in sorted(reported))


def _claim_violations(cluster: ClusterObjects, plan: Solution) -> Iterator[str]:
    pools = {pool.metadata.name: pool for pool in cluster.pools}
    for new_nodeclaim in plan.new_claims:
        pool = pools[new_nodeclaim.node_pool]
        template = pool.spec.template
        own = variants_of_claim(cluster, new_nodeclaim.claim, new_nodeclaim.instance_types)
        if {variant.type for variant in own} != set(new_nodeclaim.instance_types) or not own:
            yield f"{new_nodeclaim.name} names types that cannot be launched: {new_nodeclaim.instance_types}"
        for key, operator, values in expressions(template.spec.requirements):
            if not all(accepts(operator, values, variant.labels.get(key)) for variant in own):
                yield f"{new_nodeclaim.name} leaves the requirements of its pool on {key}"
        yield from (f"{new_nodeclaim.name} offers too few values of {key}" for key in lacking_values(pool, own))
        if new_nodeclaim.claim.spec.taints != template.spec.taints:
            yield f"{new_nodeclaim.name} has other taints than its pool"
        if any(
            new_nodeclaim.claim.metadata.labels.get(key) != value for key, value in template.metadata.labels.items()
        ):
            yield f"{new_nodeclaim.name} lacks labels of its pool"
        if new_nodeclaim.claim.metadata.labels.get(POOL) != new_nodeclaim.node_pool:
            yield f"{new_nodeclaim.name} is labelled with another pool than {new_nodeclaim.node_pool}"


def lacking_values(pool: NodePool, own: Sequence[NodeInfo]) -> Iterator[str]:
    """Labels of which nodes of a claim have fewer values than the pool's minValues."""
    for requirement in pool.spec.template.spec.requirements:
        values = {variant.labels[requirement.key] for variant in own if requirement.key in variant.labels}
        if requirement.min_values and len(values) < requirement.min_values:
            yield requirement.key


# -- limits ---------------------------------------------------------------------------------------------------------------


def largest(own: Iterable[NodeInfo]) -> Amounts:
    """The largest capacity that counts against limits for a claim."""
    return {**most(*(variant.capacity for variant in own)), "nodes": Fraction(1)}


def remaining(cluster: ClusterObjects, plan: Solution) -> dict[str, Amounts]:
    """What is left of every pool's limits once each claim has become the largest it may."""
    left = {pool.metadata.name: amounts(pool.spec.limits) for pool in cluster.pools}
    for pool, spent in (*_spent(cluster), *_planned(cluster, plan.new_claims)):
        if pool in left:
            left[pool] = minus(left[pool], spent)
    return left


def _spent(cluster: ClusterObjects) -> Iterator[tuple[str, Amounts]]:
    claim_of = {claim.status.provider_id: claim for claim in cluster.claims if claim.status.provider_id}
    for node in cluster.nodes:
        claim = claim_of.pop(node.spec.provider_id, None)
        if (claim if claim is not None else node).metadata.deletion_timestamp is None:
            yield node.metadata.labels.get(POOL, ""), {**amounts(node.status.capacity), "nodes": Fraction(1)}
    for claim in cluster.claims:
        if claim.metadata.deletion_timestamp is None:
            pool = claim.metadata.labels.get(POOL, "")
            if not claim.status.provider_id:
                yield pool, largest(variants_of_claim(cluster, claim))
            elif claim.status.provider_id in claim_of:
                yield pool, {**amounts(claim.status.capacity), "nodes": Fraction(1)}


def _planned(cluster: ClusterObjects, claims: Iterable[NewNodeClaim]) -> Iterator[tuple[str, Amounts]]:
    for new_nodeclaim in claims:
        yield (
            new_nodeclaim.node_pool,
            largest(variants_of_claim(cluster, new_nodeclaim.claim, new_nodeclaim.instance_types)),
        )


def _limit_violations(cluster: ClusterObjects, plan: Solution) -> Iterator[str]:
    left = remaining(cluster, plan)
    for pool in sorted({new_nodeclaim.node_pool for new_nodeclaim in plan.new_claims}):
        if any(amount < 0 for amount in left[pool].values()):
            yield f"pool {pool} may exceed its limits: {left[pool]} left"


# -- topology ------------------------------------------------------------------------------------------------------------


def _topology_violations(cluster: ClusterObjects, targets: Sequence[PlacementTarget]) -> Iterator[str]:
    everybody = [pod for target in targets for pod in (*target.bound, *target.planned)]
    if not any(keys_of(pod) for pod in everybody):
        return
    reported: set[str] = set()
    for choice in variant_choices(targets, everybody):
        reported.update(_unbindable(cluster, choice))
    yield from sorted(reported)


def keys_of(pod: Pod) -> set[str]:
    """Topology keys of the pod's spread, affinity and anti-affinity."""
    terms = (*required_affinity(pod.spec), *required_anti_affinity(pod.spec))
    return {term.topology_key for term in terms} | {spread.topology_key for spread in spreads(pod.spec)}


def distinguishing_labels(pods: Iterable[Pod]) -> set[str]:
    """Labels that topology filters read: topology keys, and labels by which pods with a spread select nodes."""
    telling: set[str] = set()
    for pod in pods:
        telling |= keys_of(pod)
        if spreads(pod.spec):
            telling |= set(pod.spec.node_selector)
            telling |= {entry.key for term in required_terms(pod.spec) or () for entry in term.match_expressions}
    return telling


#: One variant for every target.
Choice = list[tuple[PlacementTarget, NodeInfo]]


def variant_choices(targets: Sequence[PlacementTarget], pods: Iterable[Pod]) -> Iterator[Choice]:
    """Combinations of variants that differ in a label that topology filters read: all, or a sample where they are too many."""
    telling = sorted(distinguishing_labels(pods))
    there = [target for target in targets if target.variants]
    different = [
        list({tuple(variant.labels.get(key) for key in telling): variant for variant in target.variants}.values())
        for target in there
    ]
    if prod(map(len, different)) <= MAX_CHOICES:
        yield from (list(zip(there, choice, strict=True)) for choice in product(*different))
        return
    draw = Random(len(there))
    for turn in range(MAX_CHOICES):
        in_turn = turn < max(map(len, different))
        yield [
            (target, own[turn % len(own)] if in_turn else draw.choice(own))
            for target, own in zip(there, different, strict=True)
        ]


def _unbindable(cluster: ClusterObjects, choice: Choice) -> list[str]:
    """Pods that cannot be bound in any order; empty where an order is found."""
    node_infos = [variant for _, variant in choice]
    bound = [(pod, variant) for target, variant in choice for pod in target.bound]
    planned = [(pod, variant) for target, variant in choice for pod in target.planned]
    # Pods with topology constraints go first: the others pass at any time, and may only be in their way.
    planned.sort(key=lambda obj: not keys_of(obj[0]))
    search = _Search(cluster.namespaces, node_infos, [(_kind(pod), pod, variant) for pod, variant in planned])
    return search.failures(bound)


def _kind(pod: Pod) -> tuple[object, ...]:
    """Equal for pods that topology filters cannot tell apart."""
    affinity = pod.spec.affinity
    return (pod.metadata.namespace, tuple(sorted(pod.metadata.labels.items())), repr(affinity), repr(spreads(pod.spec)))


@dataclass
class _Search:
    """Depth-first search for an order; what was left to bind when it failed is not tried again."""

    namespaces: Namespaces
    node_infos: Sequence[NodeInfo]
    planned: Sequence[tuple[object, Pod, NodeInfo]]
    failed: set[tuple[object, ...]] = field(default_factory=set)
    steps: int = 0
    #: The failures where the fewest pods were left.
    said: list[str] = field(default_factory=lambda: ["no order was found"])
    fewest: float = inf

    def failures(self, bound: list[Bound]) -> list[str]:
        return [] if self._binds(bound, list(range(len(self.planned)))) else self.said

    def _binds(self, bound: list[Bound], left: list[int]) -> bool:
        if not left:
            return True
        state = tuple(sorted((repr(self.planned[position][0]), self.planned[position][2].name) for position in left))
        self.steps += 1
        if state in self.failed or self.steps > _STEPS:
            return False
        self.failed.add(state)
        scheduler_snapshot = SchedulerSnapshot(self.node_infos, bound, self.namespaces)
        tried: set[object] = set()
        violations: list[str] = []
        for element in left:
            kind, pod, node_info = self.planned[element]
            if (kind, node_info.name) in tried:
                continue
            tried.add((kind, node_info.name))
            why = next(scheduler_snapshot.topology_failures(pod, node_info), None)
            if why is not None:
                violations.append(f"{pod.metadata.name} on {node_info.name} {_place(node_info, pod)}: {why}")
            elif self._binds([*bound, (pod, node_info)], [other for other in left if other != element]):
                return True
        if violations and len(left) < self.fewest:
            self.said, self.fewest = violations, len(left)
        return False


def _place(node_info: NodeInfo, pod: Pod) -> str:
    return "/".join(node_info.labels.get(key, "-") for key in sorted(keys_of(pod)))
