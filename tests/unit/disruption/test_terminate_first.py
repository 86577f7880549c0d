"""Terminate first: a drifted or broken node that nothing can replace while it exists goes first (K15-320 ff.)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from karpenter.api.core import Node
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import Condition, Wire
from karpenter.disruption.decide.command import Decision, TerminateFirstReason
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionOptions, DisruptionProblem, DisruptionSolution
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.kube.decoding import metadata_of
from karpenter.model import labels
from karpenter.model.repair_policies import RepairPolicy, repair_policies
from karpenter.model.requirements import Requirements, requirement, requirements_from_labels
from support.applied_commands import QUIET
from support.builders import NOW, flatten, node_pool, replaced, snapshot, wanted
from support.disruption_cases import drifted, gone, kind, pool, running, sold, why

DRIFT = DisruptionOptions(terminate_first_drift=True)
POLICIES = repair_policies((RepairPolicy("Ready", "False", timedelta(minutes=10)),))
REPAIR = DisruptionOptions(repair=POLICIES, terminate_first_repair=True)
RESERVED_ONLY = wanted(labels.CAPACITY_TYPE, "In", "reserved")


def reserved(units: int, *more: Offering, available: bool = True) -> InstanceType:
    """Type m, sold from reservation r-1 with so many units left, and otherwise as said."""
    base = kind("m", 4, ())
    own = {labels.ZONE: "z1", labels.CAPACITY_TYPE: "reserved", labels.RESERVATION_ID: "r-1"}
    offerings = (Offering(requirements_from_labels(own), 1e-7, available, reservation_capacity=units), *more)
    said = (
        requirement(labels.RESERVATION_ID, "In", ("r-1",)),
        requirement(labels.CAPACITY_TYPE, "In", ("reserved", *(("on-demand",) if more else ()))),
        requirement(labels.ZONE, "In", ("z1",)),
    )
    rest = base.requirements.without((labels.CAPACITY_TYPE, labels.ZONE, labels.RESERVATION_ID))
    return replace(base, requirements=rest.intersect(Requirements(said)), offerings=offerings)


def node(name: str, *cpus: float, reservation: str = "r-1", is_drifted: bool = True) -> list[Wire]:
    """A node that holds a unit of a reservation."""
    pair = running(name, "m", *cpus, capacity_type="reserved", conditions=drifted(NOW) if is_drifted else ())
    return [
        replaced(
            wire,
            metadata=replaced(
                metadata_of(wire), labels={**metadata_of(wire).labels, labels.RESERVATION_ID: reservation}
            ),
        )
        if position < 2
        else wire
        for position, wire in enumerate(pair)
    ]


def decided(options: DisruptionOptions, instance_type: InstanceType, *objects: object) -> DisruptionSolution:
    wires = flatten(objects)
    problem = DisruptionProblem(snapshot(wires), QUIET, options)
    index = TypeIndex((instance_type,), well_known_labels_of((instance_type,)) | labels.WELL_KNOWN)
    return decide_disruption(problem, {"np": index})


def reserved_pool() -> NodePool:
    return pool(requirements=[RESERVED_ONLY])


def static(replicas: int, ready: bool = True, **limits: str) -> NodePool:
    return node_pool("np", [RESERVED_ONLY], ready=ready, replicas=replicas, limits=limits)


def test_a_drifted_node_of_a_full_reservation_goes_first_where_the_gate_allows_it() -> None:
    """K15-321, K15-322, K15-S13, K15-320: with one unit credited its pods fit; nothing is launched before."""
    solution = decided(DRIFT, reserved(0), reserved_pool(), node("a", 3))
    (command,) = solution.commands
    assert (command.decision, command.replacements) == (Decision.TERMINATE_FIRST, ())
    assert command.terminate_first is TerminateFirstReason.NO_RESERVED_CAPACITY
    off = decided(DisruptionOptions(), reserved(0), reserved_pool(), node("a", 3))
    assert gone(off) == []
    assert why(off, "a").startswith("Pods can't be rescheduled: ")


def test_a_unit_that_is_left_makes_it_replace_first() -> None:
    """K15-323"""
    (command,) = decided(DRIFT, reserved(1), reserved_pool(), node("a", 3)).commands
    assert command.decision is Decision.REPLACE


def test_on_demand_capacity_makes_it_replace_first() -> None:
    """K15-323, K15-S14: whatever else the first simulation finds excludes terminate-first."""
    free = reserved(0, *sold(2.0, zones=("z1",)))
    (command,) = decided(
        DRIFT, free, pool(requirements=[wanted(labels.CAPACITY_TYPE, "Exists")]), node("a", 3)
    ).commands
    assert command.decision is Decision.REPLACE


@pytest.mark.parametrize(("reservation", "available"), [("r-2", True), ("r-1", False)])
def test_a_reservation_unit_that_cannot_be_used_frees_nothing(reservation: str, available: bool) -> None:
    """K15-322: a reservation that the pass does not know, and one that is unavailable for another reason."""
    solution = decided(DRIFT, reserved(0, available=available), reserved_pool(), node("a", 3, reservation=reservation))
    assert gone(solution) == []


def test_pods_beyond_the_unit_that_becomes_free_keep_the_node() -> None:
    """K15-323: a second node of the reservation still needs a unit of its own, one after the other."""
    solution = decided(DRIFT, reserved(0), reserved_pool(), node("a", 3), node("b", 3))
    assert gone(solution) == ["a", "b"]
    assert {command.decision for command in solution.commands} == {Decision.TERMINATE_FIRST}
    assert gone(decided(DRIFT, reserved(0), reserved_pool(), node("a", 3, 3, 3))) == []


def test_a_broken_node_follows_its_own_gate() -> None:
    """K15-328, K15-041: the gate of drift does not affect repair."""
    healthy = [node(f"h{number}", 4, is_drifted=False) for number in range(4)]
    broken = [
        replaced(wire, status=replaced(wire.status, conditions=(_not_ready(),))) if isinstance(wire, Node) else wire
        for wire in node("a", 3, is_drifted=False)
    ]
    (command,) = decided(REPAIR, reserved(0), reserved_pool(), healthy, broken).commands
    assert (gone([command]), command.decision) == (["a"], Decision.TERMINATE_FIRST)
    other = DisruptionOptions(repair=POLICIES, terminate_first_drift=True)
    assert gone(decided(other, reserved(0), reserved_pool(), healthy, broken)) == []


def _not_ready() -> Condition:
    return Condition(type="Ready", status="False", last_transition_time=NOW - timedelta(minutes=11))


@pytest.mark.parametrize(("ready", "decision"), [(True, Decision.TERMINATE_FIRST), (False, None)])
def test_a_static_pool_at_its_limit_of_nodes_lets_a_node_go_first(ready: bool, decision: Decision | None) -> None:
    """K15-325, K15-326, K15-S15: but not while the pool is not Ready, since nothing would refill it."""
    solution = decided(DRIFT, reserved(1), static(2, ready, nodes="2"), node("a", 3), node("b", 3, is_drifted=False))
    assert [command.decision for command in solution.commands] == ([] if decision is None else [decision])
    if decision is None:
        assert "Static NodePool is at its node limit and cannot stage a replacement" in why(solution, "a")
    else:
        assert solution.commands[0].terminate_first is TerminateFirstReason.STATIC_AT_LIMIT


def test_a_static_pool_whose_reservations_are_full_lets_holders_go_first() -> None:
    """K15-324, K15-327: one command per node; nodes without a unit are blocked."""
    solution = decided(DRIFT, reserved(0), static(2), node("a", 3, reservation="r-9"), node("b", 3))
    assert gone(solution) == ["b"]
    assert solution.commands[0].terminate_first is TerminateFirstReason.NO_RESERVED_CAPACITY
    text = "Static NodePool's capacity reservations are full and cannot stage a replacement"
    assert text in why(solution, "a")
    assert gone(decided(DisruptionOptions(), reserved(0), static(2), node("b", 3))) == []
