"""Topology spread: how many pods each domain gets (S-150 to S-174, SCH-540 to SCH-549)."""

from __future__ import annotations

import pytest

from karpenter.api.core import Pod
from support.applied_plans import PlannedCluster
from support.builders import (
    ANY_CAPACITY,
    NOW,
    affinity,
    categories,
    expr,
    left,
    node_and_claim,
    node_pool,
    pod,
    pods,
    sizes,
    term,
    wanted,
    where,
)
from support.instance_types import offering, shape
from support.spread_scenarios import ARCH, HOST, KIND, RACK, ZONE, in_zones
from support.topology_builders import app_pods, of_app, spread_over


def running(name: str, on: str, **fields: object) -> Pod:
    """A bound pod of app web."""
    meta = {"labels": {"app": "web"}, **fields.pop("meta", {})}
    return pod(name, node_name=on, meta=meta, **fields)


# -- zones ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pools", "count", "expected"),
    [
        pytest.param([node_pool()], 4, [1, 1, 2], id="S-152"),
        pytest.param([in_zones("z1", "z2")], 4, [2, 2], id="S-153"),
        pytest.param([node_pool(labels={ZONE: "z1"})], 4, [4], id="S-154"),
        pytest.param([node_pool("a", labels={ZONE: "z1"}), node_pool("b", labels={ZONE: "z2"})], 4, [2, 2], id="S-155"),
    ],
)
def test_pods_are_spread_over_the_zones_pools_offer(pools: list[object], count: int, expected: list[int]) -> None:
    cluster = PlannedCluster(pools)
    result = cluster.batch(app_pods(count, spread=[spread_over()]))
    assert (left(result), sorted(cluster.counts().values())) == ([], expected)


def test_an_unknown_key_keeps_only_its_own_pod_waiting() -> None:
    """S-150, SCH-493"""
    cluster = PlannedCluster(node_pool())
    result = cluster.batch(app_pods(1, spread=[spread_over("example.com/unknown")]), pods(2))
    assert (left(result), categories(result)) == (["web-000"], {"topology"})
    assert cluster.per_node() == [2]


def test_pods_an_unknown_key_is_not_asked_of_go_anywhere() -> None:
    """S-150: although the constraint means them as well."""
    cluster = PlannedCluster(node_pool())
    unknown = app_pods(1, prefix="asking", spread=[spread_over("example.com/unknown")])
    assert left(cluster.batch(unknown, app_pods(3))) == ["asking-000"]
    assert cluster.per_node() == [3]


@pytest.mark.parametrize("weights", [(1, 2), (2, 1)])
def test_pods_that_are_only_meant_may_go_to_pools_without_the_label(weights: tuple[int, int]) -> None:
    """S-150: no pod is sent to where a label is, only because others ask for it."""
    racks = node_pool("racks", labels={RACK: "r1"}, limits={"nodes": 1}, weight=weights[0])
    cluster = PlannedCluster(racks, node_pool("bare", weight=weights[1]))
    asking = app_pods(2, {"cpu": "2"}, prefix="asking", spread=[spread_over(RACK)])
    assert left(cluster.batch(asking, app_pods(12, {"cpu": "1"}))) == []
    assert cluster.domain_of("asking-000", RACK) == cluster.domain_of("asking-001", RACK) == "r1"


def test_a_soft_spread_over_an_unknown_key_is_given_up() -> None:
    """SCH-493"""
    assert (
        left(PlannedCluster(node_pool()).batch(app_pods(2, spread=[spread_over("example.com/unknown", soft=True)])))
        == []
    )


def test_a_spread_without_a_selector_counts_no_pod() -> None:
    """S-151: kube-scheduler reads it so too."""
    cluster = PlannedCluster(node_pool())
    cluster.batch(app_pods(2, spread=[spread_over(HOST, selector=None), spread_over(selector=None)]))
    assert cluster.per_node() == [2]


def test_no_selector_counts_no_bound_pods_either() -> None:
    """SCH-500 Beyond: the reference counts the whole namespace."""
    there = node_and_claim("a", {"cpu": "4"}, labels={ZONE: "z1"})
    cluster = PlannedCluster(in_zones("z1"), there, [running(f"w{n}", "a") for n in range(3)])
    cluster.batch(app_pods(1, spread=[spread_over(HOST, selector=None)]))
    assert cluster.host_of("web-000") == "a"


