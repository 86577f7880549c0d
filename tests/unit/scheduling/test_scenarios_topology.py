"""Pod affinity and anti-affinity (S-175 to S-186, SCH-481, SCH-520 to SCH-561)."""

from __future__ import annotations

import pytest

from karpenter.api.meta import LabelSelector
from karpenter.model import labels
from support.applied_plans import PlannedCluster
from support.builders import (
    categories,
    details,
    existing,
    left,
    node_and_claim,
    node_pool,
    plan,
    pods,
    sizes,
)
from support.spread_scenarios import HOST, KIND, RACK, ZONE, in_zones
from support.topology_builders import (
    affinity_term,
    app_pods,
    full_node,
    pod_affinity_to,
    pod_anti_affinity_to,
    running_app_pod,
    spread_over,
)

ZONES = ("z1", "z2", "z3")


def at(zone: str) -> dict[str, object]:
    return {"node_selector": {ZONE: zone}}


# -- affinity by host ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("follower_first", [True, False], ids=["larger-follower", "smaller-follower"])
def test_a_pod_shares_the_node_of_the_one_it_follows(follower_first: bool) -> None:
    """S-175: whichever of them is planned first."""
    cluster = PlannedCluster(node_pool())
    sizes_ = ("1", "500m") if follower_first else ("500m", "1")
    cluster.batch(
        app_pods(1, {"cpu": sizes_[0]}, app="db", affinity=pod_affinity_to(affinity_term())),
        app_pods(1, {"cpu": sizes_[1]}),
    )
    assert cluster.host_of("db-000") == cluster.host_of("web-000") != ""


def test_followers_take_no_more_room_than_the_node_of_their_leader_has() -> None:
    """S-175, S-176: on a second node the followers would be without their leader, so the scheduler would bind none there."""
    cluster = PlannedCluster(node_pool())
    result = cluster.batch(app_pods(1), app_pods(9, app="db", affinity=pod_affinity_to(affinity_term())))
    assert (cluster.per_node(), len(left(result)), categories(result)) == ([5], 5, {"topology"})


def test_pods_that_must_share_one_host_get_exactly_one() -> None:
    """S-176: five pods fit on any type; those left wait, and so do all that come later."""
    cluster = PlannedCluster(node_pool())
    together = pod_affinity_to(affinity_term())
    result = cluster.batch(app_pods(10, affinity=together))
    assert (cluster.per_node(), len(left(result)), categories(result)) == ([5], 5, {"topology"})
    result = cluster.batch(app_pods(10, prefix="late", affinity=together))
    assert (cluster.per_node(), len(left(result)), sizes(result)) == ([5], 15, [])


def test_pods_that_must_share_one_host_get_one_large_enough() -> None:
    """S-176, SCH-555: as many as possible are served at once, for none can begin anew later."""
    cluster = PlannedCluster(node_pool(), node_and_claim("small", {"cpu": "2"}))
    result = cluster.batch(app_pods(4, {"cpu": "1"}, affinity=pod_affinity_to(affinity_term())))
    assert (existing(result), sizes(result), left(result)) == ({}, [4], [])


def test_a_host_where_one_of_them_is_takes_the_others() -> None:
    """SCH-555: even where another node has more room."""
    there = [node_and_claim("a", {"cpu": "8"}), node_and_claim("b", {"cpu": "2"})]
    cluster = PlannedCluster(node_pool(), there, running_app_pod("first", "b"))
    result = cluster.batch(app_pods(3, {"cpu": "1"}, affinity=pod_affinity_to(affinity_term())))
    assert (existing(result), sizes(result), len(left(result))) == ({"b": 2}, [], 1)


def test_followers_by_host_go_to_each_host_with_a_leader() -> None:
    """SCH-555"""
    there = [node_and_claim(name, {"cpu": "2"}) for name in ("a", "b", "c")]
    cluster = PlannedCluster(node_pool(), there, running_app_pod("one", "a"), running_app_pod("two", "c"))
    result = cluster.batch(app_pods(4, {"cpu": "1"}, app="db", affinity=pod_affinity_to(affinity_term())))
    assert (existing(result), left(result)) == ({"a": 2, "c": 2}, [])


