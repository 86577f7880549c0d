"""The packaged instance types: every current EC2 shape, as each region offers it and at that region's prices.

It allows realistic plans without an account: real shapes, the on-demand prices of a known day, spot prices from the
published average savings. Capacity follows from the shape (``ec2_capacity``); origins and limits of the figures are
documented beside the table (``data/SOURCES.md``).

The table of shapes has the prices of us-east-1; ``ec2_regions`` has zones, and prices of other regions relative to these. Zone
names are specific to an account. For an exact selection use ``topology.k8s.aws/zone-id``, which offerings carry as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from karpenter.instancetypes import ec2_capacity as formulas
from karpenter.instancetypes import ec2_regions
from karpenter.instancetypes.ec2_regions import BASE_REGION, EC2Region, PriceRatios
from karpenter.instancetypes.instance_type import BurstableCpu, InstanceType, Offering
from karpenter.instancetypes.packaged_tables import packaged_rows
from karpenter.instancetypes.well_known_labels import complete_requirements, derived_labels, label_in
from karpenter.model import labels, quantity
from karpenter.model import resources as res
from karpenter.model.requirements import Requirement, Requirements

#: Days of the packaged on-demand prices and spot savings (``data/SOURCES.md``).
ON_DEMAND_DATE = "2026-07-20"
SPOT_DATE = "2025-06-28"
#: Of all packaged prices.
PRICE_CURRENCY = "USD"
ZONE_ID = "topology.k8s.aws/zone-id"
#: How labels about hardware begin.
INSTANCE_LABEL_PREFIX = f"{labels.AWS_GROUP}/instance-"
_GENERATION = re.compile(r"(^[a-z]+)(-[0-9]+tb)?([0-9]+).*\.")

#: Label suffix after ``INSTANCE_LABEL_PREFIX`` and the column that holds its value, where it is taken as it is.
_COPIED_COLUMNS = {
    "cpu": "vcpu",
    "cpu-manufacturer": "cpu_manufacturer",
    "cpu-sustained-clock-speed-mhz": "cpu_sustained_clock_mhz",
    "memory": "memory_mib",
    "ebs-bandwidth": "ebs_mbps",
    "network-bandwidth": "network_mbps",
    "local-nvme": "local_nvme_gb",
    "gpu-name": "gpu_name",
    "gpu-manufacturer": "gpu_manufacturer",
    "gpu-count": "gpu_count",
    "gpu-memory": "gpu_memory_mib",
    "accelerator-name": "accelerator_name",
    "accelerator-manufacturer": "accelerator_manufacturer",
    "accelerator-count": "accelerator_count",
}
#: Each column that becomes a label as it is, with the label.
_COPIED_LABELS = tuple((f"{INSTANCE_LABEL_PREFIX}{suffix}", column) for suffix, column in _COPIED_COLUMNS.items())
_GPU_COUNT = f"{INSTANCE_LABEL_PREFIX}gpu-count"
_TENANCIES = label_in(f"{labels.AWS_GROUP}/instance-tenancy", "default", "dedicated")
_TABLE = "ec2_us_east_1.csv"
_SPOT_DIGITS = 6
_PRICE_DIGITS = 6

#: CPU that burstable types earn credits for, in thousandths of a vCPU over all vCPUs (see ``data/SOURCES.md``).
_T3_BASELINE_MILLIS = {
    "nano": 100,
    "micro": 200,
    "small": 400,
    "medium": 400,
    "large": 600,
    "xlarge": 1600,
    "2xlarge": 3200,
}
_T2_BASELINE_MILLIS = {
    "nano": 50,
    "micro": 100,
    "small": 200,
    "medium": 400,
    "large": 600,
    "xlarge": 900,
    "2xlarge": 1360,
}
_BASELINE_MILLIS = {
    "t2": _T2_BASELINE_MILLIS,
    "t3": _T3_BASELINE_MILLIS,
    "t3a": _T3_BASELINE_MILLIS,
    "t4g": _T3_BASELINE_MILLIS,
}
#: Price of surplus credits (Linux) of the families that launch in mode ``unlimited`` by default. T2 launches in ``standard``.
_SURPLUS_USD_PER_VCPU_HOUR = {"t3": 0.05, "t3a": 0.05, "t4g": 0.04}

_Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _RegionalOffer:
    """What a region says of types beside their shape: zones, which of them offer a type, and prices."""

    region: EC2Region
    ratios: PriceRatios

    def zone_numbers(self, row: _Row) -> str:
        if self.region.name == BASE_REGION:
            return row["zones"]
        return ec2_regions.zone_numbers_by_type(self.region.name).get(row["name"], "")

    def is_offered(self, row: _Row) -> bool:
        """Types without a zone are kept in the base region: their shape is known, and explanations count them."""
        return bool(row["on_demand_price"]) and (self.region.name == BASE_REGION or bool(self.zone_numbers(row)))

    def spot_percent(self, row: _Row) -> int:
        """The spot price in percent of on-demand; that of the base region for types without a figure of this region."""
        return ec2_regions.spot_percents(self.region.name).get(row["name"], int(row["spot_percent"]))

    def on_demand_price(self, row: _Row) -> float:
        return round(float(row["on_demand_price"]) * self.ratios.ratio_of(row["name"]), _PRICE_DIGITS)


@lru_cache(maxsize=4)
def packaged_instance_types(region: str = BASE_REGION) -> tuple[InstanceType, ...]:
    """All packaged types with a price in a region of ``ec2_regions``, sorted by name; the identical tuple for each call."""
    offer = _RegionalOffer(ec2_regions.ec2_regions()[region], ec2_regions.price_ratios(region))
    return tuple(_instance_type(row, offer) for row in packaged_rows(_TABLE) if offer.is_offered(row))


def find_packaged_type(name: str) -> InstanceType | None:
    """The packaged type of that name, such as ``m5.large``."""
    return _by_name().get(name)


@lru_cache(maxsize=1)
def _by_name() -> dict[str, InstanceType]:
    return {instance_type.name: instance_type for instance_type in packaged_instance_types()}


def packaged_shape(name: str) -> formulas.EC2InstanceShape:
    """The shape of a packaged type."""
    return _shapes()[name]


@lru_cache(maxsize=1)
def _shapes() -> dict[str, formulas.EC2InstanceShape]:
    return {row["name"]: shape_of_row(row) for row in packaged_rows(_TABLE)}


@dataclass(frozen=True, slots=True)
class PublishedTypeFacts:
    """Properties of a type that EC2's API does not return, or not in the published form.

    ``branch_interfaces`` is 0 without trunking; ``network_mbps`` is the baseline users select by, 0 where none is published;
    ``price_per_hour`` is the on-demand price in us-east-1, None where the type has none.
    """

    branch_interfaces: int
    network_mbps: int
    price_per_hour: float | None


@lru_cache(maxsize=1)
def published_type_facts() -> Mapping[str, PublishedTypeFacts]:
    """Published facts of types by name, in addition to EC2's API (AWS-295, AWS-323, AWS-367)."""
    return {
        row["name"]: PublishedTypeFacts(
            _integer_or_zero(row["branch_interfaces"]),
            _integer_or_zero(row["network_mbps"]),
            float(row["on_demand_price"]) if row["on_demand_price"] else None,
        )
        for row in packaged_rows(_TABLE)
    }


