"""The packaged catalogue: every current EC2 shape with us-east-1 prices.

It lets plans mean something without an account: real shapes, the on-demand prices of a known day, spot prices from the
published average savings. Capacity follows from the shape (``ec2_formulas``); origins and limits of the figures are
written beside the table (``data/SOURCES.md``).

Zone names belong to an account while the table has zone ids. The names given here are the assignment most accounts seem to
have, and the one the usual EC2 test double answers with; the sparse ``use1-az3`` thus is ``us-east-1e``. Whoever needs to
be exact selects by ``topology.k8s.aws/zone-id``, which offerings carry too.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources as package_files
from itertools import product

from karpenter.catalog import ec2_formulas as formulas
from karpenter.catalog.types import InstanceType, Offering
from karpenter.catalog.well_known import among, complete, derived_labels
from karpenter.model import labels, quantity
from karpenter.model import resources as res
from karpenter.model.requirements import Requirement, Requirements

REGION = "us-east-1"
ZONE_ID = "topology.k8s.aws/zone-id"
#: How labels about hardware begin.
INSTANCE = f"{labels.AWS_GROUP}/instance-"
#: Digit of the zone id to zone name (an assumption, see the head of this module).
_ZONES = {
    "6": "us-east-1a",
    "1": "us-east-1b",
    "2": "us-east-1c",
    "4": "us-east-1d",
    "3": "us-east-1e",
    "5": "us-east-1f",
}
_GENERATION = re.compile(r"(^[a-z]+)(-[0-9]+tb)?([0-9]+).*\.")

#: Label suffix after ``INSTANCE`` and the column that holds its value, where it is taken as it is.
_COPIED = {
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
_SPOT_DIGITS = 6

_Row = Mapping[str, str]


@lru_cache(maxsize=1)
def types() -> tuple[InstanceType, ...]:
    """All packaged types that are sold, sorted by name. Read on first use, then the identical tuple."""
    return tuple(_instance_type(row) for row in _rows() if row["on_demand_price"])


def find(name: str) -> InstanceType | None:
    """The packaged type of that name, such as ``m5.large``."""
    return _by_name().get(name)


@lru_cache(maxsize=1)
def _by_name() -> dict[str, InstanceType]:
    return {instance_type.name: instance_type for instance_type in types()}


@dataclass(frozen=True, slots=True)
class Published:
    """What EC2's API does not tell of a type, or not as everybody knows it.

    ``branch_interfaces`` is 0 without trunking; ``network_mbps`` is the baseline users select by, 0 where none is published;
    ``price_per_hour`` is the on-demand price in us-east-1, None where the type has none.
    """

    branch_interfaces: int
    network_mbps: int
    price_per_hour: float | None


@lru_cache(maxsize=1)
def published() -> Mapping[str, Published]:
    """By name, what is published about types besides EC2's API (AWS-295, AWS-323, AWS-367)."""
    return {
        row["name"]: Published(
            _number(row["branch_interfaces"]),
            _number(row["network_mbps"]),
            float(row["on_demand_price"]) if row["on_demand_price"] else None,
        )
        for row in _rows()
    }


def _rows() -> Iterator[_Row]:
    table = package_files.files("karpenter.catalog").joinpath("data/ec2_us_east_1.csv")
    with table.open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _number(text: str) -> int:
    return int(text) if text else 0


def shape(row: _Row) -> formulas.Shape:
    """The shape a row of the table describes."""
    neuron_cores = _number(row["neuron_cores"])
    return formulas.Shape(
        arch=row["arch"],
        vcpus=int(row["vcpu"]),
        memory_mib=int(row["memory_mib"]),
        interfaces=int(row["eni_default_card"]),
        ipv4_per_interface=int(row["ipv4_per_eni"]),
        gpu_manufacturer=row["gpu_manufacturer"],
        gpus=_number(row["gpu_count"]),
        neurons=_number(row["accelerator_count"]) if neuron_cores else 0,
        neuron_cores=neuron_cores,
        efa_interfaces=_number(row["efa_count"]),
        branch_interfaces=_number(row["branch_interfaces"]),
    )


def _instance_type(row: _Row) -> InstanceType:
    outline = shape(row)
    capacity = formulas.capacity(outline)
    offerings = tuple(_offerings(row))
    return InstanceType(
        name=row["name"],
        requirements=complete(_requirements(row, capacity)),
        capacity=capacity,
        overhead=formulas.overhead(outline),
        offerings=offerings,
    )


def _requirements(row: _Row, capacity: res.Resources) -> dict[str, Requirement]:
    single = {
        labels.INSTANCE_TYPE: row["name"],
        labels.ARCH: row["arch"],
        labels.OS: "linux",
        labels.REGION: REGION,
        **_instance_labels(row),
        **derived_labels(
            row["name"], quantity.text(capacity[res.CPU]), quantity.text(capacity[res.MEMORY], binary=True)
        ),
    }
    several = {
        labels.ZONE: tuple(_ZONES[digit] for digit in row["zones"]),
        ZONE_ID: tuple(f"use1-az{digit}" for digit in row["zones"]),
        labels.CAPACITY_TYPE: _capacity_types(row),
        f"{labels.AWS_GROUP}/instance-tenancy": ("default", "dedicated"),
    }
    known = {key: among(key, value) for key, value in single.items()}
    return known | {key: among(key, *values) for key, values in several.items()}


def _instance_labels(row: _Row) -> dict[str, str]:
    """Labels of AWS-320 that describe the hardware."""
    values = {suffix: row[column] for suffix, column in _COPIED.items() if row[column]}
    if not row["gpu_name"]:
        values.pop("gpu-count", None)
    values |= {
        "hypervisor": row["hypervisor"],
        "encryption-in-transit-supported": "true" if row["encryption_in_transit"] == "1" else "false",
    }
    return {f"{INSTANCE}{suffix}": value for suffix, value in (values | name_labels(row["name"])).items()}


def name_labels(name: str) -> dict[str, str]:
    """What a type's name says, by the end of the label after ``INSTANCE`` (AWS-320).

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


def _offerings(row: _Row) -> Iterator[Offering]:
    on_demand = float(row["on_demand_price"])
    for digit, capacity_type in product(row["zones"], _capacity_types(row)):
        spot = capacity_type == labels.SPOT
        price = round(on_demand * int(row["spot_percent"]) / 100, _SPOT_DIGITS) if spot else on_demand
        yield Offering(_where(digit, capacity_type), price)


@lru_cache(maxsize=64)
def _where(zone_digit: str, capacity_type: str) -> Requirements:
    return Requirements(
        (
            among(labels.ZONE, _ZONES[zone_digit]),
            among(ZONE_ID, f"use1-az{zone_digit}"),
            among(labels.CAPACITY_TYPE, capacity_type),
        )
    )