# -- affinity by zone ---------------------------------------------------------------------------------------------------


def test_pods_that_follow_themselves_share_a_zone() -> None:
    """S-177"""
    cluster = PlannedCluster(node_pool())
    assert left(cluster.batch(app_pods(3, affinity=pod_affinity_to(affinity_term(key=ZONE))))) == []
    assert (cluster.per_node(), len(cluster.counts())) == ([3], 1)


def test_pods_that_follow_themselves_begin_where_they_may() -> None:
    """S-177: with a required zone."""
    cluster = PlannedCluster(node_pool())
    assert left(cluster.batch(app_pods(3, affinity=pod_affinity_to(affinity_term(key=ZONE)), **at("z3")))) == []
    assert cluster.counts() == {"z3": 3}


def test_several_nodes_of_pods_with_affinity_to_each_other_are_all_in_one_zone() -> None:
    """SCH-556 Beyond: the reference may begin a second zone while the first is still open."""
    cluster = PlannedCluster(node_pool())
    assert left(cluster.batch(app_pods(12, {"cpu": "1"}, affinity=pod_affinity_to(affinity_term(key=ZONE))))) == []
    assert (len(cluster.per_node()) > 1, list(cluster.counts().values())) == (True, [12])
    assert left(cluster.batch(app_pods(6, prefix="late", affinity=pod_affinity_to(affinity_term(key=ZONE))))) == []
    assert list(cluster.counts().values()) == [18]


def test_only_the_first_pod_of_an_affinity_group_may_choose_a_zone() -> None:
    """S-178 differs from the reference, which plans in both zones: kube-scheduler lets a pod begin only where no pod it means is
    anywhere, so the second node would stay empty.
    """
    cluster = PlannedCluster(node_pool())
    both = [
        app_pods(1, prefix=zone, affinity=pod_affinity_to(affinity_term(key=ZONE)), **at(zone)) for zone in ("z2", "z3")
    ]
    result = cluster.batch(both)
    assert (sizes(result), left(result), categories(result)) == ([1], ["z3-000"], {"topology"})
    assert "unsatisfiable topology constraint for pod affinity, key=topology.kubernetes.io/zone (counts = " in details(
        result
    )


@pytest.mark.parametrize("bound", [False, True])
def test_an_affinity_group_that_has_a_zone_opens_no_other(bound: bool) -> None:
    """SCH-556 as kube-scheduler reads it: also for pods that were there before."""
    there = [full_node("old", "z1"), *([running_app_pod("first", "old")] if bound else [])]
    result = PlannedCluster(node_pool(), there).batch(
        app_pods(1, {"cpu": "1"}, affinity=pod_affinity_to(affinity_term(key=ZONE)), **at("z2"))
    )
    assert len(left(result)) == bound


def test_a_pod_on_a_node_without_the_topology_label_does_not_count_for_affinity() -> None:
    """SCH-555 as kube-scheduler reads it: only pods in some domain count."""
    there = [
        node_and_claim("bare", {"cpu": "2"}, labels={"team": "x"}),
        node_and_claim("racked", {"cpu": "2"}, labels={RACK: "r1"}),
    ]
    first = app_pods(1, {"cpu": "1"}, prefix="first", node_selector={"team": "x"})
    result = plan(there, first, app_pods(1, {"cpu": "500m"}, affinity=pod_affinity_to(affinity_term(key=RACK))))
    assert (existing(result), left(result)) == ({"bare": 1, "racked": 1}, [])


