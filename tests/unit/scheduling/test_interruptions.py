"""Spot is rated with the provider's interruption rates (issue of price, point 2): in comparisons only, never in shown prices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.scheduling.objective import Objective
from karpenter.scheduling.scheduling_options import SchedulingOptions
from support.builders import new_types, node_pool, plan, pods, wanted
from support.instance_types import offering, shape

SPOT = [wanted(labels.CAPACITY_TYPE, "In", "spot")]


def spot(name: str, cpu: int, price: float, interruptions_per_hour: float = 0.0) -> InstanceType:
    sold = replace(offering("spot", "z1", price), interruptions_per_hour=interruptions_per_hour)
    return shape(name, {"cpu": cpu, "memory": "64Gi", "pods": 100}, [sold], overhead={})


def test_worth_is_price_fee_and_expected_interruptions() -> None:
    risky = replace(offering("spot", "z1", 0.5), interruptions_per_hour=0.02)
    objective = Objective(0.01, 3.0)
    assert objective.offering_cost(risky) == pytest.approx(0.5 + 0.06 + 0.01)
    assert objective.offering_cost(offering("spot", "z1", 0.25)) == pytest.approx(0.25 + 0.01)
    assert Objective(0.0, 0.0).offering_cost(risky) == 0.5


def test_an_unknown_interruption_rate_costs_nothing() -> None:
    assert Objective().interruption_cost(offering("spot", "z1", 1.0)) == 0


def test_an_instance_that_is_often_interrupted_is_not_worth_its_price() -> None:
    """Two safe halves of 0.21 USD beat a whole of 0.40 USD that is interrupted every day; were it never, it would be launched."""
    waiting = pods(8, {"cpu": "1"})
    half = spot("half", 4, 0.21)
    assert new_types(plan(node_pool("np", SPOT), waiting, types=[half, spot("whole", 8, 0.40)])) == ["whole"]
    solution = plan(node_pool("np", SPOT), waiting, types=[half, spot("whole", 8, 0.40, 1 / 24)])
    assert new_types(solution) == ["half", "half"]
    assert solution.price_per_hour == pytest.approx(0.42), "what is shown is what is paid"


def test_what_an_interruption_costs_is_a_setting() -> None:
    types = [spot("half", 4, 0.21), spot("whole", 8, 0.40, 1 / 24)]
    calm = SchedulingOptions(objective=Objective(cost_per_interruption=0.0))
    assert new_types(plan(node_pool("np", SPOT), pods(8, {"cpu": "1"}), types=types, options=calm)) == ["whole"]


def test_pools_of_equal_weight_compete_with_their_risk() -> None:
    pools = (node_pool("safe", SPOT), node_pool("risky", SPOT))
    types = {"safe": [spot("calm", 8, 0.41)], "risky": [spot("wild", 8, 0.40, 1 / 24)]}
    assert new_types(plan(*pools, pods(8, {"cpu": "1"}), types=types)) == ["calm"]


def test_the_lower_bound_leaves_out_interruption_costs() -> None:
    solution = plan(node_pool("np", SPOT), pods(8, {"cpu": "1"}), types=[spot("whole", 8, 0.40, 1 / 24)])
    assert solution.lower_bound_per_hour == pytest.approx(0.40)
