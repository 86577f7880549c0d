"""Earlier pods are placed first; yet no pod waits that another order would place, and limits leave out less important pods."""

from __future__ import annotations

from karpenter.api.core import Pod
from karpenter.api.scheduling_constraints import Affinity
from karpenter.model import labels
from support.builders import existing, left, node_and_claim, node_pool, plan, pod, pods, pool_taint, sizes, tolerating
from support.instance_types import inc, offering, shape
from support.topology_builders import affinity_term, app_pods, pod_affinity_to, pod_anti_affinity_to, spread_over

_HALVES = (
    shape("t", {"cpu": 4, "memory": "8Gi", "pods": 10}, [offering(kind, "z1", 1.0) for kind in ("spot", "on-demand")]),
)


def test_a_pod_that_could_get_a_new_node_leaves_the_only_node_to_one_that_could_not() -> None:
    """The larger one comes first and would take it (SCH-231)."""
    there = node_and_claim("n1", {"cpu": "2"}, labels={"disk": "local"})
    rigid = pod("rigid", {"cpu": "1"}, node_selector={"disk": "local"})
    result = plan(node_pool(), there, pod("easy", {"cpu": "1500m"}), rigid)
    assert (left(result), existing(result), sizes(result)) == ([], {"n1": 1}, [1])


def test_where_no_order_helps_the_larger_pod_keeps_its_place() -> None:
    there = node_and_claim("n1", {"cpu": "2"}, labels={"disk": "local"})
    both = [pod(name, {"cpu": cpu}, node_selector={"disk": "local"}) for name, cpu in (("a", "1"), ("b", "1500m"))]
    assert left(plan(node_pool(), there, both)) == ["a"]


def test_a_limit_on_nodes_leaves_out_no_more_of_spread_pods_than_it_must() -> None:
    """Two nodes are allowed, one per capacity type; a cap on one of the two would close the other as well."""
    waiting = app_pods(
        3, {"cpu": "100m"}, spread=[spread_over(labels.CAPACITY_TYPE)], affinity=pod_anti_affinity_to(affinity_term())
    )
    result = plan(node_pool(limits={"nodes": "2"}), waiting, types=_HALVES)
    assert (left(result), sizes(result)) == (["web-002"], [1, 1])


def test_under_limits_a_pod_that_others_want_to_be_near_is_served_before_them() -> None:
    """One node for three pods is allowed; without the small pod no pod would be placed."""
    wanted = pod("wanted", {"cpu": "100m"}, meta={"labels": {"app": "web"}})
    nearby = pods(
        3, {"cpu": "500m"}, prefix="nearby", affinity=pod_affinity_to(affinity_term(key=labels.CAPACITY_TYPE))
    )
    three = (shape("t", {"cpu": 8, "memory": "8Gi", "pods": 3}, [offering("on-demand", "z1", 1.0)]),)
    result = plan(node_pool(limits={"nodes": "1"}), wanted, nearby, types=three)
    assert (left(result), sizes(result)) == (["nearby-002"], [3])


def _important(name: str, priority: int, cpu: str, affinity: Affinity | None = None) -> Pod:
    return pod(name, {"cpu": cpu}, priority=priority, affinity=affinity)


def test_under_limits_the_more_important_pod_gets_the_node() -> None:
    """Beyond SCH-232: the scheduler would preempt the other."""
    waiting = [_important("low", 0, "3"), _important("high", 1000, "2")]
    result = plan(node_pool(limits={"cpu": "4"}), waiting, types=inc(4))
    assert left(result) == ["low"]


def test_of_pods_alike_the_more_important_get_nodes_whatever_their_age() -> None:
    waiting = [_important(f"p{number}", 1000 if number > 3 else 0, "1") for number in range(6)]
    result = plan(node_pool(limits={"cpu": "3"}), waiting, types=inc(3))
    assert left(result) == ["p0", "p1", "p2", "p3"]


def test_less_important_pods_do_not_use_up_a_limit_beside_the_important_ones() -> None:
    """A node large enough for both would leave nothing for the third."""
    tall = app_pods(3, {"cpu": "500m"}, priority=1000, affinity=pod_anti_affinity_to(affinity_term()))
    result = plan(node_pool(limits={"cpu": "124"}), tall, pods(20, {"cpu": "9"}, prefix="low"), types=inc(100))
    assert not [name for name in left(result) if name.startswith("web")]


def test_priority_changes_nothing_where_limits_leave_no_pod_out() -> None:
    mixed = [pods(9, {"cpu": "700m"}, prefix="a", priority=5), pods(9, {"cpu": "1100m"}, prefix="b")]
    equal = [pods(9, {"cpu": "700m"}, prefix="a"), pods(9, {"cpu": "1100m"}, prefix="b")]
    one, other = (plan(node_pool(), waiting, types=inc(8)) for waiting in (mixed, equal))
    assert one.price_per_hour == other.price_per_hour
    assert sizes(one) == sizes(other)


def test_an_important_pod_that_fits_nowhere_takes_no_place_from_others() -> None:
    waiting = [_important("high", 1000, "100"), _important("low", 0, "1")]
    assert left(plan(node_pool(limits={"cpu": "4"}), waiting, types=inc(4))) == ["high"]


def test_an_important_pod_whose_affinity_cannot_be_met_takes_no_room_from_others() -> None:
    waiting = _important("high", 1000, "1", affinity=pod_affinity_to(affinity_term("missing")))
    assert left(plan(node_pool(limits={"cpu": "4"}), waiting, _important("low", 0, "1"), types=inc(4))) == ["high"]


def test_a_less_important_pod_does_not_stay_where_it_was_planned_at_the_cost_of_an_important_one() -> None:
    """Limits allow a new node to neither pod, and the last pass planned the existing node for the other one."""
    there = node_and_claim("n1", {"cpu": "1"}, labels={"disk": "local"})
    own = {"node_selector": {"disk": "local"}}
    old = pod("old", {"cpu": "1"}, status={"nominated_node_name": "n1"}, **own)
    assert left(plan(node_pool(), there, old, pod("new", {"cpu": "1"}, **own))) == ["new"]
    assert left(plan(node_pool(), there, old, pod("new", {"cpu": "1"}, priority=1000, **own))) == ["old"]


def test_of_equally_important_pods_one_that_has_a_choice_yields_before_the_less_important_do() -> None:
    rigid = {"node_selector": {"disk": "local"}}
    there = [node_and_claim("local", {"cpu": "2"}, labels={"disk": "local"}), node_and_claim("plain", {"cpu": "2"})]
    important = [_important("free", 1000, "2"), pod("bound", {"cpu": "1500m"}, priority=1000, **rigid)]
    assert left(plan(there, important, _important("low", 0, "1800m"))) == ["low"]


def test_less_important_pods_still_get_nodes_where_they_displace_no_other() -> None:
    """The limit of one pool rules out new nodes for them; another pool has no limit."""
    pools = [node_pool("limited", limits={"cpu": "124"}), node_pool("free", template={"taints": (pool_taint("own"),)})]
    tall = app_pods(3, {"cpu": "500m"}, priority=1000, affinity=pod_anti_affinity_to(affinity_term()))
    low = pods(20, {"cpu": "9"}, prefix="low")
    others = pods(
        3, {"cpu": "9"}, prefix="own", tolerations=(tolerating("own"),), node_selector={labels.NODE_POOL: "free"}
    )
    assert not [name for name in left(plan(pools, tall, low, others, types=inc(100))) if not name.startswith("low")]
