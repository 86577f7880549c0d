"""Which pods take part, and which labels they may ask for: scenarios S-004 to S-035 of the scheduling specification."""

from __future__ import annotations

import time

import pytest

from karpenter.api.core import Pod
from karpenter.api.meta import Condition
from karpenter.api.scheduling_constraints import Affinity, NodeSelectorRequirement, NodeSelectorTerm
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.explain.reason_messages import skipped_pool_message, unschedulable_message
from karpenter.scheduling.failed_filters import ConflictingRequirement, UndefinedLabel
from karpenter.scheduling.pod_eligibility import is_opt_out
from karpenter.scheduling.solution import SkippedNodePool, Solution
from karpenter.scheduling.unschedulable_reasons import PoolSkipReason
from support.builders import (
    ANY_CAPACITY,
    NODE_CLASS,
    NOW,
    UNSCHEDULABLE,
    affinity,
    asked,
    bought,
    budget,
    categories,
    claim,
    daemon_set,
    details,
    existing,
    expr,
    left,
    machine,
    node,
    node_pool,
    owner,
    plan,
    pod,
    pods,
    replaced,
    sizes,
    term,
    wanted,
    where,
)
from support.shapes import INTEGER, SIZE, SPECIAL, inc, offering, shape

GATED = Condition(type="PodScheduled", status="False", reason="SchedulingGated")


@pytest.mark.parametrize(
    "waiting",
    [
        pod("p", status={"conditions": ()}),
        pod("p", status={"conditions": (GATED,)}),
        pod("p", meta={"owner_references": (owner("DaemonSet"),)}),
        pod("p", meta={"owner_references": (owner("Node", api_version="v1"),)}),
        pod("p", meta={"deletion_timestamp": NOW}),
    ],
    ids=["S-004-unseen", "S-004-gated", "S-004-daemon", "S-004-mirror", "S-005-terminating"],
)
def test_pods_that_do_not_wait_for_a_node_are_ignored(waiting: Pod) -> None:
    """S-004. S-005: a terminating pod is left out too, where the reference buys a node for it (SCH-041 Beyond)."""
    result = plan(node_pool(), waiting)
    assert (result.new_claims, result.unschedulable) == ((), ())


def nominated(**meta: object) -> Pod:
    status = {"conditions": (UNSCHEDULABLE,), "nominated_node_name": "n"}
    return pod("p", {"cpu": "1"}, status=status, meta=meta, priority=10)


def test_a_pod_for_which_others_are_preempted_is_left_out() -> None:
    """S-004: the scheduler nominated the pod and a victim is on its way out of that node."""
    victim = pod("v", {"cpu": "1"}, node_name="n", meta={"deletion_timestamp": NOW}, priority=1)
    result = plan(node_pool(), node("n", {"cpu": "1"}), victim, nominated())
    assert (bought(result), existing(result), left(result)) == ([], {}, [])


def test_a_nomination_without_preemption_excludes_nothing() -> None:
    """S-004 as settled: our own nominations use the same field; a full or vanished node does not hold the pod back."""
    assert bought(plan(node_pool(), nominated())) == ["small"]
    full = plan(node_pool(), node("n", {"cpu": "1"}), pod("other", {"cpu": "1"}, node_name="n"), nominated())
    assert bought(full) == ["small"]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        pytest.param({"node_selector": {labels.HOSTNAME: "x"}}, "restricted", id="S-006"),
        pytest.param({"node_selector": {"karpenter.sh/foo": "x"}}, "restricted", id="S-007"),
        pytest.param({"affinity": where("karpenter.sh/made-up", "Exists")}, "restricted", id="S-007-affinity"),
        pytest.param(
            {"affinity": affinity(NodeSelectorTerm(match_fields=(expr("metadata.name", "In", "x"),)))},
            "matchFields is not supported",
            id="S-009",
        ),
        pytest.param({"affinity": affinity(NodeSelectorTerm())}, "matches no node", id="empty-term"),
        pytest.param({"node_selector": {"a b": "x"}}, "qualified name", id="key-syntax"),
        pytest.param({"node_selector": {"a": "x y"}}, "invalid value", id="value-syntax"),
        pytest.param({"node_selector": {labels.CAPACITY_TYPE: "cheap"}}, "no valid values", id="closed-values"),
        pytest.param({"affinity": where(INTEGER, "Gt", "x")}, "single positive integer", id="bound"),
    ],
)
def test_a_pod_with_an_invalid_requirement_stays_waiting_and_the_reason_says_which(
    spec: dict[str, object], text: str
) -> None:
    """S-006, S-007, S-009, SCH-052, SCH-053, SCH-055"""
    result = plan(node_pool(), pod("p", **spec), pod("fine"))  # type: ignore[arg-type]
    assert left(result) == ["p"]
    assert categories(result) == {"pod"}
    assert text in details(result)
    assert sizes(result) == [1]


