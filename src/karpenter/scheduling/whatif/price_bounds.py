"""Lower bounds on the price of new nodes for given pods, whatever the packing: they spare disruption most packings.

Resources are weighed against each other in several ways. However pods are packed, their nodes cost at least what the requests
weigh at the price of the type that is cheapest by that weight. Every way is a bound, and the largest counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf

from karpenter.instancetypes.type_index import ResourceWeights
from karpenter.model import resources as res
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.whatif.counted_pass import CountedDemand

#: Ways CPU is weighed against memory, beside each resource by itself; and how many bytes of memory weigh as much as a core.
_CPU_MEMORY_WEIGHTINGS = 12
_MEMORY_PER_CPU = 4.0 * 2**30
#: So many bounds are remembered at most.
_MAX_BOUNDS = 4096


class PriceBounds:
    """Bounds for what some NodePools sell, in USD per hour."""

    def __init__(self, templates: Sequence[NodePoolTemplate]) -> None:
        self._templates = templates
        #: Latest bounds by resources: the pods of a node are asked about in every decision.
        self._bounds: dict[frozenset[tuple[str, int]], float] = {}

    def of_demands(self, demands: Sequence[CountedDemand]) -> float:
        """Each pod needs a node that holds it, and together they need so much of every resource."""
        if not demands:
            return 0.0
        total = res.add(*({n: a * demand.count for n, a in demand.requests.items()} for demand in demands))
        single = max(min(option.lowest_price for option in demand.options) for demand in demands)
        return max(single, self.of_resources(total))

    def of_resources(self, total: Mapping[str, int]) -> float:
        """The largest bound of all ways to weigh resources."""
        key = frozenset(total.items())
        bound = self._bounds.get(key)
        if bound is None:
            bound = max(
                (_weighted_amount(total, weights) * rate for weights, rate in self._cheapest_rates), default=0.0
            )
            if len(self._bounds) >= _MAX_BOUNDS:
                self._bounds.clear()
            self._bounds[key] = bound
        return bound

    @cached_property
    def _cheapest_rates(self) -> tuple[tuple[ResourceWeights, float], ...]:
        """Ways to weigh resources against each other, each with the USD per hour of a unit where it is cheapest."""
        names = {name for template in self._templates for name in template.index.resources}
        ways: list[ResourceWeights] = [((name, 1.0),) for name in sorted(names)]
        ways += [_cpu_and_memory(part / _CPU_MEMORY_WEIGHTINGS) for part in range(1, _CPU_MEMORY_WEIGHTINGS)]
        return tuple((weights, rate) for weights in ways if (rate := self._cheapest_rate(weights)) < inf)

    def _cheapest_rate(self, weights: ResourceWeights) -> float:
        """Each index remembers its answers: most passes ask again what the pass before them asked."""
        rates = (
            template.index.lowest_unit_price(template.requirements, template.types, weights)
            for template in self._templates
        )
        return min(rates, default=inf)


def _cpu_and_memory(cpu_share: float) -> ResourceWeights:
    return ((res.CPU, cpu_share), (res.MEMORY, (1 - cpu_share) / _MEMORY_PER_CPU))


def _weighted_amount(resources: Mapping[str, int], weights: ResourceWeights) -> float:
    return sum(resources.get(name, 0) * weight for name, weight in weights)
