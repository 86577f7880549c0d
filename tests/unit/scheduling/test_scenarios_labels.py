"""Requirements and labels, of in-flight NodeClaims and of new ones, in scheduling scenarios."""

from __future__ import annotations

import time

import pytest

from karpenter.api.scheduling_constraints import Affinity, NodeSelectorRequirement
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.explain.reason_messages import skipped_pool_message
from karpenter.scheduling.failed_filters import ConflictingRequirement, UndefinedLabel
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.unschedulable_reasons import PoolSkipReason
from support.builders import (
    NODE_CLASS,
    affinity,
    asked,
    categories,
    claim,
    daemon_set,
    details,
    existing,
    expr,
    left,
    new_types,
    node,
    node_pool,
    plan,
    pod,
    pods,
    sizes,
    term,
    wanted,
    where,
)
from support.instance_types import INTEGER, SIZE, SPECIAL, inc, offering, shape


def in_flight(*types: str, **fields: object) -> object:
    return claim("c", None, [wanted(labels.INSTANCE_TYPE, "In", *types)], **fields)


def test_a_claim_without_provider_id_is_capacity_in_flight() -> None:
    """S-017 as settled: the reference would not plan at all."""
    result = plan(node_pool(), in_flight("default"), pods(3, {"cpu": "1"}))
    assert (existing(result), new_types(result)) == ({"c": 3}, [])


def sold(name: str, cpu: int, *, now: bool) -> InstanceType:
    return shape(
        name, {"cpu": cpu, "memory": "64Gi", "pods": 9}, [offering("on-demand", "z1", cpu / 10, available=now)]
    )


def test_a_claim_in_flight_may_become_a_type_that_is_sold_out_since() -> None:
    """SCH-071 Beyond: its launch may be under way, so what can be had now says nothing about it."""
    types = [sold("few", 2, now=False), sold("many", 16, now=True)]
    result = plan(node_pool(), in_flight("few", "many"), pods(1, {"cpu": "10"}), types=types)
    assert (existing(result), new_types(result)) == ({}, ["many"])
    result = plan(node_pool(), in_flight("few"), pods(1, {"cpu": "1"}), types=types)
    assert (existing(result), new_types(result)) == ({"c": 1}, [])


def test_a_claim_in_flight_of_a_sold_out_type_counts_against_limits() -> None:
    """SCH-381"""
    types = [sold("gone", 4, now=False), sold("there", 4, now=True)]
    result = plan(node_pool(limits={"cpu": "4"}), in_flight("gone"), pods(2, {"cpu": "3"}), types=types)
    assert (existing(result), new_types(result), categories(result)) == ({"c": 1}, [], {"limits"})


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


def test_an_in_flight_claim_counts_with_the_capacity_of_its_smallest_type() -> None:
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
def test_an_in_flight_claim_counts_only_with_labels_that_are_certain(
    requirement: NodeSelectorRequirement, joins: bool
) -> None:
    """S-017, SCH-167"""
    result = plan(node_pool(), in_flight("default"), pod("p", {"cpu": "1"}, affinity=affinity(term(requirement))))
    assert bool(existing(result)) is joins


def test_a_claim_launched_for_a_bound_on_a_label_takes_its_pod_in_the_next_pass() -> None:
    """S-017: a second pass while the first one's claim is launching launches nothing."""
    waiting = pod("p", {"cpu": "1"}, affinity=where(INTEGER, "Gt", "8"))
    first = plan(node_pool(), waiting)
    second = plan(node_pool(), waiting, first.new_claims[0].claim)
    assert (existing(second), new_types(second)) == ({first.new_claims[0].name: 1}, [])


# -- requirements and labels ----------------------------------------------------------------------------------------------


def incompatible_keys(result: Solution) -> list[str]:
    breakdown = result.unschedulable[0].reasons[0].filter_breakdown
    assert breakdown is not None
    incompatible = (f for f in breakdown.failed_filters if isinstance(f, ConflictingRequirement | UndefinedLabel))
    return [element.asked.key for element in incompatible]


@pytest.mark.parametrize("operator", ["In", "Exists", "Gt"])
def test_an_undefined_label_cannot_be_required(operator: str) -> None:
    """S-020"""
    values = {"In": ("a",), "Exists": (), "Gt": ("1",)}[operator]
    result = plan(node_pool(), pod("p", affinity=where("team", operator, *values)))
    assert left(result) == ["p"]
    assert categories(result) == {"requirements"}
    assert incompatible_keys(result) == ["team"]


@pytest.mark.parametrize("expression", [expr("team", "NotIn", "a"), expr("team", "DoesNotExist")])
def test_an_undefined_label_can_be_excluded(expression: NodeSelectorRequirement) -> None:
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


def test_an_open_label_that_no_pod_selects_gets_its_own_value_per_claim() -> None:
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
    assert new_types(result) == ["t4"]


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


def test_an_existing_node_without_a_label_does_not_match_it() -> None:
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
    """SCH-250 Beyond, S-200: a preference never costs a term."""
    either: Affinity = affinity(
        term(expr(labels.ZONE, "In", "nowhere")),
        term(expr(labels.ZONE, "In", "z1")),
        preferred=[(1, term(expr(labels.ARCH, "In", "arm64")))],
    )
    result = plan(node_pool(), pod("p", affinity=either))
    assert asked(result, labels.ZONE) == [("In", ("z1",))]
    assert new_types(result) == ["arm"]


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
    preferences = [(weight, term(expr(labels.ZONE, operator, value))) for weight, operator, value in preferred]
    result = plan(node_pool(), pod("p", affinity=affinity(preferred=preferences)))
    assert asked(result, labels.ZONE) == [("In", zones)]


def test_a_preference_against_what_is_required_is_dropped() -> None:
    """S-202"""
    preferred = affinity(term(expr(labels.ZONE, "In", "z3")), preferred=[(1, term(expr(labels.ZONE, "NotIn", "z3")))])
    result = plan(node_pool(), pod("p", affinity=preferred))
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


def test_a_pool_without_instance_types_is_skipped() -> None:
    """SCH-115"""
    result = plan(node_pool("known"), node_pool("lost"), pod("p"), types={"known": inc(2)})
    assert [new_nodeclaim.node_pool for new_nodeclaim in result.new_claims] == ["known"]
    assert [skipped_nodepool.node_pool for skipped_nodepool in result.skipped_pools] == ["lost"]