def test_a_pod_with_one_valid_term_uses_that_one() -> None:
    """§3 Beyond: the reference refuses the pod for its bad term."""
    either = affinity(term(expr(labels.HOSTNAME, "In", "x")), term(expr(labels.ZONE, "In", "z2")))
    result = plan(node_pool(), pod("p", affinity=either))
    assert asked(result, labels.ZONE) == [("In", ("z2",))]


def test_a_custom_label_of_a_shared_domain_is_an_ordinary_label() -> None:
    """S-008"""
    result = plan(node_pool(labels={"kubernetes.io/foo": "x"}), pod("p", node_selector={"kubernetes.io/foo": "x"}))
    assert result.new_claims[0].claim.metadata.labels["kubernetes.io/foo"] == "x"


def test_a_pod_that_opts_out_stays_waiting_and_is_told_apart() -> None:
    """S-010: no event is written for it."""
    result = plan(node_pool(), pod("p", affinity=where(labels.NODE_POOL, "DoesNotExist")))
    assert left(result) == ["p"]
    assert all(is_opt_out(reason) for reason in result.unschedulable[0].reasons)


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        (node_pool(ready=False), PoolSkipReason.NOT_READY),
        (node_pool(deleted=True), PoolSkipReason.DELETING),
        (node_pool(replicas=3), PoolSkipReason.STATIC),
    ],
    ids=["not-ready", "deleting", "static"],
)
def test_without_a_usable_pool_nothing_is_bought(pool: object, why: PoolSkipReason) -> None:
    """S-011"""
    result = plan(pool, pod("p"))
    assert (result.new_claims, left(result), categories(result)) == ((), ["p"], {"no-pool"})
    assert "no dynamic nodepools found" in details(result)
    assert result.skipped_pools == (SkippedNodePool("np", why),)
    assert skipped_pool_message(result.skipped_pools[0]) in details(result)


def test_a_pool_left_out_is_named_beside_those_tried() -> None:
    """SCH-115 Beyond: with what its conditions say."""
    broken = node_pool("broken", ready=False)
    why = Condition(type="NodeClassReady", status="False", reason="NotFound", message="there is no such class")
    broken = replaced(broken, status=replaced(broken.status, conditions=(*broken.status.conditions, why)))
    result = plan(node_pool("small"), broken, pod("p", {"cpu": "99"}))
    assert categories(result) == {"types-resources", "skipped-pool"}
    assert "nodepool broken: NodePool is not ready: there is no such class" in unschedulable_message(
        result.unschedulable[0].reasons
    )
    assert "no dynamic nodepools" not in details(result)


def test_a_ready_pool_whose_limit_was_just_made_unreadable_stops_nobody() -> None:
    """API-027: an API server takes the limit, and Ready is about the pool before that edit."""
    result = plan(node_pool("edited", limits={"cpu": "1e1.5"}), node_pool("fine"), pod("p"))
    assert [new_nodeclaim.node_pool for new_nodeclaim in result.new_claims] == ["fine"]
    (skipped,) = result.skipped_pools
    assert (skipped.node_pool, skipped.reason) == ("edited", PoolSkipReason.NOT_READY)
    assert "spec.limits.cpu: '1e1.5' is not a quantity" in skipped_pool_message(skipped)


def test_without_any_pool_the_reason_says_so() -> None:
    """S-011"""
    assert details(plan(pod("p"))) == "no dynamic nodepools found"


def test_a_live_pool_serves_beside_a_deleting_one() -> None:
    """S-012"""
    result = plan(node_pool("old", deleted=True), node_pool("new"), pod("p"))
    assert [new_nodeclaim.node_pool for new_nodeclaim in result.new_claims] == ["new"]


