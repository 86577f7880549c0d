"""EC2's instance types, their zones, spot prices, the price list (AWS-960 to AWS-963, AWS-978)."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cached_property, lru_cache

from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

from karpenter.instancetypes import ec2_packaged_types
from karpenter.model import labels
from support.aws.moto_backend import Moto
from support.aws.queries import at, named, select
from support.aws.wire import Fields

_TYPE_FILTERS = {
    "instance-type": at("InstanceType"),
    "supported-virtualization-type": at("SupportedVirtualizationTypes"),
    "processor-info.supported-architecture": at("ProcessorInfo", "SupportedArchitectures"),
    "supported-usage-class": at("SupportedUsageClasses"),
    "bare-metal": at("BareMetal"),
}
_OFFERING_FILTERS = {"instance-type": at("InstanceType"), "location": at("Location")}
_PRODUCTS = {"false": ("Shared", "Compute Instance"), "true": ("Dedicated", "Compute Instance (bare metal)")}
_PLATFORMS = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")


class Ec2Types:
    """Types and offerings come from moto's tables; reading moto's XML takes seconds.

    Prices come from the packaged table, the same in every region.
    """

    def __init__(self, moto: Moto) -> None:
        self._moto = moto
        self._spot: dict[tuple[str, str], float] = {}
        self._on_demand: dict[str, float] = {}

    @cached_property
    def types(self) -> dict[str, Fields]:
        """All instance types by name."""
        return {name: dict(entry) for name, entry in INSTANCE_TYPES.items()}

    @cached_property
    def offerings(self) -> list[Fields]:
        """Instance types with the zones that offer them."""
        return list(INSTANCE_TYPE_OFFERINGS["availability-zone"][self._moto.region])

    @cached_property
    def _offered(self) -> frozenset[tuple[str, str]]:
        return frozenset((entry["InstanceType"], entry["Location"]) for entry in self.offerings)

    @cached_property
    def zones(self) -> dict[str, str]:
        """Zone ids by zone name."""
        entries = self._moto.ask("ec2", "DescribeAvailabilityZones")["AvailabilityZones"]
        return {entry["ZoneName"]: entry["ZoneId"] for entry in entries}

    def reset(self) -> None:
        """Restore the packaged prices."""
        self._spot.clear()
        self._on_demand.clear()

    def keep_only(self, types: frozenset[str]) -> None:
        """Remove all other types, to save time. Call it before the first request."""
        self.types = {name: entry for name, entry in self.types.items() if name in types}
        self.offerings = [entry for entry in self.offerings if entry["InstanceType"] in types]

    @property
    def changed_prices(self) -> str:
        """Changed prices, as a text to compare."""
        return f"{sorted(self._spot.items())} {sorted(self._on_demand.items())}"

    def is_offered(self, instance_type: str, zone: str) -> bool:
        """Whether the zone offers the type."""
        return (instance_type, zone) in self._offered

    def vcpus(self, instance_type: str) -> int:
        """vCPUs of a type."""
        return int(self.types[instance_type]["VCpuInfo"]["DefaultVCpus"])

    def set_on_demand_price(self, instance_type: str, price: float) -> None:
        """Set the on-demand price in USD an hour."""
        self._on_demand[instance_type] = price

    def set_spot_price(self, instance_type: str, zone: str, price: float | None) -> None:
        """Set the spot price in USD an hour; None: AWS reports no price."""
        self._spot[instance_type, zone] = price if price is not None else -1.0

    def on_demand_price(self, instance_type: str) -> float | None:
        """USD an hour."""
        packaged = _packaged().get(instance_type, {})
        return self._on_demand.get(instance_type, packaged.get(labels.ON_DEMAND))

    def spot_price(self, instance_type: str, zone: str) -> float | None:
        """USD an hour."""
        price = self._spot.get((instance_type, zone), _packaged().get(instance_type, {}).get(labels.SPOT))
        return None if price is None or price < 0 else price

    # -- answers --------------------------------------------------------------------------------------------------------------

    def describe_types(self, parameters: Fields) -> Fields:
        """DescribeInstanceTypes."""
        entries = named(self.types.values(), "InstanceType", parameters.get("InstanceTypes"), "InvalidInstanceType")
        return {"InstanceTypes": select(entries, parameters.get("Filters"), _TYPE_FILTERS)}

    def describe_offerings(self, parameters: Fields) -> Fields:
        """DescribeInstanceTypeOfferings, by zone or by zone id."""
        entries = self.offerings
        if parameters.get("LocationType") == "availability-zone-id":
            entries = [{**entry, "Location": self.zones[entry["Location"]]} for entry in entries]
        return {"InstanceTypeOfferings": select(entries, parameters.get("Filters"), _OFFERING_FILTERS)}

    def describe_spot_prices(self, parameters: Fields, now: datetime) -> Fields:
        """DescribeSpotPriceHistory of the current time: one record per type and zone."""
        wanted = set(parameters.get("InstanceTypes") or ())
        products = [
            platform for platform in _PLATFORMS if platform in (parameters.get("ProductDescriptions") or _PLATFORMS)
        ]
        history = [
            {
                "InstanceType": name,
                "AvailabilityZone": zone,
                "AvailabilityZoneId": self.zones[zone],
                "ProductDescription": product,
                "SpotPrice": f"{price:.6f}",
                "Timestamp": now,
            }
            for name, zone in sorted(self._offered)
            if (not wanted or name in wanted) and (price := self.spot_price(name, zone)) is not None
            for product in products[:1]
        ]
        return {"SpotPriceHistory": history}

    def products(self, parameters: Fields) -> Fields:
        """Pricing's GetProducts: JSON texts, at most 100 per page (AWS-360, AWS-361)."""
        wanted = {entry["Field"]: entry["Value"] for entry in parameters.get("Filters") or ()}
        texts = [
            text
            for name in sorted(self.types)
            if (text := self._product(name, wanted.get("regionCode", self._moto.region), wanted)) is not None
        ]
        start = int(parameters.get("NextToken") or 0)
        size = min(parameters.get("MaxResults") or 100, 100)
        rest = {"NextToken": str(start + size)} if start + size < len(texts) else {}
        return {"FormatVersion": "aws_v1", "PriceList": texts[start : start + size], **rest}

    def _product(self, name: str, region: str, wanted: dict[str, str]) -> str | None:
        price = self.on_demand_price(name)
        if price is None:
            return None
        tenancy, family = _PRODUCTS[str(bool(self.types[name].get("BareMetal"))).lower()]
        attributes = {
            "instanceType": name,
            "tenancy": tenancy,
            "regionCode": region,
            "operatingSystem": "Linux",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
            "marketoption": "OnDemand",
            "servicecode": "AmazonEC2",
        }
        fields = {**attributes, "productFamily": family, "serviceCode": "AmazonEC2"}
        if any(fields.get(key) != value for key, value in wanted.items()):
            return None
        currency = "CNY" if region.startswith("cn-") else "USD"
        dimension = {"unit": "Hrs", "pricePerUnit": {currency: f"{price:.10f}"}}
        terms = {"OnDemand": {f"{name}.JRTCKXETXF": {"priceDimensions": {f"{name}.JRTCKXETXF.6YS6EN2CT7": dimension}}}}
        product = {"productFamily": family, "attributes": attributes, "sku": name}
        return json.dumps({"product": product, "serviceCode": "AmazonEC2", "terms": terms})


@lru_cache(maxsize=1)
def _packaged() -> dict[str, dict[str, float]]:
    """The packaged prices of a type, by capacity type."""
    return {
        instance_type.name: {offering.capacity_type: offering.price_per_hour for offering in instance_type.offerings}
        for instance_type in ec2_packaged_types.packaged_instance_types()
    }
