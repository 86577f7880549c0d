"""Pods that come a few at a time, and room for those to come."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from karpenter.api.core import Node, Pod
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.scheduling.objective import NO_EXPOSURE_LIMITS, Objective
from karpenter.scheduling.scheduling_options import ArrivalForecast, SchedulingOptions
from karpenter.scheduling.solution import Solution
from support.builders import NOW, existing, new_types, node, node_pool, plan, pod, sizes
from support.instance_types import offering, shape

TYPES: list[InstanceType] = [
    shape(f"c{n}", {"cpu": n, "memory": f"{4 * n}Gi", "pods": 50}, [offering("on-demand", "z1", n / 10)], overhead={})
    for n in (1, 2, 4, 8)
]
PLAIN = SchedulingOptions(objective=Objective(0.0, exposure=NO_EXPOSURE_LIMITS))
ONE_CORE = {"cpu": "1", "memory": "1Gi"}


def come(number: int, ago: timedelta) -> list[Node | Pod]:
    """Pods that came so long ago and fill the node they are on."""
    there = node("full", {"cpu": str(number), "memory": "64Gi"})
    came = [pod(f"r{n}", ONE_CORE, node_name="full") for n in range(number)]
    return [
        there,
        *(
            msgspec.structs.replace(
                listed_pod, metadata=msgspec.structs.replace(listed_pod.metadata, creation_timestamp=NOW - ago)
            )
            for listed_pod in came
        ),
    ]


def plan_with_one_more_pod(*objects: object, options: SchedulingOptions = PLAIN) -> Solution:
    return plan(node_pool(), *objects, pod("p", ONE_CORE), types=TYPES, options=options)


def test_where_pods_kept_coming_room_for_the_next_is_launched() -> None:
    """Three came lately: the fourth gets a node that holds another one."""
    assert new_types(plan_with_one_more_pod(*come(3, timedelta(minutes=5)))) == ["c2"]


def test_pods_that_came_long_ago_do_not_count_in_the_forecast() -> None:
    """After a quarter of an hour no further pod is expected."""
    assert new_types(plan_with_one_more_pod(*come(3, timedelta(minutes=16)))) == ["c1"]


def test_two_pods_are_no_habit() -> None:
    """It takes several arrivals for each pod that is reckoned with."""
    assert new_types(plan_with_one_more_pod(*come(2, timedelta(minutes=5)))) == ["c1"]


def test_what_is_expected_is_in_no_plan() -> None:
    """Plans hold existing pods only: on new nodes, on existing ones, and among the pods left out."""
    roomy = node("roomy", {"cpu": "8", "memory": "64Gi"})
    solution = plan_with_one_more_pod(*come(6, timedelta(minutes=5)))
    assert sizes(solution) == [1]
    assert not solution.unschedulable
    placed = plan_with_one_more_pod(*come(6, timedelta(minutes=5)), roomy)
    assert existing(placed) == {"roomy": 1}
    assert not placed.new_claims


def test_nothing_is_expected_where_the_outlook_says_so() -> None:
    """As disruption asks: pods that move are no arrivals."""
    calm = SchedulingOptions(objective=PLAIN.objective, arrival_forecast=ArrivalForecast.NONE)
    assert new_types(plan_with_one_more_pod(*come(3, timedelta(minutes=5)), options=calm)) == ["c1"]


def test_many_pods_at_once_get_nodes_for_themselves_only() -> None:
    """Pods that fill whole nodes need no forecast."""
    many = [pod(f"m{n}", ONE_CORE) for n in range(40)]
    solution = plan(node_pool(), *come(8, timedelta(minutes=5)), *many, types=TYPES, options=PLAIN)
    assert solution.price_per_hour == 4.0
