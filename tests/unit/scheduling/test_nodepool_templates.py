"""What new NodeClaims of a NodePool start from: which NodePools count, what they stamp, which types are left (SCH §5, §11)."""

from __future__ import annotations

import pytest

from karpenter.api.core import ContainerPort
from karpenter.api.karpenter import NodePool
from karpenter.model import labels
from karpenter.model.requirements import Requirements
from karpenter.scheduling.failed_filters import FilterBreakdown
from karpenter.scheduling.scheduling_options import MinValuesPolicy, SchedulingOptions
from karpenter.scheduling.solution import SkippedNodePool
from karpenter.scheduling.unschedulable_reasons import NoFittingType, PoolSkipReason, TypeCounts, UnschedulableReason
from support.builders import (
    TYPE,
    asked,
    budget,
    container,
    daemon_set,
    details,
    existing,
    expr,
    left,
    new_types,
    node,
    node_and_claim,
    node_pool,
    plan,
    pod,
    pods,
    pool_taint,
    sizes,
    snapshot,
    taint,
    term,
    tolerating,
    wanted,
    where,
)
from support.builders import affinity as node_affinity
from support.instance_types import inc
from support.topology_builders import spread_over
from support.volume_builders import pvc, using, zonal

CLASS_LABEL = "karpenter.kwok.sh/kwoknodeclass"


def used(*objects: object) -> list[str]:
    """NodePools of the planned claims."""
    return [new.node_pool for new in plan(*objects).new_claims]


def test_static_deleted_and_unready_nodepools_take_no_part() -> None:
    """SCH-110: whatever their weight."""
    closed = [node_pool("static", replicas=1, weight=9), node_pool("gone", deleted=True, weight=9)]
    assert used(closed, node_pool("unready", ready=False, weight=9), node_pool("open"), pod("p")) == ["open"]


def test_a_claim_carries_labels_annotations_and_spec_of_its_template() -> None:
    """SCH-120, API-136, API-137: labels of template, NodePool and node class; both hash annotations; the template's spec."""
    fields = {
        "taints": (pool_taint("team"),),
        "startup_taints": (pool_taint("cni"),),
        "expire_after": "24h",
        "termination_grace_period": "1h",
    }
    pool = node_pool("web", labels={"team": "a"}, template=fields)
    (planned,) = plan(pool, pod("p", tolerations=(tolerating("team"),))).new_claims
    meta, spec = planned.claim.metadata, planned.claim.spec
    assert meta.labels.items() >= {"team": "a", labels.NODE_POOL: "web", CLASS_LABEL: "default"}.items()
    assert {"karpenter.sh/nodepool-hash", "karpenter.sh/nodepool-hash-version"} <= set(meta.annotations)
    assert [pair.key for pair in (*spec.taints, *spec.startup_taints)] == ["team", "cni"]
    assert (spec.expire_after, spec.termination_grace_period) == ("24h", "1h")
    assert spec.node_class_ref == pool.spec.template.spec.node_class_ref


def test_labels_that_only_simulations_read_are_never_written() -> None:
    """SCH-120: DaemonSets that select registered or initialized nodes count, yet no claim asks for these labels."""
    selecting = daemon_set("d", {"cpu": "3"}, node_selector={labels.REGISTERED: "true", labels.INITIALIZED: "true"})
    result = plan(node_pool(), selecting, pod("p", {"cpu": "500m"}))
    assert new_types(result) == ["default"]
    assert new_types(plan(node_pool(), pod("p", {"cpu": "500m"}))) == ["small"]
    keys = {requirement.key for requirement in result.new_claims[0].claim.spec.requirements}
    assert not keys & labels.SIMULATION_ONLY


def test_a_template_whose_entries_contradict_each_other_matches_no_type() -> None:
    """SCH-121, SCH-122, SCH-924: the label says amd64, the requirement arm64; the NodePool is left out and named."""
    pool = node_pool(requirements=[wanted(labels.ARCH, "In", "arm64")], labels={labels.ARCH: "amd64"})
    result = plan(pool, pod("p"))
    assert result.skipped_pools == (SkippedNodePool("np", PoolSkipReason.FILTERED),)
    assert details(result) == "nodepool requirements filtered out all available instance types"


def test_existing_nodes_take_pods_while_no_template_is_left() -> None:
    """SCH-122: stage 1 still runs with zero templates."""
    result = plan(node_pool(requirements=[wanted(TYPE, "In", "gone")]), node_and_claim("n", {"cpu": "1"}), pod("p"))
    assert existing(result) == {"n": 1}


