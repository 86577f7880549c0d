"""Waste of a plan: capacity that it pays for and no pod requests, in USD per hour (`decide.waste`)."""

from __future__ import annotations

import pytest

from karpenter.instancetypes.instance_type import InstanceType
from karpenter.scheduling.solution import Solution
from karpenter.scheduling.waste import WasteCalculator, accelerators
from support.builders import daemon_set, node_pool, plan, pod
from support.instance_types import index_of, offering, shape


def sold(name: str, price: float, capacity_type: str = "on-demand", **capacity: str | int) -> InstanceType:
    amounts = {"pods": 10, **{key.replace("gpu", "nvidia.com/gpu"): value for key, value in capacity.items()}}
    return shape(name, amounts, [offering(capacity_type, "z1", price)], overhead={})


PLAIN = sold("plain", 1.0, cpu=8, memory="16Gi")


def wasted(result: Solution, *types: InstanceType) -> dict[str, float]:
    (claim,) = result.new_claims
    return WasteCalculator(index_of(types)).wasted_by_resource(claim)


def waste_of(*types: InstanceType, **requests: str | int) -> dict[str, float]:
    asked = {key.replace("gpu", "nvidia.com/gpu"): value for key, value in requests.items()}
    return wasted(plan(node_pool("p"), pod("a", asked), types=types), *types)


def test_a_price_is_divided_with_8_gib_for_a_core_and_the_unused_part_is_waste() -> None:
    """8 cores and 16 GiB cost 0.8 and 0.2 USD; a quarter and a half are requested."""
    assert waste_of(PLAIN, cpu=2, memory="8Gi") == pytest.approx({"cpu": 0.6, "memory": 0.1})


def test_a_full_node_wastes_nothing_whatever_slots_for_pods_are_left() -> None:
    assert waste_of(PLAIN, cpu=8, memory="16Gi") == {"cpu": 0.0, "memory": 0.0}


def test_what_daemon_sets_request_is_used() -> None:
    result = plan(
        node_pool("p"), daemon_set("d", {"cpu": "4"}), pod("a", {"cpu": "4", "memory": "16Gi"}), types=(PLAIN,)
    )
    assert wasted(result, PLAIN) == {"cpu": 0.0, "memory": 0.0}


def test_accelerators_get_what_the_node_costs_beyond_cpu_and_memory_at_the_going_rate() -> None:
    """At 0.1 USD for a core the same amounts cost 1 USD, so two GPUs cost 3, one of which is idle."""
    with_gpus = sold("gpus", 4.0, cpu=8, memory="16Gi", gpu=2)
    actual = waste_of(PLAIN, with_gpus, cpu=8, memory="16Gi", gpu=1)
    assert actual == pytest.approx({"cpu": 0.0, "memory": 0.0, "nvidia.com/gpu": 1.5})


def test_the_going_rate_is_that_of_the_same_capacity_type() -> None:
    """Nothing without GPUs is sold as spot here: all of the price is for GPUs."""
    with_gpus = sold("gpus", 4.0, "spot", cpu=8, memory="16Gi", gpu=2)
    assert waste_of(PLAIN, with_gpus, cpu=1, memory="1Gi", gpu=1)["nvidia.com/gpu"] == pytest.approx(2.0)


def test_the_waste_of_a_node_adds_up_to_no_more_than_its_price() -> None:
    with_gpus = sold("gpus", 0.5, cpu=8, memory="16Gi", gpu=2)
    assert sum(waste_of(with_gpus, PLAIN, cpu="1m", memory="1Mi").values()) == pytest.approx(0.5, abs=0.001)


def test_network_cards_are_no_accelerators() -> None:
    amounts = {"cpu": 1, "vpc.amazonaws.com/efa": 1, "nvidia.com/gpu": 1, "amd.com/gpu": 0, "hugepages-2Mi": 1}
    assert accelerators(amounts) == ("nvidia.com/gpu",)
