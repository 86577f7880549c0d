"""Gauges about what is for sale (AWS-780 to AWS-782, AWS-790), and what of it is not used.

There are thousands of series, so they are not counted up one by one: once a minute the lists of all pools are summed up, and the
text is written from that when somebody asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from karpenter.catalog.types import InstanceType
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.providers.aws.types.unavailable import Sold
from karpenter.telemetry.exposition import Family, Registry, Writing, pairs

_PREFIX = "karpenter_cloudprovider_"
_AVAILABLE = Family(
    f"{_PREFIX}instance_type_offering_available", "Whether any NodePool can buy the instance type that way now."
)
_PRICE = Family(f"{_PREFIX}instance_type_offering_price_estimate", "What the instance type costs that way per hour.")
_CORES = Family(f"{_PREFIX}instance_type_cpu_cores", "Cores of the instance type.")
_MEMORY = Family(f"{_PREFIX}instance_type_memory_bytes", "Memory of the instance type as nodes report it, in bytes.")
_MARKED = Family(f"{_PREFIX}unavailable_offerings", "Ways to buy that EC2 had none of a moment ago, and are not tried.")
_SKIPPED = Family(f"{_PREFIX}instance_types_skipped", "Instance types whose description could not be used.")


class Way(NamedTuple):
    """A way to buy a type: the labels of a series."""

    instance_type: str
    capacity_type: str
    zone: str


@dataclass(frozen=True)
class Figures:
    """All lists summed up: per way whether any pool has it available, and the price; per type cores and bytes of memory."""

    available: Mapping[Way, bool] = field(default_factory=dict)
    price: Mapping[Way, float] = field(default_factory=dict)
    size: Mapping[str, tuple[float, int]] = field(default_factory=dict)


def figures(lists: Iterable[tuple[InstanceType, ...]], *, reserved: bool) -> Figures:
    """Sum up the lists of all pools (AWS-790); with ``reserved`` every type and zone has a row for reserved capacity."""
    available: dict[Way, bool] = {}
    price: dict[Way, float] = {}
    size: dict[str, tuple[float, int]] = {}
    for item in {id(item): item for types in lists for item in types}.values():
        size[item.name] = (item.capacity[res.CPU] / res.ONE, item.capacity[res.MEMORY] // res.ONE)
        for offering in item.offerings:
            way = Way(item.name, offering.capacity_type, offering.zone)
            now = available.get(way, False)
            available[way] = now or offering.available
            if offering.available or not now:
                price[way] = offering.price_per_hour
            if reserved:
                unreserved = way._replace(capacity_type=labels.RESERVED)
                available.setdefault(unreserved, False)
                price.setdefault(unreserved, 0.0)
    return Figures(available, price, size)


class MarketFigures:
    """A source of series: the figures of the last minute, and what is marked as unavailable at this moment."""

    def __init__(self, registry: Registry, marked: Callable[[], tuple[Sold, ...]]) -> None:
        self._figures = Figures()
        self._marked = marked
        self._skipped = 0
        registry.sources.append(self)

    def rewrite(self, found: Figures) -> None:
        """Replace the figures."""
        self._figures = found

    def skipped(self, count: int) -> None:
        """So many types of the last refresh could not be used."""
        self._skipped = count

    def picture(self) -> Writing:
        """The series as they are now."""
        shown, skipped = self._figures, self._skipped
        marked = Counter(sold.capacity_type for sold in self._marked())
        return lambda: _written(shown, marked, skipped)


def _written(shown: Figures, marked: Mapping[str, int], skipped: int) -> Iterator[str]:
    ways = {
        way: pairs(instance_type=way.instance_type, capacity_type=way.capacity_type, zone=way.zone)
        for way in shown.available
    }
    types = {name: pairs(instance_type=name) for name in shown.size}
    yield from _AVAILABLE.text((ways[way], int(now)) for way, now in shown.available.items())
    yield from _PRICE.text((ways[way], price) for way, price in shown.price.items())
    yield from _CORES.text((types[name], cores) for name, (cores, _) in shown.size.items())
    yield from _MEMORY.text((types[name], memory) for name, (_, memory) in shown.size.items())
    yield from _MARKED.text((pairs(capacity_type=name), count) for name, count in sorted(marked.items()))
    yield from _SKIPPED.text([("", skipped)])
