"""Regressions found by long series: plans that kube-scheduler would not have bound, and placements that were missed."""

from __future__ import annotations

from collections.abc import Sequence

from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.solver import solve
from support.builders import (
    ANY_CAPACITY,
    NOW,
    claim,
    existing,
    flatten,
    indexes,
    left,
    node_and_claim,
    node_pool,
    plan,
    pod,
    pool_taint,
    snapshot,
    taint,
    tolerating,
    wanted,
)
from support.instance_types import STD, offering, shape
from support.plan_checker import violations
from support.plan_checker_cluster import cluster_of_snapshot
from support.topology_builders import affinity_term, app_pods, of_app, pod_anti_affinity_to, spread_over

_SOLD_OUT = (shape("t", {"cpu": 4, "memory": "8Gi", "pods": 10}, [offering("on-demand", "z1", 1.0, available=False)]),)
_TWO_WAYS = (
    shape("t", {"cpu": 4, "memory": "8Gi", "pods": 3}, [offering("spot", "z1", 1.0), offering("on-demand", "z2", 1.0)]),
)


def invalid(*objects: object, types: Sequence[InstanceType] = STD) -> list[str]:
    """What kube-scheduler would object to in the plan for these objects."""
    wires = flatten(objects)
    shown, type_indexes = snapshot(wires), indexes(wires, types)
    return violations(
        cluster_of_snapshot(shown, dict.fromkeys(type_indexes, types)),
        solve(build_problem(shown, type_indexes, NOW), type_indexes),
    )


def coming() -> list[object]:
    """A pool that has nothing to sell any more, and a claim of it on its way to the first zone."""
    return [node_pool(), claim("c", None, [ANY_CAPACITY, wanted(labels.ZONE, "In", "z1")])]


def test_a_claim_on_its_way_takes_pods_even_if_its_pool_sells_nothing_more() -> None:
    result = plan(coming(), pod("p", {"cpu": "1"}), types=_SOLD_OUT)
    assert (left(result), existing(result)) == ([], {"c": 1})


def test_the_zone_of_a_claim_on_its_way_is_a_domain_to_spread_over() -> None:
    result = plan(coming(), app_pods(1, {"cpu": "1"}, spread=[spread_over()]), types=_SOLD_OUT)
    assert (left(result), existing(result)) == ([], {"c": 1})


def test_pods_on_in_flight_tainted_nodes_do_not_count_for_spreads_that_honour_taints() -> None:
    """``nodeTaintsPolicy: Honor`` (SCH-482)."""
    pools = [node_pool(), node_pool("own", template={"taints": (pool_taint("dedicated"),)})]
    theirs = app_pods(
        2,
        {"cpu": "1500m"},
        prefix="own",
        tolerations=(tolerating("dedicated"),),
        node_selector={labels.NODE_POOL: "own", labels.ZONE: "z1"},
    )
    others = app_pods(3, {"cpu": "1"}, spread=[spread_over(node_taints_policy="Honor", min_domains=3)])
    assert invalid(pools, theirs, others) == []


def test_a_node_with_a_prefer_no_schedule_taint_is_a_domain_for_spreads_that_honour_taints() -> None:
    """The scheduler looks at taints of effect NoSchedule and NoExecute only."""
    there = node_and_claim("n1", {"cpu": "4"}, labels={labels.ZONE: "z1"}, taints=(taint("soft", "PreferNoSchedule"),))
    result = plan(there, app_pods(1, {"cpu": "1"}, spread=[spread_over(node_taints_policy="Honor")]))
    assert (left(result), existing(result)) == ([], {"n1": 1})


def test_a_claim_on_its_way_lacks_the_labels_its_pool_does_not_give() -> None:
    """It is certain that the node has no rack, so it may take pods that a spread over racks counts."""
    there = node_and_claim("n1", {"cpu": "1"}, labels={"rack": "r1"})
    counting = pod("counting", {"cpu": "100m"}, topology_spread_constraints=(spread_over("rack"),))
    result = plan(coming(), there, counting, app_pods(1, {"cpu": "2"}), types=_SOLD_OUT)
    assert (left(result), existing(result)) == ([], {"n1": 1, "c": 1})


def test_preferred_anti_affinity_of_a_pod_keeps_no_other_away() -> None:
    """Even if another pod insists on the very same."""
    preferring = app_pods(
        1, {"cpu": "1"}, prefix="wishing", affinity=pod_anti_affinity_to(preferred=[affinity_term(key=labels.ZONE)])
    )
    insisting = pod("insisting", {"cpu": "800m"}, affinity=pod_anti_affinity_to(affinity_term(key=labels.ZONE)))
    plain = app_pods(1, {"cpu": "500m"}, prefix="plain")
    in_one_zone = node_pool(requirements=[ANY_CAPACITY, wanted(labels.ZONE, "In", "z1")])
    assert left(plan(in_one_zone, preferring, insisting, plain)) == ["insisting"]


def test_what_all_types_of_a_claim_have_in_common_is_a_domain_even_if_the_claim_leaves_it_open() -> None:
    coming_somewhere = [node_pool(), claim("c", None, [ANY_CAPACITY])]
    alone = app_pods(1, {"cpu": "1"}, affinity=pod_anti_affinity_to(affinity_term(key=labels.CAPACITY_TYPE)))
    assert existing(plan(coming_somewhere, alone, types=_SOLD_OUT)) == {"c": 1}
    evenly = app_pods(1, {"cpu": "1"}, spread=[spread_over(labels.CAPACITY_TYPE)])
    assert existing(plan(coming_somewhere, evenly, types=_SOLD_OUT)) == {"c": 1}


def test_where_a_pod_counts_does_not_hang_on_the_pool_it_is_launched_from_in_the_end() -> None:
    """Only nodes with a rack count (SCH-482); the pool that has one may have one node, and that is taken."""
    pools = [node_pool("racked", labels={"rack": "r1"}, limits={"nodes": "1"}, weight=10), node_pool("plain")]
    spread = [spread_over(labels.CAPACITY_TYPE), spread_over("rack", selector=of_app("nobody"))]
    evenly = app_pods(2, {"cpu": "1"}, prefix="evenly", spread=spread)
    leaving = node_and_claim("leaving", {"cpu": "2"}, labels={labels.CAPACITY_TYPE: "spot", "rack": "r2"}, deleted=True)
    moving = app_pods(1, {"cpu": "100m"}, prefix="moving", node_name="leaving")
    assert invalid(pools, leaving, moving, evenly, types=_TWO_WAYS) == []


def test_a_pod_that_may_count_later_fills_no_domain_for_others() -> None:
    """The spread counts nodes of one zone only, and the node for the plain pod will be in another (SCH-482)."""
    spread = [spread_over(labels.CAPACITY_TYPE)]
    evenly = app_pods(2, {"cpu": "500m"}, prefix="evenly", spread=spread, node_selector={labels.ZONE: "z2"})
    own = {labels.ZONE: "z2", labels.CAPACITY_TYPE: "spot"}
    full = node_and_claim("full", {"cpu": "100m"}, labels=own)
    assert invalid(node_pool(), full, evenly, app_pods(1, {"cpu": "500m"}), types=_TWO_WAYS) == []
    in_two_zones = (shape("t", {"cpu": 2, "memory": "8Gi"}, [*_TWO_WAYS[0].offerings, offering("spot", "z2", 1.0)]),)
    assert invalid(node_pool(), full, evenly, app_pods(3, {"cpu": "500m"}), types=in_two_zones) == []
