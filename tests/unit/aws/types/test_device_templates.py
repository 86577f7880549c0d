"""Device templates of EC2 instance types for device claims (K15-A80 to K15-A91)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.resource_claims import Device, DeviceCapacity, DeviceConstraint
from karpenter.instancetypes.instance_type import NO_DEVICE_TEMPLATES, DeviceTemplates, InstanceType
from karpenter.providers.aws.aws_labels import NVIDIA_CONSUMABLE_CAPACITY
from karpenter.providers.aws.instancetype.device_templates import (
    EFA_DRIVER,
    NO_SHARING,
    NVIDIA_DRIVER,
    GpuSharing,
    GpuSharingError,
    SharingMode,
    device_templates,
    gpu_sharing_of,
    parse_gpu_sharing,
    types_with_devices,
)
from karpenter.scheduling.solution import Solution
from support.builders import left, node_pool, plan, sizes
from support.device_builders import claim_template, device_class, exactly, of_template, with_devices
from support.ec2_instance_types import PLAIN, FakeRegion, instance_type_fixture, raw
from support.instance_types import shape

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
#: 4 GPUs and an EFA interface; 8 GPUs and 32 EFA interfaces.
G6, P5 = "g6.12xlarge", "p5.48xlarge"


def both(instance_type: str, sharing: GpuSharing = NO_SHARING) -> DeviceTemplates:
    return device_templates(instance_type, sharing, nvidia_gpus=True, efa_interfaces=True)


def gpus(instance_type: str, sharing: GpuSharing = NO_SHARING) -> tuple[Device, ...]:
    templates = device_templates(instance_type, sharing, nvidia_gpus=True, efa_interfaces=False)
    return tuple(device for each in templates.slices for device in each.devices)


def test_gpus_are_described_as_their_driver_describes_them() -> None:
    """K15-A81, K15-A83, K15-A85"""
    (own,) = device_templates(G6, NO_SHARING, nvidia_gpus=True, efa_interfaces=False).slices
    assert (own.driver, own.pool.name, own.pool.resource_slice_count) == (NVIDIA_DRIVER, "gpus-g6.12xlarge", 1)
    assert [device.name for device in own.devices] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert (own.shared_counters, own.node_name) == ((), None)
    first = own.devices[0]
    texts = {name: value.string for name, value in first.attributes.items() if value.string is not None}
    assert texts.keys() == {"architecture", "brand", "productName", "type", PCIE_ROOT}
    assert (texts["architecture"], texts["productName"], texts["type"]) == ("Ada Lovelace", "NVIDIA L4", "gpu")
    assert first.attributes["cudaComputeCapability"].version == "8.9.0"
    assert first.capacity == {"memory": DeviceCapacity(value="23034Mi")}
    assert first.allow_multiple_allocations is None


def test_efa_interfaces_are_described_as_their_driver_describes_them() -> None:
    """K15-A84, K15-A85: only EFA devices, without capacity and bindings."""
    templates = device_templates(P5, NO_SHARING, nvidia_gpus=False, efa_interfaces=True)
    (own,) = templates.slices
    assert (own.driver, own.pool.name, templates.binding_groups) == (EFA_DRIVER, "network-p5.48xlarge", ())
    assert [device.name for device in own.devices] == [f"efa-{number}" for number in range(32)]
    last = own.devices[-1]
    assert last.capacity == {}
    assert last.attributes["dra.net/rdma"].bool_ is True
    assert last.attributes["dra.net/numaNode"].int_ == 1
    assert last.attributes["dra.net/pciVendor"].string == "Amazon.com, Inc."
    assert {"dra.net/pciDevice", "dra.net/pciSubsystem", PCIE_ROOT} <= last.attributes.keys()


@pytest.mark.parametrize(
    ("instance_type", "interfaces"),
    [(P5, 32), ("p5en.48xlarge", 16), ("p6-b200.48xlarge", 8), ("p6-b300.48xlarge", 16), ("p4d.24xlarge", 4)],
)
def test_types_have_their_known_number_of_efa_interfaces(instance_type: str, interfaces: int) -> None:
    """K15-A86"""
    templates = device_templates(instance_type, NO_SHARING, nvidia_gpus=False, efa_interfaces=True)
    assert len(templates.slices[0].devices) == interfaces


def test_the_device_tables_cover_the_known_types() -> None:
    """K15-A86, K15-A123: every type with GPUs has the number of EC2's description, where that has one."""
    with_gpus, with_efa = types_with_devices(NVIDIA_DRIVER), types_with_devices(EFA_DRIVER)
    assert (len(with_gpus), len(with_efa)) == (53, 29)
    compared = 0
    for name in with_gpus:
        info = raw().get(name)
        described = info.gpu_info.gpus[0].count if info is not None and info.gpu_info is not None else 0
        if described:
            compared += 1
            assert len(gpus(name)) == described, name
    assert compared > 40


