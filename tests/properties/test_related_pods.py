"""Plans for pods that depend on each other are valid, leave no pod out without need, and never raise.

``support.plan_checker`` shares no code with the decision; ``test_plan_checker`` shows that it finds faults.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from karpenter.scheduling.unschedulable_reasons import ReasonCategory
from support.builders import NOW, indexes, node_pool, pod, snapshot
from support.examples import examples
from support.missed_placements import missed_placement
from support.plan_checker import violations
from support.plan_checker_cluster import ClusterObjects, cluster_of_snapshot, placed_pods
from support.related_pod_clusters import SPACES, Cluster, clusters, odd_pods

#: About pods that nobody could place.
_EXCUSED = {ReasonCategory.POD, ReasonCategory.DEVICE}
_QUIET = list(HealthCheck)


def decide(cluster: Cluster) -> tuple[ClusterObjects, Solution]:
    shown = snapshot(cluster.objects())
    plan = solve(build_problem(shown, indexes(cluster.pools, cluster.types), NOW))
    types = {pool.metadata.name: cluster.types for pool in cluster.pools}
    return cluster_of_snapshot(shown, types, namespaces=SPACES, storage=cluster.storage), plan


def check_plan(cluster: Cluster) -> None:
    checked, plan = decide(cluster)
    assert violations(checked, plan) == []
    for unschedulable_pod in plan.unschedulable:
        if not any(reason.category in _EXCUSED for reason in unschedulable_pod.reasons):
            result = missed_placement(checked, plan, unschedulable_pod.pod)
            assert result is None, (
                f"{unschedulable_pod.pod.metadata.name} could have had {result}, was told {unschedulable_pod.reasons}"
            )


@settings(max_examples=examples(600), deadline=None, suppress_health_check=_QUIET)
@given(clusters())
def test_every_placement_is_valid_and_no_pod_is_left_out_without_need(cluster: Cluster) -> None:
    """SCH-415 to SCH-419, SCH-480 to SCH-561, beside all that concerns one node."""
    check_plan(cluster)


def check_outcomes(cluster: Cluster) -> None:
    """A plan comes about, and says something of every pod that waits."""
    sound = Cluster(
        pods=(*cluster.pods, pod("fine", {"cpu": "100m"})),
        pools=(*cluster.pools, node_pool("sound")),
        nodes=cluster.nodes,
        claims=cluster.claims,
        daemons=cluster.daemons,
        types=cluster.types,
        storage=cluster.storage,
    )
    checked, plan = decide(sound)
    said = [placed.metadata.uid for placed in placed_pods(plan)]
    said += [unschedulable_pod.pod.metadata.uid for unschedulable_pod in plan.unschedulable]
    assert {p.metadata.uid for p in checked.pods if not p.spec.node_name} <= set(said)
    assert len(said) == len(set(said))


@settings(max_examples=examples(200), deadline=None, suppress_health_check=_QUIET)
@given(clusters(odd_pods()))
def test_nonsense_never_raises(cluster: Cluster) -> None:
    """Unknown operators, empty keys, negative skews, broken selectors: such pods get a reason, all others a plan."""
    check_outcomes(cluster)