def test_pods_of_a_leaving_node_are_planned_with_the_waiting_ones() -> None:
    """S-013"""
    leaving = machine("n", {"cpu": "8", "memory": "8Gi"}, deleted=True)
    moving = [pod(f"m{i}", {"cpu": "100m"}, node_name="n") for i in range(3)]
    result = plan(node_pool(), leaving, moving, pods(2, {"cpu": "100m"}))
    assert (sizes(result), existing(result), left(result)) == ([5], {}, [])


@pytest.mark.parametrize(
    ("bound", "moved"),
    [
        pytest.param({"status": {"phase": "Failed"}}, 0, id="S-014-failed"),
        pytest.param({"meta": {"owner_references": (owner("DaemonSet"),)}}, 0, id="S-014-daemon"),
        pytest.param(
            {"meta": {"owner_references": (owner("ReplicaSet"),), "deletion_timestamp": NOW}}, 0, id="S-014-terminating"
        ),
        pytest.param(
            {"meta": {"owner_references": (owner("StatefulSet"),), "deletion_timestamp": NOW}}, 1, id="S-015-stateful"
        ),
        pytest.param({"meta": {"annotations": {labels.DO_NOT_DISRUPT: "true"}}}, 0, id="SCH-061-protected"),
        pytest.param({}, 1, id="plain"),
    ],
)
def test_only_pods_that_will_need_a_place_leave_with_their_node(bound: dict[str, object], moved: int) -> None:
    """S-014, S-015, SCH-060"""
    leaving = machine("n", {"cpu": "8", "memory": "8Gi"}, deleted=True)
    result = plan(node_pool(), leaving, pod("p", {"cpu": "1"}, node_name="n", **bound))  # type: ignore[arg-type]
    assert sum(sizes(result)) == moved
    assert result.unschedulable == ()


@pytest.mark.parametrize(
    ("budgets", "moved"),
    [
        ([budget("b", {"app": "a"}, max_unavailable=0)], 0),
        ([budget("b", {"app": "a"}, max_unavailable="0%")], 0),
        ([budget("b", {"app": "a"}, min_available="100%")], 0),
        ([budget("b", {"app": "a"}, max_unavailable=1), budget("c", {"app": "a"}, max_unavailable=1)], 0),
        ([budget("b", {"app": "a"}, max_unavailable=1)], 1),
        ([budget("b", {"app": "other"}, max_unavailable=0)], 1),
    ],
    ids=["S-016-zero", "S-016-zero-percent", "S-016-all", "S-016-two", "allowing", "of-others"],
)
def test_a_pod_no_budget_will_ever_let_go_needs_no_other_place(budgets: list[object], moved: int) -> None:
    """S-016, SCH-062"""
    leaving = machine("n", {"cpu": "8", "memory": "8Gi"}, deleted=True)
    bound = pod("p", {"cpu": "1"}, node_name="n", meta={"labels": {"app": "a"}})
    assert sum(sizes(plan(node_pool(), leaving, bound, budgets))) == moved


def moved(affinity_of_pod: Affinity) -> Solution:
    """A pod of a leaving machine, and another machine that carries a label only its owner may set."""
    leaving = machine("old", {"cpu": "8"}, deleted=True)
    there = machine("there", {"cpu": "8"}, labels={"karpenter.sh/mine": "yes"})
    return plan(node_pool(), leaving, there, pod("p", {"cpu": "1"}, node_name="old", affinity=affinity_of_pod))


def test_a_pod_that_must_leave_its_node_is_not_asked_again_which_labels_it_may_name() -> None:
    """SCH-063: it was let in once; a waiting pod would be refused."""
    restricted = where("karpenter.sh/mine", "In", "yes")
    assert existing(moved(restricted)) == {"there": 1}
    waiting = plan(node_pool(), machine("there", {"cpu": "8"}), pod("p", {"cpu": "1"}, affinity=restricted))
    assert categories(waiting) == {"pod"}


@pytest.mark.parametrize(
    "unreadable",
    [NodeSelectorTerm(), NodeSelectorTerm(match_fields=(expr("metadata.name", "In", "old"),))],
    ids=["empty", "match-fields"],
)
def test_a_term_that_cannot_be_read_moves_no_pod(unreadable: NodeSelectorTerm) -> None:
    """An empty term matches nothing; what it says by fields is not known here."""
    assert (left(moved(affinity(unreadable))), categories(moved(affinity(unreadable)))) == (["p"], {"pod"})
    assert existing(moved(affinity(unreadable, term(expr("karpenter.sh/mine", "Exists"))))) == {"there": 1}