@pytest.mark.parametrize(
    ("there", "zones", "count", "expected", "failing"),
    [
        pytest.param("z3", ("z1", "z2"), 6, {"z1": 2, "z2": 2, "z3": 1}, 2, id="S-156"),
        pytest.param("z1", ("z2", "z3"), 10, {"z1": 1, "z2": 2, "z3": 2}, 6, id="S-157"),
    ],
)
def test_a_zone_that_only_a_node_has_counts_as_well(
    there: str, zones: tuple[str, ...], count: int, expected: dict[str, int], failing: int
) -> None:
    full = node_and_claim("old", {"cpu": "100m"}, labels={ZONE: there})
    cluster = PlannedCluster(in_zones(*zones), full, running("first", "old"))
    result = cluster.batch(app_pods(count, {"cpu": "1100m"}, spread=[spread_over()]))
    assert (cluster.counts(), len(left(result)), categories(result)) == (expected, failing, {"topology"})


@pytest.mark.parametrize("there", [5, 3])
def test_a_full_zone_blocks_no_other(there: int) -> None:
    """SCH-549: pods keep going to the emptiest domain, even while another is above the skew."""
    full = node_and_claim("old", {"cpu": "1m"}, labels={ZONE: "z1"})
    cluster = PlannedCluster(node_pool(), full, [running(f"old-{n}", "old") for n in range(there)])
    result = cluster.batch(app_pods(4, {"cpu": "1"}, spread=[spread_over()]))
    assert (left(result), cluster.counts()) == ([], {"z1": there, "z2": 2, "z3": 2})


# -- other keys ---------------------------------------------------------------------------------------------------------


def test_pods_are_spread_over_capacity_types() -> None:
    """S-158"""
    cluster = PlannedCluster(node_pool())
    cluster.batch(app_pods(4, spread=[spread_over(KIND)]))
    assert cluster.counts(KIND) == {"on-demand": 2, "spot": 2}


@pytest.mark.parametrize(("soft", "expected"), [(False, 2), (True, 5)], ids=["S-159-hard", "S-159-soft"])
def test_a_capacity_type_no_pool_offers_any_more_counts(soft: bool, expected: int) -> None:
    full = node_and_claim("old", {"cpu": "1m"}, labels={KIND: "spot", ZONE: "z1"})
    pool = node_pool(requirements=[wanted(KIND, "In", "on-demand")])
    cluster = PlannedCluster(pool, full, running("first", "old"))
    result = cluster.batch(app_pods(5, {"cpu": "1"}, spread=[spread_over(KIND, soft=soft)]))
    assert cluster.counts(KIND) == {"on-demand": expected, "spot": 1}
    assert len(left(result)) == 5 - expected


def test_an_architecture_no_pool_offers_any_more_counts() -> None:
    """S-160"""
    full = node_and_claim("old", {"cpu": "1m"}, labels={ARCH: "amd64", ZONE: "z1"})
    pool = node_pool(requirements=[ANY_CAPACITY, wanted(ARCH, "In", "arm64")])
    cluster = PlannedCluster(pool, full, running("first", "old"))
    result = cluster.batch(app_pods(5, {"cpu": "2"}, spread=[spread_over(ARCH)]))
    assert (cluster.counts(ARCH), len(left(result))) == ({"amd64": 1, "arm64": 2}, 3)


@pytest.mark.parametrize(("skew", "expected"), [(1, [1, 1, 1, 1]), (4, [4])], ids=["S-161", "S-161-skew-4"])
def test_pods_are_spread_over_hosts(skew: int, expected: list[int]) -> None:
    """S-161, SCH-541: a new empty node is always possible, so the minimum count over hosts is 0."""
    cluster = PlannedCluster(node_pool())
    assert left(cluster.batch(app_pods(4, spread=[spread_over(HOST, skew)]))) == []
    assert cluster.per_node() == expected


@pytest.mark.parametrize(
    ("arches", "expected"),
    [pytest.param(({}, {}), [2, 2], id="S-162"), pytest.param(({ARCH: "amd64"}, {ARCH: "arm64"}), [1] * 4, id="arch")],
)
def test_apps_spread_over_hosts_for_themselves(arches: tuple[dict[str, str], ...], expected: list[int]) -> None:
    """S-162"""
    cluster = PlannedCluster(node_pool())
    cluster.batch(
        [
            app_pods(2, app=name, spread=[spread_over(HOST, selector=of_app(name))], node_selector=arch)
            for name, arch in zip(("web", "db"), arches, strict=True)
        ]
    )
    assert cluster.per_node() == expected
    assert cluster.per_node("web") == cluster.per_node("db") == [1, 1]


