"""Which nodes are launched, which pods share them, and the effect of existing nodes and DaemonSets: S-040 to S-093."""

from __future__ import annotations

import pytest

from karpenter.api.apps import DaemonSet
from karpenter.api.core import Node, PodResourceClaim, ResourceRequirements
from karpenter.api.karpenter import NodeClaim
from karpenter.model import labels
from support.builders import (
    affinity,
    categories,
    claim,
    container,
    daemon_set,
    existing,
    expr,
    left,
    new_types,
    node,
    node_and_claim,
    node_pool,
    owner,
    plan,
    pod,
    pods,
    pool_taint,
    seconds,
    sizes,
    taint,
    term,
    tolerating,
    wanted,
    where,
)
from support.instance_types import inc, offering, shape

AMD = {labels.ARCH: "amd64"}
#: Prices of the two small types of STD.
SMALL, DEFAULT = 0.2 + 0.1 * 2 * 2**30 / 1e9, 0.4 + 0.1 * 4 * 2**30 / 1e9


# -- sizing and packing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "spec", "chosen"),
    [
        pytest.param({"memory": "100M"}, {}, "small", id="S-040-little"),
        pytest.param({"memory": "2000M"}, {}, "small", id="S-040-much"),
        pytest.param({"cpu": "1"}, {"overhead": {"cpu": "2"}}, "default", id="S-041"),
        pytest.param({"cpu": "1"}, {"init_containers": (container({"cpu": "2"}),)}, "default", id="S-049"),
        pytest.param(
            {"cpu": "1"}, {"resources": ResourceRequirements(requests={"cpu": "3"})}, "default", id="S-056-pod-level"
        ),
        pytest.param({"unknown/thing": "0"}, {}, "small", id="S-047"),
        pytest.param({"a/gpu": "1"}, {}, "gpu-a", id="S-053-a"),
        pytest.param({"b/gpu": "2"}, {}, "gpu-b", id="S-053-b"),
    ],
)
def test_the_cheapest_type_that_holds_a_pod_is_launched(
    requests: dict[str, str], spec: dict[str, object], chosen: str
) -> None:
    """S-040, S-041, S-047, S-049, S-053, S-056"""
    assert new_types(plan(node_pool(), pod("p", requests, **spec))) == [chosen]


@pytest.mark.parametrize(
    ("requests", "spec"),
    [
        pytest.param({"memory": "2Ti"}, {}, id="S-048"),
        pytest.param({}, {"init_containers": (container({"memory": "1Ti"}),)}, id="S-050"),
        pytest.param({"a/gpu": "1", "b/gpu": "1"}, {}, id="S-053-both"),
        pytest.param({"unknown/thing": "1"}, {}, id="unknown-resource"),
    ],
)
def test_a_pod_no_type_holds_is_left_with_the_category_of_resources(
    requests: dict[str, str], spec: dict[str, object]
) -> None:
    """S-048, S-050, S-053, row 7 of SCH-334"""
    result = plan(node_pool(), pod("p", requests, **spec))
    assert (left(result), categories(result)) == (["p"], {"types-resources"})


def test_small_pods_share_a_small_node() -> None:
    """S-042"""
    result = plan(node_pool(), pods(5, {"memory": "10M"}))
    assert (new_types(result), sizes(result)) == (["small"], [5])


def test_forty_pods_of_memory_cost_no_more_than_twenty_nodes() -> None:
    """S-043: the reference puts two on each of 20 ``default`` nodes; one on a ``small`` costs half as much, so 40 are as good.

    What counts is the price: never more than the reference's plan.
    """
    result = plan(node_pool(), pods(40, {"memory": "1800M"}, node_selector=AMD))
    assert left(result) == []
    assert result.price_per_hour <= 20 * DEFAULT + 1e-9


def test_little_pods_join_large_ones_at_no_extra_cost() -> None:
    """S-044: the reference's 20 ``default`` nodes are the most this may cost."""
    result = plan(
        node_pool(),
        pods(40, {"memory": "1800M"}, node_selector=AMD),
        pods(20, {"memory": "400M"}, prefix="little", node_selector=AMD),
    )
    assert left(result) == []
    assert result.price_per_hour <= 20 * DEFAULT + 1e-9


def test_pods_of_different_size_get_nodes_of_their_size() -> None:
    """S-045: the reference opens two nodes (t4, t0); they do not fit one t4 (4.9 CPU)."""
    result = plan(node_pool(), pod("large", {"cpu": "4500m"}), pod("little", {"cpu": "1"}), types=inc(5))
    assert new_types(result) == ["t1", "t4"]


