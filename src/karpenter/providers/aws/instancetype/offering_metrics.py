"""Gauges about what is for sale (AWS-780 to AWS-782, AWS-790), and what of it is not used.

There are thousands of series, so they are not updated one by one: once a minute the lists of all pools are checked, and the
first scrape after one of them changed sums them up. Every scrape renders the text from the sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import NamedTuple

import structlog

from karpenter.api.karpenter import NodePool
from karpenter.instancetypes.instance_type import InstanceType, Offering, single_value
from karpenter.metrics.exposition import GaugeFamily, MetricsRegistry, SeriesWriter, label_pairs
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import intersects, requirements_from_labels, requirements_from_wire
from karpenter.providers.aws.aws_context import AwsClusterView
from karpenter.providers.aws.instancetype.ec2_offerings import OfferingKey
from karpenter.providers.contract import NodeClassNotReady, ProviderError

_PREFIX = "karpenter_cloudprovider_"
_AVAILABLE = GaugeFamily(
    f"{_PREFIX}instance_type_offering_available", "Whether any NodePool can launch the instance type that way now."
)
_PRICE = GaugeFamily(
    f"{_PREFIX}instance_type_offering_price_estimate", "What the instance type costs that way per hour."
)
_CORES = GaugeFamily(f"{_PREFIX}instance_type_cpu_cores", "Cores of the instance type.")
_MEMORY = GaugeFamily(
    f"{_PREFIX}instance_type_memory_bytes", "Memory of the instance type as nodes report it, in bytes."
)
_UNAVAILABLE = GaugeFamily(
    f"{_PREFIX}unavailable_offerings", "Offerings that EC2 had no capacity for a moment ago, and are not tried."
)
_SKIPPED = GaugeFamily(f"{_PREFIX}instance_types_skipped", "Instance types whose description could not be used.")


class OfferingMetricKey(NamedTuple):
    """An offering of a type: the labels of a series."""

    instance_type: str
    capacity_type: str
    zone: str


@dataclass(frozen=True)
class OfferingSamples:
    """All lists summed up: per way whether any pool has it available, and the price; per type cores and bytes of memory."""

    available: Mapping[OfferingMetricKey, bool] = field(default_factory=dict)
    price: Mapping[OfferingMetricKey, float] = field(default_factory=dict)
    size: Mapping[str, tuple[float, int]] = field(default_factory=dict)


InstanceTypes = tuple[InstanceType, ...]


@dataclass(frozen=True)
class OfferedTypes:
    """Types as a pool can launch them. What it excludes is there and not ``available``: a 1 or 0 for each offering, in order.

    Copies of ten thousand offerings for each pool would take ten megabytes.
    """

    types: InstanceTypes
    available: bytes

    def __iter__(self) -> Iterator[tuple[InstanceType, Offering, bool]]:
        """Each offering with its type, and whether the pool can launch it."""
        offerings = ((listed, offering) for listed in self.types for offering in listed.offerings)
        for (listed, offering), available in zip(offerings, self.available, strict=True):
            yield listed, offering, bool(available)


def offering_samples(lists: Iterable[OfferedTypes], *, reserved: bool) -> OfferingSamples:
    """Sum up the lists of all pools (AWS-790); with ``reserved`` every type and zone has a row for reserved capacity."""
    available: dict[OfferingMetricKey, bool] = {}
    price: dict[OfferingMetricKey, float] = {}
    size: dict[str, tuple[float, int]] = {}
    # Types share the requirements of their offerings.
    labels_of = cache(
        lambda requirements: (single_value(requirements, labels.CAPACITY_TYPE), single_value(requirements, labels.ZONE))
    )
    for offered in {(id(offered.types), offered.available): offered for offered in lists}.values():
        for instance_type in offered.types:
            size[instance_type.name] = (
                instance_type.capacity[res.CPU] / res.ONE_UNIT,
                instance_type.capacity[res.MEMORY] // res.ONE_UNIT,
            )
        for instance_type, offering, is_available in offered:
            way = OfferingMetricKey(instance_type.name, *labels_of(offering.requirements))
            now = available.get(way, False)
            available[way] = now or is_available
            if is_available or not now:
                price[way] = offering.price_per_hour
            if reserved:
                unreserved = way._replace(capacity_type=labels.RESERVED)
                available.setdefault(unreserved, False)
                price.setdefault(unreserved, 0.0)
    return OfferingSamples(available, price, size)


class OfferingMetrics:
    """A source of series: the figures of the last change, and what is marked as unavailable at this moment."""

    def __init__(self, registry: MetricsRegistry, unavailable: Callable[[], tuple[OfferingKey, ...]]) -> None:
        self._samples: Callable[[], OfferingSamples] = OfferingSamples
        self._unavailable = unavailable
        self._skipped = 0
        registry.sources.append(self)

    def publish(self, samples: Callable[[], OfferingSamples]) -> None:
        """Replace the figures. They are worked out once, when they are scraped."""
        self._samples = cache(samples)

    def record_skipped(self, count: int) -> None:
        """So many types of the last refresh could not be used."""
        self._skipped = count

    def prepare(self) -> SeriesWriter:
        """The series as they are now."""
        shown, skipped = self._samples, self._skipped
        marked = Counter(offering.capacity_type for offering in self._unavailable())
        return lambda: _exposition(shown(), marked, skipped)


def _exposition(samples: OfferingSamples, unavailable: Mapping[str, int], skipped: int) -> Iterator[str]:
    ways = {
        way: label_pairs(instance_type=way.instance_type, capacity_type=way.capacity_type, zone=way.zone)
        for way in samples.available
    }
    types = {name: label_pairs(instance_type=name) for name in samples.size}
    yield from _AVAILABLE.lines((ways[way], int(now)) for way, now in samples.available.items())
    yield from _PRICE.lines((ways[way], price) for way, price in samples.price.items())
    yield from _CORES.lines((types[name], cores) for name, (cores, _) in samples.size.items())
    yield from _MEMORY.lines((types[name], memory) for name, (_, memory) in samples.size.items())
    yield from _UNAVAILABLE.lines(
        (label_pairs(capacity_type=name), count) for name, count in sorted(unavailable.items())
    )
    yield from _SKIPPED.lines([("", skipped)])


_PERIOD_SECONDS = 60.0
_log = structlog.get_logger()


class _PoolTypes(NamedTuple):
    """What a pool takes of its class's types; it holds as long as pool and list are the same objects."""

    pool: NodePool
    types: InstanceTypes
    offered: OfferedTypes


