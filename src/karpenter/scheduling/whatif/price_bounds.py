"""Lower bounds on the price of new nodes for given pods, whatever the packing: they spare disruption most packings.

Resources are weighed against each other in several ways. However pods are packed, their nodes cost at least what the requests
weigh at the price of the type that is cheapest by that weight. Every way is a bound, and the largest counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf

from karpenter.instancetypes.type_sets import members
from karpenter.model import resources as res
from karpenter.scheduling.demand import Demand
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate

#: Ways CPU is weighed against memory, beside each resource by itself; and how many bytes of memory weigh as much as a core.
_CPU_MEMORY_WEIGHTINGS = 12
_MEMORY_PER_CPU = 4.0 * 2**30


class PriceBounds:
    """Bounds for what some NodePools sell, in USD per hour."""

    def __init__(self, templates: Sequence[NodePoolTemplate]) -> None:
        self._templates = templates

    def of_demands(self, demands: Sequence[Demand]) -> float:
        """Each pod needs a node that holds it, and together they need so much of every resource."""
        if not demands:
            return 0.0
        total = res.add(*({n: a * len(demand.pods) for n, a in demand.requests.items()} for demand in demands))
        single = max(min(option.lowest_price for option in demand.options) for demand in demands)
        return max(single, self.of_resources(total))

    def of_resources(self, total: Mapping[str, int]) -> float:
        """The largest bound of all ways to weigh resources."""
        return max((_weighted_amount(total, weights) * rate for weights, rate in self._cheapest_rates), default=0.0)

    @cached_property
    def _cheapest_rates(self) -> tuple[tuple[Mapping[str, float], float], ...]:
        """Ways to weigh resources against each other, each with the USD per hour of a unit where it is cheapest."""
        names = {name for template in self._templates for kind in template.index.types for name in kind.allocatable}
        ways: list[Mapping[str, float]] = [{name: 1.0} for name in sorted(names)]
        ways += [
            {res.CPU: part / _CPU_MEMORY_WEIGHTINGS, res.MEMORY: (1 - part / _CPU_MEMORY_WEIGHTINGS) / _MEMORY_PER_CPU}
            for part in range(1, _CPU_MEMORY_WEIGHTINGS)
        ]
        return tuple((weights, rate) for weights in ways if (rate := self._cheapest_rate(weights)) < inf)

    def _cheapest_rate(self, weights: Mapping[str, float]) -> float:
        rates: list[float] = []
        for template in self._templates:
            prices = template.index.prices(template.requirements)
            for position in members(template.types & prices.available_types):
                weight = _weighted_amount(template.index.types[position].allocatable, weights)
                if weight > 0:
                    rates.append(prices.cheapest_offering[position].price_per_hour / weight)
        return min(rates, default=inf)


def _weighted_amount(resources: Mapping[str, int], weights: Mapping[str, float]) -> float:
    return sum(resources.get(name, 0) * weight for name, weight in weights.items())