def test_zones_and_hosts_are_kept_even_together_batch_after_batch() -> None:
    """S-163"""
    cluster = PlannedCluster(node_pool())
    actual = []
    for number, count in enumerate((2, 3, 5, 11)):
        result = cluster.batch(app_pods(count, prefix=f"batch{number}", spread=[spread_over(), spread_over(HOST, 3)]))
        assert left(result) == []
        actual.append(sorted(cluster.counts().values(), reverse=True))
        assert cluster.per_node()[-1] <= 3
    assert actual == [[1, 1], [2, 2, 1], [4, 3, 3], [7, 7, 7]]


def test_a_custom_key_shares_pods_among_kinds_of_capacity() -> None:
    """S-164"""
    spot = node_pool("a", [wanted(KIND, "In", "spot"), wanted(RACK, "In", "2", "3", "4", "5")])
    safe = node_pool("b", [wanted(KIND, "In", "on-demand"), wanted(RACK, "In", "1")])
    cluster = PlannedCluster(spot, safe)
    assert left(cluster.batch(app_pods(20, spread=[spread_over(RACK)]))) == []
    assert cluster.counts(RACK) == {str(number): 4 for number in range(1, 6)}
    assert cluster.counts(KIND) == {"on-demand": 4, "spot": 16}


def test_a_zone_whose_pool_is_exhausted_still_bounds_the_others() -> None:
    """S-165, SCH-490: kube-scheduler would let more in, until a node of that zone comes back."""
    cluster = PlannedCluster(in_zones("z1", "z2"), node_pool("none", labels={ZONE: "z3"}, limits={"cpu": "0"}))
    result = cluster.batch(app_pods(10, spread=[spread_over(), spread_over(HOST, soft=True)]))
    assert (cluster.counts(), len(left(result))) == ({"z1": 1, "z2": 1}, 8)


# -- fewest domains -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zones", "count", "expected"),
    [
        pytest.param(("z1", "z2"), 3, [1, 1], id="S-166-two-zones"),
        pytest.param(("z1", "z2", "z3"), 11, [3, 4, 4], id="S-166-three-zones"),
    ],
)
def test_fewer_domains_than_asked_for_count_as_an_empty_one(
    zones: tuple[str, ...], count: int, expected: list[int]
) -> None:
    """SCH-547"""
    cluster = PlannedCluster(in_zones(*zones))
    result = cluster.batch(app_pods(count, spread=[spread_over(min_domains=3)]))
    assert sorted(cluster.counts().values()) == expected
    assert len(left(result)) == count - sum(expected)


def test_each_pod_is_held_to_its_own_fewest_domains() -> None:
    """SCH-481 Beyond: the reference shares one group, and its first pod decides for all."""
    cluster = PlannedCluster(in_zones("z1", "z2"))
    strict = app_pods(2, {"cpu": "1"}, prefix="strict", spread=[spread_over(min_domains=3)])
    result = cluster.batch(strict, app_pods(2, {"cpu": "500m"}, prefix="plain", spread=[spread_over()]))
    assert (left(result), cluster.counts()) == ([], {"z1": 2, "z2": 2})
    result = cluster.batch(
        app_pods(1, prefix="late", spread=[spread_over(min_domains=3)]), app_pods(1, spread=[spread_over()])
    )
    assert (left(result), sorted(cluster.counts().values())) == (["late-000"], [2, 3])


def test_fewest_domains_mean_nothing_for_hosts() -> None:
    """SCH-541"""
    cluster = PlannedCluster(node_pool())
    assert left(cluster.batch(app_pods(3, spread=[spread_over(HOST, 2, min_domains=5)]))) == []
    assert cluster.per_node() == [1, 2]


# -- who counts ---------------------------------------------------------------------------------------------------------


_TERMINATING = {"deletion_timestamp": NOW}