@pytest.mark.parametrize(
    ("asked_for", "meant"),
    [
        ("zone", labels.ZONE),
        ("example.com/zone", labels.ZONE),
        ("instance-type", labels.INSTANCE_TYPE),
        ("example.com/floo", "example.com/floor"),
        ("example.com/roof", ""),
        ("floor", "example.com/floor"),
    ],
)
def test_a_label_nobody_defines_is_compared_with_those_there_are(asked_for: str, meant: str) -> None:
    """SCH-169: well-known ones first, then the pool's."""
    result = plan(node_pool(labels={"example.com/floor": "2"}), pod("p", node_selector={asked_for: "x"}))
    text = f'incompatible requirements, label "{asked_for}" does not have known values'
    assert details(result) == text + (f' (typo of "{meant}"?)' if meant else "")


@pytest.mark.parametrize(
    ("bounds", "excluded"),
    [
        ((("Gte", "1"), ("Lte", "2")), ("1", "2")),
        ((("Gt", "0"), ("Lt", "3")), ("1", "2")),
        ((("Lte", "1"),), ("0", "1")),
        ((("Gte", str(2**63 - 1)),), (str(2**63 - 1),)),
    ],
    ids=["both", "both-open", "below", "at-the-end"],
)
def test_a_pool_whose_values_are_all_excluded_is_not_bought_for(
    bounds: tuple[tuple[str, str], ...], excluded: tuple[str, ...]
) -> None:
    """SCH-146: otherwise the node gets a value its pods refuse, and is bought for again in every pass."""
    pool = node_pool(requirements=[ANY_CAPACITY, *(wanted("k", operator, value) for operator, value in bounds)])
    result = plan(pool, pod("p", affinity=where("k", "NotIn", *excluded)))
    assert (left(result), categories(result)) == (["p"], {"requirements"})


@pytest.mark.parametrize("low", [1, 2**31 - 1, 2**31, 2**62])
def test_a_value_is_drawn_beside_those_excluded(low: int) -> None:
    """SCH-622"""
    pool = node_pool(requirements=[ANY_CAPACITY, wanted("k", "Gte", str(low))])
    result = plan(pool, pod("p", affinity=where("k", "NotIn", str(low), str(low + 1))))
    assert int(result.new_claims[0].claim.metadata.labels["k"]) > low + 1


def in_flight(*types: str, **fields: object) -> object:
    return claim("c", None, [wanted(labels.INSTANCE_TYPE, "In", *types)], **fields)  # type: ignore[arg-type]


def test_a_claim_without_provider_id_is_capacity_in_flight() -> None:
    """S-017 as settled: the reference would not plan at all."""
    result = plan(node_pool(), in_flight("default"), pods(3, {"cpu": "1"}))
    assert (existing(result), bought(result)) == ({"c": 3}, [])


def sold(name: str, cpu: int, *, now: bool) -> InstanceType:
    return shape(
        name, {"cpu": cpu, "memory": "64Gi", "pods": 9}, [offering("on-demand", "z1", cpu / 10, available=now)]
    )


def test_a_claim_in_flight_may_become_a_type_that_is_sold_out_since() -> None:
    """SCH-071 Beyond: its launch may be under way, so what can be had now says nothing about it."""
    types = [sold("few", 2, now=False), sold("many", 16, now=True)]
    result = plan(node_pool(), in_flight("few", "many"), pods(1, {"cpu": "10"}), types=types)
    assert (existing(result), bought(result)) == ({}, ["many"])
    result = plan(node_pool(), in_flight("few"), pods(1, {"cpu": "1"}), types=types)
    assert (existing(result), bought(result)) == ({"c": 1}, [])


def test_a_claim_in_flight_of_a_sold_out_type_counts_against_limits() -> None:
    """SCH-381"""
    types = [sold("gone", 4, now=False), sold("there", 4, now=True)]
    result = plan(node_pool(limits={"cpu": "4"}), in_flight("gone"), pods(2, {"cpu": "3"}), types=types)
    assert (existing(result), bought(result), categories(result)) == ({"c": 1}, [], {"limits"})


