"""Weights, limits, minValues and taints of pools: S-100 to S-112, S-120 to S-122, S-203."""

from __future__ import annotations

import pytest

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool, NodePoolTaint
from karpenter.api.scheduling_constraints import Toleration
from karpenter.model import labels
from karpenter.scheduling.explain.reason_messages import skipped_pool_message
from karpenter.scheduling.scheduling_options import MinValuesPolicy, PreferencePolicy, SchedulingOptions
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.unschedulable_reasons import PoolSkipReason
from support.admission_rows import refusals
from support.builders import (
    ANY_CAPACITY,
    TYPE,
    affinity,
    asked,
    categories,
    claim,
    details,
    existing,
    expr,
    left,
    new_types,
    node_and_claim,
    node_pool,
    plan,
    pod,
    pods,
    pool_taint,
    sizes,
    term,
    tolerating,
    wanted,
    where,
)
from support.instance_types import inc, offering, shape

BEST_EFFORT = SchedulingOptions(min_values=MinValuesPolicy.BEST_EFFORT)


def used(result: Solution) -> list[str]:
    return sorted(new_nodeclaim.node_pool for new_nodeclaim in result.new_claims)


def test_the_heaviest_pool_is_used() -> None:
    """S-100"""
    pools = [node_pool("none"), node_pool("twenty", weight=20), node_pool("hundred", weight=100)]
    assert used(plan(pools, pod("p"))) == ["hundred"]


def test_among_equal_weights_price_decides_and_then_the_later_name() -> None:
    """S-101 as settled: the reference takes ``zeta`` whatever it costs."""
    assert used(plan(node_pool("alpha"), node_pool("zeta"), pod("p"))) == ["zeta"]
    spot = node_pool("alpha", [wanted(labels.CAPACITY_TYPE, "In", "spot")])
    dear = node_pool("zeta", [wanted(labels.CAPACITY_TYPE, "In", "on-demand")])
    types = [
        shape(
            "t", {"cpu": 2, "memory": "4Gi", "pods": 9}, [offering("spot", "z1", 0.1), offering("on-demand", "z1", 1)]
        )
    ]
    assert used(plan(spot, dear, pod("p"), types=types)) == ["alpha"]


def test_weight_beats_price() -> None:
    """SCH-313"""
    heavy = node_pool("heavy", [wanted(TYPE, "In", "arm")], weight=1)
    assert used(plan(heavy, node_pool("light"), pod("p"))) == ["heavy"]


@pytest.mark.parametrize(
    "heavy",
    [
        node_pool("heavy", [wanted(labels.ARCH, "In", "arm64")], weight=9),
        node_pool("heavy", template={"taints": (pool_taint("team"),)}, weight=9),
        node_pool("heavy", weight=9, limits={"cpu": "1"}),
        node_pool("heavy", weight=9, limits={"nodes": "0"}),
        node_pool("heavy", [wanted(TYPE, "In", "gone")], weight=9),
        node_pool("heavy", [wanted(TYPE, "Exists", least=9)], weight=9),
    ],
    ids=["requirements", "taint", "limit", "nodes", "types", "minValues"],
)
def test_the_next_pool_serves_where_the_heavier_one_cannot(heavy: NodePool) -> None:
    """S-102"""
    assert used(plan(heavy, node_pool("light"), pod("p", node_selector={labels.ARCH: "amd64"}))) == ["light"]


def test_pods_share_nodes_of_the_lighter_pool_when_the_heavier_is_exhausted() -> None:
    """S-102 with S-103: one node of the heavy pool, the rest from the light one, as full as ever."""
    heavy = node_pool("heavy", weight=9, limits={"nodes": "1"})
    result = plan(heavy, node_pool("light"), pods(12, {"cpu": "10m"}))
    assert used(result) == ["heavy", "light", "light"]
    assert sizes(result) == [2, 5, 5]


def test_limits_count_what_a_claim_may_become() -> None:
    """S-103: the second pod would need a second node of 2 CPU."""
    pool = node_pool(limits={"cpu": "2"})
    first, second = pod("a", {"cpu": "1750m"}), pod("b", {"cpu": "1750m"})
    result = plan(pool, first)
    assert result.new_claims[0].instance_types == ("small",)
    both = plan(pool, first, second)
    assert (sizes(both), len(left(both)), categories(both)) == ([1], 1, {"limits"})
    later = plan(pool, node_and_claim("n", {"cpu": "2"}), pod("r", {"cpu": "1750m"}, node_name="n"), second)
    assert (left(later), categories(later)) == (["b"], {"limits"})


def test_a_limit_below_every_fitting_type_leaves_the_pod_waiting() -> None:
    """S-104"""
    result = plan(node_pool(limits={"cpu": "2"}), pod("p", {"cpu": "2100m"}))
    assert left(result) == ["p"]
    assert categories(result) == {"types-resources"}


