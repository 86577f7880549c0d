"""New NodeClaims in groups for output: equal ones together, with their pods, price and waste."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import resources as res
from karpenter.scheduling.solution import NewNodeClaim, Solution
from karpenter.scheduling.waste import WasteCalculator


@dataclass(frozen=True, slots=True)
class NodeClaimGroup:
    """NodeClaims launched alike: same NodePool, type, zone, capacity type and price.

    ``requested`` and ``allocatable`` are sums over all of them, by resource; ``wasted`` too, in USD per hour
    (``scheduling.waste``).
    """

    claims: tuple[NewNodeClaim, ...]
    requested: res.Resources
    allocatable: res.Resources
    wasted: dict[str, float]

    @property
    def sample(self) -> NewNodeClaim:
        """One of them."""
        return self.claims[0]

    @property
    def instance_type(self) -> str:
        """The instance type that would be launched."""
        return self.sample.instance_types[0]

    @property
    def price_per_hour(self) -> float:
        """USD per hour of all together."""
        return sum(claim.price_per_hour for claim in self.claims)

    @property
    def wasted_per_hour(self) -> float:
        """USD per hour over all resources."""
        return sum(self.wasted.values())

    def requested_share(self, resource: str) -> float:
        """Part of the resource that is requested, 0 to 1."""
        offered = self.allocatable.get(resource, 0)
        return self.requested.get(resource, 0) / offered if offered else 0.0


def group_node_claims(plan: Solution, indexes: Mapping[str, TypeIndex]) -> list[NodeClaimGroup]:
    """The NodeClaims of a plan by how they are launched, the most expensive group first. ``indexes`` are by NodePool."""
    groups: dict[tuple[str, str, str, str, float], list[NewNodeClaim]] = defaultdict(list)
    for claim in plan.new_claims:
        offering = claim.cheapest_offering
        where = (claim.node_pool, claim.instance_types[0], offering.zone, offering.capacity_type)
        groups[(*where, claim.price_per_hour)].append(claim)
    wastes = {pool: WasteCalculator(index) for pool, index in indexes.items()}
    nodeclaim_groups = [_group(claims, wastes[claims[0].node_pool]) for claims in groups.values()]
    return sorted(
        nodeclaim_groups, key=lambda group: (-group.price_per_hour, group.instance_type, group.sample.node_pool)
    )


def total_waste(groups: Iterable[NodeClaimGroup]) -> dict[str, float]:
    """What all groups waste by resource, in USD per hour."""
    total: dict[str, float] = {}
    for group in groups:
        for name, amount in group.wasted.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def _group(claims: Sequence[NewNodeClaim], wastes: WasteCalculator) -> NodeClaimGroup:
    allocatable = wastes.allocatable(claims[0])
    used = res.add(*(res.parse_resources(claim.claim.spec.resources.requests) for claim in claims))
    wasted: dict[str, float] = {}
    for claim in claims:
        for name, amount in wastes.wasted_by_resource(claim).items():
            wasted[name] = wasted.get(name, 0.0) + amount
    return NodeClaimGroup(
        tuple(claims), used, {name: amount * len(claims) for name, amount in allocatable.items()}, wasted
    )
