"""Reservations and volumes when nodes are replaced (scenarios 26.5, 26.6)."""

from __future__ import annotations

from dataclasses import replace

from karpenter.api.storage import PersistentVolumeSource
from karpenter.disruption.decide.disruption_decision import decide_disruption
from karpenter.disruption.decide.disruption_problem import DisruptionProblem, DisruptionSolution
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.model import labels
from karpenter.model.requirements import Requirements, requirement, requirements_from_labels
from support.applied_commands import QUIET
from support.builders import expr, flatten, snapshot, term, wanted
from support.disruption_cases import CPUS, decide, gone, on, pool, replacement_types, running
from support.instance_types import shape
from support.volume_builders import pv, pvc, using

FREE = 1e-7


def sold(name: str, price: float, *reservations: str) -> InstanceType:
    """A type on demand and by reservations of one unit each, all in one zone."""
    own = shape(name, {"cpu": CPUS[name], "memory": "64Gi", "pods": 50}, overhead={})
    place = {labels.ZONE: "z1", labels.CAPACITY_TYPE: "reserved"}
    held = tuple(
        Offering(
            requirements_from_labels({**place, labels.RESERVATION_ID: reservation}),
            price * FREE,
            reservation_capacity=1,
        )
        for reservation in reservations
    )
    usual = Offering(requirements_from_labels({labels.ZONE: "z1", labels.CAPACITY_TYPE: "on-demand"}), price)
    said = [requirement(labels.CAPACITY_TYPE, "In", ("on-demand", "reserved")), requirement(labels.ZONE, "In", ("z1",))]
    said += [requirement(labels.RESERVATION_ID, "In", reservations)] if reservations else []
    rest = own.requirements.without((labels.CAPACITY_TYPE, labels.ZONE, labels.RESERVATION_ID))
    return replace(own, requirements=rest.intersect(Requirements(said)), offerings=(*held, usual))


def decided(types: list[InstanceType], *objects: object) -> DisruptionSolution:
    """The decision where what types speak of is well known, as with a cloud that has reservations."""
    anything = pool(requirements=[wanted(labels.CAPACITY_TYPE, "Exists")])
    wires = flatten([anything, objects])
    problem = DisruptionProblem(snapshot(wires), QUIET)
    return decide_disruption(problem, {"np": TypeIndex(types, well_known_labels_of(types))})


def test_a_free_reservation_of_its_own_type_takes_a_node_over() -> None:
    """DIS-S145"""
    solution = decided([sold("m", 2.0, "r-1")], running("a", "m", 4))
    assert gone(solution) == ["a"]
    (planned,) = solution.commands[0].replacements
    asked = {requirement.key: requirement.values for requirement in planned.claim.spec.requirements}
    assert asked[labels.CAPACITY_TYPE] == ("reserved",)
    assert asked[labels.RESERVATION_ID] == ("r-1",)


def test_a_reserved_node_becomes_a_smaller_reservation_only() -> None:
    """DIS-S144, DIS-193"""
    host, behind, *pods = running("a", "l", 1, capacity_type="reserved")
    smaller = decided([sold("l", 4.0, "r-1"), sold("s", 1.0, "r-2")], host, behind, pods)
    assert replacement_types(smaller) == ["s"]
    assert gone(decided([sold("l", 4.0, "r-1"), sold("s", 1.0)], host, behind, pods)) == []


def test_a_volume_on_the_node_itself_dies_with_it() -> None:
    """DIS-S121, DIS-169"""
    here = term(expr(labels.HOSTNAME, "In", "a"))
    disk = pv("disk", here, local=PersistentVolumeSource())
    pods = on("a", 1, volumes=using("data"))
    solution = decide(pool(), running("a", "l"), pods, disk, pvc("data", "disk"))
    assert replacement_types(solution) == ["s"]