def on_demand_prices(region: str) -> dict[str, float]:
    """Packaged on-demand prices by type, in ``PRICE_CURRENCY``; for regions without figures those of us-east-1."""
    ratios = ec2_regions.price_ratios(region)
    return {
        name: round(facts.price_per_hour * ratios.ratio_of(name), _PRICE_DIGITS)
        for name, facts in published_type_facts().items()
        if facts.price_per_hour is not None
    }


def burstable_cpu(name: str, currency: str = PRICE_CURRENCY) -> BurstableCpu | None:
    """The CPU credits of a type, in the credit mode it launches in by default; None for types without credits.

    Surplus prices are known in USD only. In other currencies a type in mode ``unlimited`` counts as if it guaranteed all of its
    CPU: its surplus is available, but its price is unknown.
    """
    family, _, size = name.partition(".")
    sizes = _BASELINE_MILLIS.get(family, {})
    surplus_price = _SURPLUS_USD_PER_VCPU_HOUR.get(family)
    if size not in sizes or (surplus_price is not None and currency != PRICE_CURRENCY):
        return None
    return BurstableCpu(sizes[size], surplus_price)


def _integer_or_zero(text: str) -> int:
    return int(text) if text else 0


def shape_of_row(row: _Row) -> formulas.EC2InstanceShape:
    """The shape a row of the table describes."""
    neuron_cores = _integer_or_zero(row["neuron_cores"])
    return formulas.EC2InstanceShape(
        arch=row["arch"],
        vcpus=int(row["vcpu"]),
        memory_mib=int(row["memory_mib"]),
        interfaces=int(row["eni_default_card"]),
        ipv4_per_interface=int(row["ipv4_per_eni"]),
        gpu_manufacturer=row["gpu_manufacturer"],
        gpus=_integer_or_zero(row["gpu_count"]),
        neuron_devices=_integer_or_zero(row["accelerator_count"]) if neuron_cores else 0,
        neuron_cores=neuron_cores,
        efa_interfaces=_integer_or_zero(row["efa_count"]),
        branch_interfaces=_integer_or_zero(row["branch_interfaces"]),
    )