def test_a_node_takes_no_more_pods_than_it_has_slots_for() -> None:
    """S-046"""
    result = plan(node_pool(), pods(25, {"cpu": "1m"}, node_selector=AMD))
    assert (new_types(result), sizes(result)) == (["small"] * 5, [5] * 5)


def test_all_fitting_types_are_offered_cheapest_first() -> None:
    """S-051: prices inverse to size."""
    types = [shape(f"s{n}", {"cpu": n, "memory": "4Gi", "pods": 9}, [offering("spot", "z1", 1 / n)]) for n in (1, 2, 4)]
    result = plan(node_pool(), pod("p", {"cpu": "100m"}), types=types)
    assert result.new_claims[0].instance_types == ("s4", "s2", "s1")
    assert result.new_claims[0].cheapest_offering.price_per_hour == 0.25


def test_only_offerings_the_pool_accepts_set_the_price() -> None:
    """S-052"""
    types = [
        shape(
            "one",
            {"cpu": 2, "memory": "4Gi", "pods": 9},
            [offering("on-demand", "z1", 1.0), offering("spot", "z1", 0.2)],
        ),
        shape(
            "two",
            {"cpu": 2, "memory": "4Gi", "pods": 9},
            [offering("on-demand", "z1", 1.3), offering("spot", "z1", 0.1)],
        ),
    ]
    pool = node_pool(requirements=[wanted(labels.CAPACITY_TYPE, "In", "on-demand")])
    result = plan(pool, pod("p"), types=types)
    assert result.new_claims[0].instance_types == ("one", "two")
    assert result.price_per_hour == 1.0


def test_a_sold_out_offering_is_not_for_sale() -> None:
    """SCH-116"""
    sold = [offering("spot", "z1", 0.1, available=False), offering("spot", "z2", 0.5)]
    result = plan(node_pool(), pod("p"), types=[shape("t", {"cpu": 2, "memory": "4Gi", "pods": 9}, sold)])
    assert result.new_claims[0].cheapest_offering.zone == "z2"


@pytest.mark.parametrize(("huge", "memory"), [("1Gi", 3 * 1024 - 10), ("5Gi", 0)])
def test_huge_pages_are_no_ordinary_memory(huge: str, memory: int) -> None:
    """S-055. OPS-237: capacity less overhead, and memory less huge pages, never below 0."""
    instance_type = shape("huge", {"cpu": 4, "memory": "4Gi", "pods": 5, "hugepages-2Mi": huge})
    assert instance_type.allocatable["memory"] == memory * 2**20 * 1000


# -- nodes that exist --------------------------------------------------------------------------------------------------


def launched(**fields: object) -> NodeClaim:
    own = {labels.ZONE: "z2", labels.INSTANCE_TYPE: "default"}
    return claim("c", {"cpu": "4", "memory": "4Gi"}, labels=own, provider_id="p://c", **fields)


def test_a_launched_node_that_has_not_registered_is_used() -> None:
    """S-060"""
    result = plan(node_pool(), launched(), pod("p", {"cpu": "1"}))
    assert (existing(result), new_types(result)) == ({"c": 1}, [])


@pytest.mark.parametrize(("zones", "used"), [(("z1", "z2"), True), (("z1", "z3"), False)])
def test_a_node_is_used_where_its_zone_is_acceptable(zones: tuple[str, ...], used: bool) -> None:
    """S-061"""
    there = node("n", {"cpu": "4", "memory": "4Gi"}, labels={labels.ZONE: "z2"})
    result = plan(node_pool(), there, pod("p", {"cpu": "1"}, affinity=where(labels.ZONE, "In", *zones)))
    assert bool(existing(result)) is used
    assert bool(result.new_claims) is not used


def test_a_pod_that_exceeds_a_node_by_a_thousandth_gets_another() -> None:
    """S-062"""
    there = node_and_claim("n", {"cpu": "1900m", "memory": "2Gi", "pods": 5})
    running = pod("r", {"cpu": "1001m"}, node_name="n")
    assert existing(plan(node_pool(), there, running, pod("p", {"cpu": "899m"}))) == {"n": 1}
    assert new_types(plan(node_pool(), there, running, pod("p", {"cpu": "900m"}))) == ["small"]


def test_initialised_nodes_are_filled_first() -> None:
    """S-063"""
    starting = [node_and_claim(f"a{i:03}", {"cpu": "4"}, initialized=False) for i in range(100)]
    result = plan(node_pool(), starting, node_and_claim("z", {"cpu": "4"}), pod("p", {"cpu": "1"}))
    assert existing(result) == {"z": 1}


