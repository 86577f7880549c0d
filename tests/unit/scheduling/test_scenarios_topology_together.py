"""Pod affinity with other rules and preferences, and several terms at once (S-175 to S-186, SCH-520 to SCH-561)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from karpenter.api.scheduling_constraints import Affinity, PodAffinityTerm
from support.applied_plans import PlannedCluster
from support.builders import (
    affinity,
    asked,
    left,
    node_pool,
    plan,
    pool_taint,
    tolerating,
)
from support.instance_types import offering, shape
from support.spread_scenarios import HOST, KIND, ZONE, in_zones
from support.topology_builders import (
    affinity_term,
    affinity_terms,
    app_pods,
    full_node,
    pod_affinity_to,
    pod_anti_affinity_to,
    running_app_pod,
    spread_over,
)

# -- several at once ----------------------------------------------------------------------------------------------------


def test_preferred_affinity_yields_to_a_required_spread() -> None:
    """S-186"""
    cluster = PlannedCluster(node_pool())
    result = cluster.batch(
        app_pods(3, spread=[spread_over(HOST)], affinity=pod_affinity_to(preferred=[affinity_term()]))
    )
    assert (left(result), cluster.per_node()) == ([], [1, 1, 1])


def test_near_in_the_zone_and_far_on_the_host_hold_together() -> None:
    cluster = PlannedCluster(node_pool())
    both = affinity(
        pod_affinity=affinity_terms(affinity_term(key=ZONE)), pod_anti_affinity=affinity_terms(affinity_term(key=HOST))
    )
    assert left(cluster.batch(app_pods(3, affinity=both))) == []
    assert (cluster.per_node(), list(cluster.counts().values())) == ([1, 1, 1], [3])


def test_terms_on_one_key_choose_a_domain_they_share() -> None:
    """SCH-520 Beyond: the reference lets each choose for itself and finds nothing when they differ."""
    there = [
        full_node("a", "z1"),
        full_node("b", "z2"),
        running_app_pod("one", "a", "x"),
        running_app_pod("two", "b", "x"),
    ]
    cluster = PlannedCluster(node_pool(), there, running_app_pod("three", "a", "y"))
    both = affinity(
        pod_affinity=affinity_terms(affinity_term("x", ZONE)),
        pod_anti_affinity=affinity_terms(affinity_term("y", ZONE)),
    )
    assert left(cluster.batch(app_pods(4, {"cpu": "1"}, affinity=both))) == []
    assert cluster.counts(app="web") == {"z2": 4}


def test_a_spread_continues_in_the_domains_that_affinity_allows() -> None:
    """SCH-520: zones taken by pods that repel these are no choice, but still bound the skew."""
    there = [
        full_node("a", "z3"),
        running_app_pod("guard", "a", "guard", affinity=pod_anti_affinity_to(affinity_term(key=ZONE))),
    ]
    cluster = PlannedCluster(node_pool(), there)
    result = cluster.batch(app_pods(4, {"cpu": "1"}, spread=[spread_over()]))
    assert (cluster.counts(app="web"), len(left(result))) == ({"z1": 1, "z2": 1}, 2)


def test_tolerating_more_than_others_opens_more_zones() -> None:
    """SCH-481 Beyond: the reference shares one group, and its first pod's tolerations decide for all."""
    closed = node_pool("closed", labels={ZONE: "z2"}, template={"taints": (pool_taint("closed"),)})
    cluster = PlannedCluster(node_pool("open", labels={ZONE: "z1"}), closed)
    own = pod_anti_affinity_to(affinity_term(key=ZONE))
    result = cluster.batch(
        app_pods(1, {"cpu": "1"}, prefix="plain", affinity=own),
        app_pods(1, {"cpu": "500m"}, prefix="tolerant", affinity=own, tolerations=(tolerating("closed"),)),
    )
    assert left(result) == []
    assert (cluster.domain_of("plain-000"), cluster.domain_of("tolerant-000")) == ("z1", "z2")


