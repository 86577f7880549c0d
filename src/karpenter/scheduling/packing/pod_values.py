"""What pods are worth: what one costs on a node that is full of its like. By that packings compare nodes with different pods."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.scheduling.demand import Demand, SchedulingNodeClaim
from karpenter.scheduling.objective import Objective
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.packing.target_types import TargetTypes

_TINY = 1e-9


class PodValues:
    """USD per hour that pods of each demand cost on the node that suits them best, were it full of their like."""

    def __init__(
        self,
        demands: Sequence[Demand],
        target_types: TargetTypes,
        objective: Objective,
        empty_claim: Callable[[LaunchOption, TypeSet], SchedulingNodeClaim],
    ) -> None:
        self._target_types = target_types
        self._objective = objective
        self._empty_claim = empty_claim
        self._by_signature: dict[tuple[int, int], float] = {}
        self._by_requests: dict[object, float] = {}
        self._demands = demands
        self._by_position: dict[int, float] = {}

    def of_contents(self, contents: Sequence[tuple[int, int]]) -> float:
        """What counts of pods by demand position are worth together."""
        return sum(self._of_demand(position) * count for position, count in contents)

    def _of_demand(self, position: int) -> float:
        if position not in self._by_position:
            demand = self._demands[position]
            key = (id(demand.signature), id(demand.options[0]))
            if key not in self._by_signature:
                self._by_signature[key] = self._of_requests(demand.requests, demand.options[0])
            self._by_position[position] = self._by_signature[key]
        return self._by_position[position]

    def _of_requests(self, requests: Resources, option: LaunchOption) -> float:
        """The same for all demands that request alike from options alike."""
        claim = self._empty_claim(option, option.types)
        key = (tuple(requests.items()), id(option.template), claim.types, id(claim.requirements))
        if key not in self._by_requests:
            offering = self._target_types.prices(claim).cheapest_offering
            cost = self._objective.offering_cost
            costs = (
                cost_of_pod(cost(offering[position]), requests, option.template, position)
                for position in self._target_types.of(claim)
            )
            self._by_requests[key] = min(costs, default=0.0)
        return self._by_requests[key]


def cost_of_pod(node_cost: float, requests: Resources, template: NodePoolTemplate, position: int) -> float:
    """USD per hour of a pod on a node of the type that is full of its like, or full within the baseline of a burstable type."""
    share = _resource_share(requests, template, position)
    surplus = template.cpu_surpluses.by_position.get(position)
    cpu = requests.get(res.CPU, 0)
    if surplus is None or not share or not cpu:
        return node_cost * share
    full = node_cost + surplus.price_per_hour({res.CPU: int(cpu / share)})
    return min(full * share, node_cost * max(share, cpu / max(surplus.pod_baseline_millis, _TINY)))


def _resource_share(requests: Resources, template: NodePoolTemplate, position: int) -> float:
    allocatable = template.index.types[position].allocatable
    shares = [amount / allocatable[name] for name, amount in requests.items() if amount > 0]
    return max(shares) if shares else 0.0
