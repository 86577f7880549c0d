"""A fake region with EC2's descriptions of instance types (from moto's data) and prices, and an ``InstanceTypeProvider``."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import msgspec

from karpenter.api.ec2_node_class import (
    AMI,
    EC2NodeClass,
    EC2NodeClassSpec,
    EC2NodeClassStatus,
    ImageRequirement,
    Subnet,
)
from karpenter.api.meta import ObjectMeta
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_settings import AwsSettings
from karpenter.providers.aws.ec2_descriptions import (
    InstanceTypeInfo,
    InstanceTypeOffering,
    PlacementGroupInfoEntry,
    SpotPrice,
)
from karpenter.providers.aws.instancetype.instance_type_provider import (
    InstanceTypeCaches,
    InstanceTypeInputs,
    InstanceTypeProvider,
)
from support.manual_clock import ManualClock

START = datetime(2026, 1, 5, 9, tzinfo=UTC)
A, B, C = ZONES = ("test-1a", "test-1b", "test-1c")
IDS = {A: "tst1-az1", B: "tst1-az2", C: "tst1-az3"}


@lru_cache(maxsize=1)
def raw() -> Mapping[str, InstanceTypeInfo]:
    """All instance types of moto, by name."""
    # Only the data file is read: importing moto is slow.
    double = find_spec("moto")
    assert double is not None
    assert double.origin is not None
    packed = Path(double.origin).parent / "ec2/resources/instance_types.json.gz"
    return msgspec.json.decode(gzip.decompress(packed.read_bytes()), type=dict[str, InstanceTypeInfo])


def product(name: str, *prices: object, money: str = "USD") -> str:
    """A product of a price list, with one dimension per price."""
    dimensions = {f"d{at}": {"pricePerUnit": {money: str(price)}} for at, price in enumerate(prices)}
    return msgspec.json.encode(
        {
            "product": {"attributes": {"instanceType": name}, "productFamily": "Compute Instance"},
            "terms": {"OnDemand": {"t1": {"priceDimensions": dimensions}}},
        }
    ).decode()


@dataclass
class FakeRegion:
    """Answers of EC2 and the price list. A test changes them, then refreshes the provider."""

    names: Sequence[str] = ("m5.large",)
    offered_in: Mapping[str, Sequence[str]] = field(default_factory=dict)
    infos: dict[str, InstanceTypeInfo] = field(default_factory=dict)
    spot: list[SpotPrice] = field(default_factory=list)
    products: dict[str, tuple[str, ...]] = field(default_factory=dict)
    asked: list[Mapping[str, str]] = field(default_factory=list)
    failing: dict[str, AwsError] = field(default_factory=dict)

    def _refuse(self, call: str) -> None:
        if call in self.failing:
            raise self.failing[call]

    async def describe_instance_types(self) -> tuple[InstanceTypeInfo, ...]:
        self._refuse("types")
        # Equal values in new objects, as from the network.
        return tuple(msgspec.structs.replace(self.infos.get(name) or raw()[name]) for name in self.names)

    async def describe_instance_type_offerings(self) -> tuple[InstanceTypeOffering, ...]:
        self._refuse("offerings")
        return tuple(
            InstanceTypeOffering(instance_type=name, location=zone)
            for name in self.names
            for zone in self.offered_in.get(name, ZONES)
        )

    async def describe_spot_price_history(self) -> tuple[SpotPrice, ...]:
        self._refuse("spot")
        return tuple(self.spot)

    async def get_products(self, filters: Mapping[str, str]) -> tuple[str, ...]:
        self.asked.append(filters)
        self._refuse("products")
        return self.products.get(filters["tenancy"], ())


def spot(name: str, zone: str, price: object) -> SpotPrice:
    return SpotPrice(instance_type=name, availability_zone=zone, spot_price=str(price), timestamp=START)


def subnets(*zones: str) -> tuple[Subnet, ...]:
    return tuple(Subnet(id=f"subnet-{zone}", zone=zone, zone_id=IDS[zone]) for zone in zones)


def ami(name: str, arch: str = "amd64") -> AMI:
    return AMI(id=name, requirements=(ImageRequirement(key="kubernetes.io/arch", operator="In", values=(arch,)),))


#: A class with default settings.
PLAIN = EC2NodeClass(
    metadata=ObjectMeta(name="default"),
    spec=EC2NodeClassSpec(ami_family="AL2023"),
    status=EC2NodeClassStatus(subnets=subnets(A, B), amis=(ami("ami-1"),)),
)


def of_spec(**changes: object) -> EC2NodeClass:
    """The plain class with a changed spec."""
    return msgspec.structs.replace(PLAIN, spec=msgspec.structs.replace(PLAIN.spec, **changes))


def of_kubelet(family: str = "AL2023", **kubelet: object) -> EC2NodeClass:
    """The plain class with kubelet settings."""
    return of_spec(ami_family=family, kubelet=kubelet)


def of_status(**changes: object) -> EC2NodeClass:
    """The plain class with a changed status."""
    return msgspec.structs.replace(PLAIN, status=msgspec.structs.replace(PLAIN.status, **changes))


class InstanceTypeFixture:
    """An ``InstanceTypeProvider`` of a region, with its inputs."""

    def __init__(self, region: FakeRegion | None = None, name: str = "us-east-1", **settings: object) -> None:
        self.region = region or FakeRegion()
        self.clock = ManualClock(START)
        self.memories = InstanceTypeCaches.empty(self.clock)
        self.shifted: frozenset[str] = frozenset()
        self.group: PlacementGroupInfoEntry | None = None
        self.skipped: list[int] = []
        self.provider = InstanceTypeProvider(
            self.region,
            self.region,
            AwsSettings(cluster_name="test", **settings),
            name,
            self.clock,
            self.memories,
            InstanceTypeInputs(lambda: self.shifted, lambda _: self.group, self.skipped.append),
        )

    async def loaded(self) -> InstanceTypeFixture:
        """Load the region's instance types."""
        await self.provider.refresh_types()
        return self

    def types(self, node_class: EC2NodeClass = PLAIN) -> Mapping[str, InstanceType]:
        return {instance_type.name: instance_type for instance_type in self.provider.types_for(node_class)}

    def offering(
        self, name: str, capacity_type: str, zone: str = A, node_class: EC2NodeClass = PLAIN, partition: str = ""
    ) -> Offering:
        """The one offering of a type of that kind in a zone."""
        key = "karpenter.k8s.aws/placement-group-partition"
        (result,) = (
            each_offering
            for each_offering in self.types(node_class)[name].offerings
            if (each_offering.capacity_type, each_offering.zone) == (capacity_type, zone)
            and (not partition or each_offering.requirements[key].values == {partition})
        )
        return result


async def instance_type_fixture(
    region: FakeRegion | None = None, name: str = "us-east-1", **settings: object
) -> InstanceTypeFixture:
    """A fixture with loaded instance types."""
    return await InstanceTypeFixture(region, name, **settings).loaded()
