"""Instance types computed from EC2's descriptions, compared with the published reference of all types."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import pytest

from karpenter.instancetypes import ec2_capacity
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import resources as res
from karpenter.providers.aws.ec2_descriptions import (
    EbsInfo,
    EbsOptimizedInfo,
    GpuDevice,
    GpuInfo,
    InstanceStorageInfo,
    InstanceTypeInfo,
    MemoryInfo,
    NetworkCard,
    NetworkInfo,
    ProcessorInfo,
    VCpuInfo,
)
from support.ec2_instance_types import PLAIN, FakeRegion, instance_type_fixture, raw

SHAPES = Path(__file__).resolve().parents[4] / ".." / "shared" / "data" / "instance_types.csv"
AWS = "karpenter.k8s.aws/instance-"
MIB = ec2_capacity.MIB * res.ONE_UNIT

#: Sizes of g4ad, which moto's data lacks: vCPUs, GiB, interfaces, addresses of each, GPUs, GB of local disk.
G4AD = {
    "xlarge": (4, 16, 2, 4, 1, 150),
    "2xlarge": (8, 32, 2, 4, 1, 300),
    "4xlarge": (16, 64, 3, 10, 1, 600),
    "8xlarge": (32, 128, 4, 15, 2, 1200),
    "16xlarge": (64, 256, 8, 30, 4, 2400),
}
#: For these the reference has all interfaces on the default card, as EC2 described them at that time.
ON_ONE_CARD = {"i7ie.48xlarge": 15, "i7ie.metal-48xl": 15, "i8ge.48xlarge": 24, "i8ge.metal-48xl": 24}


def _g4ad(size: str) -> InstanceTypeInfo:
    vcpus, gib, interfaces, addresses, gpus, disk = G4AD[size]
    return InstanceTypeInfo(
        instance_type=f"g4ad.{size}",
        supported_usage_classes=("on-demand", "spot"),
        hypervisor="nitro",
        processor_info=ProcessorInfo(
            supported_architectures=("x86_64",), manufacturer="AMD", sustained_clock_speed_in_ghz=3.0
        ),
        vcpu_info=VCpuInfo(default_vcpus=vcpus),
        memory_info=MemoryInfo(size_in_mib=gib * 1024),
        instance_storage_info=InstanceStorageInfo(total_size_in_gb=disk, nvme_support="required"),
        ebs_info=EbsInfo(
            ebs_optimized_support="default", ebs_optimized_info=EbsOptimizedInfo(maximum_bandwidth_in_mbps=3170)
        ),
        network_info=NetworkInfo(
            maximum_network_interfaces=interfaces,
            network_cards=(NetworkCard(maximum_network_interfaces=interfaces),),
            ipv4_addresses_per_interface=addresses,
            ena_support="required",
            encryption_in_transit_supported=True,
        ),
        gpu_info=GpuInfo(
            gpus=(
                GpuDevice(
                    name="Radeon Pro V520", manufacturer="AMD", count=gpus, memory_info=MemoryInfo(size_in_mib=8192)
                ),
            )
        ),
    )


def _on_one_card(name: str) -> InstanceTypeInfo:
    info = raw()[name]
    cards = (NetworkCard(maximum_network_interfaces=ON_ONE_CARD[name]),)
    return msgspec.structs.replace(info, network_info=msgspec.structs.replace(info.network_info, network_cards=cards))


def _published() -> dict[str, dict[str, str]]:
    if not SHAPES.exists():
        pytest.skip("the shared tables are not there")
    with SHAPES.open(newline="", encoding="utf-8") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


async def _made(names: list[str]) -> dict[str, InstanceType]:
    own = {f"g4ad.{size}": _g4ad(size) for size in G4AD} | {name: _on_one_card(name) for name in ON_ONE_CARD}
    provider = (await instance_type_fixture(FakeRegion(names=names, infos=own))).provider
    return {instance_type.name: instance_type for instance_type in provider.types_for(PLAIN)}


def _count(text: str) -> int:
    return int(text or 0)


def _allocatable(instance_type: InstanceType) -> tuple[int, ...]:
    left = instance_type.allocatable
    gpus = sum(left.get(name, 0) for name in ec2_capacity.GPU_RESOURCES.values())
    return (
        left[res.CPU],
        left[res.MEMORY] // MIB,
        left[res.EPHEMERAL_STORAGE] // MIB,
        *(left.get(name, 0) // res.ONE_UNIT for name in (res.PODS, ec2_capacity.POD_ENI)),
        gpus // res.ONE_UNIT,
        *(left.get(name, 0) // res.ONE_UNIT for name in (ec2_capacity.NEURON, ec2_capacity.NEURON_CORE)),
    )


def _expected(row: dict[str, str]) -> tuple[int, ...]:
    columns = ("cpu_m", "memory_mib", "ephemeral_mib", "pods", "pod_eni", "gpu", "neuron", "neuroncore")
    known = {column: _count(row[f"alloc_{column}"]) for column in columns}
    # The table of branch interfaces is younger than the reference's figures and knows 56 types more.
    known["pod_eni"] = _count(row["branch_interfaces"]) if row["trunking"] == "true" else 0
    return tuple(known.values())


async def test_allocatable_resources_equal_the_published_reference() -> None:
    """AWS-T280: all rows of the reference, all columns ``alloc_``."""
    rows = _published()
    instance_types = await _made(list(rows))
    differing = {
        name: (_allocatable(instance_types[name]), _expected(row))
        for name, row in rows.items()
        if _allocatable(instance_types[name]) != _expected(row)
    }
    assert len(rows) == 1363
    assert differing == {}


async def test_branch_interfaces_equal_the_published_reference() -> None:
    """AWS-T280, AWS-295: the number equals that of the older reference, where it has one."""
    rows = {name: row for name, row in _published().items() if row["alloc_pod_eni"]}
    instance_types = await _made(list(rows))
    assert all(
        instance_types[name].capacity[ec2_capacity.POD_ENI] == _count(row["alloc_pod_eni"]) * res.ONE_UNIT
        for name, row in rows.items()
    )


LABELS = {
    "category": "category",
    "family": "family",
    "generation": "generation",
    "size": "size",
    "capability-flex": "flex",
    "hypervisor": "hypervisor",
    "cpu": "vcpu",
    "memory": "memory_mib",
    "cpu-manufacturer": "cpu_manufacturer",
    "cpu-sustained-clock-speed-mhz": "cpu_sustained_clock_mhz",
    "encryption-in-transit-supported": "encryption_in_transit",
    "network-bandwidth": "network_mbps",
    "ebs-bandwidth": "ebs_mbps",
    "local-nvme": "local_nvme_gb",
    "gpu-name": "gpu_name",
    "gpu-manufacturer": "gpu_manufacturer",
    "gpu-count": "gpu_count",
    "gpu-memory": "gpu_memory_mib",
    "accelerator-name": "accelerator_name",
    "accelerator-manufacturer": "accelerator_manufacturer",
    "accelerator-count": "accelerator_count",
}
CLOCK = "cpu-sustained-clock-speed-mhz"
#: Families for which EC2 reports another clock speed than the older reference.
OTHER_CLOCK = frozenset({"c9g", "c9gd", "m9g", "m9gd", "i7i", "i7ie"})
BANDWIDTH = "network-bandwidth"
#: Types whose bandwidth in the reference is outdated: EC2's value differs by more than rounding.
OTHER_BANDWIDTH = frozenset(
    {
        *(f"g7.{size}" for size in ("2xlarge", "4xlarge", "8xlarge")),
        *(f"{family}.{size}" for family in ("i7ie", "i8ge") for size in ("48xlarge", "metal-48xl")),
        "i8g.metal-48xl",
    }
)
#: Values of the reference for unknown data: EC2 may have a value, or the label is absent.
UNKNOWN = {CLOCK: "0", BANDWIDTH: ""}


async def test_labels_equal_the_published_reference() -> None:
    """AWS-320: every column of the reference that is a label."""
    rows = {name: row for name, row in _published().items() if not name.startswith("g4ad.")}
    instance_types = await _made(list(rows))
    differing = {
        (name, suffix, value, row[column])
        for name, row in rows.items()
        for suffix, column in LABELS.items()
        if (value := next(iter(instance_types[name].requirements[f"{AWS}{suffix}"].values), "")) != row[column]
        and row[column] != UNKNOWN.get(suffix)
        and not (suffix == CLOCK and row["family"] in OTHER_CLOCK)
        and not (suffix == BANDWIDTH and name in OTHER_BANDWIDTH)
    }
    assert differing == set()
