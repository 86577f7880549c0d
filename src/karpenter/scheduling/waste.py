"""The cost of capacity that a plan pays for and no pod requests, in USD per hour, by resource.

    waste of a resource = its part of the node's price * (1 - requested / allocatable)

Requested is what the pods and the DaemonSets of the node request together. A node has one price but many resources, so the price
is divided among those that determine it:

* CPU and memory in proportion to their amounts, 8 GiB counting as much as one core. That is about the price difference between
  instance families with the same cores and different memory (2, 4 and 8 GiB per core on EC2).
* Accelerators get what the node costs beyond its CPU and memory, these at the going rate: the median, over the types without
  accelerators, of the price for a core by their cheapest offering of the same capacity type. Several kinds share alike.
* Everything else (slots for pods, disk, network) gets no part: nodes are not launched for it.

So the waste of a node lies between nothing and its price, and adds up over resources and nodes. It promises no savings:
nodes come in sizes, and the gap to the lower bound says how much any packing could save at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from karpenter.instancetypes.instance_type import InstanceType
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import quantity
from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.scheduling.solution import NewNodeClaim

#: So much memory is paid for like a core.
_GIB_PER_CORE = 8
_GIB = 2**30
#: Extended resources that come with a network card.
_NETWORK = "vpc.amazonaws.com/"


def accelerators(resources: Resources) -> tuple[str, ...]:
    """The extended resources of a node that are devices pods compute on, by name."""
    return tuple(
        sorted(name for name, amount in resources.items() if amount and "/" in name and not name.startswith(_NETWORK))
    )


class WasteCalculator:
    """What nodes of the types of one index waste. Going rates are worked out when first needed: linear in offerings."""

    def __init__(self, index: TypeIndex) -> None:
        self._index = index
        self._core_prices: dict[str, float] = {}

    def allocatable(self, claim: NewNodeClaim) -> Resources:
        """What pods can use of the new node."""
        return self._type(claim).allocatable

    def wasted_by_resource(self, claim: NewNodeClaim) -> dict[str, float]:
        """USD per hour wasted, by resource."""
        offered, used = self.allocatable(claim), res.parse_resources(claim.claim.spec.resources.requests)
        parts = self._parts(claim.price_per_hour, claim.cheapest_offering.capacity_type, offered)
        return {name: part * _unused_fraction(used.get(name, 0), offered[name]) for name, part in parts.items()}

    def _type(self, claim: NewNodeClaim) -> InstanceType:
        return self._index.selling(claim.instance_types[0], claim.cheapest_offering)

    def _parts(self, price_per_hour: float, capacity_type: str, offered: Resources) -> Mapping[str, float]:
        """The price divided among resources."""
        cores, of_memory = _core_equivalents(offered)
        devices = accelerators(offered)
        plain = price_per_hour
        if devices:
            plain = min(price_per_hour, self._core_price(capacity_type) * (cores + of_memory))
        for_core = plain / (cores + of_memory) if cores + of_memory else 0.0
        own = {res.CPU: for_core * cores, res.MEMORY: for_core * of_memory}
        parts = {name: part for name, part in own.items() if offered.get(name, 0)}
        return parts | {name: (price_per_hour - plain) / len(devices) for name in devices}

    def _core_price(self, capacity_type: str) -> float:
        """USD per hour and core, nothing where no type without accelerators is sold that way."""
        core_price = self._core_prices.get(capacity_type)
        if core_price is None:
            core_price = self._core_prices[capacity_type] = median([*_core_prices(self._index, capacity_type)] or [0.0])
        return core_price


def _core_prices(index: TypeIndex, capacity_type: str) -> Iterator[float]:
    """What a core costs on each type without accelerators that is sold that way."""
    for instance_type in index.types:
        size = sum(_core_equivalents(instance_type.allocatable))
        sold = [each.price_per_hour for each in instance_type.offerings if each.capacity_type == capacity_type]
        if sold and size and not accelerators(instance_type.allocatable):
            yield min(sold) / size


def _core_equivalents(amounts: Resources) -> tuple[float, float]:
    """Cores, and as how many cores the memory counts."""
    gib = amounts.get(res.MEMORY, 0) / quantity.MILLI / _GIB
    return amounts.get(res.CPU, 0) / quantity.MILLI, gib / _GIB_PER_CORE


def _unused_fraction(used: int, offered: int) -> float:
    return max(0.0, 1.0 - used / offered)
