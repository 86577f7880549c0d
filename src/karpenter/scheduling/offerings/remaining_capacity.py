"""What NodePool limits still allow (SCH §15): less what nodes have, and what those on their way may become at most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements
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


def remaining_reservation_units(
    templates: Sequence[NodePoolTemplate], views: Iterable[StateNode], *, count_reservations: bool
) -> dict[str, int]:
    """What is left of every reservation and stock, less what claims are about to take that the cloud has not counted (SCH-581).

    Without ``count_reservations`` only stocks are counted.
    """
    remaining: dict[str, int] = {}
    for template in templates:
        for name, units in template.index.reservation_units.items():
            if count_reservations or name in template.index.counted.stocks:
                remaining[name] = min(units, remaining.get(name, units))
    by_name = {template.name: template for template in templates}
    for view in views if remaining else ():
        held = None if view.launched else _held_by(view, by_name.get(view.pool))
        if held is not None:
            remaining[held] = remaining.get(held, 0) - 1
    return remaining


def _held_by(view: StateNode, template: NodePoolTemplate | None) -> str | None:
    """The reservation or the stock that a claim keeps to."""
    reservation = _single_value(view.requirements, labels.RESERVATION_ID)
    if reservation is not None or template is None:
        return reservation
    for name, requirements in template.index.counted.stocks.items():
        if all(_single_value(view.requirements, key) in each.values for key, each in requirements.items()):
            return name
    return None


def _single_value(requirements: Requirements, key: str) -> str | None:
    held = requirements.get(key)
    return next(iter(held.values)) if held is not None and len(held.values) == 1 and not held.complement else None


def types_with_units_left(
    index: TypeIndex, requirements: Requirements, reservation_units: Mapping[str, int]
) -> TypeSet:
    """Types that can be launched freely or from a reservation or stock with units left. One without an entry is not limited."""
    types = index.with_available_offering(requirements)
    if not any(reservation_units.get(name, 1) <= 0 for name in index.reservation_units):
        return types
    having = [name for name in index.reservation_units if reservation_units.get(name, 1) > 0]
    ways = (index.counted.outside, *map(index.counted.requirements, having))
    left = 0
    for way in ways:
        left |= _types_sold(index, requirements, way)
    return types & left


def _types_sold(index: TypeIndex, requirements: Requirements, way: Requirements) -> TypeSet:
    """Types with an available offering that meets the requirements and is sold this way."""
    types = index.with_available_offering(requirements.intersect(way))
    named = way.get(labels.INSTANCE_TYPE)
    return types if named is None else types & index.matching(Requirements((named,)))


def exhausted_reservations(
    index: TypeIndex, requirements: Requirements, reservation_units: Mapping[str, int], types: TypeSet
) -> tuple[str, ...]:
    """Reservations and stocks without units from which some of the types would be launched."""
    empty = (name for name in sorted(index.reservation_units) if reservation_units.get(name, 1) <= 0)
    return tuple(name for name in empty if _types_sold(index, requirements, index.counted.requirements(name)) & types)