def test_gpus_of_a_node_share_attributes_that_are_unknown_before_launch() -> None:
    """K15-A82: of no effect for a type with one GPU."""
    groups = both(G6).binding_groups
    assert [(group.attribute, group.pool) for group in groups] == [
        ("gpu.nvidia.com/driverVersion", "gpus-g6.12xlarge"),
        ("gpu.nvidia.com/cudaDriverVersion", "gpus-g6.12xlarge"),
    ]
    assert {group.devices for group in groups} == {("gpu-0", "gpu-1", "gpu-2", "gpu-3")}
    assert both("g6.xlarge").binding_groups == ()


def test_each_feature_gate_adds_its_devices() -> None:
    """K15-A80: a type gets the union of devices, types without data get none."""
    assert [own.driver for own in both(P5).slices] == [NVIDIA_DRIVER, EFA_DRIVER]
    assert [own.driver for own in both("g6.xlarge").slices] == [NVIDIA_DRIVER]
    assert both("m5.large") == NO_DEVICE_TEMPLATES
    assert device_templates(P5, NO_SHARING, nvidia_gpus=False, efa_interfaces=False) == NO_DEVICE_TEMPLATES


# -- sharing --------------------------------------------------------------------------------------------------------------


def noted(text: str | None) -> EC2NodeClass:
    annotations = {} if text is None else {NVIDIA_CONSUMABLE_CAPACITY: text}
    return msgspec.structs.replace(PLAIN, metadata=msgspec.structs.replace(PLAIN.metadata, annotations=annotations))


@pytest.mark.parametrize(
    ("text", "sharing"),
    [
        (None, NO_SHARING),
        ("", NO_SHARING),
        ("disabled", NO_SHARING),
        ("memory", GpuSharing(SharingMode.MEMORY)),
        ("unlimited", GpuSharing(SharingMode.UNLIMITED)),
        ("4", GpuSharing(SharingMode.SHARES, 4)),
    ],
)
def test_the_annotation_sets_the_gpu_sharing_mode(text: str | None, sharing: GpuSharing) -> None:
    """K15-A24"""
    assert parse_gpu_sharing(noted(text)) == sharing


@pytest.mark.parametrize("text", ["0", "-1", "1Gi", "shares", " 4", "1.5", "9" * 40])
def test_an_invalid_sharing_annotation_shares_nothing(text: str) -> None:
    """K15-A25, K15-A147: the GPUs are unshared here, and validation keeps the class from launching."""
    with pytest.raises(GpuSharingError):
        parse_gpu_sharing(noted(text))
    assert gpu_sharing_of(noted(text)) == NO_SHARING


def ranges(device: Device) -> dict[str, tuple[object, ...]]:
    """By dimension: value, default, and the range with its step."""
    result: dict[str, tuple[object, ...]] = {}
    for name, capacity in device.capacity.items():
        policy = capacity.request_policy
        assert policy is not None
        assert policy.valid_range is not None
        within = policy.valid_range
        result[name] = (capacity.value, policy.default, within.min, within.max, within.step)
    return result


def test_gpu_memory_is_shared_by_the_requested_amounts() -> None:
    """K15-A88"""
    first = gpus(G6, GpuSharing(SharingMode.MEMORY))[0]
    assert first.allow_multiple_allocations is True
    assert ranges(first) == {"memory": ("23034Mi", "23034Mi", "1Mi", "23034Mi", "1Mi")}


def test_gpus_can_be_shared_without_a_limit() -> None:
    """K15-A89"""
    first = gpus(G6, GpuSharing(SharingMode.UNLIMITED))[0]
    assert first.allow_multiple_allocations is True
    assert ranges(first) == {"memory": ("23034Mi", "0", "0", "23034Mi", "1Mi")}


def test_gpus_can_be_shared_by_a_limited_number_of_claims() -> None:
    """K15-A90"""
    first = gpus(G6, GpuSharing(SharingMode.SHARES, 4))[0]
    assert ranges(first) == {
        "memory": ("23034Mi", "0", "0", "23034Mi", "1Mi"),
        "shares": ("4", "1", "1", "4", "1"),
    }


