"""Whether a pod that a plan left out could have been placed after all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product

from karpenter.api.core import Pod, PodSpec
from karpenter.api.karpenter import NodePool
from karpenter.scheduling.solution import Solution
from support.kube_filters import (
    HOST,
    Amounts,
    Expression,
    NodeInfo,
    SchedulerSnapshot,
    accepts,
    expressions,
    fit_failures,
    node_filter_failures,
    required_terms,
)
from support.plan_checker import Choice, distinguishing_labels, keys_of, lacking_values, remaining, variant_choices
from support.plan_checker_cluster import POOL, ClusterObjects, PlacementTarget, placement_targets, variants


def missed_placement(cluster: ClusterObjects, plan: Solution, pod: Pod) -> str | None:
    """A node that could take the pod beside everything the plan places, for every choice of variants; None where there is none.

    Candidates are existing nodes, and a new one of every pool, type and offering within what limits leave. For a pod with a
    spread, domains that pools could offer, and those of in-flight claims, count as existing and empty, sold out or not (SCH-490):
    that is stricter than the scheduler.
    """
    result = placement_targets(cluster, plan)
    everybody = [pod, *(other for target in result for other in (*target.bound, *target.planned))]
    asking = [*everybody, *(unschedulable_pod.pod for unschedulable_pod in plan.unschedulable)]
    choices = list(variant_choices(result, everybody))
    domains = _domains(cluster, everybody)
    for target in result:
        theirs = (
            target.leaving
            or target.key in {new_nodeclaim.name for new_nodeclaim in plan.new_claims}
            or _is_open(target, asking)
        )
        if not theirs and _holds(cluster, target, pod):
            places = [(choice, variant) for choice in choices for other, variant in choice if other is target]
            if all(not _topology_failures(cluster, choice, domains, pod, variant) for choice, variant in places):
                return f"node {target.key}"
    for pool, own in _new_nodes(cluster, plan, pod):
        fit = [
            variant
            for variant in own
            if all(not _topology_failures(cluster, choice, domains, pod, variant) for choice in choices)
        ]
        for variant in fit:
            alike = [other for other in fit if _open_domains(other, asking) == _open_domains(variant, asking)]
            if not any(lacking_values(pool, alike)):
                return f"{variant.type} of pool {pool.metadata.name} as {dict(variant.labels)}"
    return None


def _is_open(target: PlacementTarget, pods: Sequence[Pod]) -> bool:
    """Whether the node may still get different values of a label that topology filters read."""
    return len({_open_domains(variant, pods) for variant in target.variants}) > 1


def _open_domains(variant: NodeInfo, pods: Iterable[Pod]) -> tuple[str | None, ...]:
    """The domains of a node. A pod that reads them gets one domain per key, for which minValues have to hold, too."""
    return tuple(variant.labels.get(key) for key in sorted(distinguishing_labels(pods) - {HOST}))


def _holds(cluster: ClusterObjects, target: PlacementTarget, pod: Pod) -> bool:
    return bool(target.variants) and all(
        not any(node_filter_failures(pod, variant, cluster.disks))
        and not any(fit_failures((*target.planned, pod), variant, cluster.disks))
        for variant in target.variants
    )


def _topology_failures(
    cluster: ClusterObjects, choice: Choice, domains: Mapping[str, frozenset[str]], pod: Pod, variant: NodeInfo
) -> list[str]:
    node_infos = [other for _, other in choice]
    bound = [(other, where) for target, where in choice for other in (*target.bound, *target.planned)]
    scheduler_snapshot = SchedulerSnapshot([*node_infos, variant], bound, cluster.namespaces, domains)
    return list(scheduler_snapshot.topology_failures(pod, variant))


def _domains(cluster: ClusterObjects, pods: Iterable[Pod]) -> dict[str, frozenset[str]]:
    """Values that pools could give to topology keys of the pods, and one new hostname."""
    domains: dict[str, frozenset[str]] = {HOST: frozenset(("a-new-host",))}
    for key in {key for pod in pods for key in keys_of(pod)} - {HOST}:
        domains[key] = frozenset(
            variant.labels[key]
            for pool in cluster.pools
            for own in _custom_labels(cluster, pool, ())
            for instance_type in cluster.types_of(pool.metadata.name)
            for variant in variants(cluster, instance_type, _asked(pool), own, (), sold=False)
            if key in variant.labels
        ).union(_claimed(cluster, key))
    return domains


def _claimed(cluster: ClusterObjects, key: str) -> Iterator[str]:
    """Values of a label that in-flight claims require; pools may not offer a type for them any more."""
    for claim in cluster.claims:
        if not claim.status.provider_id and claim.metadata.deletion_timestamp is None:
            own = [
                requirement.values
                for requirement in claim.spec.requirements
                if requirement.key == key and requirement.operator == "In"
            ]
            yield from (values[0] for values in own if len(values) == 1)
            if key in claim.metadata.labels:
                yield claim.metadata.labels[key]


def _asked(pool: NodePool) -> tuple[Expression, ...]:
    return expressions(pool.spec.template.spec.requirements)


def _new_nodes(cluster: ClusterObjects, plan: Solution, pod: Pod) -> Iterator[tuple[NodePool, list[NodeInfo]]]:
    """New nodes that take the pod alone, by pool."""
    left = remaining(cluster, plan)
    for pool in cluster.pools:
        if pool.metadata.deletion_timestamp is None and pool.spec.replicas is None:
            own = new_node_variants(cluster, pool, left[pool.metadata.name], pod, pod_expressions(pod.spec))
            yield pool, [variant for variant in own if not any(node_filter_failures(pod, variant, cluster.disks))]


def pod_expressions(spec: PodSpec) -> tuple[Expression, ...]:
    """Label expressions of a pod: a new node of a pool that leaves a label open takes one of their values."""
    terms = required_terms(spec) or ()
    return (
        *((key, "In", (value,)) for key, value in spec.node_selector.items()),
        *(entry for term in terms for entry in expressions(term.match_expressions)),
    )


def new_node_variants(
    cluster: ClusterObjects,
    pool: NodePool,
    left: Amounts,
    pod: Pod,
    mentioned: Sequence[Expression],
    wanted: Sequence[Expression] = (),
) -> Iterator[NodeInfo]:
    """New nodes of a pool for the pod alone within what limits leave, each meeting all that is wanted."""
    if any(amount < 0 for amount in left.values()):
        return
    taints = tuple(nodepool_taint.as_taint() for nodepool_taint in pool.spec.template.spec.taints)
    for own in _custom_labels(cluster, pool, mentioned):
        if not all(
            accepts(op, values, own.get(key)) for key, op, values in wanted if key not in cluster.well_known | {POOL}
        ):
            continue
        if not all(accepts(op, values, own[POOL]) for key, op, values in wanted if key == POOL):
            continue
        asked = tuple(entry for entry in (*_asked(pool), *wanted) if entry[0] in cluster.well_known - {POOL})
        result: list[NodeInfo] = []
        for instance_type in cluster.types_of(pool.metadata.name):
            each = list(variants(cluster, instance_type, asked, own, taints, sold=True))
            spent = {name: each[0].capacity.get(name, Fraction(name == "nodes")) for name in left} if each else {}
            if all(spent[name] <= left[name] for name in spent):
                result += [variant for variant in each if not any(fit_failures((pod,), variant, cluster.disks))]
        if not any(lacking_values(pool, result)):
            yield from result


def _custom_labels(
    cluster: ClusterObjects, pool: NodePool, mentioned: Sequence[Expression]
) -> Iterator[dict[str, str]]:
    """Labels a node of the pool may get from the pool itself: those it sets, with a value for each it leaves open."""
    own = {**pool.spec.template.metadata.labels, POOL: pool.metadata.name, HOST: f"new-{pool.metadata.name}"}
    asked = [entry for entry in _asked(pool) if entry[0] not in cluster.well_known and entry[0] not in own]
    keys = sorted({entry[0] for entry in asked})
    possible: list[list[str | None]] = []
    for key in keys:
        said = [entry for entry in (*asked, *mentioned) if entry[0] == key]
        candidates = [*sorted({value for _, _, values in said for value in values}), "any-other", None]
        pool_says = [(op, values) for name, op, values in asked if name == key]
        possible.append([v for v in candidates if all(accepts(op, values, v) for op, values in pool_says)])
    for choice in product(*possible):
        yield {**own, **{key: value for key, value in zip(keys, choice, strict=True) if value is not None}}
