"""Why a pod gets no node of a heavier NodePool: the reason is about new nodes, whatever room existing nodes had."""

from __future__ import annotations

from collections.abc import Sequence

from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.explain.heavier_pools import PassedNodePool, passed_node_pools
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.scheduling_options import SchedulingOptions
from karpenter.scheduling.solver import solve
from support.builders import NOW, claim, flatten, indexes, node_and_claim, node_pool, pods, snapshot, wanted
from support.gang_builders import gang
from support.instance_types import offering, shape


def _type(name: str, cores: int, price: float) -> InstanceType:
    return shape(name, {"cpu": cores, "memory": "8Gi", "pods": 50}, [offering("on-demand", "z1", price)], overhead={})


def passed(*existing: object, waiting: Sequence[object] = ()) -> PassedNodePool:
    """The heavier NodePool of the last of two pods, which gets a new node of the lighter one."""
    pools = [node_pool("heavy", weight=10, limits={"cpu": "1"}), node_pool("light")]
    world = flatten([*pools, *existing, *(waiting or pods(2, {"cpu": "2"}))])
    by_pool = indexes(world, [_type("c2", 2, 0.1)])
    problem = build_problem(snapshot(world), by_pool, NOW, SchedulingOptions())
    solution = solve(problem, by_pool)
    launched = solution.new_claims[-1]
    assert launched.node_pool == "light"
    (heavier,) = passed_node_pools(launched, launched.pods[-1], problem, solution, by_pool)
    return heavier


def names_limits(heavier: PassedNodePool) -> bool:
    return (
        heavier.refusal is not None and "limit" in str(heavier.refusal.nearest_fit or heavier.refusal.reasons).lower()
    )


def test_limits_are_the_reason_where_an_existing_node_had_room_for_another_pod() -> None:
    existing = node_and_claim("n0", {"cpu": "2", "memory": "8Gi"}, pool="light", labels={labels.ZONE: "z1"})
    assert names_limits(passed())
    assert names_limits(passed(existing))


def test_limits_are_the_reason_for_a_pod_of_a_gang() -> None:
    """A what-if question about the single pod is not about its gang."""
    assert names_limits(passed(waiting=gang("train", 2, {"cpu": "2"})))


def test_limits_are_the_reason_where_a_claim_in_flight_had_room_for_another_pod() -> None:
    in_flight = claim("c0", None, [wanted(labels.INSTANCE_TYPE, "In", "c2")], pool="light")
    assert names_limits(passed(in_flight))
