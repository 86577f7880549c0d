"""Consolidation and burstable types: CPU beyond a baseline is a reason against a move, never for one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from karpenter.disruption.decide.disruption_problem import DisruptionOptions
from karpenter.instancetypes.instance_type import BurstableCpu, InstanceType
from karpenter.scheduling.objective import Objective
from karpenter.scheduling.scheduling_options import SchedulingOptions
from support.disrupting import KINDS, USUAL, bought, decide, gone, kind, pool, running, sold

#: Four cores for less than type ``m`` (2 USD per hour), of which one is guaranteed; each core more costs 0.5 USD per hour.
BURSTABLE = replace(kind("burstable", 4, sold(1.2)), burstable_cpu=BurstableCpu(1000, 0.5))
TYPES: tuple[InstanceType, ...] = (*(each for each in KINDS if each.name == "m"), BURSTABLE)
LIST_PRICES = replace(USUAL, provisioning=SchedulingOptions(objective=replace(Objective(), counts_cpu_surplus=False)))


@pytest.mark.parametrize(
    ("cpu", "options", "replacements"),
    [
        pytest.param(1, USUAL, ["burstable"], id="within-the-baseline"),
        pytest.param(4, USUAL, [], id="beyond-it-for-2.7-dollars"),
        pytest.param(4, LIST_PRICES, ["burstable"], id="by-offering-price"),
    ],
)
def test_a_node_is_replaced_by_a_burstable_type_only_if_its_pods_cost_less_there(
    cpu: int, options: DisruptionOptions, replacements: list[str]
) -> None:
    solution = decide(pool(), running("a", "m", cpu), types=TYPES, options=options)
    assert bought(solution) == replacements


def test_a_busy_burstable_node_is_no_reason_to_move_pods() -> None:
    """DIS-115: it counts at its offering price, 1.2 USD, though its pods cost 2.7 there. So no move undoes another."""
    assert gone(decide(pool(), running("a", "burstable", 4), types=TYPES)) == []


@pytest.mark.parametrize(("options", "moved"), [(USUAL, []), (LIST_PRICES, ["a"])])
def test_pods_that_move_onto_a_burstable_node_cost_what_they_request_beyond_its_baseline(
    options: DisruptionOptions, moved: list[str]
) -> None:
    """The node saves 0.9 USD, and its two cores cost 1 USD on the burstable node, whose baseline is in use."""
    types = (kind("s", 2, sold(0.9)), replace(BURSTABLE, offerings=tuple(sold(0.9))))
    solution = decide(pool(), running("a", "s", 2), running("b", "burstable", 2), types=types, options=options)
    assert gone(solution) == moved
