"""Which of the allowed domains pods get: no dead ends, and the cheapest of several orders where a skew leaves a choice."""

from __future__ import annotations

from typing import Any

import pytest

from karpenter.model import labels
from karpenter.scheduling.pass_result import DomainOrder, PassResult
from karpenter.scheduling.scheduling_passes import SchedulingPasses
from karpenter.scheduling.solution import Solution
from support.applied_plans import PlannedCluster
from support.builders import ANY_CAPACITY, left, node_and_claim, node_pool, plan
from support.instance_types import inc, offering, shape
from support.topology_builders import app_pods, spread_over

ZONE, KIND = labels.ZONE, labels.CAPACITY_TYPE
TYPES = inc(16)


def spread_plan(count: int, *skews: tuple[str, int]) -> Solution:
    spread = [spread_over(key, skew) for key, skew in skews]
    return plan(node_pool(requirements=[ANY_CAPACITY]), app_pods(count, {"cpu": "400m"}, spread=spread), types=TYPES)


@pytest.mark.parametrize("count", [6, 8, 12, 40, 501])
def test_a_zone_sold_as_one_capacity_type_only_is_no_dead_end(count: int) -> None:
    """SCH-547: z3 sells no spot, so on-demand pods must not all have gone to z1 and z2."""
    cluster = PlannedCluster(node_pool(requirements=[ANY_CAPACITY]), types=TYPES)
    assert left(cluster.batch(app_pods(count, {"cpu": "400m"}, spread=[spread_over(ZONE), spread_over(KIND)]))) == []
    for key in (ZONE, KIND):
        counts = cluster.counts(key).values()
        assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("count", "skews", "price"),
    [
        pytest.param(4, [(ZONE, 1), (KIND, 1)], 0.95, id="four-pods-on-three-nodes"),
        pytest.param(6, [(ZONE, 3), (KIND, 3)], 1.26, id="zones-and-capacity-types-loosely"),
        pytest.param(6, [(KIND, 4)], 0.95, id="capacity-types-loosely"),
    ],
)
def test_pods_use_the_freedom_that_the_skew_leaves(count: int, skews: list[tuple[str, int]], price: float) -> None:
    """SCH-548: the least occupied domain first would launch a third more."""
    result = spread_plan(count, *skews)
    assert left(result) == []
    assert result.price_per_hour <= price


def test_pods_stay_even_where_another_order_saves_nothing() -> None:
    """SCH-548: among plans of one price the evenest counts."""
    cluster = PlannedCluster(node_pool(requirements=[ANY_CAPACITY]), node_and_claim("full", {"cpu": "1m"}), types=TYPES)
    cluster.batch(app_pods(9, {"cpu": "15"}, spread=[spread_over(ZONE, 4)]))
    assert sorted(cluster.counts(ZONE).values()) == [3, 3, 3]


def orders_tried(monkeypatch: pytest.MonkeyPatch, count: int, *prices: float) -> list[DomainOrder]:
    """In which orders domains are dealt to so many pods that each fill a node, where zones have these prices."""
    tried: list[DomainOrder] = []
    run = SchedulingPasses._run_pass

    def noting(passes: SchedulingPasses, *arguments: Any) -> PassResult:
        tried.append(passes._context.domain_order)
        return run(passes, *arguments)

    monkeypatch.setattr(SchedulingPasses, "_run_pass", noting)
    offerings = [offering("on-demand", f"z{number}", price) for number, price in enumerate(prices)]
    sold = [shape("one", {"cpu": 4, "memory": "16Gi", "pods": 20}, offerings, overhead={})]
    assert left(plan(node_pool(), app_pods(count, {"cpu": "4"}, spread=[spread_over(ZONE, 2)]), types=sold)) == []
    return tried


@pytest.mark.parametrize(
    ("count", "prices", "expected"),
    [
        pytest.param(40, (1.0, 1.0), ["LEAST_OCCUPIED", "BALANCED"], id="many-nodes-in-domains-of-one-price"),
        pytest.param(4, (1.0, 1.0), ["LEAST_OCCUPIED", "FEWEST", "BALANCED"], id="few-nodes-in-domains-of-one-price"),
        pytest.param(40, (1.0, 0.5), ["LEAST_OCCUPIED", "FEWEST", "CHEAPEST"], id="domains-of-different-prices"),
    ],
)
def test_only_orders_that_can_save_something_are_tried(
    monkeypatch: pytest.MonkeyPatch, count: int, prices: tuple[float, ...], expected: list[str]
) -> None:
    """Each order is a pass and a packing: most of the time of a decision about some hundred pods."""
    assert [order.name for order in orders_tried(monkeypatch, count, *prices)][: len(expected)] == expected
