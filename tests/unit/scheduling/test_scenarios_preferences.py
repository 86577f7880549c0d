"""Preferences of pods, and their relaxation when not all can be met (S-200, S-203 to S-205, S-221, SCH-250 to SCH-252).

Preferences about nodes alone are in ``test_scenarios_selection``; here they meet pod affinity, taints and each other.
"""

from __future__ import annotations

import pytest

from karpenter.api.scheduling_constraints import Affinity
from karpenter.model import labels
from karpenter.scheduling.scheduling_options import PreferencePolicy, SchedulingOptions
from support.applied_plans import PlannedCluster
from support.builders import (
    affinity,
    asked,
    categories,
    existing,
    expr,
    left,
    node_and_claim,
    node_pool,
    plan,
    pod,
    pods,
    pool_taint,
    sizes,
    taint,
    term,
)
from support.topology_builders import affinity_term, affinity_terms, app_pods, spread_over

ZONE, HOST, TYPE = labels.ZONE, labels.HOSTNAME, labels.INSTANCE_TYPE
IGNORE = SchedulingOptions(preferences=PreferencePolicy.IGNORE)
NOWHERE = term(expr(ZONE, "In", "nowhere"))


def in_zone(zone: str) -> object:
    return term(expr(ZONE, "In", zone))


def preferring(*preferences: tuple[int, object], **fields: object) -> Affinity:
    return affinity(preferred=preferences, **fields)


# -- alternatives ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        pytest.param([NOWHERE, term(expr(TYPE, "In", "gone")), in_zone("z1"), in_zone("z2")], ["z1"], id="S-200"),
        pytest.param([NOWHERE], [], id="S-200-single"),
        pytest.param([NOWHERE, term(expr(TYPE, "In", "gone"))], [], id="S-200-none"),
    ],
)
def test_the_first_alternative_that_can_be_had_is_taken(terms: list[object], expected: list[str]) -> None:
    result = plan(node_pool(), pod("p", affinity=affinity(*terms)))
    assert asked(result, ZONE) == [("In", (zone,)) for zone in expected]
    assert left(result) == ([] if expected else ["p"])


def test_a_required_term_is_skipped_when_pod_affinity_rules_it_out() -> None:
    """S-200 with S-182: terms are tried one by one, whatever made the first fail."""
    there = node_and_claim("n", {"cpu": "1m"}, labels={ZONE: "z1"})
    guard = pod("g", node_name="n", meta={"labels": {"app": "web"}})
    either = affinity(in_zone("z1"), in_zone("z2"), pod_anti_affinity=affinity_terms(affinity_term(key=ZONE)))
    result = plan(node_pool(), there, guard, pod("p", {"cpu": "1"}, affinity=either))
    assert asked(result, ZONE) == [("In", ("z2",))]


# -- the order in which preferences go -----------------------------------------------------------------------------------------


def test_preferred_pod_affinity_is_relaxed_before_preferred_node_affinity() -> None:
    """SCH-250 b to d: the preference about nodes stays where the one about pods cannot be had."""
    own = preferring((1, in_zone("z2")), pod_affinity=affinity_terms(preferred=[affinity_term("missing")]))
    result = plan(node_pool(), pod("p", affinity=own))
    assert (left(result), asked(result, ZONE)) == ([], [("In", ("z2",))])


def test_preferred_node_affinity_is_relaxed_before_a_soft_spread() -> None:
    """SCH-250 d and e: spread is the last of the preferences to go."""
    cluster = PlannedCluster(node_pool())
    cluster.batch(app_pods(4, spread=[spread_over(HOST, soft=True)], affinity=preferring((9, NOWHERE), (1, NOWHERE))))
    assert cluster.per_node() == [1, 1, 1, 1]


def test_all_preferences_hold_together_where_they_can() -> None:
    """SCH-251"""
    own = preferring((1, in_zone("z2")), pod_anti_affinity=affinity_terms(preferred=[affinity_term()]))
    cluster = PlannedCluster(node_pool())
    cluster.batch(app_pods(3, spread=[spread_over(TYPE, 3, soft=True)], affinity=own))
    assert (cluster.counts(), cluster.per_node()) == ({"z2": 3}, [1, 1, 1])


def test_soft_taints_are_tolerated_last_of_all() -> None:
    """S-203, SCH-250f: a preferred affinity is relaxed before the pod goes to a node that it prefers to avoid."""
    soft = node_pool(template={"taints": (pool_taint("team", "PreferNoSchedule"),)})
    cluster = PlannedCluster(soft)
    own = preferring(
        (2, NOWHERE), (1, in_zone("z1")), pod_affinity=affinity_terms(preferred=[affinity_term("missing")])
    )
    result = cluster.batch(app_pods(3, spread=[spread_over(HOST, soft=True)], affinity=own))
    assert (left(result), sizes(result)) == ([], [3])


@pytest.mark.parametrize("soft", [True, False])
def test_a_node_with_a_soft_taint_is_used_when_nothing_else_is_to_be_had(soft: bool) -> None:
    """S-122, SCH-250f"""
    there = node_and_claim("n", {"cpu": "4"}, taints=[taint("team", "PreferNoSchedule" if soft else "NoSchedule")])
    result = plan(there, pod("p", {"cpu": "1"}))
    assert (existing(result), left(result)) == (({"n": 1}, []) if soft else ({}, ["p"]))


