"""What CPU beyond the baseline of burstable types costs: the one place that prices a node by the pods on it.

A burstable type earns CPU credits for a baseline, such as 0.4 of the two vCPUs of a t3.medium. Its price covers only that.
Requests say how much CPU pods need in the long run, so requests beyond the baseline cost the surplus price:

    price of the node = price of the offering + surplus price * max(0, CPU requests of pods and DaemonSets - baseline)

In credit mode ``unlimited`` the cloud bills the surplus. In mode ``standard`` there is no such CPU: there the baseline is the
capacity. The price stands for that. It is higher than that of any other CPU, so plans keep to the baseline where they can, and a
pod that fits no other type still gets a node.
"""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.instancetypes.instance_type import BurstableCpu
from karpenter.instancetypes.type_index import OfferingPrices
from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model import resources as res
from karpenter.model.resources import Resources

#: USD per vCPU-hour: about twenty times what a vCPU costs elsewhere.
UNAVAILABLE_CPU_PRICE = 1.0


@dataclass(frozen=True)
class CpuSurplus:
    """Of one type: the baseline that DaemonSets leave to pods, below 0 where they take more, and the price of CPU beyond it."""

    pod_baseline_millis: int
    price_per_vcpu_hour: float

    @staticmethod
    def of_type(burstable_cpu: BurstableCpu, daemon_requests: Resources) -> CpuSurplus:
        """The surplus of a type on which DaemonSets request so much."""
        price = burstable_cpu.surplus_price_per_vcpu_hour
        baseline = burstable_cpu.baseline_millis - daemon_requests.get(res.CPU, 0)
        return CpuSurplus(baseline, UNAVAILABLE_CPU_PRICE if price is None else price)

    def price_per_hour(self, pod_requests: Resources) -> float:
        """USD per hour for the CPU that pods request beyond what is left of the baseline."""
        surplus_millis = max(0, pod_requests.get(res.CPU, 0) - self.pod_baseline_millis)
        return self.price_per_vcpu_hour * surplus_millis / res.ONE_UNIT


class CpuSurpluses:
    """The burstable types of a NodePool by position; empty where CPU beyond the baseline is not counted."""

    def __init__(self, by_position: dict[int, CpuSurplus]) -> None:
        self.by_position = by_position
        self.types: TypeSet = sum(1 << position for position in by_position)

    def price_per_hour(self, position: int, pod_requests: Resources) -> float:
        """USD per hour that a node of the type costs for CPU beside the price of its offering."""
        surplus = self.by_position.get(position)
        return 0.0 if surplus is None else surplus.price_per_hour(pod_requests)

    def cheapest(self, prices: OfferingPrices, types: TypeSet, pod_requests: Resources) -> int:
        """The type that costs least with these pods, -1 if none has an offering. Of equals the lower offering price wins."""
        if not types & self.types:
            return prices.cheapest(types)
        best, least = -1, float("inf")
        for position in prices.order:
            if not types >> position & 1:
                continue
            price = prices.cheapest_offering[position].price_per_hour
            if price >= least:
                break
            total = price + self.price_per_hour(position, pod_requests)
            if total < least:
                best, least = position, total
        return best

    def types_at_list_price(self, types: TypeSet, pod_requests: Resources) -> TypeSet:
        """Those of the types on which these pods cost nothing beside the price of the offering."""
        beyond = sum(
            1 << position
            for position, surplus in self.by_position.items()
            if types >> position & 1 and surplus.price_per_hour(pod_requests)
        )
        return types & ~beyond