def test_a_node_without_a_nodeclaim_is_used() -> None:
    """S-064"""
    assert existing(plan(node_pool(), node("n", {"cpu": "4"}), pod("p", {"cpu": "1"}))) == {"n": 1}


PASSING = [
    taint("node.kubernetes.io/not-ready"),
    taint("node.kubernetes.io/not-ready", "NoExecute"),
    taint("node.kubernetes.io/unreachable"),
    taint("node.cloudprovider.kubernetes.io/uninitialized", value="true"),
    taint("karpenter.sh/unregistered", "NoExecute"),
    taint("readiness.k8s.io/network", "PreferNoSchedule"),
    taint("starting", "NoSchedule", "whatever"),
]


def tainted(obj: object, *, initialized: bool) -> tuple[Node, NodeClaim]:
    startup = {"startup_taints": (pool_taint("starting"),)}
    return node_and_claim("n", {"cpu": "4"}, taints=[obj], initialized=initialized, **startup)


@pytest.mark.parametrize("obj", PASSING, ids=lambda obj: f"{obj.key}:{obj.effect}")
def test_taints_of_starting_up_do_not_keep_pods_off_a_starting_node(obj: object) -> None:
    """S-065, S-066"""
    waiting = pod("p", {"cpu": "1"})
    assert existing(plan(node_pool(), tainted(obj, initialized=False), waiting)) == {"n": 1}
    initialized = plan(node_pool(), tainted(obj, initialized=True), waiting)
    unmanaged = plan(node_pool(), node("n", {"cpu": "4"}, taints=[obj]), waiting)
    if getattr(obj, "effect", "") != "PreferNoSchedule":
        assert (existing(initialized), existing(unmanaged)) == ({}, {})


def test_any_other_taint_keeps_pods_off_a_starting_node() -> None:
    """S-067"""
    assert existing(plan(node_pool(), tainted(taint("mine"), initialized=False), pod("p", {"cpu": "1"}))) == {}


@pytest.mark.parametrize(("initialized", "used"), [(False, True), (True, False)])
def test_a_device_the_kubelet_does_not_show_yet_is_taken_from_the_claim(initialized: bool, used: bool) -> None:
    """S-068"""
    there, behind = node_and_claim("n", {"cpu": "4", "a/gpu": "0"}, initialized=initialized)
    promised = claim("claim-n", {"cpu": "4", "a/gpu": "1"}, provider_id="p://n", labels=behind.metadata.labels)
    result = plan(node_pool(), there, promised, pod("p", {"a/gpu": "1"}))
    assert bool(existing(result)) is used


def test_which_open_claim_a_pod_joins_is_decided_by_price() -> None:
    """S-070: the reference joins the open claim with the fewest pods. Here the cheapest packing says who shares a claim, so the
    promise is its price: two pods of 900m per ``small``.
    """
    result = plan(node_pool(), pods(6, {"cpu": "900m", "memory": "100Mi"}, node_selector=AMD))
    assert left(result) == []
    assert sum(sizes(result)) == 6
    assert result.price_per_hour <= 3 * SMALL + 1e-9


def test_a_large_node_without_a_nodeclaim_takes_all_small_pods() -> None:
    """S-071"""
    big = node("n", {"cpu": "64", "memory": "256Gi", "pods": 200})
    assert existing(plan(node_pool(), big, pods(100, {"cpu": "10m"}))) == {"n": 100}


def test_a_pod_stays_planned_where_the_last_pass_planned_it() -> None:
    """A node that is nearly full when the other registers must not attract the pods planned for that one."""
    nodes = [node_and_claim("a", {"cpu": "4"}), node_and_claim("b", {"cpu": "4"})]
    waiting = pod("p", {"cpu": "1"}, status={"nominated_node_name": "b", "conditions": pod("x").status.conditions})
    assert existing(plan(node_pool(), nodes, waiting)) == {"b": 1}


# -- DaemonSets -----------------------------------------------------------------------------------------------------------

DAEMON = {"cpu": "2", "memory": "2Gi"}
LITTLE = {"cpu": "1", "memory": "1Gi"}


def test_a_node_holds_its_daemons_beside_its_pods() -> None:
    """S-080"""
    result = plan(node_pool(), daemon_set("d", DAEMON), pod("p", LITTLE))
    assert new_types(result) == ["default"]


