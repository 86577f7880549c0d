"""Consolidation and burstable types: CPU beyond a baseline is a reason against a move, never for one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from karpenter.api.core import Pod
from karpenter.disruption.decide.disruption_problem import DisruptionOptions, DisruptionSolution
from karpenter.instancetypes.instance_type import BurstableCpu, InstanceType
from karpenter.model import labels, pods
from karpenter.scheduling.objective import Objective
from karpenter.scheduling.scheduling_options import SchedulingOptions
from support.builders import pod
from support.disruption_cases import (
    KINDS,
    USUAL,
    decide,
    gone,
    kind,
    pool,
    replacement_types,
    running,
    sold,
    with_annotation,
)

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
    assert replacement_types(solution) == replacements


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


_CREDIT_NODE = replace(BURSTABLE, offerings=tuple(sold(0.9)), burstable_cpu=BurstableCpu(1000, 2.0))
_CREDIT_TYPES = (kind("s", 2, sold(0.9)), _CREDIT_NODE)


def _saved(solution: DisruptionSolution) -> float:
    """USD per hour that all commands say they save."""
    return sum(command.saving_per_hour or 0.0 for command in solution.commands)


@pytest.mark.parametrize("small_nodes", [1, 2, 3])
def test_moves_of_one_decision_share_a_baseline(small_nodes: int) -> None:
    """Each move alone costs 0.2 USD of surplus and saves 0.7. Every further core on the burstable node costs 2 USD."""
    names = ("a", "c", "d")[:small_nodes]
    busy = running("b", "burstable", 0.1, conditions=())
    solution = decide(pool(), busy, *(running(name, "s", 1) for name in names), types=_CREDIT_TYPES)
    hosts = [placed.node_name for command in solution.commands for placed in command.placed_on_existing]
    assert hosts.count("b") <= 1
    assert _saved(solution) <= 0.9 * len(gone(solution)) - 0.2 * hosts.count("b") + 1e-9


def test_a_pending_pod_uses_the_baseline_before_pods_that_move() -> None:
    """It takes the one core that is guaranteed, so a move there would cost 2 USD and save 0.9."""
    waiting = pod("waiting", {"cpu": "0.9"}, node_selector={labels.INSTANCE_TYPE: "burstable"})
    cluster = (pool(), running("a", "s", 1), running("b", "burstable", 0.1, conditions=()))
    assert gone(decide(*cluster, types=_CREDIT_TYPES)) == ["a"]
    assert gone(decide(*cluster, waiting, types=_CREDIT_TYPES)) == []


def test_moves_that_follow_each_other_count_the_surplus_where_their_pods_end_up() -> None:
    """A plan made of several steps says no higher saving than what its nodes cost less at the end."""
    cores = {"b": [0.3], "e": [2], "c": [0.1], "d": [0.2]}
    staying = [running(name, "burstable", *cores[name], conditions=()) for name in "cd"]
    leaving = [running(name, "burstable", *cores[name]) for name in "be"]
    full = running("a", "m", 1.5, 0.1, conditions=())
    solution = decide(pool(), full, *staying, *leaving, types=(TYPES[0], _CREDIT_NODE))
    loads = {name: sum(requests) for name, requests in cores.items()}
    before = sum(_node_cost(load) for load in loads.values())
    for command in solution.commands:
        assert not command.replacements
        for placed in command.placed_on_existing:
            loads[placed.node_name] = loads.get(placed.node_name, 0) + sum(map(_cores, placed.pods))
    after = sum(_node_cost(loads[name]) for name in cores if name not in gone(solution))
    assert gone(solution)
    assert 0 < _saved(solution) <= before - after + 1e-9


@pytest.mark.parametrize("seed", [351, 368, 378, 392])
def test_a_replacement_that_steps_fill_up_counts_the_surplus_of_all_its_pods(seed: int) -> None:
    """It was made for the pods of one move; pods of later moves join it."""
    dice = Random(seed)
    small = replace(kind("burstable", 4, sold(1.2)), burstable_cpu=BurstableCpu(1000, 0.3))
    large = replace(kind("burst2", 8, sold(1.9)), burstable_cpu=BurstableCpu(2000, 0.2))
    types = (kind("s", 2, sold(0.9)), kind("m", 4, sold(2.0)), kind("l", 8, sold(3.9)), small, large)
    nodes = [
        running(
            chr(ord("a") + number),
            dice.choice(["s", "m", "l", "l", "burstable"]),
            *[dice.choice([0.3, 0.5, 1, 1.5]) for _ in range(dice.choice([1, 1, 2]))],
        )
        for number in range(dice.choice([3, 4, 5, 6]))
    ]
    easy = with_annotation(pool(), labels.MINIMUM_SAVING_RATIO, "0.1")
    commands = decide(easy, *nodes, types=types).commands
    burstable = [each for command in commands for each in command.replacements if each.instance_types[0] == "burst2"]
    assert burstable
    for replacement in burstable:
        surplus = 0.2 * max(0, sum(map(_cores, replacement.pods)) - 2)
        assert replacement.cpu_surplus_per_hour == pytest.approx(surplus)


def _node_cost(cores: float) -> float:
    """USD per hour of a node of type ``burstable`` with so many cores requested."""
    return 0.9 + 2.0 * max(0.0, cores - 1)


def _cores(moved: Pod) -> float:
    return pods.pod_requests(moved)["cpu"] / 1000
