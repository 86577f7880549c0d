"""Disruption cost of nodes, their prices, and the order of candidates that follows from both (DIS §5)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import chain

from karpenter.api.core import Pod
from karpenter.disruption.decide.command import Candidate
from karpenter.instancetypes.instance_type import BurstableCpu, Offering
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import members
from karpenter.model import labels, pods
from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.scheduling.cpu_surplus import CpuSurplus
from karpenter.state.state_node import StateNode

#: What a node costs to disrupt beside its pods (DIS-046).
NODE_DISRUPTION_COST = 1.0


def disruption_cost(state_node: StateNode) -> float:
    """The node's own share and the eviction costs of the pods that need another place (DIS-114)."""
    return NODE_DISRUPTION_COST + state_node.eviction_cost


def candidate_order(candidate: Candidate) -> tuple[float, float, str]:
    """Sort key of candidates: most saved per disruption first, then the dearest, then by name (DIS-117, DIS-116, its Beyond)."""
    price = candidate.price_per_hour or 0.0
    return (-price / candidate.disruption_cost, -price, candidate.state_node.name)


class NodePrices:
    """What nodes that exist cost, by the offering their labels name (DIS-115).

    CPU beyond the baseline of a burstable type (`cpu_surplus`) is no part of the price of a node: it is a reason not to move pods
    there, never a reason to move them away. So every consolidation lowers the sum of prices, and none undoes another.
    """

    def __init__(self, indexes: Mapping[str, TypeIndex], *, counts_cpu_surplus: bool = True) -> None:
        self._indexes = indexes
        self._counts_cpu_surplus = counts_cpu_surplus
        self._cache: dict[tuple[str, str, str, str, str], float | None] = {}

    def price_per_hour(self, state_node: StateNode) -> float | None:
        """USD per hour, whether or not that offering is available now; None if type, offering or price are unknown.

        Of several reservations the node's own counts, the first where it names none.
        """
        key = state_node.sold_as
        if key not in self._cache:
            self._cache[key] = self._priced(*key)
        return self._cache[key]

    def cpu_surplus_per_hour(self, state_node: StateNode, arriving: Iterable[Pod] = ()) -> float:
        """USD per hour for CPU that its pods, and further ones, request beyond the baseline of its type."""
        burstable_cpu = self._burstable_cpu(state_node.pool, state_node.own_labels.get(labels.INSTANCE_TYPE, ""))
        if burstable_cpu is None:
            return 0.0
        requests = res.add(state_node.pod_requests, *map(pods.pod_requests, arriving))
        return CpuSurplus.of_type(burstable_cpu, {}).price_per_hour(requests)

    def cpu_surplus_of_type(self, pool: str, instance_type: str, requests: Resources) -> float:
        """USD per hour for CPU that pods and DaemonSets request beyond the baseline of the type."""
        burstable_cpu = self._burstable_cpu(pool, instance_type)
        return 0.0 if burstable_cpu is None else CpuSurplus.of_type(burstable_cpu, {}).price_per_hour(requests)

    def _burstable_cpu(self, pool: str, instance_type: str) -> BurstableCpu | None:
        """What CPU beyond the baseline of the type costs; None if it is unknown, not burstable, or not counted."""
        index = self._indexes.get(pool)
        groups = index.named(instance_type) if index is not None else 0
        if index is None or not groups or not self._counts_cpu_surplus:
            return None
        return index.types[next(members(groups))].burstable_cpu

    def _priced(self, pool: str, kind: str, zone: str, capacity_type: str, reservation: str) -> float | None:
        index = self._indexes.get(pool)
        if index is None:
            return None
        for offering in chain.from_iterable(index.types[at].offerings for at in members(index.named(kind))):
            is_its_own = not reservation or offering.reservation_id in ("", reservation)
            if is_its_own and _is_in(offering, zone, capacity_type):
                return offering.price_per_hour if math.isfinite(offering.price_per_hour) else None
        return None


def _is_in(offering: Offering, zone: str, capacity_type: str) -> bool:
    asked = offering.requirements
    return asked.requirement_for(labels.ZONE).allows(zone) and asked.requirement_for(labels.CAPACITY_TYPE).allows(
        capacity_type
    )
