"""The advice to raise a limit is exact for all pods that it leaves out together: with that much all get nodes, with less not."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karpenter.api.core import Pod
from karpenter.model import quantity
from karpenter.scheduling.problem import build_problem
from karpenter.scheduling.solver import solve
from karpenter.scheduling.whatif.limit_increases import MAX_PODS, LimitIncrease, limit_increases
from support.builders import NOW, flatten, indexes, node_pool, plan, pods, snapshot
from support.examples import examples
from support.instance_types import offering, shape
from support.topology_builders import affinity_term, app_pods, pod_affinity_to

_SIZES = {2: 0.10, 4: 0.19, 8: 0.37, 16: 0.73}
TYPES = [
    shape(
        f"c{cpu}", {"cpu": cpu, "memory": f"{4 * cpu}Gi", "pods": 30}, [offering("on-demand", "z1", price)], overhead={}
    )
    for cpu, price in _SIZES.items()
]


@st.composite
def waiting_pods(draw: st.DrawFn) -> list[Pod]:
    """Alike pods, two groups of them, or a connected group: followers of a pod that must be on its host."""
    requests = [{"cpu": draw(st.sampled_from(["500m", "1", "1500m", "3"])), "memory": "1Gi"} for _ in range(2)]
    counts = [draw(st.integers(1, 6)) for _ in range(2)]
    match draw(st.sampled_from(["alike", "groups", "connected"])):
        case "alike":
            return pods(counts[0] + counts[1], requests[0])
        case "groups":
            return [*pods(counts[0], requests[0], prefix="a"), *pods(counts[1], requests[1], prefix="b")]
        case _:
            followers = app_pods(
                min(counts[1], 4), requests[1], app="web", affinity=pod_affinity_to(affinity_term("db"))
            )
            return [*app_pods(1, requests[0], app="db"), *followers]


LIMITS = ({"cpu": "1"}, {"cpu": "4"}, {"cpu": "7"}, {"memory": "10Gi"}, {"nodes": "0"}, {"nodes": "1", "cpu": "40"})


def increases(waiting: Iterable[Pod], limits: dict[str, str]) -> tuple[LimitIncrease, ...]:
    objects = flatten([node_pool(limits=limits), *waiting])
    by_pool = indexes(objects, TYPES)
    stated = build_problem(snapshot(*objects), by_pool, NOW)
    return limit_increases(stated, solve(stated, by_pool), by_pool, partial(solve, indexes=by_pool))


def left_with(waiting: Iterable[Pod], limits: dict[str, str], resource: str, more: int) -> int:
    raised = {**limits, resource: quantity.quantity_text(quantity.parse_milli(limits[resource]) + more)}
    return len(plan(node_pool(limits=raised), list(waiting), types=TYPES).unschedulable)


@settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))
@given(waiting_pods(), st.sampled_from(LIMITS))
def test_with_the_increase_all_get_nodes_and_with_less_not(waiting: list[Pod], limits: dict[str, str]) -> None:
    """SCH-382, SCH-384."""
    before = len(plan(node_pool(limits=limits), waiting, types=TYPES).unschedulable)
    found = increases(waiting, limits)
    assert bool(found) == bool(before)
    for increase in found:
        assert increase.pods == before
        assert left_with(waiting, limits, increase.resource, increase.amount) == 0
        assert left_with(waiting, limits, increase.resource, increase.amount - 1) > 0


@pytest.mark.parametrize(
    ("waiting", "amount"),
    [
        (pods(9, {"cpu": "1"}), 6_000),  # 4 + 4 + 2 instead of 4
        (app_pods(3, {"cpu": "3"}, affinity=pod_affinity_to(affinity_term("web"))), 12_000),  # all on one node of 16
    ],
)
def test_a_group_gets_the_amount_that_it_lacks_together(waiting: list[Pod], amount: int) -> None:
    (increase,) = increases(waiting, {"cpu": "4"})
    assert (increase.node_pool, increase.resource, increase.amount) == ("np", "cpu", amount)


def test_a_pod_without_room_on_the_node_of_another_gets_the_limit_that_made_the_node_small() -> None:
    """One of four followers: with 7 CPU the node has 4 of them, where all five pods together need 4.5."""
    waiting = [
        *app_pods(1, {"cpu": "500m"}, app="db"),
        *app_pods(4, {"cpu": "1"}, app="web", affinity=pod_affinity_to(affinity_term("db"))),
    ]
    (increase,) = increases(waiting, {"cpu": "7"})
    assert (increase.resource, increase.amount, increase.pods) == ("cpu", 1_000, 1)


def test_no_increase_is_looked_for_with_many_pods() -> None:
    assert increases(pods(MAX_PODS + 1, {"cpu": "1"}), {"cpu": "4"}) == ()


def test_a_pod_that_fits_no_node_is_not_counted() -> None:
    waiting = [*pods(3, {"cpu": "4"}), *pods(1, {"cpu": "100"}, prefix="huge")]
    (increase,) = increases(waiting, {"cpu": "4"})
    assert (increase.pods, increase.amount) == (2, 8_000)
