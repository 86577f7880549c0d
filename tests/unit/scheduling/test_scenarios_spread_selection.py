"""Topology spread: selectors, node filters, soft constraints and existing nodes."""

from __future__ import annotations

import pytest

from karpenter.api.meta import LabelSelector, LabelSelectorRequirement
from karpenter.api.scheduling_constraints import TopologySpreadConstraint
from karpenter.scheduling.scheduling_options import PreferencePolicy, SchedulingOptions
from support.applied_plans import PlannedCluster
from support.builders import (
    ANY_CAPACITY,
    details,
    left,
    node_and_claim,
    node_pool,
    pod,
    pool_taint,
    sizes,
    taint,
    tolerating,
    wanted,
)
from support.instance_types import inc
from support.spread_scenarios import HOST, KIND, RACK, ZONE, in_zones
from support.topology_builders import app_pods, spread_over


@pytest.mark.parametrize(
    "selector",
    [
        LabelSelector(match_expressions=(LabelSelectorRequirement(key="app", operator="In", values=("web", "x")),)),
        LabelSelector(match_expressions=(LabelSelectorRequirement(key="app", operator="Exists"),)),
        LabelSelector(match_expressions=(LabelSelectorRequirement(key="app", operator="NotIn", values=("x",)),)),
    ],
    ids=["in", "exists", "not-in"],
)
def test_selectors_may_be_expressions(selector: LabelSelector) -> None:
    """SCH-483"""
    cluster = PlannedCluster(node_pool())
    cluster.batch(app_pods(3, spread=[spread_over(HOST, selector=selector)]))
    assert cluster.per_node() == [1, 1, 1]


def test_an_empty_selector_counts_no_pod() -> None:
    """Unlike SCH-483: kube-scheduler counts no pod for a selector without a test, so nothing is ever uneven."""
    cluster = PlannedCluster(node_pool())
    result = cluster.batch(
        app_pods(4, spread=[spread_over(HOST, selector=LabelSelector()), spread_over(selector=LabelSelector())])
    )
    assert (left(result), cluster.per_node()) == ([], [4])


def test_an_empty_selector_counts_the_pods_of_the_same_revision() -> None:
    """A label the pod has makes a test of its own; one it lacks does not."""
    revised = [spread_over(selector=LabelSelector(), match_label_keys=("rev",))]
    cluster = PlannedCluster(node_pool())
    cluster.batch(app_pods(3, spread=revised, own={"rev": "1"}))
    assert sorted(cluster.counts().values()) == [1, 1, 1]
    unrevised = PlannedCluster(node_pool())
    unrevised.batch(app_pods(3, spread=revised))
    assert sorted(unrevised.counts().values()) == [3]


def test_two_apps_with_one_selector_are_counted_together() -> None:
    """SCH-481: order and repetition in a selector make no difference."""
    cluster = PlannedCluster(node_pool())

    def both(*values: str) -> LabelSelector:
        return LabelSelector(match_expressions=(LabelSelectorRequirement(key="app", operator="In", values=values),))

    cluster.batch(
        app_pods(2, {"cpu": "1"}, app="web", spread=[spread_over(selector=both("web", "db"))]),
        app_pods(4, {"cpu": "500m"}, app="db", spread=[spread_over(selector=both("db", "web", "db"))]),
    )
    assert cluster.counts() == {"z1": 2, "z2": 2, "z3": 2}


# -- node filters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "expected"), [("Ignore", 1), ("Honor", 5)], ids=["S-173-Ignore", "S-173-Honor"])
def test_tainted_nodes_are_domains_unless_taints_are_honoured(policy: str, expected: int) -> None:
    closed = [
        node_and_claim(name, {"cpu": "4"}, labels={RACK: name}, taints=[taint("closed")]) for name in ("foo", "bar")
    ]
    cluster = PlannedCluster(node_pool(requirements=[ANY_CAPACITY, wanted(RACK, "In", "baz")]), closed)
    cluster.batch(app_pods(5, spread=[spread_over(RACK, node_taints_policy=policy)]))
    assert cluster.counts(RACK) == {"baz": expected}


@pytest.mark.parametrize(("policy", "expected"), [("Ignore", 1), ("Honor", 5)], ids=["S-174-Ignore", "S-174-Honor"])
def test_nodes_a_pod_may_not_use_are_domains_when_affinity_is_ignored(policy: str, expected: int) -> None:
    there = [node_and_claim(name, {"cpu": "4"}, labels={RACK: name, "team": "x"}) for name in ("foo", "bar")]
    pool = node_pool(requirements=[ANY_CAPACITY, wanted(RACK, "In", "baz")], labels={"team": "mine"})
    cluster = PlannedCluster(pool, there)
    spread = spread_over(RACK, node_affinity_policy=policy)
    cluster.batch(app_pods(5, spread=[spread], node_selector={"team": "mine"}))
    assert cluster.counts(RACK) == {"baz": expected}


@pytest.mark.parametrize(
    ("policy", "tolerated", "expected"),
    [("Honor", False, {"z1": 4}), ("Honor", True, {"z1": 2, "z2": 2}), ("Ignore", False, {"z1": 1})],
    ids=["honour", "honour-tolerating", "ignore"],
)
def test_a_tainted_pool_offers_domains_to_pods_that_tolerate_it(
    policy: str, tolerated: bool, expected: dict[str, int]
) -> None:
    """SCH-491"""
    pools = [
        node_pool("open", labels={ZONE: "z1"}),
        node_pool("closed", labels={ZONE: "z2"}, template={"taints": (pool_taint("closed"),)}),
    ]
    cluster = PlannedCluster(pools)
    own = (tolerating("closed"),) if tolerated else ()
    cluster.batch(app_pods(4, spread=[spread_over(node_taints_policy=policy)], tolerations=own))
    assert cluster.counts() == expected