@pytest.mark.parametrize(
    ("bound", "counts"),
    [
        pytest.param({}, True, id="plain"),
        pytest.param({"meta": {"labels": {"app": "other"}}}, False, id="other-app"),
        pytest.param({"meta": {"namespace": "other"}}, False, id="other-namespace"),
        pytest.param({"status": {"phase": "Succeeded"}}, False, id="succeeded"),
        pytest.param({"status": {"phase": "Failed"}}, False, id="failed"),
        pytest.param({"meta": _TERMINATING}, False, id="terminating"),
        pytest.param({"on": "nowhere"}, False, id="gone-node"),
        pytest.param({"on": "unzoned"}, False, id="node-without-label"),
    ],
)
def test_only_living_bound_pods_of_the_namespace_count(bound: dict[str, object], counts: bool) -> None:
    """S-167, SCH-500"""
    full = [node_and_claim("old", {"cpu": "1m"}, labels={ZONE: "z1"}), node_and_claim("unzoned", {"cpu": "1m"})]
    fields = dict(bound)
    on = str(fields.pop("on", "old"))
    cluster = PlannedCluster(in_zones("z1", "z2"), full, running("there", on, **fields))
    cluster.batch(app_pods(1, {"cpu": "1"}, spread=[spread_over()]))
    assert cluster.domain_of("web-000") == ("z2" if counts else "z1")


def test_a_host_without_its_label_is_known_by_its_name() -> None:
    """SCH-500"""
    node, own = node_and_claim("old", {"cpu": "4"}, labels={HOST: ""})
    bare = {key: value for key, value in node.metadata.labels.items() if key != HOST}
    unlabelled = type(node)(
        metadata=type(node.metadata)(name="old", uid="uid-old", labels=bare), spec=node.spec, status=node.status
    )
    cluster = PlannedCluster(node_pool(), unlabelled, own, running("there", "old"))
    result = cluster.batch(app_pods(1, {"cpu": "1"}, spread=[spread_over(HOST)]))
    assert sizes(result) == [1]


def test_pods_that_do_not_count_themselves_may_all_share() -> None:
    """S-168, SCH-540"""
    cluster = PlannedCluster(node_pool())
    cluster.batch(app_pods(5, app="web", spread=[spread_over(HOST, selector=of_app("other"))]))
    assert cluster.per_node() == [5]


@pytest.mark.parametrize("pinned_by", ["selector", "affinity"])
def test_zones_a_pod_cannot_go_to_do_not_bound_it(pinned_by: str) -> None:
    """S-169: with nodeAffinityPolicy Honor, the default."""
    cluster = PlannedCluster(node_pool())

    def pinned(count: int, zone: str) -> list[Pod]:
        how: dict[str, object] = (
            {"node_selector": {ZONE: zone}} if pinned_by == "selector" else {"affinity": where(ZONE, "In", zone)}
        )
        return app_pods(count, prefix=zone, spread=[spread_over()], **how)

    assert left(cluster.batch(pinned(5, "z1"), pinned(10, "z2"))) == []
    assert cluster.counts() == {"z1": 5, "z2": 10}


def test_pods_of_different_freedom_fill_zones_together() -> None:
    """S-170"""
    cluster = PlannedCluster(node_pool())

    def batch(count: int, prefix: str, **spec: object) -> list[int]:
        assert left(cluster.batch(app_pods(count, {"cpu": "1"}, prefix=prefix, spread=[spread_over()], **spec))) == []
        return list(cluster.counts().values())

    assert batch(6, "first", affinity=where(ZONE, "In", "z1", "z2")) == [3, 3]
    assert batch(1, "second", affinity=where(ZONE, "In", "z2", "z3")) == [3, 3, 1]
    assert batch(5, "third") == [4, 4, 4]


def test_preferred_zones_do_not_narrow_a_spread() -> None:
    """S-171. SCH-161: topology domains follow the required terms only."""
    cluster = PlannedCluster(node_pool())
    preferred = affinity(preferred=[(1, term(expr(ZONE, "In", "z1", "z2")))])
    assert left(cluster.batch(app_pods(6, spread=[spread_over()], affinity=preferred))) == []
    assert cluster.counts() == {"z1": 2, "z2": 2, "z3": 2}


def test_zones_without_the_capacity_type_pods_ask_for_do_not_bound_them() -> None:
    """Fixture STD sells no spot in z3, so kube-scheduler will never see a node there that suits these (unlike SCH-490)."""
    cluster = PlannedCluster(node_pool())
    assert left(cluster.batch(app_pods(6, spread=[spread_over()], node_selector={KIND: "spot"}))) == []
    assert cluster.counts() == {"z1": 3, "z2": 3}