# -- preferences -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        pytest.param(pod_affinity_to(preferred=[affinity_term()]), [4], id="near"),
        pytest.param(pod_anti_affinity_to(preferred=[affinity_term()]), [1, 1, 1, 1], id="far"),
    ],
)
def test_preferred_affinity_holds_where_it_can(own: Affinity, expected: list[int]) -> None:
    """SCH-251"""
    cluster = PlannedCluster(node_pool())
    assert left(cluster.batch(app_pods(4, affinity=own))) == []
    assert cluster.per_node() == expected


@pytest.mark.parametrize("limit", [1, 2])
def test_preferred_anti_affinity_leaves_no_pod_out(limit: int) -> None:
    """SCH-250c"""
    cluster = PlannedCluster(node_pool(limits={"nodes": limit}))
    result = cluster.batch(app_pods(4, affinity=pod_anti_affinity_to(preferred=[affinity_term()])))
    assert (left(result), len(result.new_claims)) == ([], limit)


@pytest.mark.parametrize("key", [HOST, ZONE])
def test_preferred_affinity_is_dropped_when_the_domain_is_full(key: str) -> None:
    """SCH-250b"""
    cluster = PlannedCluster(in_zones("z1", "z2"), full_node("old", "z1"), running_app_pod("leader", "old"))
    result = cluster.batch(
        app_pods(2, {"cpu": "1"}, app="db", affinity=pod_affinity_to(preferred=[affinity_term(key=key)]))
    )
    assert left(result) == []
    if key == ZONE:
        assert cluster.counts(app="db") == {"z1": 2}


def test_of_two_preferred_affinities_that_exclude_each_other_the_heavier_is_relaxed_first() -> None:
    """SCH-250b: as in the reference, so that the lighter one is kept."""
    there = [
        full_node("a", "z1"),
        full_node("b", "z2"),
        running_app_pod("one", "a", "x"),
        running_app_pod("two", "b", "y"),
    ]
    cluster = PlannedCluster(node_pool(), there)
    own = pod_affinity_to(preferred=[affinity_term("x", ZONE), affinity_term("y", ZONE)])
    assert left(cluster.batch(app_pods(1, {"cpu": "1"}, app="db", affinity=own))) == []
    assert cluster.domain_of("db-000") == "z1"


# -- many ways to the same end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "terms",
    [
        pytest.param((affinity_term(key=ZONE), affinity_term(key=ZONE)), id="twice"),
        pytest.param((affinity_term(key=ZONE), affinity_term(key=KIND)), id="zone-and-capacity-type"),
        pytest.param((affinity_term(key=ZONE), affinity_term(key=HOST)), id="zone-and-host"),
    ],
)
def test_several_terms_about_one_app_hold_at_once(terms: Sequence[PodAffinityTerm]) -> None:
    cluster = PlannedCluster(node_pool())
    assert left(cluster.batch(app_pods(4, {"cpu": "100m"}, affinity=pod_affinity_to(*terms)))) == []
    assert (len(cluster.counts()), len(cluster.counts(KIND))) == (1, 1)


def test_an_affinity_group_starts_in_the_cheapest_zone() -> None:
    """SCH-556 Beyond"""
    sold = [offering("on-demand", "z1", 2.0), offering("on-demand", "z2", 1.0)]
    types = [shape("t", {"cpu": 4, "memory": "4Gi", "pods": 9}, sold)]
    result = plan(node_pool(), app_pods(3, affinity=pod_affinity_to(affinity_term(key=ZONE))), types=types)
    assert asked(result, ZONE) == [("In", ("z2",))]


def test_of_zones_with_equal_counts_the_cheapest_is_first() -> None:
    """SCH-548 Beyond"""
    sold = [offering("on-demand", "z1", 2.0), offering("on-demand", "z2", 3.0), offering("on-demand", "z3", 1.0)]
    types = [shape("t", {"cpu": 4, "memory": "4Gi", "pods": 9}, sold)]
    cluster = PlannedCluster(node_pool(), types=types)
    cluster.batch(app_pods(5, spread=[spread_over()]))
    assert cluster.counts() == {"z1": 2, "z2": 1, "z3": 2}
