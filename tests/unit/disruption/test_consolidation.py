"""Consolidation: nodes removed, replaced, and validated before they go (DIS §8, §9, scenarios 26.5 to 26.8)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from karpenter.api.core import PodDisruptionBudgetStatus
from karpenter.api.karpenter import Budget
from karpenter.api.meta import Condition, LabelSelector
from karpenter.api.scheduling_constraints import (
    Affinity,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from karpenter.disruption.decide.command import ConsolidationType, Decision, DisruptionReason
from karpenter.disruption.decide.disruption_problem import DisruptionOptions
from karpenter.model import labels
from karpenter.model.pod_disruption import DELETION_COST_ANNOTATION
from karpenter.scheduling.scheduling_options import PreferencePolicy, SchedulingOptions
from support.applied_commands import QUIET
from support.builders import NOW, budget, node, owner, pod, replaced, wanted
from support.disruption_cases import (
    ANY,
    KINDS,
    decide,
    gone,
    kind,
    on,
    pool,
    replacement_types,
    running,
    sold,
    why,
    with_annotation,
)
from support.instance_types import offering

SPOT_TO_SPOT = DisruptionOptions(spot_to_spot=True)


# -- 26.5 delete ---------------------------------------------------------------------------------------------------------


def test_a_node_goes_whose_pods_fit_on_another() -> None:
    """DIS-S110, DIS-S151, DIS-177: and no node of any type is launched for them."""
    solution = decide(pool(), running("a", "m", 1), running("b", "m", 3))
    assert gone(solution) == ["a"]
    assert solution.commands[0].decision is Decision.DELETE
    assert [(placed.node_name, len(placed.pods)) for placed in solution.commands[0].placed_on_existing] == [("b", 1)]
    assert solution.commands[0].saving_per_hour == 2.0


def test_pods_may_move_to_a_node_that_is_not_ours() -> None:
    """DIS-S111"""
    assert gone(decide(pool(), running("a", "m", 4), node("foreign", {"cpu": 4, "memory": "64Gi"}))) == ["a"]


def test_pods_may_move_to_a_node_that_has_to_stay() -> None:
    """DIS-S112"""
    guarded = on("held", 1, meta={"labels": {"app": "held"}, "owner_references": (owner("ReplicaSet"),)})
    shut = replaced(budget("b", {"app": "held"}), status=PodDisruptionBudgetStatus(disruptions_allowed=0))
    solution = decide(pool(), running("free", "m", 1), running("held", "m"), guarded, shut)
    assert gone(solution) == ["free"]
    assert "PDB prevents" in why(solution, "held")


def test_a_pool_without_types_does_not_hinder_the_others() -> None:
    """DIS-S113. DIS-060: the pass goes on without that NodePool."""
    cluster = [
        pool("np"),
        pool("broken"),
        running("a", "m", 1),
        running("b", "m", 4),
        running("x", "m", 1, pool="broken"),
    ]
    solution = decide(cluster, types={"np": KINDS, "broken": ()})
    assert gone(solution) == ["a"]


def test_the_controller_is_not_moved_for_money() -> None:
    """DIS-469"""
    cluster = [pool(), running("a", "m", 1), running("b", "m", 3, conditions=())]
    assert gone(decide(cluster)) == ["a"]
    solution = decide(cluster, circumstances=replace(QUIET, controller_node="a"))
    assert gone(solution) == []
    assert "controller itself" in why(solution, "a")


def far(name: str) -> dict[str, object]:
    apart = PodAffinityTerm(topology_key=labels.HOSTNAME, label_selector=LabelSelector(match_labels={"app": name}))
    return {"affinity": Affinity(pod_anti_affinity=PodAffinity(required=(apart,)))}


def app(name: str) -> dict[str, object]:
    return {"labels": {"app": name}, "owner_references": (owner("ReplicaSet", name),)}


def test_pods_that_keep_apart_keep_their_nodes() -> None:
    """DIS-S114"""
    pods = [on(host, 1, meta=app("x"), **far("x")) for host in ("a", "b")]
    assert gone(decide(pool(), running("a", "s"), running("b", "s"), pods)) == []


def test_a_spread_over_zones_holds_when_nodes_go() -> None:
    """DIS-S115: replaced in its own zone when that is cheaper."""
    even = TopologySpreadConstraint(
        max_skew=1,
        topology_key=labels.ZONE,
        when_unsatisfiable="DoNotSchedule",
        label_selector=LabelSelector(match_labels={"app": "x"}),
    )
    pods = [on(host, 2, meta=app("x"), topology_spread_constraints=(even,)) for host in ("a", "b")]
    solution = decide(pool(), running("a", "l", zone="z1"), running("b", "m", zone="z2"), pods)
    places = {
        planned.cheapest_offering.zone: len(planned.pods)
        for command in solution.commands
        for planned in command.replacements
    }
    assert replacement_types(solution) == ["s"] * len(places)
    assert set(places) <= {"z1", "z2"}
    assert all(count == 1 for count in places.values())


def test_a_pod_that_fits_nowhere_keeps_no_node() -> None:
    """DIS-S116, DIS-167: a pod that was pending before never blocks.

    SCH-823: pods that are pending anyway do not count.
    """
    solution = decide(pool(), running("a", "m", 1), running("b", "m", 3), pod("giant", {"cpu": "1000"}))
    assert gone(solution) == ["a"]


def test_waiting_pods_have_their_place_before_anybody_else() -> None:
    """DIS-161 Beyond: the room a waiting pod will take is not there for those of others.

    SCH-820: pending pods are part of every simulation.
    """
    cluster = [pool(), running("a", "s", 2), running("b", "m", 2)]
    assert gone(decide(cluster)) == ["a"]
    assert gone(decide(cluster, pod("waiting", {"cpu": "1"}))) == []


def test_no_node_goes_whose_pods_have_nowhere_to_go() -> None:
    """DIS-S117, DIS-176: the reason names the pod."""
    stuck = on("a", 1, node_selector={"only": "here"})
    cluster = [pool(), running("a", "m"), stuck]
    solution = decide(cluster)
    assert gone(solution) == []
    assert "default/a-0" in why(solution, "a")


def test_a_node_that_still_starts_takes_no_pods_of_others() -> None:
    """DIS-S118, DIS-S119, DIS-165: an uninitialized node is no destination."""
    young = running("young", "m", initialized=False)
    solution = decide(pool(), running("a", "s", 2), young)
    assert gone(solution) == []
    assert "would schedule against uninitialized nodeclaim/claim-young" in why(solution, "a")
    assert gone(decide(pool(), running("a", "s", 2), young, running("old", "l", 6))) == ["a"]


@pytest.mark.parametrize(("policy", "goes"), [(PreferencePolicy.RESPECT, []), (PreferencePolicy.IGNORE, ["a"])])
def test_preferences_count_unless_the_settings_say_otherwise(policy: PreferencePolicy, goes: list[str]) -> None:
    """DIS-S120. DIS-163, SCH-821: a simulation follows the preference policy of the settings."""
    preferred = WeightedPodAffinityTerm(
        weight=1,
        pod_affinity_term=PodAffinityTerm(
            topology_key=labels.HOSTNAME, label_selector=LabelSelector(match_labels={"app": "x"})
        ),
    )
    apart = Affinity(pod_anti_affinity=PodAffinity(preferred=(preferred,)))
    pods = [on(host, 1, meta=app("x"), affinity=apart) for host in ("a", "b")]
    options = DisruptionOptions(SchedulingOptions(preferences=policy))
    assert gone(decide(pool(), running("a", "s"), running("b", "s"), pods, options=options)) == goes


def test_spot_nodes_may_always_be_deleted() -> None:
    """DIS-S122"""
    spot = {"capacity_type": "spot"}
    solution = decide(pool(requirements=[ANY]), running("a", "m", 1, **spot), running("b", "m", 3, **spot))
    assert gone(solution) == ["a"]


def test_a_node_of_unknown_price_is_deleted_but_not_replaced() -> None:
    """DIS-192"""
    unsold = running("a", "l", 1, zone="z9")
    assert gone(decide(pool(), unsold)) == []
    staying = running("b", "m", 3, conditions=())
    assert gone(decide(pool(), unsold, staying)) == ["a"]
    assert gone(decide(pool(consolidation_policy="Balanced"), unsold, staying)) == []


def test_a_pool_may_want_only_empty_nodes_to_go() -> None:
    """DIS-S123, DIS-101, DIS-106: policy WhenEmpty keeps a node with pods."""
    solution = decide(
        pool(consolidation_policy="WhenEmpty"), running("a", "m", 1), running("b", "m", 3), running("idle")
    )
    assert gone(solution) == ["idle"]
    assert why(solution, "a") == 'NodePool "np" has non-empty consolidation disabled'


@pytest.mark.parametrize("policy", ["WhenEmpty", "WhenEmptyOrUnderutilized"])
def test_a_node_whose_pods_cost_nothing_to_evict_is_empty(policy: str) -> None:
    """DIS-121: it is deleted for the reason Empty, without asking where its pods go, and by the budget of that reason."""
    free = on("a", 2, meta={**app("x"), "annotations": {DELETION_COST_ANNOTATION: "-2147483647"}})
    solution = decide(pool(consolidation_policy=policy), running("a", "s"), free)
    assert gone(solution) == ["a"]
    assert [(c.reason, c.consolidation_type, c.placed_on_existing) for c in solution.commands] == [
        (DisruptionReason.EMPTY, ConsolidationType.EMPTY, ())
    ]
    assert solution.eligible_nodes[DisruptionReason.EMPTY] == 1
    assert solution.eligible_nodes[DisruptionReason.UNDERUTILIZED] == 0
    closed = pool("np", Budget(nodes="0", reasons=("Empty",)), consolidation_policy=policy)
    assert gone(decide(closed, running("a", "s"), free)) == []
    other = pool("np", Budget(nodes="0", reasons=("Underutilized",)), consolidation_policy=policy)
    assert gone(decide(other, running("a", "s"), free)) == ["a"]


def test_one_pod_that_costs_something_makes_a_node_not_empty() -> None:
    """DIS-121: below zero is as good as zero, and does not make up for another pod."""
    free = on("a", 1, prefix="free", meta={**app("x"), "annotations": {DELETION_COST_ANNOTATION: "-2147483647"}})
    assert gone(decide(pool(consolidation_policy="WhenEmpty"), running("a", "s"), free, on("a", 1))) == []


def test_nodes_in_their_own_quiet_time_take_no_pods_of_others() -> None:
    """DIS-166. DIS-175, SCH-824: the guard of destinations."""
    initialized = Condition(type="Initialized", status="True", last_transition_time=NOW - timedelta(seconds=30))
    restless = running("b", "m", 3, conditions=(initialized,))
    assert gone(decide(pool(consolidate_after="1m"), running("a", "s", 1), restless)) == []
    assert gone(decide(pool(consolidate_after="20s"), running("a", "s", 1), restless)) == ["a"]


# -- 26.6 replace --------------------------------------------------------------------------------------------------------


def test_a_large_node_with_little_to_do_becomes_a_small_one() -> None:
    """DIS-S130. DIS-179: one new NodeClaim, judged by its cheapest type against the price of the node."""
    solution = decide(pool(), running("a", "l", 1))
    (command,) = solution.commands
    assert command.decision is Decision.REPLACE
    assert command.consolidation_type is ConsolidationType.SINGLE
    assert replacement_types(solution) == ["s"]
    assert "l" not in command.replacements[0].instance_types
    assert command.saving_per_hour == 3.0


def one(price: float, *offerings: object, capacity_type: str = "on-demand") -> dict[str, object]:
    """A node at this price with one small pod, and another type for it with these offerings."""
    return {
        "objects": [running("a", "m", 1, capacity_type=capacity_type)],
        "types": (kind("m", 4, [offering(capacity_type, "z1", price)]), kind("x", 2, offerings)),
    }


def zonal(*prices: float) -> list[object]:
    return [offering("spot", f"z{number}", price) for number, price in enumerate(prices, 1)]


@pytest.mark.parametrize(
    ("price", "offerings", "requirement", "replaces"),
    [
        (0.5, zonal(1.0, 0.2, 0.4), ANY, False),  # DIS-S131: spot may cost 1.0
        (0.5, [offering("on-demand", "z1", 0.6), *zonal(0.2)], wanted(labels.CAPACITY_TYPE, "In", "on-demand"), False),
        (1.5, zonal(1.0, 0.2, 0.4), ANY, True),  # DIS-S133
        (0.5, [offering("on-demand", "z1", 0.4), *zonal(0.2)], ANY, True),  # DIS-S134
        (0.5, [offering("on-demand", "z1", 0.5)], ANY, False),  # DIS-S136
    ],
)
def test_a_replacement_is_cheaper_however_it_is_launched(
    price: float, offerings: list[object], requirement: object, replaces: bool
) -> None:
    """The worst launch price counts, and the claim is narrowed to spot.

    DIS-S131 to DIS-S134, DIS-S136, DIS-181, DIS-182, DIS-190, DIS-191.
    OPS-240: the most expensive offering of the first capacity type that is compatible.
    """
    case = one(price, *offerings)
    solution = decide(pool(requirements=[requirement]), case["objects"], types=case["types"])
    assert bool(solution.commands) is replaces
    for command in solution.commands:
        asked = {requirement.key: requirement.values for requirement in command.replacements[0].claim.spec.requirements}
        assert asked[labels.CAPACITY_TYPE] == ("spot",)


def test_types_enough_for_min_values_have_to_be_cheaper() -> None:
    """DIS-S137"""
    several = wanted(labels.INSTANCE_TYPE, "Exists", least=2)
    solution = decide(
        pool(requirements=[wanted(labels.CAPACITY_TYPE, "In", "on-demand"), several]), running("a", "m", 1)
    )
    assert gone(solution) == []
    assert "minValues" in why(solution, "a")
    assert labels.INSTANCE_TYPE in why(solution, "a")


def test_types_that_only_min_values_keep_do_not_make_a_replacement() -> None:
    """DIS-211: two of three nodes go. A new one for all three may be a third of the old type, and three nodes restart for it."""
    several = wanted(labels.INSTANCE_TYPE, "Exists", least=2)
    kinds = (kind("m", 4, sold(2.0)), kind("n", 4, sold(1.5)))
    names = ("a", "b", "c")
    solution = decide(
        pool(requirements=[wanted(labels.CAPACITY_TYPE, "In", "on-demand"), several]),
        [running(name, "m", 1) for name in names],
        types=kinds,
    )
    assert len(gone(solution)) == 2
    assert replacement_types(solution) == []


def spot_types(cheaper: int) -> tuple[object, ...]:
    own = kind("m", 4, [offering("spot", "z1", 1.0)])
    return (own, *(kind(f"x{n:02}", 2, [offering("spot", "z1", 0.1 + n / 100)]) for n in range(cheaper)))


def spot_case(cheaper: int, *requirements: object, options: DisruptionOptions = SPOT_TO_SPOT) -> object:
    return decide(
        pool(requirements=[ANY, *requirements]),
        running("a", "m", 1, capacity_type="spot"),
        types=spot_types(cheaper),
        options=options,
    )


def test_spot_is_not_replaced_by_spot_unless_that_is_switched_on() -> None:
    """DIS-S138, DIS-180: the feature gate decides."""
    actual = spot_case(30, options=DisruptionOptions())
    assert gone(actual) == []
    assert "SpotToSpotConsolidation is disabled" in why(actual, "a")


def test_one_spot_node_is_replaced_only_where_many_types_are_cheaper() -> None:
    """DIS-S139, DIS-027, DIS-203: fifteen cheaper types are needed."""
    actual = spot_case(14)
    assert gone(actual) == []
    assert "requires 15 cheaper instance type options" in why(actual, "a")
    assert why(actual, "a").endswith("got 14")


@pytest.mark.parametrize(
    ("cheaper", "requirements"), [(30, ()), (17, (wanted(labels.INSTANCE_TYPE, "Exists", least=10),))]
)
def test_only_the_cheapest_spot_types_are_kept(cheaper: int, requirements: tuple[object, ...]) -> None:
    """DIS-S140, DIS-S142, DIS-204: fifteen, or as many as minValues need."""
    (command,) = spot_case(cheaper, *requirements).commands  # type: ignore[attr-defined]
    assert len(command.replacements[0].instance_types) == 15


def test_min_values_may_keep_more_spot_types() -> None:
    """DIS-E6: minValues 18."""
    (command,) = spot_case(30, wanted(labels.INSTANCE_TYPE, "Exists", least=18)).commands  # type: ignore[attr-defined]
    assert len(command.replacements[0].instance_types) == 18


def test_a_spot_node_among_the_cheapest_stays() -> None:
    """DIS-S141"""
    types = tuple(kind(f"x{n:02}", 2, [offering("spot", "z1", 0.1 + n / 100)]) for n in range(30))
    cluster = [pool(requirements=[ANY]), running("a", "x10", 1, capacity_type="spot")]
    assert gone(decide(cluster, types=types, options=SPOT_TO_SPOT)) == []


def test_nodes_of_both_kinds_may_become_one_spot_node() -> None:
    """DIS-S143, DIS-205: without any switch."""
    cluster = [running("a", "l", 5, capacity_type="spot"), running("b", "l", 5)]
    solution = decide(pool(requirements=[ANY]), cluster, types=(*KINDS, kind("xl", 16, sold(9.0, spot=1.0))))
    assert gone(solution) == ["a", "b"]
    assert replacement_types(solution) == ["xl"]


# -- 26.7 several nodes -----------------------------------------------------------------------------------------------


def test_three_large_nodes_with_little_to_do_become_one() -> None:
    """DIS-S150"""
    solution = decide(pool(), [running(name, "l", 1) for name in "abc"], types=KINDS[1:])
    assert gone(solution) == ["a", "b", "c"] or gone(solution) == ["a", "b"]
    left = 12.0 - sum(command.saving_per_hour or 0 for command in solution.commands)
    assert left == 2.0


def test_nodes_of_several_pools_may_go_together() -> None:
    """DIS-S156"""
    two = [pool("p"), pool("q")]
    solution = decide(two, running("a", "l", 1, pool="p"), running("b", "l", 1, pool="q"))
    assert 8.0 - sum(command.saving_per_hour or 0 for command in solution.commands) == 1.0
    assert len(gone(solution)) >= 1


def test_one_large_node_may_become_several_small_ones() -> None:
    """Issue 7: 1 to n, where sizes do not cost in proportion (instead of DIS-S135)."""
    types = (kind("m", 4, sold(1.0)), kind("big", 16, sold(16.0)))
    solution = decide(pool(), running("a", "big", 4, 4), types=types)
    assert gone(solution) == ["a"]
    assert replacement_types(solution) == ["m", "m"]
    assert solution.commands[0].saving_per_hour == 14.0


def test_a_set_that_is_no_prefix_of_the_order_is_found() -> None:
    """DIS-248 Beyond: between two nodes that can go, in their order, is one that cannot."""
    wall = on("b", 1, node_selector={labels.HOSTNAME: "b"})
    solution = decide(pool(), running("a", "l", 1), running("b", "l"), wall, running("c", "l", 1), types=KINDS)
    assert "b" not in gone(solution)
    assert gone(solution) == ["a", "c"]


def test_every_pool_has_its_turn() -> None:
    """DIS-290 Beyond: no pool waits for the end of another."""
    pools = [pool(name, Budget(nodes="1")) for name in "pqr"]
    nodes = [running(f"{name}{number}", "l", 1, pool=name) for name in "pqr" for number in range(3)]
    solution = decide(pools, nodes)
    assert [
        sum(c.node_pool == name for command in solution.commands for c in command.candidates) for name in "pqr"
    ] == [
        1,
        1,
        1,
    ]


# -- 26.8 emptiness ------------------------------------------------------------------------------------------------------


def test_a_node_without_pods_goes() -> None:
    """DIS-S160"""
    solution = decide(pool(), running("a"))
    assert [(command.reason, gone([command])) for command in solution.commands] == [(DisruptionReason.EMPTY, ["a"])]


@pytest.mark.parametrize(
    "idle",
    [
        pod("d", node_name="a", meta={"owner_references": (owner("DaemonSet"),)}),
        pod("m", node_name="a", meta={"owner_references": (owner("Node", api_version="v1"),)}),
        pod("t", node_name="a", meta={"deletion_timestamp": NOW, "owner_references": (owner("ReplicaSet"),)}),
        pod("s", node_name="a", status={"phase": "Succeeded"}),
    ],
    ids=["daemon", "mirror", "terminating", "done"],
)
def test_pods_that_need_no_place_leave_a_node_empty(idle: object) -> None:
    """DIS-S161 to DIS-S163"""
    assert [command.reason for command in decide(pool(), running("a"), idle).commands] == [DisruptionReason.EMPTY]


def test_a_node_in_its_quiet_time_stays() -> None:
    """DIS-S164"""
    refused = (Condition(type="Consolidatable", status="False"),)
    assert gone(decide(pool(), running("a", conditions=()), running("b", conditions=refused))) == []


def test_an_empty_node_may_ask_to_stay() -> None:
    """DIS-S165"""
    host, behind = running("a")
    assert gone(decide(pool(), with_annotation(host, labels.DO_NOT_DISRUPT, "true"), behind)) == []


def test_consolidation_that_is_off_keeps_empty_nodes_too() -> None:
    """DIS-S168"""
    solution = decide(pool(consolidate_after="Never"), running("a"))
    assert gone(solution) == []
    assert why(solution, "a") == 'NodePool "np" has consolidation disabled'


def test_a_node_that_goes_once_its_pool_is_cheaper_takes_no_pods_and_says_why_it_stays() -> None:
    """DIS-253, anti-churn: ``small`` is worth too little of what its NodePool costs until ``big`` is gone, then it goes too."""
    types = (*KINDS, kind("big", 8, sold(40)), kind("small", 8, [offering("on-demand", "z1", 0.4, available=False)]))
    foreign = node("foreign", {"cpu": 8, "memory": "64Gi"})
    solution = decide(pool(), running("big", "big", 1), running("small", "small", 1, 1, 1), foreign, types=types)
    assert gone(solution) == ["big"]
    assert [placed.node_name for placed in solution.commands[0].placed_on_existing] == ["foreign"]
    assert "would save too little" in why(solution, "small")