@pytest.mark.speed
@pytest.mark.parametrize("daemons", [0, 5])
def test_many_claims_in_flight_that_are_alike_cost_little_more_than_one(daemons: int) -> None:
    """100 claims of 600 types each, and 20 classes that ask for a label (2.2 s otherwise)."""
    types = [shape(f"t{n:03}", {"cpu": 4 + n % 60, "memory": "64Gi", "pods": 9}) for n in range(600)]
    names = [instance_type.name for instance_type in types]
    flying = [claim(f"f{n}", None, [wanted(labels.INSTANCE_TYPE, "In", *names)]) for n in range(100)]
    asking = [pod(f"p{n}", {"cpu": f"{4500 + n}m"}, node_selector={labels.ARCH: "amd64"}) for n in range(20)]
    own = [daemon_set(f"d{n}", {"cpu": "10m"}) for n in range(daemons)]
    begun = time.thread_time()
    assert len(plan(node_pool(), flying, asking, own, types=types).new_claims) > 0
    assert time.thread_time() - begun < 1


def test_a_claim_in_flight_promises_what_its_smallest_type_has() -> None:
    """S-017: which of its types it becomes is open."""
    result = plan(node_pool(), in_flight("default", "small"), pods(2, {"cpu": "1500m"}))
    assert existing(result) == {"c": 1}
    assert sizes(result) == [1]


@pytest.mark.parametrize(
    ("requirement", "joins"),
    [
        (expr(labels.ZONE, "In", "z1"), False),
        (expr(labels.ZONE, "In", "z1", "z2", "z3"), True),
        (expr(labels.ARCH, "In", "amd64"), True),
        (expr(INTEGER, "Gt", "3"), True),
        (expr(INTEGER, "Gt", "4"), False),
        (expr(SPECIAL, "DoesNotExist"), True),
        (expr(labels.INSTANCE_TYPE, "In", "default", "small"), True),
    ],
    ids=["zone-open", "every-zone", "arch", "larger", "too-large", "absent", "type"],
)
def test_a_claim_in_flight_promises_only_labels_it_will_surely_have(
    requirement: NodeSelectorRequirement, joins: bool
) -> None:
    """S-017, SCH-167"""
    result = plan(node_pool(), in_flight("default"), pod("p", {"cpu": "1"}, affinity=affinity(term(requirement))))
    assert bool(existing(result)) is joins


def test_a_claim_bought_for_a_bound_on_a_label_takes_its_pod_in_the_next_pass() -> None:
    """S-017: a second pass while the first one's claim is launching buys nothing."""
    waiting = pod("p", {"cpu": "1"}, affinity=where(INTEGER, "Gt", "8"))
    first = plan(node_pool(), waiting)
    second = plan(node_pool(), waiting, first.new_claims[0].claim)
    assert (existing(second), bought(second)) == ({first.new_claims[0].name: 1}, [])


# -- requirements and labels ----------------------------------------------------------------------------------------------


def incompatible_keys(result: Solution) -> list[str]:
    breakdown = result.unschedulable[0].reasons[0].filter_breakdown
    assert breakdown is not None
    incompatible = (f for f in breakdown.failed_filters if isinstance(f, ConflictingRequirement | UndefinedLabel))
    return [element.asked.key for element in incompatible]


@pytest.mark.parametrize("operator", ["In", "Exists", "Gt"])
def test_a_label_nobody_defines_cannot_be_had(operator: str) -> None:
    """S-020"""
    values = {"In": ("a",), "Exists": (), "Gt": ("1",)}[operator]
    result = plan(node_pool(), pod("p", affinity=where("team", operator, *values)))
    assert left(result) == ["p"]
    assert categories(result) == {"requirements"}
    assert incompatible_keys(result) == ["team"]


@pytest.mark.parametrize("expression", [expr("team", "NotIn", "a"), expr("team", "DoesNotExist")])
def test_a_label_nobody_defines_can_be_avoided(expression: NodeSelectorRequirement) -> None:
    """S-021; SCH-622 Beyond: the node gets no such label."""
    result = plan(node_pool(), pod("p", affinity=affinity(term(expression))))
    assert len(result.new_claims) == 1
    assert "team" not in result.new_claims[0].claim.metadata.labels


@pytest.mark.parametrize(
    ("expression", "placed"),
    [
        (expr("team", "In", "v"), True),
        (expr("team", "NotIn", "other"), True),
        (expr("team", "Exists"), True),
        (expr("team", "In", "other"), False),
        (expr("team", "NotIn", "v"), False),
        (expr("team", "DoesNotExist"), False),
    ],
)
def test_a_template_label_is_what_nodes_have(expression: NodeSelectorRequirement, placed: bool) -> None:
    """S-022"""
    result = plan(node_pool(labels={"team": "v"}), pod("p", affinity=affinity(term(expression))))
    assert bool(result.new_claims) is placed


