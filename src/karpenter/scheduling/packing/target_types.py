"""Which types the value packing fills for a node: those that no other type beats on price and shape, few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from karpenter.instancetypes.type_index import OfferingPrices
from karpenter.instancetypes.type_sets import TypeSet, type_set
from karpenter.model.resources import Resources
from karpenter.scheduling.demand import Demand, SchedulingNodeClaim
from karpenter.scheduling.objective import Objective
from karpenter.scheduling.packing.packing_state import scaled_down_count

#: Types the value packing fills per node; the rest are worse by price and shape than one of these.
MAX_TARGET_TYPES = 24
#: How many pods of which demands.
Contents = Iterable[tuple[int, int]]


class TargetTypes:
    """The types to fill, and the prices of what claims accept; both are remembered by the requirements of claims."""

    def __init__(self, demands: Sequence[Demand], objective: Objective) -> None:
        self._objective = objective
        self._resources = sorted({name for demand in demands for name in demand.requests})
        self._most = scaled_down_count(MAX_TARGET_TYPES, len(demands))
        self._types: dict[tuple[int, TypeSet, int], list[int]] = {}
        self._prices: dict[tuple[int, int], OfferingPrices] = {}

    def of(self, claim: SchedulingNodeClaim) -> list[int]:
        """Types to consider for a claim: unbeaten by price and shape."""
        key = (id(claim.template), claim.types, id(claim.requirements))
        target_types = self._types.get(key)
        if target_types is None:
            index = claim.template.index
            prices = self._objective.ordered(self.prices(claim))
            burstable = claim.types & claim.template.cpu_surpluses.types
            fronts = (
                index.pareto_front(types, prices, self._resources) for types in (claim.types & ~burstable, burstable)
            )
            efficient = prices.cheapest_first(type_set(chain.from_iterable(fronts)))
            target_types = self._types[key] = _evenly_spread(efficient, self._most)
        return target_types

    def prices(self, claim: SchedulingNodeClaim) -> OfferingPrices:
        """Cheapest offerings the claim accepts."""
        key = (id(claim.template), id(claim.requirements))
        offering_prices = self._prices.get(key)
        if offering_prices is None:
            offering_prices = self._prices[key] = claim.prices
        return offering_prices

    def cost_as(self, claim: SchedulingNodeClaim, target: int, requests_of: Callable[[Contents], Resources]) -> float:
        """USD per hour that a claim is counted with as one of its types. ``requests_of``: what pods request together."""
        cost = self._objective.offering_cost(self.prices(claim).cheapest_offering[target])
        surplus = claim.template.cpu_surpluses.by_position.get(target)
        return cost if surplus is None else cost + surplus.price_per_hour(requests_of(claim.contents))


def _evenly_spread(positions: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of the positions, evenly spread from first to last."""
    if len(positions) <= most:
        return list(positions)
    return [positions[number * (len(positions) - 1) // (most - 1)] for number in range(most)]