def test_the_limit_of_nodes_counts_nodes_and_claims_in_flight() -> None:
    """S-105, also within one pass (SCH-384 Beyond)."""
    pool = node_pool(limits={"nodes": "2"})
    together = plan(pool, pods(15, {"cpu": "10m"}))
    assert (sizes(together), len(left(together))) == ([5, 5], 5)
    assert details(together) == "node limits have been exhausted for nodepool (NodePool=np)"
    full = [node_and_claim("n", {"cpu": "1"}), pod("r", {"cpu": "1"}, node_name="n"), claim("c", None, deleted=False)]
    later = plan(pool, full, pod("p", {"cpu": "7"}))
    assert details(later) == "node limits have been exhausted for nodepool (NodePool=np)"


def test_usage_beyond_the_limit_launches_nothing_and_removes_nothing() -> None:
    """S-106, SCH-386"""
    over = node_and_claim("n", {"cpu": "100"})
    pool = node_pool(limits={"cpu": "20"})
    result = plan(
        pool, over, pod("r", {"cpu": "99500m"}, node_name="n"), pod("p", {"cpu": "1"}), pod("q", {"cpu": "100m"})
    )
    assert (existing(result), left(result), categories(result)) == ({"n": 1}, ["p"], {"limits"})


def test_a_leaving_node_does_not_count_against_limits() -> None:
    """SCH-381"""
    pool = node_pool(limits={"cpu": "2"})
    assert new_types(plan(pool, node_and_claim("n", {"cpu": "2"}, deleted=True), pod("p", {"cpu": "1"}))) == ["small"]


def test_a_preference_is_given_up_for_existing_nodes_when_limits_run_out() -> None:
    """SCH-250 with SCH-382: the limit rules out a new node in the preferred zone, so the existing node takes the pod."""
    preferred = affinity(preferred=[(1, term(expr(labels.ZONE, "In", "z2")))])
    there = node_and_claim("n", {"cpu": "4"}, labels={labels.ZONE: "z1"})
    result = plan(node_pool(limits={"cpu": "4"}), there, pod("p", {"cpu": "1"}, affinity=preferred))
    assert (existing(result), left(result)) == ({"n": 1}, [])


def test_a_preference_given_up_for_limits_opens_the_nodes_of_others() -> None:
    """SCH-250 with SCH-382: one node is allowed; without its preference the second pod fits beside the first."""
    preferred = affinity(preferred=[(1, term(expr(labels.ZONE, "In", "z2")))])
    first = pod("a", {"cpu": "2"}, node_selector={labels.ZONE: "z1"})
    result = plan(node_pool(limits={"nodes": "1"}), first, pod("b", {"cpu": "1"}, affinity=preferred))
    assert (sizes(result), left(result)) == ([2], [])
    assert asked(result, labels.ZONE) == [("In", ("z1",))]


def test_another_required_term_is_tried_when_limits_leave_nothing_for_the_first() -> None:
    """SCH-250a with SCH-382"""
    terms = affinity(term(expr(labels.ZONE, "In", "z2")), term(expr(labels.ZONE, "In", "z1")))
    first = pod("a", {"cpu": "2"}, node_selector={labels.ZONE: "z1"})
    result = plan(node_pool(limits={"nodes": "1"}), first, pod("b", {"cpu": "1"}, affinity=terms))
    assert (sizes(result), left(result)) == ([2], [])


def test_only_pods_that_limits_leave_out_relax_their_preference() -> None:
    """SCH-250: of equal pods those that were served keep what they were served with."""
    preferred = affinity(preferred=[(1, term(expr(labels.ZONE, "In", "z2")))])
    pools = [node_pool("np", limits={"nodes": "1"}), node_pool("light", [wanted(labels.ZONE, "In", "z1")])]
    result = plan(pools, pods(3, {"cpu": "3"}, affinity=preferred))
    assert left(result) == []
    assert [zones for _, zones in asked(result, labels.ZONE)].count(("z2",)) == 1


def test_a_pod_beyond_the_last_step_gets_the_limit_as_reason() -> None:
    """SCH-382"""
    preferred = affinity(preferred=[(1, term(expr(labels.ZONE, "In", "z2")))])
    result = plan(node_pool(limits={"nodes": "1"}), pods(3, {"cpu": "9"}, affinity=preferred))
    assert (sizes(result), left(result), categories(result)) == ([1], ["pod-001", "pod-002"], {"limits"})


# -- minValues ------------------------------------------------------------------------------------------------------------


def flexible(least: int, *, name: str = "np", **fields: object) -> NodePool:
    return node_pool(name, [wanted(TYPE, "Exists", least=least)], **fields)


