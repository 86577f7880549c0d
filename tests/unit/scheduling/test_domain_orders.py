"""Which of the allowed domains pods get: no dead ends, and the cheapest of several orders where a skew leaves a choice."""

from __future__ import annotations

import pytest

from karpenter.model import labels
from karpenter.scheduling.solution import Solution
from support.applied_plans import PlannedCluster
from support.builders import ANY_CAPACITY, left, machine, node_pool, plan
from support.instance_types import inc
from support.topology_builders import app_pods, even

ZONE, KIND = labels.ZONE, labels.CAPACITY_TYPE
TYPES = inc(16)


def spread_over(count: int, *skews: tuple[str, int]) -> Solution:
    spread = [even(key, skew) for key, skew in skews]
    return plan(node_pool(requirements=[ANY_CAPACITY]), app_pods(count, {"cpu": "400m"}, spread=spread), types=TYPES)


@pytest.mark.parametrize("count", [6, 8, 12, 40])
def test_a_zone_sold_as_one_capacity_type_only_is_no_dead_end(count: int) -> None:
    """SCH-547: z3 sells no spot, so on-demand pods must not all have gone to z1 and z2."""
    cluster = PlannedCluster(node_pool(requirements=[ANY_CAPACITY]), types=TYPES)
    assert left(cluster.batch(app_pods(count, {"cpu": "400m"}, spread=[even(ZONE), even(KIND)]))) == []
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
    """SCH-548: the least occupied domain first would buy a third more."""
    result = spread_over(count, *skews)
    assert left(result) == []
    assert result.price_per_hour <= price


def test_pods_stay_even_where_another_order_saves_nothing() -> None:
    """SCH-548: among plans of one price the evenest counts."""
    cluster = PlannedCluster(node_pool(requirements=[ANY_CAPACITY]), machine("full", {"cpu": "1m"}), types=TYPES)
    cluster.batch(app_pods(9, {"cpu": "15"}, spread=[even(ZONE, 4)]))
    assert sorted(cluster.counts(ZONE).values()) == [3, 3, 3]
