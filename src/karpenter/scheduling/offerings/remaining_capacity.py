"""What NodePool limits still allow (SCH §15): less what nodes have, and what those on their way may become at most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Requirement, Requirements
from karpenter.model.resources import Resources
from karpenter.scheduling.in_flight_claims import InFlightClaims
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.state.state_node import StateNode


def remaining_limits(
    template: NodePoolTemplate, views: Sequence[StateNode], in_flight_claims: InFlightClaims
) -> dict[str, int]:
    """Limits minus the capacity of the pool's nodes (SCH-381); a claim yet to launch counts as the largest it may become."""
    limits = res.parse_resources(template.pool.spec.limits)
    if not limits:
        return {}
    own = (view for view in views if view.pool == template.name and not view.marked_for_deletion)
    used = res.add(*(counted_capacity(view, template, in_flight_claims) for view in own))
    return res.subtract(limits, used)


def counted_capacity(view: StateNode, template: NodePoolTemplate, in_flight_claims: InFlightClaims) -> dict[str, int]:
    """What a node takes of the limits of its NodePool (SCH-087, SCH-381)."""
    in_flight = not view.launched and view.claim is not None
    return {
        **(in_flight_claims.max_capacity(view, template.index) if in_flight else view.capacity),
        res.NODES: res.ONE_UNIT,
    }


#: What is left of the limits of each limited NodePool, by name and resource.
RemainingLimits = Mapping[str, Mapping[str, int]]


def limits_plus(limits: RemainingLimits, capacities: Iterable[tuple[str, Mapping[str, int]]]) -> RemainingLimits:
    """The limits with this capacity, by NodePool, given back. Only resources that are limited matter."""
    sums = {name: dict(left) for name, left in limits.items()}
    for node_pool, capacity in capacities:
        left = sums[node_pool]
        for name in left:
            left[name] += capacity.get(name, 0)
    return sums


def types_within_limits(template: NodePoolTemplate, left: Mapping[str, int]) -> TypeSet:
    """Types of the pool that what is left of its limits allows (SCH-382)."""
    if left.get(res.NODES, res.ONE_UNIT) < res.ONE_UNIT:
        return 0
    return template.index.within_limits({name: amount for name, amount in left.items() if name != res.NODES})


def max_capacity(template: NodePoolTemplate, types: TypeSet) -> Resources:
    """The most of each resource any of the types brings."""
    return template.index.max_capacity(types)


#: Whatever is bought without any reservation.
UNRESERVED = Requirements((Requirement(labels.CAPACITY_TYPE, True, frozenset((labels.RESERVED,))),))


def reservation_requirements(reservation: str) -> Requirements:
    """What is bought from one reservation; an empty name stands for reserved capacity that names none."""
    named = [Requirement(labels.RESERVATION_ID, False, frozenset((reservation,)))] if reservation else []
    return Requirements((Requirement(labels.CAPACITY_TYPE, False, frozenset((labels.RESERVED,))), *named))


def remaining_reservation_units(templates: Iterable[NodePoolTemplate], views: Iterable[StateNode]) -> dict[str, int]:
    """What is left of every reservation, less what claims are about to take that the cloud has not counted yet (SCH-581)."""
    remaining: dict[str, int] = {}
    for template in templates:
        for reservation, units in template.index.reservation_units.items():
            remaining[reservation] = min(units, remaining.get(reservation, units))
    for view in views if remaining else ():
        held = view.requirements.get(labels.RESERVATION_ID)
        if not view.launched and held is not None and len(held.values) == 1 and not held.complement:
            reservation = next(iter(held.values))
            remaining[reservation] = remaining.get(reservation, 0) - 1
    return remaining


def types_with_units_left(
    index: TypeIndex, requirements: Requirements, reservation_units: Mapping[str, int]
) -> TypeSet:
    """Types that can be bought freely or from a reservation with units left. ``units`` is empty where nobody counts them."""
    types = index.with_available_offering(requirements)
    if not any(reservation_units.get(reservation, 1) <= 0 for reservation in index.reservation_units):
        return types
    having = [reservation for reservation in index.reservation_units if reservation_units.get(reservation, 1) > 0]
    ways = (UNRESERVED, *map(reservation_requirements, having))
    left = 0
    for way in ways:
        left |= index.with_available_offering(requirements.intersect(way))
    return types & left


def exhausted_reservations(
    index: TypeIndex, requirements: Requirements, reservation_units: Mapping[str, int], types: TypeSet
) -> tuple[str, ...]:
    """Reservations without units from which some of the types would be bought."""
    empty = (
        reservation for reservation in sorted(index.reservation_units) if reservation_units.get(reservation, 1) <= 0
    )
    return tuple(
        r for r in empty if index.with_available_offering(requirements.intersect(reservation_requirements(r))) & types
    )