def test_every_known_gpu_has_memory() -> None:
    """K15-A91: a GPU without memory could not be shared; the table has none."""
    for name in types_with_devices(NVIDIA_DRIVER):
        assert all("memory" in device.capacity for device in gpus(name)), name


# -- use in plans ----------------------------------------------------------------------------------------------------------


NVIDIA_CLASS = device_class("gpu", f'device.driver == "{NVIDIA_DRIVER}"')
EFA_CLASS = device_class("efa", f'device.driver == "{EFA_DRIVER}"')


def ec2_type(name: str, templates: DeviceTemplates) -> InstanceType:
    plain = shape(name, {"cpu": 192, "memory": "2048Gi", "pods": 200})
    return with_devices(plain, *templates.slices, groups=templates.binding_groups)


def decided(instance_type: InstanceType, *objects: object) -> Solution:
    return plan(node_pool(), NVIDIA_CLASS, EFA_CLASS, list(objects), types=(instance_type,))


def pods_of(template: str, count: int) -> list[object]:
    return [of_template(f"p{number:02}", template) for number in range(count)]


def agree(attribute: str) -> Iterable[DeviceConstraint]:
    return (DeviceConstraint(match_attribute=attribute),)


def test_a_gpu_is_allocated_with_the_interfaces_on_its_pcie_root() -> None:
    """K15-A84: on a p5.48xlarge each of 8 GPUs shares its PCIe root with 4 EFA interfaces."""
    claim = claim_template("beside", exactly("g"), exactly("e", 4, of="efa"), constraints=agree(PCIE_ROOT))
    result = decided(ec2_type(P5, both(P5)), claim, pods_of("beside", 9))
    assert (sorted(sizes(result)), left(result)) == ([1, 8], [])
    too_many = claim_template("beside", exactly("g"), exactly("e", 5, of="efa"), constraints=agree(PCIE_ROOT))
    assert left(decided(ec2_type(P5, both(P5)), too_many, pods_of("beside", 1))) == ["p00"]


def test_gpus_that_must_have_one_driver_version_are_taken_from_one_node() -> None:
    """K15-A82: the version is unknown before launch, but equal for all GPUs of a node."""
    pair = claim_template("pair", exactly("g", 2), constraints=agree("gpu.nvidia.com/driverVersion"))
    result = decided(ec2_type(G6, both(G6)), pair, pods_of("pair", 3))
    assert (sorted(sizes(result)), left(result)) == ([1, 2], [])


@pytest.mark.parametrize(
    ("sharing", "asked", "on_a_gpu"),
    [
        (NO_SHARING, None, 1),
        (GpuSharing(SharingMode.MEMORY), {"memory": "10Gi"}, 2),
        (GpuSharing(SharingMode.MEMORY), None, 1),
        (GpuSharing(SharingMode.SHARES, 4), None, 4),
        (GpuSharing(SharingMode.UNLIMITED), None, 20),
    ],
    ids=["none", "memory", "whole memory", "shares", "unlimited"],
)
def test_the_number_of_claims_per_gpu_is_that_of_the_class(
    sharing: GpuSharing, asked: dict[str, str] | None, on_a_gpu: int
) -> None:
    """K15-A87 to K15-A90: 20 pods on nodes of one GPU with 22 Gi."""
    one = claim_template("one", exactly("g", capacity=asked))
    result = decided(ec2_type("g6.xlarge", both("g6.xlarge", sharing)), one, pods_of("one", 20))
    assert (max(sizes(result)), sum(sizes(result)), left(result)) == (on_a_gpu, 20, [])


# -- the provider ----------------------------------------------------------------------------------------------------------


async def test_types_have_devices_by_feature_gate_and_each_class_has_its_sharing_mode() -> None:
    """K15-A07, K15-A08, K15-A80, K15-A87: two classes do not share their modes."""
    region = FakeRegion(names=(G6, "m5.large"))
    fixture = await instance_type_fixture(region, dra_nvidia_gpu=True, dra_efa=True)
    plain, shared = fixture.types(noted(None)), fixture.types(noted("4"))
    assert [own.driver for own in plain[G6].devices.slices] == [NVIDIA_DRIVER, EFA_DRIVER]
    assert plain["m5.large"].devices == NO_DEVICE_TEMPLATES
    assert "shares" not in plain[G6].devices.slices[0].devices[0].capacity
    assert "shares" in shared[G6].devices.slices[0].devices[0].capacity
    assert fixture.types(noted("1Gi"))[G6].devices == plain[G6].devices
    without = await instance_type_fixture(region)
    assert without.types()[G6].devices == NO_DEVICE_TEMPLATES