def test_a_pod_in_a_domain_of_one_term_keeps_the_other_from_beginning() -> None:
    """SCH-555 as kube-scheduler reads it: terms hold together or begin together."""
    there = [
        node_and_claim("bare", {"cpu": "100m"}, labels={ZONE: "z1"}),
        node_and_claim("racked", {"cpu": "2"}, labels={ZONE: "z1", RACK: "r1"}),
    ]
    both = pod_affinity_to(affinity_term(key=ZONE), affinity_term(key=RACK))
    waiting = app_pods(1, {"cpu": "1"}, affinity=both)
    assert existing(plan(there, waiting)) == {"racked": 1}
    assert left(plan(there, running_app_pod("first", "bare"), waiting)) == ["web-000"]


@pytest.mark.parametrize("key", [ZONE, HOST, KIND])
def test_a_pod_whose_affinity_matches_no_pod_waits(key: str) -> None:
    """S-179"""
    term = affinity_term("missing", key)
    result = PlannedCluster(node_pool()).batch(app_pods(10, affinity=pod_affinity_to(term)))
    assert (len(left(result)), categories(result)) == (10, {"topology"})
    assert left(PlannedCluster(node_pool()).batch(app_pods(10, affinity=pod_affinity_to(preferred=[term])))) == []


@pytest.mark.parametrize("zone", [None, "z1", "z3"], ids=["S-180-free", "S-180-z1", "S-180-z3"])
@pytest.mark.parametrize("requests", [("1", "100m"), ("100m", "1")], ids=["leader-first", "leader-last"])
def test_followers_go_to_the_zone_their_leader_is_planned_in(zone: str | None, requests: tuple[str, str]) -> None:
    """S-180 differs from the reference where the leader is free: its zone is settled at once, so no pod waits for a next pass."""
    cluster = PlannedCluster(node_pool())
    leader = app_pods(1, {"cpu": requests[0]}, **(at(zone) if zone else {}))
    result = cluster.batch(
        leader,
        app_pods(10, {"cpu": requests[1]}, app="db", affinity=pod_affinity_to(affinity_term(key=ZONE))),
        pods(1, prefix="other"),
    )
    assert left(result) == []
    assert cluster.counts(app="db") == {cluster.domain_of("web-000"): 10}
    assert zone in (None, cluster.domain_of("web-000"))


def test_a_chain_of_followers_is_planned_in_one_pass() -> None:
    """SCH-233: in whatever order they are planned."""
    cluster = PlannedCluster(node_pool())
    names = ("a", "b", "c", "d")
    chain = [
        app_pods(
            2, {"cpu": f"{4 - number}00m"}, app=name, affinity=pod_affinity_to(affinity_term(names[number + 1], ZONE))
        )
        for number, name in enumerate(names[:-1])
    ]
    assert left(cluster.batch(chain, app_pods(1, {"cpu": "50m"}, app="d", **at("z2")))) == []
    assert cluster.counts() == {"z2": 7}


def test_followers_may_choose_among_zones_with_leaders() -> None:
    """SCH-556"""
    there = [full_node("a", "z1"), full_node("b", "z3")]
    cluster = PlannedCluster(node_pool(), there, running_app_pod("one", "a"), running_app_pod("two", "b"))
    term = pod_affinity_to(affinity_term(key=ZONE))
    free = app_pods(2, {"cpu": "1"}, app="db", prefix="free", affinity=term)
    assert left(cluster.batch(free, app_pods(1, {"cpu": "1"}, app="db", affinity=term, **at("z3")))) == []
    assert (cluster.domain_of("db-000"), set(cluster.counts(app="db")) <= {"z1", "z3"}) == ("z3", True)


def test_an_affinity_group_starts_on_an_existing_node_when_limits_allow_no_new_one() -> None:
    """SCH-555, SCH-233: the cheapest place is not tried for ever."""
    cluster = PlannedCluster(node_pool(limits={"nodes": 1}))
    pinned = app_pods(1, {"cpu": "500m"}, app="db", node_selector={KIND: "spot", ZONE: "z2"})
    assert (
        left(cluster.batch(pinned, app_pods(3, {"cpu": "100m"}, affinity=pod_affinity_to(affinity_term(key=KIND)))))
        == []
    )
    assert (cluster.per_node(), cluster.counts(KIND)) == ([4], {"spot": 4})


