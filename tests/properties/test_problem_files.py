"""A problem that is written to a file and read again has the same solution, whatever the cluster."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.solver import solve
from support import mixed_clusters
from support.builders import NOW, indexes, snapshot
from support.examples import examples
from support.plan_checker_cluster import ClusterObjects
from support.related_pod_clusters import Cluster, clusters, odd_pods
from support.replay_check import check_replay

_QUIET = list(HealthCheck)


def replay(cluster: Cluster) -> None:
    prepared = indexes(cluster.pools, cluster.types)
    problem = build_problem(snapshot(cluster.objects()), prepared, NOW)
    check_replay(problem, solve(problem, prepared))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=_QUIET)
@given(clusters())
def test_any_problem_replays(cluster: Cluster) -> None:
    """SCH-860, SCH-864: the file has the clock, and a solution is compared by its decisions."""
    replay(cluster)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=_QUIET)
@given(clusters(odd_pods()))
def test_so_does_one_with_pods_no_api_server_would_admit(cluster: Cluster) -> None:
    replay(cluster)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=_QUIET)
@given(mixed_clusters.clusters())
def test_so_does_one_with_many_kinds_of_nodes_and_pools(cluster: ClusterObjects) -> None:
    objects = list(cluster.objects())
    prepared = indexes(objects, cluster.types)
    problem = build_problem(snapshot(objects), prepared, NOW)
    check_replay(problem, solve(problem, prepared))
