"""What instances cost: the price list for on-demand, spot prices, and a packaged table until either is known (AWS §8.2).

On-demand prices are only ever added to: a list that leaves out a type says nothing about it. Spot prices move and end: a pair of
type and zone that EC2 has not named for half an hour is not sold there any more. Each type has a number that grows when one of
its prices changes, so a cache of something made of prices knows what to make again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

import msgspec

from karpenter.api.node_overlay import NodeOverlay
from karpenter.instancetypes import ec2_packaged_types
from karpenter.model import conditions, labels
from karpenter.providers.aws.aws_apis import PricingApi
from karpenter.providers.aws.aws_partitions import partition_of, pricing_region
from karpenter.providers.aws.ec2_descriptions import SpotPrice
from karpenter.providers.contract import ProviderError

#: How often prices are asked for (AWS-366; spot is Beyond, it moves).
ON_DEMAND_REFRESH_PERIOD = timedelta(hours=12)
SPOT_REFRESH_PERIOD = timedelta(minutes=5)
#: How long a spot price outlives its last mention.
SPOT_PRICE_TTL = timedelta(minutes=30)


def packaged_on_demand_prices(region: str) -> dict[str, float]:
    """On-demand prices until the price list is read (AWS-367); none where they would be in another currency.

    They are those of the region where packaged data has them, else those of us-east-1, which are right in order of magnitude. In
    another currency they would be wrong by a factor of ten, and hide spot offerings that seem more expensive.
    """
    if partition_of(region).currency != ec2_packaged_types.PRICE_CURRENCY:
        return {}
    return ec2_packaged_types.on_demand_prices(region)


def price_list_filters(region: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The two questions whose answers make up the price list: virtual machines, and bare metal (AWS-360)."""
    common = {
        "regionCode": region,
        "serviceCode": "AmazonEC2",
        "preInstalledSw": "NA",
        "operatingSystem": "Linux",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    return (
        {**common, "tenancy": "Shared", "productFamily": "Compute Instance"},
        {**common, "tenancy": "Dedicated", "productFamily": "Compute Instance (bare metal)"},
    )


async def read_price_list(pricing: PricingApi, region: str) -> dict[str, float]:
    """On-demand prices per hour by type; empty where no price list can be reached (AWS-360 to AWS-364). Raises ``AwsError``.

    Raises ``ProviderError`` where one of the answers has no price.
    """
    if not pricing_region(region):
        return {}
    answers = await asyncio.gather(*(pricing.get_products(filters) for filters in price_list_filters(region)))
    price_lists = [parse_price_list(products, partition_of(region).currency) for products in answers]
    if not all(price_lists):
        raise ProviderError("retrieving on-demand pricing data, no prices found")
    return price_lists[0] | price_lists[1]


class _Attributes(msgspec.Struct, frozen=True, rename="camel"):
    instance_type: str = ""


class _ProductInfo(msgspec.Struct, frozen=True):
    attributes: _Attributes = _Attributes()


class _Dimension(msgspec.Struct, frozen=True, rename="camel"):
    price_per_unit: dict[str, str] = {}


class _Term(msgspec.Struct, frozen=True, rename="camel"):
    price_dimensions: dict[str, _Dimension] = {}


class _OfferTerms(msgspec.Struct, frozen=True):
    on_demand: dict[str, _Term] = msgspec.field(name="OnDemand", default_factory=dict)


class _Product(msgspec.Struct, frozen=True):
    product: _ProductInfo = _ProductInfo()
    terms: _OfferTerms = _OfferTerms()


_decode_product = msgspec.json.Decoder(_Product).decode


def parse_price_list(products: Iterable[str], currency: str) -> dict[str, float]:
    """Price per hour by type of a price list's products; what is free or cannot be read is left out (AWS-361)."""
    prices: dict[str, float] = {}
    for text in products:
        try:
            product = _decode_product(text)
        except msgspec.MsgspecError:
            continue
        name = product.product.attributes.instance_type
        for price in _price_dimensions(product, currency):
            if name and price:
                prices[name] = price
    return prices


def _price_dimensions(product: _Product, currency: str) -> Iterator[float]:
    for term in product.terms.on_demand.values():
        for dimension in term.price_dimensions.values():
            yield _positive_price(dimension.price_per_unit.get(currency, ""))


def parse_spot_prices(records: Iterable[SpotPrice]) -> dict[str, dict[str, float]]:
    """Price per hour by type and zone; the last record of a pair counts, those without time or price do not (AWS-365)."""
    prices: dict[str, dict[str, float]] = {}
    for record in records:
        price = _positive_price(record.spot_price)
        if record.timestamp is not None and price:
            prices.setdefault(record.instance_type, {})[record.availability_zone] = price
    return prices


def _positive_price(text: str) -> float:
    """A positive price, 0 for anything else."""
    try:
        price = float(text)
    except ValueError:
        return 0.0
    return price if 0 < price < float("inf") else 0.0


def overlay_prices(overlays: Iterable[NodeOverlay]) -> dict[str, float]:
    """Prices that overlays give by instance type alone (AWS-356); of several the heaviest counts, then the last by name."""
    prices: dict[str, float] = {}
    for overlay in sorted(overlays, key=lambda each: (each.spec.weight or 0, each.metadata.name)):
        requirements = overlay.spec.requirements
        if (
            overlay.spec.price is None
            or len(requirements) != 1
            or not conditions.is_true(overlay.status.conditions, "ValidationSucceeded")
        ):
            continue
        if requirements[0].key == labels.INSTANCE_TYPE and requirements[0].operator == "In":
            prices.update(dict.fromkeys(requirements[0].values, float(overlay.spec.price)))
    return prices


class Ec2Prices:
    """Prices per hour as last read."""

    def __init__(self, packaged: Mapping[str, float]) -> None:
        self._on_demand = dict(packaged)
        self._spot: dict[str, dict[str, float]] = {}
        self._mentioned: dict[tuple[str, str], datetime] = {}
        self._overlaid: Mapping[str, float] = {}
        self._has_spot = False
        self._sequences: dict[str, int] = {}
        self._first_spot = 0
        #: Grows with every change of any price.
        self.version = 0

    def on_demand(self, instance_type: str) -> float | None:
        """The on-demand price, None where it is unknown."""
        return self._on_demand.get(instance_type)

    def spot(self, instance_type: str, zone: str) -> float | None:
        """The spot price in a zone, None where it is not sold; the on-demand price until anything is known (AWS-367)."""
        if not self._has_spot:
            return self._on_demand.get(instance_type)
        return self._spot.get(instance_type, {}).get(zone)

    def overlay_price(self, instance_type: str) -> float | None:
        """What a type that has no price costs by an overlay, None if none says so (AWS-356)."""
        return self._overlaid.get(instance_type)

    def sequence_number(self, instance_type: str) -> int:
        """Grows with every change of one of the type's prices."""
        return self._first_spot + self._sequences.get(instance_type, 0)

    def set_on_demand(self, prices: Mapping[str, float]) -> int:
        """Take over a price list; how many prices are new (AWS-363)."""
        changed = [name for name, price in prices.items() if self._on_demand.get(name) != price]
        self._on_demand.update(prices)
        self._bump_sequence(changed)
        return len(changed)

    def set_spot(self, prices: Mapping[str, Mapping[str, float]], now: datetime) -> int:
        """Take over EC2's current spot prices; how many types have other prices than before."""
        for name, zones in prices.items():
            self._mentioned.update(((name, zone), now) for zone in zones)
        current: dict[str, dict[str, float]] = {}
        for (name, zone), mentioned in tuple(self._mentioned.items()):
            if mentioned + SPOT_PRICE_TTL <= now:
                del self._mentioned[name, zone]
                continue
            price = prices.get(name, {}).get(zone)
            current.setdefault(name, {})[zone] = self._spot[name][zone] if price is None else price
        changed = [name for name in current.keys() | self._spot.keys() if current.get(name) != self._spot.get(name)]
        self._spot = current
        if not self._has_spot:
            # From here on a pair without a record has no price, also of types without any record.
            self._has_spot = True
            self._first_spot = 1
            self.version += 1
        self._bump_sequence(changed)
        return len(changed)

    def set_overlays(self, prices: Mapping[str, float]) -> None:
        """Take over the prices that overlays give (``overlay_prices``)."""
        names = prices.keys() | self._overlaid.keys()
        changed = [name for name in names if prices.get(name) != self._overlaid.get(name)]
        self._overlaid = dict(prices)
        self._bump_sequence(changed)

    @property
    def on_demand_count(self) -> int:
        """Types with an on-demand price."""
        return len(self._on_demand)

    @property
    def spot_counts(self) -> tuple[int, int]:
        """Types with a spot price, and pairs of type and zone."""
        return len(self._spot), sum(map(len, self._spot.values()))

    def _bump_sequence(self, names: Iterable[str]) -> None:
        for name in names:
            self._sequences[name] = self._sequences.get(name, 0) + 1
            self.version += 1
