"""Terminate first: a node that nothing can replace while it exists goes before its replacement is launched (K15-320 to K15-328).

It is used only where replacing first cannot work: the node holds the last unit of a capacity reservation, or its static NodePool
is at its limit of nodes. Provisioning launches the replacement afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from karpenter.disruption.decide.command import Candidate, Command, DisruptionReason, TerminateFirstReason
from karpenter.disruption.decide.disruption_problem import PreparedDisruption
from karpenter.disruption.decide.move_blockers import (
    PodsUnschedulable,
    StaticPoolAtNodeLimit,
    StaticReservationsFull,
)
from karpenter.disruption.decide.scheduling_simulation import SchedulingSimulation, UnreschedulablePods, simulate
from karpenter.disruption.decide.static_replacements import StaticBlocker, StaticReplacements
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels
from karpenter.model.requirements import intersects
from karpenter.scheduling.offerings.nodepool_templates import nodepool_requirements
from karpenter.scheduling.whatif.questions import ReschedulingResult

#: Asks a simulation where the pods of a candidate go.
Question = Callable[[SchedulingSimulation], ReschedulingResult | UnreschedulablePods]


def held_reservation(candidate: Candidate) -> str:
    """The capacity reservation whose unit a node holds; empty if it holds none."""
    own = candidate.state_node.own_labels
    return own.get(labels.RESERVATION_ID, "") if own.get(labels.CAPACITY_TYPE) == labels.RESERVED else ""


class FreedReservations:
    """What could be launched if nodes gave their units of capacity reservations back (K15-322)."""

    def __init__(self, prepared: PreparedDisruption, closed_to_pods: Iterable[str]) -> None:
        self._prepared = prepared
        self._done: list[Command] = []
        self._closed = frozenset(closed_to_pods)
        self._simulations: dict[str, SchedulingSimulation] = {}

    def command(
        self, candidate: Candidate, reason: DisruptionReason, unplaced: UnreschedulablePods, ask: Question
    ) -> Command | None:
        """Delete a node whose pods fit once its unit is free; None if they do not, or if it holds none.

        Existing nodes that take pods are planned.
        """
        reservation = held_reservation(candidate)
        if not reservation or not isinstance(unplaced.blocker, PodsUnschedulable):
            return None
        simulation = self._credited(reservation)
        for command in self._done:
            simulation = simulation.after(command)
        answer = ask(simulation)
        if not isinstance(answer, ReschedulingResult):
            return None
        return Command(
            reason,
            (candidate,),
            placed_on_existing=answer.placements,
            terminate_first=TerminateFirstReason.NO_RESERVED_CAPACITY,
        )

    def record(self, command: Command) -> None:
        """A command of this pass: what comes after it sees the cluster that it leaves."""
        self._done.append(command)

    def _credited(self, reservation: str) -> SchedulingSimulation:
        if reservation not in self._simulations:
            indexes = {name: _credited_index(index, reservation) for name, index in self._prepared.indexes.items()}
            self._simulations[reservation] = simulate(replace(self._prepared, indexes=indexes), self._closed)
        return self._simulations[reservation]


def _credited_index(index: TypeIndex, reservation: str) -> TypeIndex:
    """The types with one more unit of the reservation; whether it is available stays as it is."""
    if reservation not in index.reservation_units:
        return index
    return TypeIndex(tuple(_credited_type(each, reservation) for each in index.types), index.well_known)


def _credited_type(instance_type: InstanceType, reservation: str) -> InstanceType:
    offerings = tuple(_credited_offering(offering, reservation) for offering in instance_type.offerings)
    return replace(instance_type, offerings=offerings) if offerings != instance_type.offerings else instance_type


def _credited_offering(offering: Offering, reservation: str) -> Offering:
    if offering.reservation_id != reservation or offering.reservation_capacity is None:
        return offering
    return replace(offering, reservation_capacity=offering.reservation_capacity + 1)


def static_command(
    candidate: Candidate, reason: DisruptionReason, replacements: StaticReplacements, *, may_go_first: bool
) -> Command | StaticBlocker | None:
    """Replace a node of a static NodePool, or let it go first where the gate allows it (K15-324 to K15-326).

    None where nothing is launched and nothing is to say.
    """
    pool = candidate.node_pool
    goes_first = may_go_first and replacements.refills(pool)
    if may_go_first and _are_reservations_full(pool, replacements):
        if goes_first and held_reservation(candidate) in _available_reservations(pool, replacements):
            return _going_first(candidate, reason, TerminateFirstReason.NO_RESERVED_CAPACITY)
        return StaticReservationsFull(pool)
    planned = replacements.stage(pool)
    if planned is None:
        return None
    if isinstance(planned, StaticPoolAtNodeLimit):
        at_limit = TerminateFirstReason.STATIC_AT_LIMIT
        return _going_first(candidate, reason, at_limit) if goes_first else planned
    return Command(reason, (candidate,), (planned,))


def _going_first(candidate: Candidate, reason: DisruptionReason, cause: TerminateFirstReason) -> Command:
    return Command(reason, (candidate,), terminate_first=cause)


def _compatible_offerings(pool: str, replacements: StaticReplacements) -> Iterable[Offering]:
    required = nodepool_requirements(replacements.pool(pool))
    for instance_type in replacements.index(pool).types:
        if intersects(instance_type.requirements, required):
            yield from (each for each in instance_type.offerings if intersects(each.requirements, required))


def _are_reservations_full(pool: str, replacements: StaticReplacements) -> bool:
    """Whether all that the pool could launch is reserved, and nothing of it can be launched (K15-324)."""
    return all(
        offering.capacity_type == labels.RESERVED and not offering.launchable
        for offering in _compatible_offerings(pool, replacements)
    )


def _available_reservations(pool: str, replacements: StaticReplacements) -> frozenset[str]:
    offerings = _compatible_offerings(pool, replacements)
    return frozenset(each.reservation_id for each in offerings if each.available and each.reservation_id)


def holders_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Nodes that hold a unit of a reservation before the others, else in their order (K15-324)."""
    return sorted(candidates, key=lambda candidate: not held_reservation(candidate))