def test_a_soft_taint_of_a_nodepool_is_tolerated_when_nothing_else_is_left() -> None:
    """SCH-123: PreferNoSchedule steers pods to other NodePools and keeps none waiting."""
    soft = node_pool("soft", template={"taints": (pool_taint("team", "PreferNoSchedule"),)}, weight=9)
    assert used(soft, node_pool("plain"), pod("p")) == ["plain"]
    assert used(soft, pod("p")) == ["soft"]


def test_only_taints_of_the_template_have_to_be_tolerated_by_pods_of_new_claims() -> None:
    """SCH-402, SCH-291.1: startup taints never have to be."""
    tainted = node_pool(template={"taints": (pool_taint("team"),)})
    starting = node_pool(template={"startup_taints": (pool_taint("cni"),)})
    assert left(plan(tainted, pod("p"))) == ["p"]
    assert details(plan(tainted, pod("p"))) == "did not tolerate taint (taint=team:NoSchedule)"
    assert left(plan(starting, pod("p"))) == []


def test_tolerations_of_pods_put_no_taints_on_nodes() -> None:
    """SCH-403: taints come from the NodePool alone."""
    (planned,) = plan(node_pool(), pod("p", tolerations=(tolerating("team", "Equal", "a"),))).new_claims
    assert (planned.claim.spec.taints, planned.claim.spec.startup_taints) == ((), ())


def test_types_are_grouped_by_the_daemon_sets_that_run_on_them() -> None:
    """SCH-215: each group has the sum of its DaemonSets, and only types of that group pay for them."""
    daemons = [
        daemon_set("everywhere", {"cpu": "1"}),
        daemon_set("on-arm", {"cpu": "13"}, node_selector={labels.ARCH: "arm64"}),
    ]
    assert new_types(plan(node_pool(), daemons, pod("p", {"cpu": "1500m"}))) == ["default"]
    assert left(plan(node_pool(), daemons, pod("p", {"cpu": "2"}, node_selector={labels.ARCH: "arm64"}))) == ["p"]


def test_a_claim_requests_its_pods_and_the_least_of_its_daemon_sets() -> None:
    """SCH-610, SCH-615: with one slot per pod; the placeholder of the hostname is gone."""
    everywhere = daemon_set("everywhere", {"cpu": "100m"})
    (planned,) = plan(node_pool(), everywhere, pods(2, {"cpu": "500m", "memory": "100Mi"})).new_claims
    assert planned.claim.spec.resources.requests == {"cpu": "1100m", "memory": "200Mi", "pods": "3"}
    assert labels.HOSTNAME not in {requirement.key for requirement in planned.claim.spec.requirements}


def test_offerings_are_not_narrowed_on_the_claim() -> None:
    """SCH-332: zone and capacity type are chosen at launch, from the requirements."""
    result = plan(node_pool(), pod("p"))
    assert asked(result, labels.ZONE) == []
    assert asked(result, labels.CAPACITY_TYPE) == [("In", ("on-demand", "spot"))]


def test_requirements_of_pods_narrow_the_claim_and_its_types() -> None:
    """SCH-290, SCH-292: a second pod joins with what it asks for, and both hold from then on."""
    first = pod("a", {"cpu": "1"}, affinity=where(labels.ZONE, "In", "z1", "z2"))
    second = pod("b", {"cpu": "1"}, affinity=where(labels.ZONE, "In", "z2", "z3"))
    result = plan(node_pool(requirements=[wanted(TYPE, "NotIn", "small")]), first, second)
    assert sizes(result) == [2]
    assert asked(result, labels.ZONE) == [("In", ("z2",))]
    assert "small" not in result.new_claims[0].instance_types
    assert "single" not in result.new_claims[0].instance_types  # room for one pod


def test_an_unplaced_pod_gets_the_reason_of_each_template_in_order() -> None:
    """SCH-312, SCH-310: the heavier NodePool was tried first; reasons are joined."""
    heavy = node_pool("heavy", template={"taints": (pool_taint("team"),)}, weight=9)
    result = plan(heavy, node_pool("light", limits={"nodes": "0"}), pod("p"))
    assert [reason.node_pool for reason in result.unschedulable[0].reasons] == ["heavy", "light"]


