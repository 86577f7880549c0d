"""Machines to buy as pages show them: those bought alike together, with what they hold, cost and waste."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from karpenter.catalog.index import TypeIndex
from karpenter.decide.plan import Plan, PlannedClaim
from karpenter.decide.waste import Wastes
from karpenter.model import resources as res


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines bought alike: same NodePool, type, zone, capacity type and price.

    ``used`` and ``offered`` sum over all of them, by resource; ``wasted`` too, in USD per hour (`decide.waste`).
    """

    claims: tuple[PlannedClaim, ...]
    used: res.Resources
    offered: res.Resources
    wasted: dict[str, float]

    @property
    def first(self) -> PlannedClaim:
        """One of them."""
        return self.claims[0]

    @property
    def instance_type(self) -> str:
        """The type that would be bought."""
        return self.first.instance_types[0]

    @property
    def price_per_hour(self) -> float:
        """USD per hour of all together."""
        return sum(claim.price_per_hour for claim in self.claims)

    @property
    def wasted_per_hour(self) -> float:
        """USD per hour over all resources."""
        return sum(self.wasted.values())

    def share(self, resource: str) -> float:
        """Part of the resource that is requested, 0 to 1."""
        offered = self.offered.get(resource, 0)
        return self.used.get(resource, 0) / offered if offered else 0.0


def grouped(plan: Plan, index: TypeIndex) -> list[Machines]:
    """The machines of a plan by how they are bought, the dearest group first."""
    groups: dict[tuple[str, str, str, str, float], list[PlannedClaim]] = defaultdict(list)
    for claim in plan.claims:
        offering = claim.cheapest
        where = (claim.node_pool, claim.instance_types[0], offering.zone, offering.capacity_type)
        groups[(*where, claim.price_per_hour)].append(claim)
    wastes = Wastes(index)
    found = [_group(claims, wastes) for claims in groups.values()]
    return sorted(found, key=lambda group: (-group.price_per_hour, group.instance_type, group.first.node_pool))


def summed(groups: Iterable[Machines]) -> dict[str, float]:
    """What all groups waste by resource, in USD per hour."""
    total: dict[str, float] = {}
    for group in groups:
        for name, amount in group.wasted.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def _group(claims: Sequence[PlannedClaim], wastes: Wastes) -> Machines:
    allocatable = wastes.allocatable(claims[0])
    used = res.add(*(res.parse(claim.claim.spec.resources.requests) for claim in claims))
    wasted: dict[str, float] = {}
    for claim in claims:
        for name, amount in wastes.of(claim).items():
            wasted[name] = wasted.get(name, 0.0) + amount
    return Machines(tuple(claims), used, {name: amount * len(claims) for name, amount in allocatable.items()}, wasted)