# -- soft ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [ZONE, HOST, KIND])
def test_a_soft_spread_that_can_be_kept_is_kept(key: str) -> None:
    """SCH-251"""
    cluster = PlannedCluster(node_pool())
    cluster.batch(app_pods(2, spread=[spread_over(key, soft=True)]))
    assert list(cluster.counts(key).values()) == [1, 1]


def test_a_soft_spread_gives_way_only_as_far_as_it_must() -> None:
    """SCH-250e: as many nodes as limits allow; kube-scheduler's scores decide which pod goes where on them."""
    cluster = PlannedCluster(node_pool(limits={"nodes": 2}))
    result = cluster.batch(app_pods(4, spread=[spread_over(HOST, soft=True)]))
    assert (left(result), len(result.new_claims)) == ([], 2)


def test_of_two_soft_spreads_the_one_that_can_be_kept_stays() -> None:
    """SCH-250e: constraints are given up one by one."""
    unknown: TopologySpreadConstraint = spread_over("example.com/unknown", soft=True)
    cluster = PlannedCluster(node_pool())
    cluster.batch(app_pods(2, spread=[unknown, spread_over(HOST, soft=True)]))
    assert cluster.per_node() == [1, 1]


def test_a_hard_spread_holds_under_policy_ignore() -> None:
    """SCH-252"""
    cluster = PlannedCluster(node_pool(), options=SchedulingOptions(preferences=PreferencePolicy.IGNORE))
    cluster.batch(app_pods(3, spread=[spread_over(HOST)]))
    assert cluster.per_node() == [1, 1, 1]


# -- nodes that exist ------------------------------------------------------------------------------------------------


def test_pods_fill_existing_nodes_as_far_as_the_skew_allows() -> None:
    """SCH-541, SCH-548"""
    there = [node_and_claim(f"n{zone}", {"cpu": "8"}, labels={ZONE: zone}) for zone in ("z1", "z2", "z3")]
    cluster = PlannedCluster(node_pool(), there)
    result = cluster.batch(app_pods(9, {"cpu": "100m"}, spread=[spread_over()]))
    assert (sizes(result), cluster.counts()) == ([], {"z1": 3, "z2": 3, "z3": 3})


def test_a_full_existing_zone_gets_a_new_node() -> None:
    there = [node_and_claim(f"n{zone}", {"cpu": "8"}, labels={ZONE: zone}) for zone in ("z1", "z2")]
    cluster = PlannedCluster(node_pool(), there)
    result = cluster.batch(app_pods(6, {"cpu": "100m"}, spread=[spread_over()]))
    assert (sizes(result), cluster.counts()) == ([2], {"z1": 2, "z2": 2, "z3": 2})


def test_an_existing_node_without_the_label_takes_no_pod_that_spreads_by_it() -> None:
    """SCH-520: kube-scheduler refuses such a node as well."""
    cluster = PlannedCluster(node_pool(), node_and_claim("bare", {"cpu": "8"}))
    result = cluster.batch(app_pods(1, {"cpu": "100m"}, spread=[spread_over()]))
    assert (sizes(result), cluster.host_of("web-000") == "bare") == ([1], False)


def test_a_pod_that_leaves_no_longer_counts_where_it_was() -> None:
    """SCH-500: pods of the pass are counted where they go."""
    leaving = node_and_claim("old", {"cpu": "8"}, labels={ZONE: "z1"}, deleted=True)
    moving = [
        pod(
            f"old-{n}",
            node_name="old",
            meta={"labels": {"app": "web"}},
            topology_spread_constraints=(spread_over(),),
        )
        for n in range(3)
    ]
    cluster = PlannedCluster(node_pool(), leaving, moving)
    result = cluster.batch()
    assert (left(result), sorted(cluster.counts().values())) == ([], [1, 1, 1])


def test_larger_fleets_stay_even_to_the_last_pod() -> None:
    """SCH-548"""
    cluster = PlannedCluster(node_pool(), types=inc(10))
    assert left(cluster.batch(app_pods(100, {"cpu": "500m"}, spread=[spread_over()]))) == []
    assert sorted(cluster.counts().values()) == [33, 33, 34]


# -- what users read ------------------------------------------------------------------------------------------------------


def test_the_text_names_the_constraint_and_the_counts() -> None:
    """SCH-523"""
    full = node_and_claim("old", {"cpu": "1m"}, labels={ZONE: "z3"})
    cluster = PlannedCluster(in_zones("z1", "z2"), full)
    result = cluster.batch(app_pods(3, {"cpu": "1"}, spread=[spread_over()]))
    assert details(result) == (
        "unsatisfiable topology constraint for topology spread, key=topology.kubernetes.io/zone "
        "(counts = z1: 1, z2: 1, z3: 0, podDomains = topology.kubernetes.io/zone Exists, "
        "nodeDomains = topology.kubernetes.io/zone In [z1 z2]"
    )


def test_the_text_counts_at_most_25_domains() -> None:
    """SCH-523"""
    full = [node_and_claim(f"n{n:02}", {"cpu": "1m"}, labels={RACK: f"r{n:02}"}) for n in range(30)]
    result = PlannedCluster(node_pool(), full).batch(app_pods(1, {"cpu": "1"}, spread=[spread_over(RACK)]))
    assert "r24: 0 and 5 other(s), podDomains = example.com/rack Exists" in details(result)
    assert "r25" not in details(result)