@pytest.mark.parametrize(
    ("pool", "asking", "text"),
    [
        pytest.param(
            node_pool(requirements=[wanted(labels.ARCH, "In", "amd64")]),
            pod("p", node_selector={labels.ARCH: "arm64"}),
            "incompatible requirements, key kubernetes.io/arch, kubernetes.io/arch In [arm64] not in "
            "kubernetes.io/arch In [amd64]",
            id="SCH-921-key-mismatch",
        ),
        pytest.param(
            node_pool(),
            pod("p", node_selector={"topology.kubernetes.io/zon": "z1"}),
            'incompatible requirements, label "topology.kubernetes.io/zon" does not have known values '
            '(typo of "topology.kubernetes.io/zone"?)',
            id="SCH-922-undefined-label",
        ),
        pytest.param(
            node_pool(requirements=[wanted(TYPE, "In", "gone")]),
            pod("p"),
            "nodepool requirements filtered out all available instance types",
            id="SCH-924-no-types",
        ),
        pytest.param(
            node_pool(limits={"nodes": "0"}),
            pod("p"),
            "node limits have been exhausted for nodepool (NodePool=np)",
            id="SCH-925-nodes",
        ),
        pytest.param(
            node_pool(limits={"cpu": "1"}),
            pod("p"),
            "all available instance types exceed limits for nodepool (NodePool=np)",
            id="SCH-925-limits",
        ),
        pytest.param(
            node_pool(template={"taints": (pool_taint("team"),)}),
            pod("p"),
            "did not tolerate taint (taint=team:NoSchedule)",
            id="SCH-926-attributes",
        ),
    ],
)
def test_reasons_have_the_texts_users_alert_on(pool: NodePool, asking: object, text: str) -> None:
    """SCH-921 to SCH-926: SCH-923's prefix heads both mismatches; attributes stand in parentheses."""
    assert details(plan(pool, asking)) == text


def test_the_text_of_a_failed_type_filter_has_requests_and_requirements() -> None:
    """SCH-335, SCH-199: requests are JSON with sorted keys, with the least and the most DaemonSets add."""
    mixed = [daemon_set("all", {"cpu": "1"}), daemon_set("arm", {"cpu": "2"}, node_selector={labels.ARCH: "arm64"})]
    text = details(plan(node_pool(), mixed, pod("p", {"memory": "1Gi", "cpu": "90"})))
    assert text.startswith("no instance type has enough resources, requirements=")
    assert text.endswith(
        'resources=min={"cpu":"91","memory":"1Gi","pods":"2"}, max={"cpu":"93","memory":"1Gi","pods":"3"}'
    )
    plain = details(plan(node_pool(), pod("p", {"memory": "1Gi", "cpu": "90"})))
    assert plain.endswith('resources={"cpu":"90","memory":"1Gi","pods":"1"}')


@pytest.mark.parametrize(
    ("counts", "category"),
    [
        ({}, "types-nothing"),
        ({"offered": 1}, "types-requirements-or-resources"),
        ({"with_room": 1}, "types-requirements-or-offering"),
        ({"matching": 1}, "types-resources-or-offering"),
        ({"with_room": 1, "offered": 1}, "types-requirements"),
        ({"matching": 1, "offered": 1}, "types-resources"),
        ({"matching": 1, "with_room": 1}, "types-offering"),
        ({"matching": 1, "with_room": 1, "offered": 1, "matching_with_room": 1}, "types-offering-of-fitting"),
        ({"matching": 1, "with_room": 1, "offered": 1, "with_room_offered": 1}, "types-requirements-of-fitting"),
        ({"matching": 1, "with_room": 1, "offered": 1, "matching_offered": 1}, "types-resources-of-matching"),
        ({"matching": 1, "with_room": 1, "offered": 1}, "types-never-together"),
    ],
)
def test_a_failure_is_described_by_what_any_type_passes_alone_and_in_pairs(
    counts: dict[str, int], category: str
) -> None:
    """SCH-333, SCH-334, SCH-860: flags over all types, and one category for each combination of them."""
    passed = TypeCounts(within_limits=1, considered=1, **counts)
    cause = NoFittingType(passed, Requirements(), {}, {}, {}, (), FilterBreakdown(0, 0, ()))
    assert UnschedulableReason(cause, "np").category.value == category


def test_limits_hold_whatever_their_resource_is_called() -> None:
    """SCH-380, API-071: ``nodes`` counts nodes, any other name the capacity of that name; without limits all is allowed."""
    asking = pod("p", {"a/gpu": "1"}), pod("q", {"a/gpu": "2"})
    assert len(left(plan(node_pool(limits={"a/gpu": "2"}), asking))) == 1
    assert left(plan(node_pool(limits={"made.up/thing": "0"}), asking)) == []
    assert left(plan(node_pool(), asking)) == []


