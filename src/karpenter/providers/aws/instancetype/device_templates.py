"""Devices that EC2 instance types bring: what drivers will publish on their nodes (K15-A80 to K15-A91).

A driver's slices appear with the node. To size a node for claims before there is one, each type carries what a node of it would
publish: GPUs of the driver ``gpu.nvidia.com`` and EFA interfaces of ``dra.net``, each behind a gate of its own. The facts are in
``instancetypes/data/ec2_devices.csv``. How GPUs are shared is the matter of a class, by an annotation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import chain

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.resource_claims import (
    CapacityRange,
    CapacityRequestPolicy,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    ResourcePool,
    ResourceSliceSpec,
)
from karpenter.instancetypes.instance_type import NO_DEVICE_TEMPLATES, BindingGroup, DeviceTemplates
from karpenter.instancetypes.packaged_tables import packaged_rows
from karpenter.providers.aws import aws_labels

NVIDIA_DRIVER = "gpu.nvidia.com"
EFA_DRIVER = "dra.net"
#: Known on the node only, and equal for all GPUs of it. Constraints name attributes with their domain.
_BOUND_ATTRIBUTES = (f"{NVIDIA_DRIVER}/driverVersion", f"{NVIDIA_DRIVER}/cudaDriverVersion")
_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
_MEMORY, _SHARES = "memory", "shares"
_MEMORY_STEP = "1Mi"
#: Architecture, brand and compute capability by product name, as the driver reports them.
_PRODUCTS = {
    "Tesla V100-SXM2-32GB": ("Volta", "Tesla", "7.0.0"),
    "Tesla T4": ("Turing", "Nvidia", "7.5.0"),
    "NVIDIA T4G": ("Turing", "Nvidia", "7.5.0"),
    "NVIDIA A10G": ("Ampere", "Nvidia", "8.6.0"),
    "NVIDIA A100-SXM4-40GB": ("Ampere", "Nvidia", "8.0.0"),
    "NVIDIA A100-SXM4-80GB": ("Ampere", "Nvidia", "8.0.0"),
    "NVIDIA L4": ("Ada Lovelace", "Nvidia", "8.9.0"),
    "NVIDIA L4-3Q": ("Ada Lovelace", "NvidiaVWS", "8.9.0"),
    "NVIDIA L4-6Q": ("Ada Lovelace", "NvidiaVWS", "8.9.0"),
    "NVIDIA L4-12Q": ("Ada Lovelace", "NvidiaVWS", "8.9.0"),
    "NVIDIA L40S": ("Ada Lovelace", "Nvidia", "8.9.0"),
    "NVIDIA H100 80GB HBM3": ("Hopper", "Nvidia", "9.0.0"),
    "NVIDIA H200": ("Hopper", "Nvidia", "9.0.0"),
    "NVIDIA B200": ("Blackwell", "Nvidia", "10.0.0"),
    "NVIDIA B300 SXM6 AC": ("Blackwell", "Nvidia", "10.3.0"),
}
_POSITIVE = re.compile(r"\+?0*[1-9][0-9]{0,8}", re.ASCII)

_Row = Mapping[str, str]


class SharingMode(StrEnum):
    """How claims share a GPU (K15-A87 to K15-A90)."""

    DISABLED = "disabled"
    MEMORY = "memory"
    UNLIMITED = "unlimited"
    SHARES = "shares"


@dataclass(frozen=True)
class GpuSharing:
    """How GPUs of a class are shared; ``shares`` counts with the mode of that name."""

    mode: SharingMode = SharingMode.DISABLED
    shares: int = 0


NO_SHARING = GpuSharing()


class GpuSharingError(ValueError):
    """The annotation says something else than how GPUs are shared."""


def parse_gpu_sharing(node_class: EC2NodeClass) -> GpuSharing:
    """What a class says of sharing (K15-A24). Raises ``GpuSharingError``."""
    text = node_class.metadata.annotations.get(aws_labels.NVIDIA_CONSUMABLE_CAPACITY, "")
    if text in ("", SharingMode.DISABLED):
        return NO_SHARING
    if text in (SharingMode.MEMORY, SharingMode.UNLIMITED):
        return GpuSharing(SharingMode(text))
    if _POSITIVE.fullmatch(text):
        return GpuSharing(SharingMode.SHARES, int(text))
    raise GpuSharingError(f'"{text}" must be "disabled", "memory", "unlimited" or a positive integer')


def gpu_sharing_of(node_class: EC2NodeClass) -> GpuSharing:
    """The same, none where it cannot be read: validation keeps such a class from launching (K15-A25)."""
    try:
        return parse_gpu_sharing(node_class)
    except GpuSharingError:
        return NO_SHARING


def device_templates(
    instance_type: str, sharing: GpuSharing, *, nvidia_gpus: bool, efa_interfaces: bool
) -> DeviceTemplates:
    """The devices of a type, those of the drivers whose gate is on (K15-A80)."""
    gpus = _gpu_templates(instance_type, sharing) if nvidia_gpus else NO_DEVICE_TEMPLATES
    efas = _efa_templates(instance_type) if efa_interfaces else NO_DEVICE_TEMPLATES
    if NO_DEVICE_TEMPLATES in (gpus, efas):
        return gpus if efas == NO_DEVICE_TEMPLATES else efas
    return DeviceTemplates((*gpus.slices, *efas.slices), (*gpus.binding_groups, *efas.binding_groups))


@cache
def _gpu_templates(instance_type: str, sharing: GpuSharing) -> DeviceTemplates:
    rows = _rows_by_type(NVIDIA_DRIVER).get(instance_type, ())
    devices = tuple(_gpu(f"gpu-{number}", row, sharing) for number, row in enumerate(_repeated(rows)))
    pool = f"gpus-{instance_type}"
    names = tuple(device.name for device in devices)
    groups = tuple(BindingGroup(attribute, pool, names) for attribute in _BOUND_ATTRIBUTES if len(names) > 1)
    return _templates(NVIDIA_DRIVER, pool, devices, groups)


@cache
def _efa_templates(instance_type: str) -> DeviceTemplates:
    rows = _rows_by_type(EFA_DRIVER).get(instance_type, ())
    devices = tuple(_efa(f"efa-{number}", row) for number, row in enumerate(_repeated(rows)))
    return _templates(EFA_DRIVER, f"network-{instance_type}", devices)


def _templates(
    driver: str, pool: str, devices: tuple[Device, ...], groups: tuple[BindingGroup, ...] = ()
) -> DeviceTemplates:
    """One slice with these devices. Pools differ by type and never equal those of nodes (K15-A85)."""
    if not devices:
        return NO_DEVICE_TEMPLATES
    own = ResourceSliceSpec(driver=driver, pool=ResourcePool(name=pool, resource_slice_count=1), devices=devices)
    return DeviceTemplates((own,), groups)


def _gpu(name: str, row: _Row, sharing: GpuSharing) -> Device:
    architecture, brand, capability = _PRODUCTS[row["product"]]
    memory = row["memory"]
    return Device(
        name=name,
        attributes={
            "architecture": DeviceAttribute(string=architecture),
            "brand": DeviceAttribute(string=brand),
            "cudaComputeCapability": DeviceAttribute(version=capability),
            "productName": DeviceAttribute(string=row["product"]),
            "type": DeviceAttribute(string="gpu"),
            _PCIE_ROOT: DeviceAttribute(string=row["pcie_root"]),
        },
        capacity=dict(_gpu_capacity(memory, sharing)) if memory else {},
        allow_multiple_allocations=True if memory and sharing.mode is not SharingMode.DISABLED else None,
    )


def _gpu_capacity(memory: str, sharing: GpuSharing) -> Iterator[tuple[str, DeviceCapacity]]:
    """Memory, and shares where they are counted, with the amounts that claims may ask for (K15-A87 to K15-A90)."""
    policy = None
    if sharing.mode is SharingMode.MEMORY:
        policy = _policy(memory, _MEMORY_STEP, memory, _MEMORY_STEP)
    elif sharing.mode is not SharingMode.DISABLED:
        policy = _policy("0", "0", memory, _MEMORY_STEP)
    yield _MEMORY, DeviceCapacity(value=memory, request_policy=policy)
    if sharing.mode is SharingMode.SHARES:
        most = str(sharing.shares)
        yield _SHARES, DeviceCapacity(value=most, request_policy=_policy("1", "1", most, "1"))


def _policy(default: str, least: str, most: str, step: str) -> CapacityRequestPolicy:
    return CapacityRequestPolicy(default=default, valid_range=CapacityRange(min=least, max=most, step=step))


def _efa(name: str, row: _Row) -> Device:
    attributes = {
        f"{EFA_DRIVER}/pciDevice": DeviceAttribute(string="Elastic Fabric Adapter (EFA)"),
        f"{EFA_DRIVER}/pciSubsystem": DeviceAttribute(string=row["subsystem"]),
        f"{EFA_DRIVER}/pciVendor": DeviceAttribute(string="Amazon.com, Inc."),
        f"{EFA_DRIVER}/rdma": DeviceAttribute(bool_=row["rdma"] == "true"),
        _PCIE_ROOT: DeviceAttribute(string=row["pcie_root"]),
    }
    if row["numa_node"]:
        attributes[f"{EFA_DRIVER}/numaNode"] = DeviceAttribute(int_=int(row["numa_node"]))
    return Device(name=name, attributes=attributes)


# -- facts ----------------------------------------------------------------------------------------------------------------


def types_with_devices(driver: str) -> frozenset[str]:
    """The types whose devices of a driver are known."""
    return frozenset(_rows_by_type(driver))


def _repeated(rows: tuple[_Row, ...]) -> Iterator[_Row]:
    """Each device by itself: a row describes several equal ones."""
    return chain.from_iterable([row] * int(row["devices"]) for row in rows)


@cache
def _rows_by_type(driver: str) -> Mapping[str, tuple[_Row, ...]]:
    rows: dict[str, tuple[_Row, ...]] = {}
    for row in packaged_rows("ec2_devices.csv"):
        if row["driver"] == driver:
            rows[row["instance_type"]] = (*rows.get(row["instance_type"], ()), row)
    return rows