def test_a_pool_that_leaves_a_label_open_gives_every_claim_the_value_its_pods_ask() -> None:
    """S-023"""
    pool = node_pool(requirements=[wanted("team", "Exists")])
    result = plan(pool, pod("a", node_selector={"team": "a"}), pod("b", node_selector={"team": "b"}))
    assert sorted(new_nodeclaim.claim.metadata.labels["team"] for new_nodeclaim in result.new_claims) == ["a", "b"]


def test_an_open_label_nobody_asks_for_gets_a_value_of_its_own_per_claim() -> None:
    """S-023, SCH-863"""
    pool = node_pool(requirements=[wanted("team", "Exists")])
    result = plan(pool, pods(10, {"cpu": "100m"}))
    values = [new_nodeclaim.claim.metadata.labels["team"] for new_nodeclaim in result.new_claims]
    assert len(values) == len(set(values)) > 1
    assert all(value.isdigit() for value in values)


def test_asking_for_any_value_keeps_the_one_of_the_pool() -> None:
    """S-024"""
    result = plan(node_pool(labels={"team": "v"}), pod("p", affinity=where("team", "Exists")))
    assert result.new_claims[0].claim.metadata.labels["team"] == "v"


@pytest.mark.parametrize(
    ("operator", "value", "types"),
    [
        ("Gt", "8", {"arm"}),
        ("Lt", "8", {"small", "default", "gpu-a", "gpu-b", "single"}),
        ("Gte", "16", {"arm"}),
        ("Lte", "2", {"small"}),
    ],
)
def test_bounds_choose_among_numeric_labels(operator: str, value: str, types: set[str]) -> None:
    """S-025"""
    result = plan(node_pool(), pod("p", affinity=where(INTEGER, operator, value)))
    assert set(result.new_claims[0].instance_types) == types


def test_compatible_requirements_meet_on_one_node() -> None:
    """S-026"""
    pool = node_pool(requirements=[wanted("team", "In", "a", "b", "c")])
    result = plan(
        pool, pod("p", affinity=where("team", "In", "a", "b")), pod("q", affinity=where("team", "NotIn", "a"))
    )
    assert sizes(result) == [2]
    assert result.new_claims[0].claim.metadata.labels["team"] == "b"


def test_incompatible_requirements_never_share_a_node() -> None:
    """S-027"""
    pool = node_pool(requirements=[wanted("team", "In", "a", "b")])
    result = plan(pool, pod("p", node_selector={"team": "a"}), pod("q", node_selector={"team": "b"}))
    assert sizes(result) == [1, 1]


def test_a_label_only_some_types_have_chooses_those() -> None:
    """S-028"""
    result = plan(node_pool(), pod("p", affinity=where(SPECIAL, "Exists")), types=inc(5))
    assert bought(result) == ["t4"]


def test_a_label_to_be_absent_chooses_the_other_types() -> None:
    """S-029"""
    result = plan(node_pool(), pod("p", affinity=where(SPECIAL, "DoesNotExist")), types=inc(5))
    assert set(result.new_claims[0].instance_types) == {"t0", "t1", "t2", "t3"}


def test_requirements_no_type_meets_together_fail() -> None:
    """S-030"""
    result = plan(node_pool(), pod("p", node_selector={SIZE: "large", labels.INSTANCE_TYPE: "t0"}), types=inc(5))
    assert (left(result), categories(result)) == (["p"], {"types-requirements"})


@pytest.mark.parametrize("key", [labels.ZONE, "failure-domain.beta.kubernetes.io/zone"])
def test_an_old_spelling_of_a_label_means_the_new_one(key: str) -> None:
    """S-031"""
    result = plan(node_pool(), pod("p", node_selector={key: "z2"}))
    assert asked(result, labels.ZONE) == [("In", ("z2",))]


def test_a_mistyped_label_is_reported_as_undefined() -> None:
    """S-032: the hint is added where reasons become text."""
    result = plan(node_pool(), pod("p", affinity=where("zone", "Exists")))
    assert incompatible_keys(result) == ["zone"]