def test_usage_of_a_nodepool_is_the_capacity_of_its_staying_nodes() -> None:
    """SCH-096: nodes marked for deletion count nothing, nodes of other NodePools neither."""
    pools = [node_pool(limits={"cpu": "4"}), node_pool("other", ready=False)]
    there = [
        node_and_claim("leaving", {"cpu": "4"}, deleted=True),
        node_and_claim("foreign", {"cpu": "4"}, pool="other"),
    ]
    full = [pod("r", {"cpu": "4"}, node_name="foreign")]
    assert left(plan(pools, there, full, pod("p", {"cpu": "3"}))) == []
    assert left(plan(pools, there, full, node_and_claim("mine", {"cpu": "2"}), pod("p", {"cpu": "3"}))) == ["p"]


# -- existing nodes -------------------------------------------------------------------------------------------------------


def test_initialized_nodes_take_pods_first_and_then_by_name() -> None:
    """SCH-270: the order is fixed for the pass."""
    nodes = [
        node_and_claim("a", {"cpu": "1"}, initialized=False),
        node_and_claim("c", {"cpu": "1"}),
        node_and_claim("b", {"cpu": "1"}),
    ]
    assert existing(plan(node_pool(), nodes, pod("p", {"cpu": "1"}))) == {"b": 1}
    assert existing(plan(node_pool(), nodes, pods(3, {"cpu": "1"}))) == {"b": 1, "c": 1, "a": 1}
    assert existing(plan(node_pool(), nodes, pods(2, {"cpu": "1"}))) == {"b": 1, "c": 1}


@pytest.mark.parametrize(("label", "hostname"), [({labels.HOSTNAME: ""}, "n"), ({labels.HOSTNAME: "host"}, "host")])
def test_a_node_is_known_by_its_hostname_label_and_else_by_its_name(label: dict[str, str], hostname: str) -> None:
    """SCH-083, SCH-271: the hostname is a requirement of the node."""
    (view,) = snapshot(node("n", {"cpu": "4"}, labels=label)).nodes
    assert view.hostname == hostname
    assert view.requirements[labels.HOSTNAME].values == {hostname}


@pytest.mark.parametrize(
    "blocked",
    [
        pytest.param((node("n", {"cpu": "4"}, taints=(taint("team"),)), pod("p")), id="2-taint"),
        pytest.param((node("n", {"cpu": "4"}), pod("p", {"cpu": "5"})), id="5-resources"),
        pytest.param((node("n", {"cpu": "4"}), pod("p", node_selector={"team": "a"})), id="6-requirements"),
    ],
)
def test_a_node_that_fails_a_check_takes_no_pod(blocked: tuple[object, ...]) -> None:
    """SCH-272, SCH-920: taints, resources, requirements; volumes, ports and topology have tests of their own."""
    assert existing(plan(blocked)) == {}


def test_nodes_of_others_unready_and_cordoned_nodes_are_excluded_by_their_taints_only() -> None:
    """SCH-095: ``spec.unschedulable`` is not read; its taint is."""
    cordoned = node("n", {"cpu": "4"}, taints=(taint("node.kubernetes.io/unschedulable"),))
    assert existing(plan(cordoned, pod("p"))) == {}
    assert existing(plan(cordoned, pod("p", tolerations=(tolerating("node.kubernetes.io/unschedulable"),)))) == {"n": 1}
    assert existing(plan(node("n", {"cpu": "4"}), pod("p"))) == {"n": 1}
    assert existing(plan(node_and_claim("n", {"cpu": "4"}, deleted=True), pod("p"))) == {}


def test_a_placed_pod_takes_its_requests_from_the_node() -> None:
    """SCH-274, SCH-091: what is left is allocatable less the requests of bound and of placed pods."""
    there = [node("n", {"cpu": "4"}), pod("r", {"cpu": "1"}, node_name="n")]
    assert existing(plan(there, pods(9, {"cpu": "1"}))) == {"n": 3}


def test_a_pod_whose_volume_cannot_be_looked_up_goes_to_no_existing_node() -> None:
    """SCH-273: other pods do."""
    asking = pod("p", {"cpu": "1"}, volumes=using("gone"))
    result = plan(node_and_claim("n", {"cpu": "4"}), asking, pod("q", {"cpu": "1"}))
    assert (existing(result), left(result)) == ({"n": 1}, ["p"])