def test_daemons_are_expected_in_spite_of_startup_taints() -> None:
    """S-081"""
    pool = node_pool(template={"startup_taints": (pool_taint("starting"),)})
    assert new_types(plan(pool, daemon_set("d", DAEMON), pod("p", LITTLE))) == ["default"]


def test_a_daemon_larger_than_every_node_leaves_pods_waiting() -> None:
    """S-082"""
    result = plan(node_pool(), daemon_set("d", {"cpu": "10000"}), pod("p", LITTLE))
    assert (left(result), categories(result)) == (["p"], {"types-resources"})


@pytest.mark.parametrize(
    ("spec", "counted"),
    [
        pytest.param({"node_selector": {"team": "other"}}, False, id="S-083-label"),
        pytest.param({"node_selector": {labels.ARCH: "arm64"}}, False, id="S-083-type"),
        pytest.param({"affinity": affinity(term())}, False, id="empty-term"),
        pytest.param({"node_selector": {"team": "v"}}, True, id="S-084-template-label"),
        pytest.param({"node_selector": {labels.REGISTERED: "true"}}, True, id="S-084-registered"),
        pytest.param({"node_selector": {labels.INITIALIZED: "true"}}, True, id="S-084-initialized"),
        pytest.param({"affinity": where("foo", "NotIn", "bar")}, True, id="S-085"),
        pytest.param({"affinity": affinity(preferred=[(1, term(expr("a", "In", "b")))])}, True, id="S-086"),
        pytest.param(
            {"affinity": affinity(term(expr("a", "In", "b")), term(expr(labels.ARCH, "In", "amd64")))}, True, id="terms"
        ),
    ],
)
def test_a_daemon_counts_where_it_will_run(spec: dict[str, object], counted: bool) -> None:
    """S-083 to S-086"""
    result = plan(node_pool(labels={"team": "v"}), daemon_set("d", DAEMON, **spec), pod("p", LITTLE, node_selector=AMD))
    assert new_types(result) == ["default" if counted else "small"]


@pytest.mark.parametrize(("effect", "counted"), [("NoSchedule", False), ("PreferNoSchedule", True)])
def test_a_daemon_that_does_not_tolerate_the_pool_does_not_count(effect: str, counted: bool) -> None:
    """S-083, S-087"""
    pool = node_pool(template={"taints": (pool_taint("team", effect),)})
    waiting = pod("p", LITTLE, tolerations=(tolerating("team"),))
    assert new_types(plan(pool, daemon_set("d", DAEMON), waiting)) == ["default" if counted else "small"]


def live(name: str, requests: dict[str, str], created: float = 0, **spec: object) -> object:
    meta = {"owner_references": (owner("DaemonSet", "d"),), "creation_timestamp": seconds(created)}
    return pod(name, requests, node_name="elsewhere", meta=meta, **spec)


def test_requests_of_a_running_daemon_pod_win_over_its_template() -> None:
    """S-088: the newest one counts."""
    older, newer = live("d-1", {"cpu": "10m"}), live("d-2", DAEMON, created=5)
    result = plan(node_pool(), daemon_set("d", {"cpu": "10m"}), newer, older, pod("p", LITTLE))
    assert new_types(result) == ["default"]


def test_a_running_daemon_pod_is_pinned_to_its_host_but_the_daemon_is_not() -> None:
    """S-089"""
    pinned = live("d-1", DAEMON, affinity=where(labels.HOSTNAME, "In", "elsewhere"))
    assert new_types(plan(node_pool(), daemon_set("d", DAEMON), pinned, pod("p", LITTLE))) == ["default"]


def test_limits_of_a_daemon_without_pods_stand_for_missing_requests() -> None:
    """SCH-211"""
    assert new_types(plan(node_pool(), daemon_set("d", limits=DAEMON), pod("p", LITTLE))) == ["default"]


def test_a_claim_asks_for_its_pods_and_daemons_together() -> None:
    """S-091"""
    result = plan(node_pool(), daemon_set("d", {"cpu": "1"}), pods(2, {"cpu": "1"}))
    assert sizes(result) == [2]
    assert dict(result.new_claims[0].claim.spec.resources.requests) == {"cpu": "3", "pods": "3"}


def test_a_claim_whose_types_run_different_daemons_asks_for_the_least() -> None:
    """SCH-217 Beyond: a type without daemons counts as nothing."""
    only_arm = daemon_set("d", {"cpu": "1"}, node_selector={labels.ARCH: "arm64"})
    result = plan(node_pool(), only_arm, pod("p", {"cpu": "1"}))
    assert {"small", "arm"} <= set(result.new_claims[0].instance_types)
    assert dict(result.new_claims[0].claim.spec.resources.requests) == {"cpu": "1", "pods": "1"}


