"""Plans for pods that look at each other, judged from outside: lawful, nobody left out without need, never an error.

``support.judge`` shares no code with the decision; ``test_judge`` shows that it finds what is wrong.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.solver import solve
from karpenter.scheduling.unschedulable_reasons import ReasonCategory
from support.builders import NOW, indexes, node_pool, pod, snapshot
from support.examples import examples
from support.judge import problems
from support.judge_places import room
from support.judge_world import World, seen
from support.related_pod_clusters import SPACES, Cluster, clusters, odd_pods

#: About pods that nobody could place.
_EXCUSED = {ReasonCategory.POD, ReasonCategory.DEVICE}
_QUIET = list(HealthCheck)


def decide(cluster: Cluster) -> tuple[World, Solution]:
    shown = snapshot(cluster.objects())
    plan = solve(build_problem(shown, indexes(cluster.pools, cluster.types), NOW))
    types = {pool.metadata.name: cluster.types for pool in cluster.pools}
    return seen(shown, types, namespaces=SPACES, storage=cluster.storage), plan


def judge(cluster: Cluster) -> None:
    world, plan = decide(cluster)
    assert problems(world, plan) == []
    for unschedulable_pod in plan.unschedulable:
        if not any(reason.category in _EXCUSED for reason in unschedulable_pod.reasons):
            result = room(world, plan, unschedulable_pod.pod)
            assert result is None, (
                f"{unschedulable_pod.pod.metadata.name} could have had {result}, was told {unschedulable_pod.reasons}"
            )


@settings(max_examples=examples(600), deadline=None, suppress_health_check=_QUIET)
@given(clusters())
def test_every_placement_is_lawful_and_nobody_is_left_out_without_need(cluster: Cluster) -> None:
    """SCH-415 to SCH-419, SCH-480 to SCH-561, beside all that concerns one node."""
    judge(cluster)


def hold(cluster: Cluster) -> None:
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
    world, plan = decide(sound)
    said = [p.metadata.uid for group in (*plan.new_claims, *plan.placed_on_existing) for p in group.pods]
    said += [unschedulable_pod.pod.metadata.uid for unschedulable_pod in plan.unschedulable]
    assert {p.metadata.uid for p in world.pods if not p.spec.node_name} <= set(said)
    assert len(said) == len(set(said))


@settings(max_examples=examples(200), deadline=None, suppress_health_check=_QUIET)
@given(clusters(odd_pods()))
def test_nonsense_never_raises(cluster: Cluster) -> None:
    """Unknown operators, empty keys, negative skews, broken selectors: such pods get a reason, all others a plan."""
    hold(cluster)