def test_no_pod_is_planned_by_affinity_to_pods_that_depend_on_it() -> None:
    """SCH-555: a follower by host comes only where a leader does, and so never opens a capacity type to its leaders."""
    cluster = PlannedCluster(node_pool())
    leaders = app_pods(
        2, {"cpu": "1"}, prefix="leader", spread=[spread_over(KIND)], affinity=pod_affinity_to(affinity_term(key=KIND))
    )
    result = cluster.batch(
        leaders, app_pods(2, {"cpu": "500m"}, spread=[spread_over(KIND)], affinity=pod_affinity_to(affinity_term()))
    )
    assert (sizes(result), left(result)) == ([1], ["leader-001", "web-000", "web-001"])


# -- anti-affinity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repelling", ["web", "db"])
@pytest.mark.parametrize("larger", ["web", "db"])
def test_pods_that_repel_each_other_never_share_a_host(repelling: str, larger: str) -> None:
    """S-181: whichever of the two has the anti-affinity, and whichever is planned first."""
    other = {"web": "db", "db": "web"}
    cluster = PlannedCluster(node_pool())
    cluster.batch(
        [
            app_pods(
                1,
                {"cpu": "500m" if name == larger else "100m"},
                app=name,
                affinity=pod_anti_affinity_to(affinity_term(other[name])) if name == repelling else None,
            )
            for name in other
        ]
    )
    assert cluster.per_node() == [1, 1]


def test_pods_that_repel_their_own_kind_get_a_host_each() -> None:
    """S-181, SCH-560"""
    cluster = PlannedCluster(node_pool(), node_and_claim("there", {"cpu": "8"}))
    result = cluster.batch(app_pods(4, {"cpu": "100m"}, affinity=pod_anti_affinity_to(affinity_term())))
    assert (existing(result), cluster.per_node()) == ({"there": 1}, [1, 1, 1, 1])


@pytest.mark.parametrize("preferred", [False, True], ids=["S-182", "S-182-preferred"])
def test_a_pod_repelled_from_every_zone_waits(preferred: bool) -> None:
    there = [(full_node(f"n{zone}", zone), running_app_pod(f"w{zone}", f"n{zone}")) for zone in ZONES]
    term = affinity_term(key=ZONE)
    own = pod_anti_affinity_to(preferred=[term]) if preferred else pod_anti_affinity_to(term)
    result = PlannedCluster(node_pool(), there).batch(app_pods(1, {"cpu": "1"}, app="db", affinity=own))
    assert left(result) == ([] if preferred else ["db-000"])
    if not preferred:
        assert "for pod anti-affinity, key=topology.kubernetes.io/zone (counts = z1: 1, z2: 1, z3: 1," in details(
            result
        )


def test_a_pod_goes_to_the_zone_that_is_free_of_others() -> None:
    """SCH-561"""
    there = [(full_node(f"n{zone}", zone), running_app_pod(f"w{zone}", f"n{zone}")) for zone in ("z1", "z3")]
    cluster = PlannedCluster(node_pool(), there)
    assert (
        left(cluster.batch(app_pods(3, {"cpu": "1"}, app="db", affinity=pod_anti_affinity_to(affinity_term(key=ZONE)))))
        == []
    )
    assert cluster.counts(app="db") == {"z2": 3}


