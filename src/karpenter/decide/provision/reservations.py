"""Reserved capacity: what is left of each reservation, and what can be bought once some are used up (SCH §21)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from karpenter.catalog.index import TypeIndex, TypeSet
from karpenter.cluster.nodes import NodeView
from karpenter.decide.provision.templates import Template
from karpenter.model import labels
from karpenter.model.requirements import Requirement, Requirements

#: Whatever is bought without any reservation.
FREELY = Requirements((Requirement(labels.CAPACITY_TYPE, True, frozenset((labels.RESERVED,))),))


def of_reservation(reservation: str) -> Requirements:
    """What is bought from one reservation; an empty name stands for reserved capacity that names none."""
    named = [Requirement(labels.RESERVATION_ID, False, frozenset((reservation,)))] if reservation else []
    return Requirements((Requirement(labels.CAPACITY_TYPE, False, frozenset((labels.RESERVED,))), *named))


def units_left(templates: Iterable[Template], views: Iterable[NodeView]) -> dict[str, int]:
    """What is left of every reservation, less what claims are about to take that the cloud has not counted yet (SCH-581)."""
    found: dict[str, int] = {}
    for template in templates:
        for reservation, units in template.index.reservations.items():
            found[reservation] = min(units, found.get(reservation, units))
    for view in views if found else ():
        held = view.offers.get(labels.RESERVATION_ID)
        if not view.launched and held is not None and len(held.values) == 1 and not held.complement:
            reservation = next(iter(held.values))
            found[reservation] = found.get(reservation, 0) - 1
    return found


def buyable(index: TypeIndex, requirements: Requirements, units: Mapping[str, int]) -> TypeSet:
    """Types that can be bought freely or from a reservation with units left. ``units`` is empty where nobody counts them."""
    found = index.buyable(requirements)
    if not any(units.get(reservation, 1) <= 0 for reservation in index.reservations):
        return found
    having = [reservation for reservation in index.reservations if units.get(reservation, 1) > 0]
    ways = (FREELY, *map(of_reservation, having))
    left = 0
    for way in ways:
        left |= index.buyable(requirements.intersect(way))
    return found & left


def used_up(index: TypeIndex, requirements: Requirements, units: Mapping[str, int], types: TypeSet) -> tuple[str, ...]:
    """Reservations without units from which some of the types would be bought."""
    empty = (reservation for reservation in sorted(index.reservations) if units.get(reservation, 1) <= 0)
    return tuple(r for r in empty if index.buyable(requirements.intersect(of_reservation(r))) & types)