def test_a_host_port_of_a_bound_pod_is_taken_until_the_pod_ends() -> None:
    """SCH-092: the ports of all bound pods of a node that have not ended."""
    ports = (container(ports=(ContainerPort(container_port=80, host_port=80),)),)
    asking = pod("p", containers=ports)
    running = pod("r", node_name="n", containers=ports)
    ended = pod("r", node_name="n", containers=ports, status={"phase": "Succeeded"})
    assert existing(plan(node("n", {"cpu": "4"}), running, asking)) == {}
    assert existing(plan(node("n", {"cpu": "4"}), ended, asking)) == {"n": 1}


def test_a_zonal_volume_does_not_shrink_the_zones_a_spread_compares() -> None:
    """SCH-442: the smallest count is taken over all zones, so the second pod of a full zone stays pending."""
    spread = spread_over(labels.ZONE)
    there = [pvc(name, name) for name in ("a", "b")], [zonal(name, "z1") for name in ("a", "b")]
    asking = [
        pod(
            name,
            {"cpu": "1"},
            volumes=using(name),
            meta={"labels": {"app": "web"}},
            topology_spread_constraints=(spread,),
        )
        for name in ("a", "b")
    ]
    result = plan(node_pool(), there, asking)
    assert len(left(result)) == 1
    assert asked(result, labels.ZONE) == [("In", ("z1",))]


def test_best_effort_lowers_min_values_before_a_lighter_nodepool_is_tried() -> None:
    """SCH-365: Strict goes on to the next NodePool, BestEffort stays with the first that works otherwise."""
    heavy = node_pool("heavy", [wanted(TYPE, "Exists", least=3)], weight=9)
    pools = [heavy, node_pool("light")]
    best_effort = SchedulingOptions(min_values=MinValuesPolicy.BEST_EFFORT)
    assert [new.node_pool for new in plan(pools, pod("p"), types=inc(2)).new_claims] == ["light"]
    relaxed = plan(pools, pod("p"), types=inc(2), options=best_effort)
    assert [new.node_pool for new in relaxed.new_claims] == ["heavy"]


def test_a_missing_label_stays_missing_after_a_pod_that_excludes_its_values() -> None:
    """SCH-274 Beyond: a pod's NotIn on a label that the node lacks defines nothing for the next pod."""
    excluding = pod("a", {"cpu": "1"}, affinity=where("team", "NotIn", "x"))
    result = plan(node("n", {"cpu": "4"}), excluding, pod("b", {"cpu": "1"}, node_selector={"team": "y"}))
    assert (existing(result), left(result)) == ({"n": 1}, ["b"])


def test_pods_of_a_leaving_node_are_placed_like_pending_pods() -> None:
    """SCH-275: they still run, and their place is found in the same pass."""
    running = pod("r", {"cpu": "1"}, node_name="old", meta={"owner_references": ()})
    leaving = node_and_claim("old", {"cpu": "4"}, deleted=True)
    result = plan(node_pool(), leaving, node_and_claim("new", {"cpu": "4"}), running, pod("p", {"cpu": "1"}))
    assert existing(result) == {"new": 2}


def test_the_first_required_term_and_the_heaviest_preference_come_first() -> None:
    """SCH-161: preferences count as requirements until they are relaxed."""
    terms = node_affinity(
        term(expr(labels.ZONE, "In", "z1")),
        term(expr(labels.ZONE, "In", "z2")),
        preferred=[(1, term(expr(TYPE, "In", "small"))), (9, term(expr(TYPE, "In", "default")))],
    )
    result = plan(node_pool(), pod("p", affinity=terms))
    assert asked(result, labels.ZONE) == [("In", ("z1",))]
    assert new_types(result) == ["default"]


def test_a_type_must_hold_the_pod_beside_its_daemon_sets() -> None:
    """SCH-330: requests of pod and DaemonSets count together; a type is left out as soon as they exceed it."""
    daemons = daemon_set("d", {"cpu": "1"})
    assert new_types(plan(node_pool(), daemons, pod("p", {"cpu": "800m"}))) == ["small"]
    assert new_types(plan(node_pool(), daemons, pod("p", {"cpu": "1"}))) == ["default"]


def test_a_budget_keeps_no_pending_pod_from_being_planned() -> None:
    """SCH-022: a pass plans from the cluster as it is, and binds nothing."""
    result = plan(
        node_pool(), budget("b", {"app": "web"}, min_available="100%"), pod("p", meta={"labels": {"app": "web"}})
    )
    assert (new_types(result), existing(result)) == (["small"], {})