def test_pods_do_not_share_a_claim_that_would_lose_its_diversity() -> None:
    """S-107"""
    result = plan(flexible(2), pods(2, {"cpu": "900m"}), types=inc(2))
    assert sizes(result) == [1, 1]
    assert [new_nodeclaim.instance_types for new_nodeclaim in result.new_claims] == [("t0", "t1")] * 2


def test_min_values_that_cannot_be_met_leave_the_pod_waiting() -> None:
    """S-108, Strict"""
    result = plan(flexible(3), pod("p"), types=inc(2))
    assert left(result) == ["p"]
    assert result.skipped_pools[0].reason is PoolSkipReason.FILTERED_MIN_VALUES
    assert "minValues" in skipped_pool_message(result.skipped_pools[0])


def test_with_best_effort_min_values_are_lowered_to_what_there_is() -> None:
    """S-108, BestEffort. API-415, 456, SCH-364: minValues become the count reached, and the NodeClaim is annotated."""
    result = plan(flexible(3), pod("p"), types=inc(2), options=BEST_EFFORT)
    planned = result.new_claims[0].claim
    assert planned.metadata.annotations[labels.MIN_VALUES_RELAXED] == "true"
    assert [requirement.min_values for requirement in planned.spec.requirements if requirement.key == TYPE] == [2]


def test_min_values_that_hold_are_not_marked_as_relaxed() -> None:
    """SCH-311"""
    result = plan(flexible(2), pod("p"), types=inc(3))
    assert result.new_claims[0].claim.metadata.annotations[labels.MIN_VALUES_RELAXED] == "false"


def test_the_largest_min_values_of_a_key_applies() -> None:
    """S-109"""
    pool = node_pool(requirements=[wanted(TYPE, "Exists", least=1), wanted(TYPE, "Exists", least=2)])
    assert left(plan(pool, pod("p"), types=inc(1))) == ["p"]
    assert sizes(plan(pool, pod("p"), types=inc(2))) == [1]


SPOT_SOLD_OUT = [
    shape(
        "a",
        {"cpu": 4, "memory": "4Gi", "pods": 5},
        [offering("spot", "z1", 0.1, available=False), offering("on-demand", "z1", 0.2)],
    )
]


@pytest.mark.parametrize(
    ("pool", "waiting"),
    [
        (node_pool(requirements=[wanted(labels.CAPACITY_TYPE, "Exists", least=2)]), pod("p")),
        (node_pool(requirements=[wanted(labels.ZONE, "In", "z1", "z2", least=2)]), pod("p")),
        (
            node_pool(requirements=[wanted("size", "Exists", least=2)]),
            pod("p", affinity=where("size", "In", "small", "large")),
        ),
    ],
    ids=["a-capacity-type-is-sold-out", "a-zone-is-not-sold", "a-value-no-type-has"],
)
def test_min_values_count_only_what_can_be_had(pool: NodePool, waiting: Pod) -> None:
    """SCH-360 Beyond: otherwise the claim would name fewer values than it asks for, and the API server refuses it."""
    assert left(plan(pool, waiting, types=SPOT_SOLD_OUT)) == ["p"]
    relaxed = plan(pool, waiting, types=SPOT_SOLD_OUT, options=BEST_EFFORT).new_claims[0].claim
    assert {requirement.min_values for requirement in relaxed.spec.requirements} <= {None, 1}
    assert refusals(relaxed) == ()


def test_min_values_count_only_values_the_pods_accept() -> None:
    """SCH-360 Beyond: three zones are sold, but a pod that wants one of them leaves one."""
    pool = node_pool(requirements=[ANY_CAPACITY, wanted(labels.ZONE, "Exists", least=3)])
    pinned = pod("p", node_selector={labels.ZONE: "z1"})
    assert (left(plan(pool, pinned)), categories(plan(pool, pinned))) == (["p"], {"min-values"})
    text = "minValues requirement is not met for label(s) (label(s)=[topology.kubernetes.io/zone]), requirements="
    assert details(plan(pool, pinned)).startswith(text), "SCH-362"
    free = plan(pool, pinned, pod("free"))
    assert (left(free), sizes(free)) == (["p"], [1])
    relaxed = plan(pool, pinned, options=BEST_EFFORT).new_claims[0].claim
    assert [requirement.min_values for requirement in relaxed.spec.requirements if requirement.key == labels.ZONE] == [
        1
    ]
    assert refusals(relaxed) == ()


def test_best_effort_relaxes_the_heavier_pool_before_it_tries_the_lighter() -> None:
    """S-110"""
    pools = [flexible(9, name="heavy", weight=9), node_pool("light")]
    result = plan(pools, pod("p"), types=inc(2), options=BEST_EFFORT)
    assert used(result) == ["heavy"]
    assert result.new_claims[0].claim.metadata.annotations[labels.MIN_VALUES_RELAXED] == "true"