def test_a_zone_that_is_only_sold_out_still_bounds_the_others() -> None:
    """SCH-490: what can be launched changes by the minute; pods that wait keep asking for that zone."""
    sold = [offering("spot", "z1", 1.0), offering("spot", "z2", 1.0, available=False)]
    cluster = PlannedCluster(node_pool(), types=[shape("t", {"cpu": 4, "memory": "4Gi", "pods": 5}, sold)])
    result = cluster.batch(app_pods(3, spread=[spread_over()]))
    assert (cluster.counts(), len(left(result))) == ({"z1": 1}, 2)


@pytest.mark.parametrize("count", [4, 30])
def test_pods_that_may_go_to_one_zone_or_another_keep_both_even(count: int) -> None:
    """kube-scheduler compares all zones any OR-term allows; the reference only those of the first."""
    either = affinity(term(expr(ZONE, "In", "z1")), term(expr(ZONE, "In", "z2")))
    cluster = PlannedCluster(node_pool())
    assert left(cluster.batch(app_pods(count, spread=[spread_over()], affinity=either))) == []
    assert cluster.counts() == {"z1": count // 2, "z2": count // 2}


def test_zones_without_a_node_for_the_pods_do_not_bound_them() -> None:
    """kube-scheduler knows no such zone, for no node of it suits the pods; the reference waits for it for ever (SCH-490)."""
    types = [
        shape("arm", {"cpu": 4, "memory": "4Gi", "pods": 5}, [offering("spot", "z1", 1.0)], arch="arm64"),
        shape("amd", {"cpu": 4, "memory": "4Gi", "pods": 5}, [offering("spot", zone, 1.0) for zone in ("z1", "z2")]),
    ]
    cluster = PlannedCluster(node_pool(), types=types)
    assert left(cluster.batch(app_pods(4, spread=[spread_over()], node_selector={ARCH: "arm64"}))) == []
    assert cluster.counts() == {"z1": 4}
    assert left(cluster.batch(app_pods(4, prefix="any", app="db", spread=[spread_over(selector=of_app("db"))]))) == []
    assert cluster.counts(app="db") == {"z1": 2, "z2": 2}


@pytest.mark.parametrize(("policy", "expected"), [("Honor", 5), ("Ignore", 1)], ids=["honour", "ignore"])
def test_zones_a_pod_cannot_go_to_bound_it_when_affinity_is_ignored(policy: str, expected: int) -> None:
    """S-174 for zones: kube-scheduler then compares all that have nodes; the reference leaves out those closed to the pod."""
    cluster = PlannedCluster(node_pool())
    cluster.batch(app_pods(5, spread=[spread_over(node_affinity_policy=policy)], node_selector={ZONE: "z1"}))
    assert cluster.counts() == {"z1": expected}


# -- selectors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "expected"), [("rev", [2, 2]), ("missing", [1, 1, 1, 1])], ids=["S-172", "no-label"])
def test_each_revision_is_spread_for_itself(key: str, expected: list[int]) -> None:
    """S-172: a key the pods lack is as if it were not there."""
    cluster = PlannedCluster(node_pool())
    cluster.batch(
        [
            app_pods(2, prefix=rev, own={"rev": rev}, spread=[spread_over(HOST, match_label_keys=(key,))])
            for rev in ("one", "two")
        ]
    )
    assert cluster.per_node() == expected


# -- spreads of others --------------------------------------------------------------------------------------------------


def test_a_pod_that_only_others_spread_against_keeps_within_their_skew() -> None:
    """SCH-547: the order of binding is unknown, so a pod that a spread counts may not be the third of two in a zone."""
    cluster = PlannedCluster(in_zones("z1", "z2"))
    spreading = app_pods(2, {"cpu": "1400m"}, prefix="spreading", spread=[spread_over(skew=2)])
    counted = app_pods(1, {"cpu": "900m"}, prefix="counted", spread=[spread_over(selector=of_app("other"))])
    assert left(cluster.batch(spreading, counted)) == []
    counts = cluster.counts()
    assert max(counts.values()) <= 2


def test_a_pod_with_one_zone_to_go_to_gets_it_beside_others_that_spread() -> None:
    """SCH-547: a plan that holds in one order of binding is better than a pod that is left out."""
    cluster = PlannedCluster(in_zones("z1", "z2"))
    spreading = app_pods(4, {"cpu": "1400m"}, prefix="spreading", spread=[spread_over(skew=1)])
    counted = app_pods(3, {"cpu": "900m"}, prefix="counted", node_selector={ZONE: "z1"})
    assert left(cluster.batch(spreading, counted)) == []