@pytest.mark.parametrize("preferred", [False, True], ids=["S-183", "S-183-preferred"])
@pytest.mark.parametrize("bound", [False, True], ids=["batch", "existing"])
def test_pods_that_repel_others_from_every_zone_keep_them_waiting(bound: bool, preferred: bool) -> None:
    own = (
        pod_anti_affinity_to(preferred=[affinity_term("s2", ZONE)])
        if preferred
        else pod_anti_affinity_to(affinity_term("s2", ZONE))
    )
    guards: list[object] = []
    for zone in ZONES:
        if bound:
            guards += [full_node(f"n{zone}", zone), running_app_pod(f"g{zone}", f"n{zone}", "s1", affinity=own)]
        else:
            guards += app_pods(1, {"cpu": "1"}, app="s1", prefix=zone, affinity=own, **at(zone))
    result = plan(node_pool(), guards, app_pods(1, {"cpu": "100m"}, app="s2"))
    assert left(result) == ([] if preferred else ["s2-000"])
    assert categories(result) == (set() if preferred else {"topology"})


def test_a_zone_each_for_pods_that_repel_their_own_kind() -> None:
    """S-184 differs from the reference, which places one per pass: zones are settled at once, so one pass serves three."""
    cluster = PlannedCluster(node_pool())
    own = pod_anti_affinity_to(affinity_term(key=ZONE))
    assert left(cluster.batch(app_pods(3, affinity=own))) == []
    assert cluster.counts() == {"z1": 1, "z2": 1, "z3": 1}
    result = cluster.batch(app_pods(3, prefix="late", affinity=own))
    assert (len(left(result)), categories(result), sizes(result)) == (3, {"topology"}, [])


def test_more_pods_than_zones_leave_some_waiting_at_once() -> None:
    """S-184"""
    cluster = PlannedCluster(in_zones("z1", "z2"))
    result = cluster.batch(app_pods(3, affinity=pod_anti_affinity_to(affinity_term(key=ZONE))))
    assert (cluster.counts(), len(left(result))) == ({"z1": 1, "z2": 1}, 1)


@pytest.mark.parametrize("repelled_from", ["z1", "z2"])
def test_free_pods_leave_room_for_a_pod_that_repels_them(repelled_from: str) -> None:
    """SCH-561: zones count as taken by pods planned there, in whatever order pods are planned."""
    cluster = PlannedCluster(in_zones("z1", "z2"))
    guard = app_pods(
        1, {"cpu": "1"}, app="guard", affinity=pod_anti_affinity_to(affinity_term(key=ZONE)), **at(repelled_from)
    )
    assert left(cluster.batch(guard, app_pods(4, {"cpu": "100m"}))) == []
    assert set(cluster.counts(app="web")) == {"z1", "z2"} - {repelled_from}


# -- namespaces ---------------------------------------------------------------------------------------------------------


_NAMED = LabelSelector(match_labels={labels.NAMESPACE_NAME: "other"})


@pytest.mark.parametrize(
    ("fields", "means"),
    [
        pytest.param({}, False, id="S-185-own"),
        pytest.param({"namespaces": ("other", "third")}, True, id="S-185-listed"),
        pytest.param({"namespaces": ("third",)}, False, id="S-185-not-listed"),
        pytest.param({"namespace_selector": LabelSelector()}, True, id="S-185-all"),
        pytest.param({"namespace_selector": _NAMED}, True, id="S-185-selected"),
        pytest.param({"namespaces": ("third",), "namespace_selector": _NAMED}, True, id="S-185-listed-or-selected"),
    ],
)
def test_the_pods_that_a_term_selects_depend_on_namespaces(fields: dict[str, object], means: bool) -> None:
    """S-185, SCH-486: for those it wants near as for those it wants far."""
    there = [node_and_claim("a", {"cpu": "4"}), running_app_pod("leader", "a", meta={"namespace": "other"})]
    term = affinity_term(**fields)
    follower = app_pods(1, {"cpu": "100m"}, app="db", affinity=pod_affinity_to(term))
    assert existing(plan(node_pool(), there, follower)) == ({"a": 1} if means else {})
    stranger = app_pods(1, {"cpu": "100m"}, app="db", affinity=pod_anti_affinity_to(term))
    assert existing(plan(node_pool(), there, stranger)) == ({} if means else {"a": 1})