class OfferingMetricsController:
    """The loop: what has not changed since it was published is not summed up again.

    ``types`` gives a pool's instance types and may raise ``ProviderError``; ``publish`` replaces the figures.
    """

    def __init__(
        self,
        cluster_view: AwsClusterView,
        types: Callable[[NodePool], Awaitable[InstanceTypes]],
        publish: Callable[[Sequence[OfferedTypes]], None],
    ) -> None:
        self._cluster_view = cluster_view
        self._types = types
        self._publish = publish
        self._pool_types: dict[str, _PoolTypes] = {}
        self._published: list[OfferedTypes] | None = None

    async def reconcile(self) -> float:
        """One round; seconds until the next. A pool whose class is not ready offers nothing.

        Raises ``ProviderError`` once the others have been written, where types of a pool cannot be had (K15-A100).
        """
        failed: list[str] = []
        current: dict[str, _PoolTypes] = {}
        for pool in tuple(self._cluster_view.pools()):
            name = pool.metadata.name
            try:
                current[name] = self._types_of_pool(pool, await self._types(pool))
            except NodeClassNotReady as error:
                _log.debug("no instance types for figures", NodePool={"name": name}, error=str(error))
            except ProviderError as error:
                failed.append(f"NodePool {name}: {error}")
        self._pool_types = current
        offered = [pool_types.offered for pool_types in current.values()]
        if offered != self._published:
            self._publish(offered)
            self._published = offered
        if failed:
            raise ProviderError(f"getting instance types, {'; '.join(failed)}")
        return _PERIOD_SECONDS

    def _types_of_pool(self, pool: NodePool, types: InstanceTypes) -> _PoolTypes:
        cached = self._pool_types.get(pool.metadata.name)
        if cached is not None and cached.pool is pool and cached.types is types:
            return cached
        return _PoolTypes(pool, types, offered_to_pool(pool, types))


def offered_to_pool(pool: NodePool, types: InstanceTypes) -> OfferedTypes:
    """The types as the pool can launch them."""
    template = pool.spec.template
    required = requirements_from_wire(template.spec.requirements).intersect(
        requirements_from_labels(template.metadata.labels)
    )
    # A region has few zones and capacity types, and types share their requirements.
    is_wanted = cache(partial(intersects, right=required))
    available = bytearray()
    for instance_type in types:
        is_type_wanted = intersects(instance_type.requirements, required)
        available += bytes(
            is_type_wanted and offering.available and is_wanted(offering.requirements)
            for offering in instance_type.offerings
        )
    return OfferedTypes(types, bytes(available))