def _instance_type(row: _Row, offer: _RegionalOffer) -> InstanceType:
    shape = shape_of_row(row)
    capacity = formulas.instance_capacity(shape)
    offerings = tuple(_offerings(row, offer))
    return InstanceType(
        name=row["name"],
        requirements=complete_requirements(_requirements(row, capacity, offer)),
        capacity=capacity,
        overhead=formulas.instance_overhead(shape),
        offerings=offerings,
        burstable_cpu=burstable_cpu(row["name"]),
    )


def _requirements(row: _Row, capacity: res.Resources, offer: _RegionalOffer) -> dict[str, Requirement]:
    single = {
        labels.INSTANCE_TYPE: row["name"],
        labels.ARCH: row["arch"],
        labels.OS: "linux",
        labels.REGION: offer.region.name,
        **_instance_labels(row),
        **derived_labels(
            row["name"],
            quantity.quantity_text(capacity[res.CPU]),
            quantity.quantity_text(capacity[res.MEMORY], binary=True),
        ),
    }
    several = (
        *_zone_requirements(offer.region.name, offer.zone_numbers(row)),
        label_in(labels.CAPACITY_TYPE, *_capacity_types(row)),
        _TENANCIES,
    )
    requirements = {key: label_in(key, value) for key, value in single.items()}
    return requirements | {requirement.key: requirement for requirement in several}


@lru_cache(maxsize=1024)
def _zone_requirements(region_name: str, zone_numbers: str) -> tuple[Requirement, Requirement]:
    """Names and IDs of zones; most types are in the same few sets of zones."""
    region = ec2_regions.ec2_regions()[region_name]
    names = (region.zone_name(number) for number in zone_numbers)
    return label_in(labels.ZONE, *names), label_in(ZONE_ID, *(region.zone_id(number) for number in zone_numbers))


def _instance_labels(row: _Row) -> dict[str, str]:
    """Labels of AWS-320 that describe the hardware."""
    values = {label: row[column] for label, column in _COPIED_LABELS if row[column]}
    if not row["gpu_name"]:
        values.pop(_GPU_COUNT, None)
    others = {
        "hypervisor": row["hypervisor"],
        "encryption-in-transit-supported": "true" if row["encryption_in_transit"] == "1" else "false",
        **name_labels(row["name"]),
    }
    return values | {f"{INSTANCE_LABEL_PREFIX}{suffix}": value for suffix, value in others.items()}


def name_labels(name: str) -> dict[str, str]:
    """Labels derived from a type's name, by label suffix (AWS-320).

    Names that do not look like ``m5.large`` or ``u-6tb1.56xlarge`` have neither category nor generation.
    """
    family, _, size = name.partition(".")
    values = {"family": family, "size": size, "capability-flex": "true" if "-flex" in family else "false"}
    generation = _GENERATION.match(name)
    if generation:
        values |= {"category": generation.group(1), "generation": generation.group(3)}
    return values


def _capacity_types(row: _Row) -> tuple[str, ...]:
    return tuple(row["capacity_types"].split("|")) if row["capacity_types"] else ()


def _offerings(row: _Row, offer: _RegionalOffer) -> Iterator[Offering]:
    on_demand = offer.on_demand_price(row)
    has_spot = labels.SPOT in _capacity_types(row)
    spot = round(on_demand * offer.spot_percent(row) / 100, _SPOT_DIGITS) if has_spot else on_demand
    for requirements, is_spot in _zonal_requirements(offer.region.name, offer.zone_numbers(row), row["capacity_types"]):
        price = spot if is_spot else on_demand
        yield Offering(requirements, price)


@lru_cache(maxsize=1024)
def _zonal_requirements(
    region_name: str, zone_numbers: str, capacity_types: str
) -> tuple[tuple[Requirements, bool], ...]:
    """What each offering of such a type requires, zone after zone, and whether it is a spot offering."""
    return tuple(
        (_offering_requirements(region_name, number, capacity_type), capacity_type == labels.SPOT)
        for number, capacity_type in product(zone_numbers, capacity_types.split("|") if capacity_types else ())
    )


@lru_cache(maxsize=512)
def _offering_requirements(region_name: str, zone_number: str, capacity_type: str) -> Requirements:
    zone_and_id = _zone_requirements(region_name, zone_number)
    return Requirements((*zone_and_id, label_in(labels.CAPACITY_TYPE, capacity_type)))