def test_an_existing_node_without_a_label_does_not_promise_it() -> None:
    """S-033"""
    result = plan(node_pool(), node("n", {"cpu": "8", "memory": "8Gi"}), pod("p", node_selector={labels.ZONE: "z1"}))
    assert existing(result) == {}
    assert asked(result, labels.ZONE) == [("In", ("z1",))]


def test_a_pool_that_contradicts_itself_is_left_out_with_its_reason() -> None:
    """S-034"""
    pool = node_pool(requirements=[wanted(labels.ARCH, "In", "amd64"), wanted(labels.ARCH, "In", "arm64")])
    result = plan(pool, pod("p"))
    assert (left(result), categories(result)) == (["p"], {"no-types"})
    assert "nodepool requirements filtered out all available instance types" in details(result)
    assert result.skipped_pools[0].reason is PoolSkipReason.FILTERED
    assert skipped_pool_message(result.skipped_pools[0]).startswith("NodePool requirements filtered out all compatible")


def test_existing_nodes_serve_although_no_pool_can() -> None:
    """S-035"""
    pool = node_pool(requirements=[wanted(labels.INSTANCE_TYPE, "In", "gone")])
    result = plan(pool, node("n", {"cpu": "8", "memory": "8Gi"}), pod("p", {"cpu": "1"}))
    assert (existing(result), left(result)) == ({"n": 1}, [])


def test_every_valid_term_is_tried_at_every_level_of_preference() -> None:
    """SCH-250 Beyond, S-200: a wish never costs a term."""
    either: Affinity = affinity(
        term(expr(labels.ZONE, "In", "nowhere")),
        term(expr(labels.ZONE, "In", "z1")),
        preferred=[(1, term(expr(labels.ARCH, "In", "arm64")))],
    )
    result = plan(node_pool(), pod("p", affinity=either))
    assert asked(result, labels.ZONE) == [("In", ("z1",))]
    assert bought(result) == ["arm"]


@pytest.mark.parametrize(
    ("preferred", "zones"),
    [
        pytest.param(((100, "In", "nowhere"), (50, "In", "z2"), (1, "In", "z1")), ("z2",), id="S-201"),
        pytest.param(((1, "In", "z1"), (50, "In", "z3")), ("z3",), id="heaviest-first"),
    ],
)
def test_the_heaviest_preference_that_can_be_met_is_met(
    preferred: tuple[tuple[int, str, str], ...], zones: tuple[str, ...]
) -> None:
    """S-201, SCH-160, SCH-250d"""
    wishes = [(weight, term(expr(labels.ZONE, operator, value))) for weight, operator, value in preferred]
    result = plan(node_pool(), pod("p", affinity=affinity(preferred=wishes)))
    assert asked(result, labels.ZONE) == [("In", zones)]


def test_a_preference_against_what_is_required_is_dropped() -> None:
    """S-202"""
    wish = affinity(term(expr(labels.ZONE, "In", "z3")), preferred=[(1, term(expr(labels.ZONE, "NotIn", "z3")))])
    result = plan(node_pool(), pod("p", affinity=wish))
    assert asked(result, labels.ZONE) == [("In", ("z3",))]


def test_the_claim_carries_what_its_pool_says() -> None:
    """SCH-620, SCH-621"""
    result = plan(node_pool(labels={"team": "v"}), pod("p", {"cpu": "1"}))
    planned = result.new_claims[0].claim
    assert planned.metadata.labels["karpenter.sh/nodepool"] == "np"
    assert planned.metadata.labels["karpenter.kwok.sh/kwoknodeclass"] == "default"
    assert planned.spec.node_class_ref == NODE_CLASS
    assert planned.metadata.owner_references[0].block_owner_deletion
    keys = {requirement.key for requirement in planned.spec.requirements}
    assert {"team", labels.NODE_POOL, labels.INSTANCE_TYPE, labels.CAPACITY_TYPE} <= keys
    assert not keys & {labels.REGISTERED, labels.INITIALIZED, labels.HOSTNAME}


def test_a_pool_of_an_unknown_catalogue_is_skipped() -> None:
    """SCH-115"""
    result = plan(node_pool("known"), node_pool("lost"), pod("p"), types={"known": inc(2)})
    assert [new_nodeclaim.node_pool for new_nodeclaim in result.new_claims] == ["known"]
    assert [skipped_nodepool.node_pool for skipped_nodepool in result.skipped_pools] == ["lost"]