def test_a_daemon_that_runs_already_is_not_reserved_for_twice() -> None:
    """S-092"""
    there = node("n", {"cpu": "2"})
    running = pod("d-1", {"cpu": "1"}, node_name="n", meta={"owner_references": (owner("DaemonSet", "d"),)})
    waiting = pod("p", {"cpu": "1"})
    assert existing(plan(daemon_set("d", {"cpu": "1"}), there, running, waiting)) == {"n": 1}
    assert existing(plan(daemon_set("d", {"cpu": "1500m"}), there, waiting)) == {}


@pytest.mark.parametrize(
    ("item", "reserved"),
    [
        (daemon_set("d", {"cpu": "1500m"}, node_selector={"team": "other"}), False),
        (daemon_set("d", {"cpu": "1500m"}, node_selector={labels.ZONE: "z1"}), False),
        (daemon_set("d", {"cpu": "1500m"}, node_selector={"team": "v"}), True),
        (daemon_set("d", {"cpu": "1500m"}), True),
    ],
    ids=["other-label", "label-missing", "label-there", "plain"],
)
def test_an_existing_node_reserves_for_daemons_its_labels_suit(item: DaemonSet, reserved: bool) -> None:
    """S-093"""
    there = node("n", {"cpu": "2"}, labels={"team": "v"})
    assert bool(existing(plan(item, there, pod("p", {"cpu": "1"})))) is not reserved


def test_a_node_that_is_starting_reserves_for_daemons_that_wait_for_its_registration() -> None:
    """S-084, S-220: the label comes before the pods do."""
    late = daemon_set("d", {"cpu": "1500m"}, node_selector={labels.INITIALIZED: "true"})
    starting = claim("c", {"cpu": "2"}, provider_id="p://c")
    assert existing(plan(late, starting, pod("p", {"cpu": "1"}))) == {}


def test_a_claim_in_flight_keeps_room_for_the_daemons_of_each_of_its_types() -> None:
    """SCH-220 for claims that have not launched."""
    only_arm = daemon_set("d", {"cpu": "13"}, node_selector={labels.ARCH: "arm64"})
    flying = claim("c", None, [wanted(labels.INSTANCE_TYPE, "In", "default", "arm")])
    assert existing(plan(node_pool(), only_arm, flying, pods(4, {"cpu": "1"}))) == {"c": 2}


def test_a_daemon_set_with_device_claims_is_no_overhead() -> None:
    """SCH-212, K15-174: only while requests of devices are ignored."""
    daemons = daemon_set("d", DAEMON, resource_claims=(PodResourceClaim(name="gpu"),))
    assert new_types(plan(node_pool(), daemons, pod("p", LITTLE, node_selector=AMD))) == ["small"]


def test_a_pod_spec_without_containers_needs_a_slot_only() -> None:
    """SCH-195"""
    result = plan(node_pool(), pod("p", containers=()))
    assert dict(result.new_claims[0].claim.spec.resources.requests) == {"pods": "1"}


def test_pods_share_a_node_only_where_one_offering_suits_them_all() -> None:
    """SCH-331 O: each pod's zone and capacity type is on sale, both together are not."""
    sold = [offering("spot", "z1", 0.1), offering("on-demand", "z2", 0.3)]
    types = [shape("t", {"cpu": 4, "memory": "4Gi", "pods": 9}, sold)]
    waiting = [
        pod("a", {"cpu": "1"}, node_selector={labels.ZONE: "z2"}),
        pod("b", {"cpu": "1"}, node_selector={labels.CAPACITY_TYPE: "spot"}),
    ]
    result = plan(node_pool(), waiting, types=types)
    assert (sizes(result), left(result)) == ([1, 1], [])
    assert sorted(new_nodeclaim.cheapest_offering.zone for new_nodeclaim in result.new_claims) == ["z1", "z2"]


def test_a_pod_alone_gets_a_reason_when_no_offering_suits_it() -> None:
    """SCH-334 row 8, which the reference reports as resources or offering (SCH-331 Beyond)."""
    types = [
        shape(
            "t", {"cpu": 4, "memory": "4Gi", "pods": 9}, [offering("spot", "z1", 0.1), offering("on-demand", "z2", 0.3)]
        )
    ]
    result = plan(node_pool(), pod("p", node_selector={labels.ZONE: "z2", labels.CAPACITY_TYPE: "spot"}), types=types)
    assert (left(result), categories(result)) == (["p"], {"types-offering"})