def test_a_hard_spread_is_kept_while_soft_taints_are_tolerated() -> None:
    """SCH-250f changes tolerations only."""
    cluster = PlannedCluster(node_pool(template={"taints": (pool_taint("team", "PreferNoSchedule"),)}))
    assert left(cluster.batch(app_pods(3, spread=[spread_over(HOST), spread_over(soft=True)]))) == []
    assert cluster.per_node() == [1, 1, 1]


# -- nodes that are there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"), [(SchedulingOptions(), {}), (IGNORE, {"n": 1})], ids=["respect", "SCH-252-ignore"]
)
def test_a_preference_may_cost_a_node_by_default(options: SchedulingOptions, expected: dict[str, int]) -> None:
    """SCH-251: until it is relaxed, a preference counts as a requirement, so a node is launched for it."""
    there = node_and_claim("n", {"cpu": "4"}, labels={ZONE: "z1"})
    preferring_pod = pod("p", {"cpu": "1"}, affinity=preferring((1, in_zone("z2"))))
    result = plan(node_pool(), there, preferring_pod, options=options)
    assert (existing(result), left(result)) == (expected, [])


def test_each_pod_gives_up_no_more_than_it_must() -> None:
    """SCH-241: pods of one kind may end up with different preferences kept."""
    there = [node_and_claim(f"n{zone}", {"cpu": "2"}, labels={ZONE: zone}) for zone in ("z1", "z2")]
    result = plan(there, app_pods(4, {"cpu": "1"}, affinity=preferring((1, in_zone("z2")))))
    assert (existing(result), left(result)) == ({"nz1": 2, "nz2": 2}, [])


# -- policy Ignore ----------------------------------------------------------------------------------------------------------


def test_with_policy_ignore_a_pod_joins_nodes_against_its_preference() -> None:
    """S-205: the reference joins the node with fewest pods; which one it is is left to the packing here, a third is never
    opened.
    """
    pinned = [pods(count, prefix=zone, node_selector={ZONE: zone}) for zone, count in (("z1", 1), ("z2", 2))]
    free = pod("free", affinity=preferring((1, in_zone("z2"))))
    result = plan(node_pool(), pinned, free, options=IGNORE)
    assert (left(result), sum(sizes(result)), len(sizes(result))) == ([], 4, 2)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"spread": [spread_over(HOST, soft=True)]}, id="S-204-soft-spread"),
        pytest.param(
            {"affinity": preferring(pod_anti_affinity=affinity_terms(preferred=[affinity_term()]))},
            id="S-204-soft-anti-affinity",
        ),
        pytest.param(
            {"affinity": preferring(pod_affinity=affinity_terms(preferred=[affinity_term("missing")]))},
            id="soft-affinity",
        ),
        pytest.param(
            {"affinity": preferring(pod_anti_affinity=affinity_terms(preferred=[affinity_term(key=ZONE)]))},
            id="soft-zonal-anti-affinity",
        ),
    ],
)
def test_with_policy_ignore_no_preference_opens_a_node(spec: dict[str, object]) -> None:
    """SCH-252"""
    cluster = PlannedCluster(node_pool(), options=IGNORE)
    assert left(cluster.batch(app_pods(5, **spec))) == []
    assert cluster.per_node() == [5]


def test_with_policy_ignore_soft_taints_are_still_minded() -> None:
    """SCH-252: a soft taint is the preference of the pool, not of the pod."""
    soft = node_pool("soft", template={"taints": (pool_taint("team", "PreferNoSchedule"),)}, weight=50)
    used = [
        new_nodeclaim.node_pool for new_nodeclaim in plan(soft, node_pool("plain"), pod("p"), options=IGNORE).new_claims
    ]
    assert used == ["plain"]
    assert sizes(plan(soft, pod("p"), options=IGNORE)) == [1]


# -- preferences that cannot be kept ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spread",
    [
        pytest.param(spread_over("example.com/unknown", soft=True), id="S-221"),
        pytest.param(spread_over(soft=True), id="one-zone"),
    ],
)
def test_a_soft_spread_that_cannot_hold_leaves_no_pod_out(spread: object) -> None:
    """S-221"""
    cluster = PlannedCluster(
        node_pool(labels={ZONE: "z1"}), node_and_claim("other", {"cpu": "1m"}, labels={ZONE: "z3"})
    )
    assert left(cluster.batch(app_pods(6, {"cpu": "1"}, spread=[spread]))) == []
    assert cluster.counts() == {"z1": 6}


def test_a_preference_never_replaces_a_requirement() -> None:
    """SCH-250: only preferences are given up."""
    own = preferring(
        (1, in_zone("z2")), pod_affinity=affinity_terms(affinity_term("missing", ZONE), preferred=[affinity_term()])
    )
    result = plan(node_pool(), app_pods(2, spread=[spread_over(soft=True)], affinity=own))
    assert (left(result), categories(result)) == (["web-000", "web-001"], {"topology"})