def test_the_cut_to_the_cheapest_types_keeps_what_min_values_need() -> None:
    """S-111: the reference lets the pods fail when its cut to 600 types loses a required value; we keep one of each instead."""
    cheap = [shape(f"cheap-{n:03}", {"cpu": 2, "memory": "2Gi", "pods": 5}, own={"family": "c"}) for n in range(620)]
    dear = [shape("dear", {"cpu": 64, "memory": "64Gi", "pods": 5}, own={"family": "d"})]
    pool = node_pool(requirements=[wanted("family", "Exists", least=2)])
    result = plan(pool, pod("p"), types=[*cheap, *dear])
    assert len(result.new_claims[0].instance_types) == 600
    assert "dear" in result.new_claims[0].instance_types


def test_min_values_of_zones_are_counted_on_the_types() -> None:
    """S-112"""
    pool = node_pool(requirements=[wanted(labels.ZONE, "Exists", least=3)])
    assert sizes(plan(pool, pod("p"))) == [1]
    assert left(plan(node_pool(requirements=[wanted(labels.ZONE, "Exists", least=4)]), pod("p"))) == ["p"]


def test_min_values_of_zones_count_only_those_that_the_pod_leaves() -> None:
    """K15-100, K15-S18: the types are sold in three zones, the pod takes two."""
    pool = node_pool(requirements=[wanted(labels.ZONE, "Exists", least=3)])
    narrowed = pod("p", affinity=affinity(term(expr(labels.ZONE, "In", "z1", "z2"))))
    assert left(plan(pool, narrowed)) == ["p"]
    assert sizes(plan(pool, narrowed, options=BEST_EFFORT)) == [1]


def test_min_values_a_pod_narrows_away_are_the_reason_it_waits() -> None:
    """SCH-334 row 1"""
    result = plan(flexible(2), pod("p", node_selector={TYPE: "t0"}), types=inc(2))
    assert (left(result), categories(result)) == (["p"], {"min-values"})


# -- taints ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("toleration", "placed"),
    [
        (tolerating("team"), True),
        (tolerating("team", "Equal", "v"), True),
        (tolerating("", "Exists"), True),
        (tolerating("other"), False),
        (tolerating("team", "Equal", "w"), False),
        (tolerating("team", effect="NoExecute"), False),
    ],
    ids=["S-120-exists", "S-120-equal", "everything", "S-120-key", "S-120-value", "effect"],
)
def test_a_pods_tolerations_decide_whether_a_tainted_pool_serves(toleration: Toleration, placed: bool) -> None:
    """S-120"""
    pool = node_pool(template={"taints": (NodePoolTaint(key="team", value="v", effect="NoSchedule"),)})
    result = plan(pool, pod("p", tolerations=(toleration,)))
    assert bool(result.new_claims) is placed
    assert placed or categories(result) == {"taint"}


def test_a_startup_taint_needs_no_toleration() -> None:
    """S-121"""
    assert sizes(plan(node_pool(template={"startup_taints": (pool_taint("starting"),)}), pod("p"))) == [1]


def test_a_softly_tainted_pool_is_used_only_without_another() -> None:
    """S-122"""
    soft = node_pool("soft", template={"taints": (pool_taint("team", "PreferNoSchedule"),)}, weight=50)
    assert used(plan(soft, node_pool("plain"), pod("p"))) == ["plain"]
    assert used(plan(soft, pod("p"))) == ["soft"]


def test_preferences_go_before_soft_taints_are_tolerated() -> None:
    """S-203"""
    soft = node_pool(template={"taints": (pool_taint("team", "PreferNoSchedule"),)})
    preferred = [(2, term(expr(labels.ZONE, "In", "nowhere"))), (1, term(expr(labels.ZONE, "In", "z1")))]
    result = plan(soft, pod("p", affinity=affinity(preferred=preferred)))
    assert sizes(result) == [1]
    assert asked(result, labels.ZONE) == []


def test_with_policy_ignore_preferences_cost_nothing() -> None:
    """S-204, SCH-252"""
    preferred = affinity(preferred=[(1, term(expr(labels.ARCH, "In", "arm64")))])
    result = plan(
        node_pool(), pod("p", affinity=preferred), options=SchedulingOptions(preferences=PreferencePolicy.IGNORE)
    )
    assert new_types(result) == ["small"]
    assert new_types(plan(node_pool(), pod("p", affinity=preferred))) == ["arm"]


def test_a_pod_with_contradicting_required_expressions_never_gets_a_node() -> None:
    """A pool without the label must not pass for one that satisfies Exists and NotIn together."""
    both = affinity(term(expr("team", "Exists"), expr("team", "NotIn", "a")))
    result = plan(node_pool(), pod("p", affinity=both))
    assert (left(result), categories(result)) == (["p"], {"requirements"})
    assert left(plan(node_pool(labels={"team": "b"}), pod("p", affinity=where("team", "In", "a")))) == ["p"]
