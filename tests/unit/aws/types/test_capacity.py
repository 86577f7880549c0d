"""Capacity and allocatable resources of instance types with the settings of a class."""

from __future__ import annotations

from fractions import Fraction

import msgspec
import pytest

from karpenter.api.ec2_node_class import BlockDevice, BlockDeviceMapping, EC2NodeClass, NetworkInterface
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels, quantity
from karpenter.model import resources as res
from karpenter.providers.aws.ec2_descriptions import GpuDevice, GpuInfo
from karpenter.providers.contract import ProviderError
from support.ec2_instance_types import PLAIN, FakeRegion, instance_type_fixture, of_kubelet, of_spec, raw

MIB = 2**20
GIB = 2**30
WINDOWS_ADDRESS = "vpc.amazonaws.com/PrivateIPv4Address"
EFA = "vpc.amazonaws.com/efa"


async def made(name: str, node_class: EC2NodeClass = PLAIN, **settings: object) -> InstanceType:
    return (await instance_type_fixture(FakeRegion(names=[name]), **settings)).types(node_class)[name]


def units(instance_type: InstanceType, name: str) -> int:
    return instance_type.capacity.get(name, 0) // quantity.MILLI


def mib(instance_type: InstanceType, name: str = res.MEMORY) -> int:
    return units(instance_type, name) // MIB


def reserved_mib(instance_type: InstanceType) -> int:
    """Reserved memory of the kubelet, without the default eviction threshold of 100 MiB."""
    return instance_type.overhead[res.MEMORY] // quantity.MILLI // MIB - 100


def volume(device: str, size: str | None, *, root: bool = False) -> BlockDeviceMapping:
    return BlockDeviceMapping(device_name=device, root_volume=root, ebs=BlockDevice(volume_size=size))


# Type, capacity MiB, pods, reserved millicores and MiB, allocatable millicores and MiB.
WORKED = [
    ("t3.small", 1894, 11, 70, 376, 1930, 1418),
    ("t3.medium", 3788, 17, 70, 442, 1930, 3246),
    ("t3.large", 7577, 35, 70, 640, 1930, 6837),
    ("t4g.small", 1835, 11, 70, 376, 1930, 1359),
    ("t4g.medium", 3729, 17, 70, 442, 1930, 3187),
    ("m5.large", 7577, 29, 70, 574, 1930, 6903),
    ("m5.4xlarge", 60620, 234, 110, 2829, 15890, 57691),
    ("m5.metal", 363724, 737, 310, 8362, 95690, 355262),
    ("c5a.large", 3788, 29, 70, 574, 1930, 3114),
    ("c7i.2xlarge", 15155, 58, 90, 893, 7910, 14162),
    ("r6i.xlarge", 30310, 58, 80, 893, 3920, 29317),
    ("g4dn.8xlarge", 121241, 58, 150, 893, 31850, 120248),
    ("g5.12xlarge", 181862, 737, 190, 8362, 47810, 173400),
]


@pytest.mark.parametrize("row", WORKED, ids=[f"AWS-T280-{row[0]}" for row in WORKED])
async def test_the_capacity_examples_of_the_specification(row: tuple[str, int, int, int, int, int, int]) -> None:
    """Cpu, memory, pods, what the kubelet reserves, and allocatable.

    AWS-290, AWS-291, AWS-294, AWS-300, AWS-305, AWS-306, AWS-307, AWS-313; c7i.2xlarge has the values of AWS-860.
    """
    name, *expected = row
    instance_type = await made(name)
    assert [
        mib(instance_type),
        units(instance_type, res.PODS),
        instance_type.overhead[res.CPU],
        reserved_mib(instance_type),
        instance_type.allocatable[res.CPU],
        instance_type.allocatable[res.MEMORY] // quantity.MILLI // MIB,
    ] == expected
    assert instance_type.allocatable[res.EPHEMERAL_STORAGE] == 17 * GIB * quantity.MILLI


@pytest.mark.parametrize(("name", "expected"), [("m5.large", 8192), ("t4g.small", 1984)], ids=lambda v: f"AWS-T281-{v}")
async def test_without_a_share_for_the_hypervisor_only_firmware_is_taken(name: str, expected: int) -> None:
    assert mib(await made(name, vm_memory_overhead=Fraction(0))) == expected


@pytest.mark.parametrize(
    ("family", "kept"), [pytest.param("AL2023", 640, id="AWS-T282"), pytest.param("Bottlerocket", 519, id="AWS-T283")]
)
async def test_a_reserved_interface_reduces_pods_and_only_bottlerocket_reserves_less_memory(
    family: str, kept: int
) -> None:
    instance_type = await made("t3.large", of_spec(ami_family=family), reserved_enis=1)
    assert (units(instance_type, res.PODS), reserved_mib(instance_type)) == (24, kept)


@pytest.mark.parametrize(("family", "kept"), [("AL2", 640), ("Bottlerocket", 365)], ids=lambda v: f"AWS-T284-{v}")
async def test_max_pods_of_the_class_applies(family: str, kept: int) -> None:
    instance_type = await made("t3.large", of_kubelet(family, maxPods=10))
    assert (units(instance_type, res.PODS), reserved_mib(instance_type)) == (10, kept)


async def test_pods_on_windows_are_not_limited_by_interfaces() -> None:
    """AWS-T285, AWS-299: Windows has other address limits."""
    instance_type = await made("t3.large", of_spec(ami_family="Windows2022"))
    assert (units(instance_type, res.PODS), reserved_mib(instance_type), units(instance_type, WINDOWS_ADDRESS)) == (
        110,
        1465,
        11,
    )
    assert instance_type.requirements[labels.OS].values == {"windows"}
    assert instance_type.requirements[labels.WINDOWS_BUILD].values == {"10.0.20348"}
    assert mib(instance_type, res.EPHEMERAL_STORAGE) == 50 * 1024


@pytest.mark.parametrize(
    ("name", "family", "kubelet", "pods"),
    [
        pytest.param("m5.xlarge", "AL2023", {"podsPerCore": 2}, 8, id="AWS-T286-AL2023"),
        pytest.param("m5.xlarge", "Bottlerocket", {"podsPerCore": 2}, 58, id="AWS-T286-Bottlerocket"),
        pytest.param("m5.xlarge", "AL2023", {"podsPerCore": 0}, 58, id="AWS-T287"),
        pytest.param("m5.large", "AL2023", {"maxPods": 10, "podsPerCore": 4}, 8, id="AWS-T288"),
    ],
)
async def test_pods_per_core_is_a_second_limit(name: str, family: str, kubelet: dict[str, object], pods: int) -> None:
    assert units(await made(name, of_kubelet(family, **kubelet)), res.PODS) == pods


async def test_without_a_free_interface_there_are_no_pods() -> None:
    """AWS-T289."""
    assert (await made("m5.large", reserved_enis=100)).capacity[res.PODS] == 0


@pytest.mark.parametrize(
    ("kubelet", "evicted_mib"),
    [
        pytest.param({"evictionHard": {"memory.available": "500Mi"}}, 500, id="AWS-T290"),
        pytest.param({"evictionHard": {"memory.available": "100%"}}, 0, id="AWS-T291"),
        pytest.param({"evictionSoft": {"memory.available": "50%"}}, 100, id="AWS-T292"),
        pytest.param({"evictionHard": {"nodefs.available": "5%"}}, 100, id="AWS-310-other-signal"),
    ],
)
async def test_memory_kept_free_by_eviction(kubelet: dict[str, object], evicted_mib: int) -> None:
    """AWS-312: evictionSoft does not count."""
    instance_type = await made("m5.large", of_kubelet(**kubelet))
    assert instance_type.overhead[res.MEMORY] == (574 + evicted_mib) * MIB * quantity.MILLI


async def test_a_percentage_of_memory_is_rounded_up_to_a_byte() -> None:
    """AWS-310: 10 % of 7577 MiB is no whole number of bytes."""
    instance_type = await made("m5.large", of_kubelet(evictionHard={"memory.available": "10%"}))
    assert instance_type.overhead[res.MEMORY] == (574 * MIB + -(-7577 * MIB // 10)) * quantity.MILLI


async def test_storage_kept_free_by_eviction() -> None:
    """AWS-311."""
    instance_type = await made("m5.large", of_kubelet(evictionHard={"nodefs.available": "1Gi"}))
    assert instance_type.overhead[res.EPHEMERAL_STORAGE] == 2 * GIB * quantity.MILLI


async def test_reserving_more_than_the_capacity_gives_negative_allocatable() -> None:
    """AWS-T293, AWS-309: such a type fits no pod."""
    instance_type = await made("m5.large", of_kubelet(systemReserved={"memory": "20Gi"}))
    assert instance_type.allocatable[res.MEMORY] < 0
    assert not res.fits({res.MEMORY: 1}, instance_type.allocatable)


async def test_a_configured_reservation_replaces_the_default_of_that_resource_only() -> None:
    """AWS-T294, AWS-308: per resource."""
    instance_type = await made("m5.xlarge", of_kubelet(kubeReserved={"cpu": 2}))
    assert instance_type.allocatable[res.CPU] == 2000
    assert reserved_mib(instance_type) == 893


async def test_expressions_are_evaluated_per_type() -> None:
    """AWS-111, AWS-113: with the gate only; without it they are ignored."""
    node_class = of_kubelet(maxPods="vcpus * 5")
    assert units(await made("m5.xlarge", node_class, kubelet_expressions=True), res.PODS) == 20
    assert units(await made("m5.xlarge", node_class), res.PODS) == 58


@pytest.mark.parametrize(
    ("family", "mappings", "gib"),
    [
        pytest.param("AL2023", [volume("/dev/xvda", "100Gi")], 100, id="AWS-T295-AL2023"),
        pytest.param("Bottlerocket", [volume("/dev/xvda", "100Gi")], 20, id="AWS-T295-Bottlerocket"),
        pytest.param(
            "AL2023", [volume("/dev/sdc", "50Gi", root=True), volume("/dev/xvda", "100Gi")], 50, id="AWS-T296"
        ),
        pytest.param("Custom", [volume("a", "10Gi"), volume("b", "40Gi")], 40, id="AWS-T297-last"),
        pytest.param("Custom", [volume("a", "10Gi"), volume("b", None)], 20, id="AWS-T297-without-size"),
        pytest.param("Custom", [], 20, id="AWS-293-custom-without-mappings"),
        pytest.param("AL2023", [volume("/dev/xvda", None)], 20, id="AWS-293-snapshot"),
    ],
)
async def test_the_volume_of_ephemeral_storage(family: str, mappings: list[BlockDeviceMapping], gib: int) -> None:
    instance_type = await made("m5.large", of_spec(ami_family=family, block_device_mappings=tuple(mappings)))
    assert units(instance_type, res.EPHEMERAL_STORAGE) == gib * GIB


@pytest.mark.parametrize(
    ("name", "size"),
    [pytest.param("m5.large", 20 * GIB, id="AWS-T298"), pytest.param("m5d.large", 75 * 10**9, id="AWS-293-RAID0")],
)
async def test_local_disks_are_used_for_ephemeral_storage_with_raid0(name: str, size: int) -> None:
    assert units(await made(name, of_spec(instance_store_policy="RAID0")), res.EPHEMERAL_STORAGE) == size


async def test_interfaces_without_addresses_reduce_pods() -> None:
    """AWS-T299: one interface of the default card carries no pods."""
    own = (
        NetworkInterface(network_card_index=0, device_index=0, interface_type="interface"),
        NetworkInterface(network_card_index=0, device_index=1, interface_type="efa-only"),
    )
    usual = await made("m6idn.32xlarge")
    instance_type = await made("m6idn.32xlarge", of_spec(network_interfaces=own))
    assert units(usual, EFA) == 2
    assert units(instance_type, EFA) == 1
    assert units(usual, res.PODS) - units(instance_type, res.PODS) == 49


async def test_the_number_of_branch_interfaces() -> None:
    """AWS-T306, AWS-859, AWS-T851: c7i.2xlarge has 38."""
    assert units(await made("c7i.2xlarge"), "vpc.amazonaws.com/pod-eni") == 38


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"block_device_mappings": (volume("/dev/xvda", "Ti"),)}, "volumeSize"),
        ({"kubelet": {"evictionHard": {"memory.available": "much"}}}, "memory.available"),
    ],
    ids=["AWS-054", "AWS-133"],
)
async def test_settings_that_cannot_be_parsed_are_reported(spec: dict[str, object], said: str) -> None:
    with pytest.raises(ProviderError, match=said):
        await made("m5.large", of_spec(**spec))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("g5.12xlarge", {"nvidia.com/gpu": 4}),
        ("p4d.24xlarge", {"nvidia.com/gpu": 8}),
        ("inf1.24xlarge", {"aws.amazon.com/neuron": 16, "aws.amazon.com/neuroncore": 64}),
        ("trn1.32xlarge", {"aws.amazon.com/neuron": 16, "aws.amazon.com/neuroncore": 32}),
        ("dl2q.24xlarge", {}),
        ("m5.large", {}),
    ],
)
async def test_accelerators_are_whole_devices_and_cores(name: str, expected: dict[str, int]) -> None:
    """AWS-064, AWS-296, AWS-297: a type with too many devices would be launched for pods that it cannot run."""
    prefixes = ("nvidia.com/", "amd.com/", "habana.ai/", "aws.amazon.com/")
    instance_type = await made(name)
    assert {key: units(instance_type, key) for key in instance_type.capacity if key.startswith(prefixes)} == expected


@pytest.mark.parametrize(
    ("manufacturer", "resource"),
    [("NVIDIA", "nvidia.com/gpu"), ("AMD", "amd.com/gpu"), ("Habana", "habana.ai/gaudi"), ("Qualcomm", "")],
)
async def test_gpus_are_summed_under_the_resource_of_their_manufacturer(manufacturer: str, resource: str) -> None:
    """AWS-296: GPUs of an unknown manufacturer have no resource, so no pod can use them."""
    own = raw()["g5.12xlarge"]
    devices = tuple(
        GpuDevice(name=name, manufacturer=manufacturer, count=count) for name, count in (("a", 2), ("b", 3))
    )
    info = msgspec.structs.replace(own, gpu_info=GpuInfo(gpus=devices))
    instance_type = (
        await instance_type_fixture(FakeRegion(names=[own.instance_type], infos={own.instance_type: info}))
    ).types()[own.instance_type]
    resources = {key: units(instance_type, key) for key in ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi")}
    assert {key: count for key, count in resources.items() if count} == ({resource: 5} if resource else {})


async def test_prefix_delegation_does_not_raise_the_number_of_pods() -> None:
    """AWS-301: without maxPods the number is that of single addresses, which the CNI supports in any case."""
    assert units(await made("t3.large", of_spec(ip_prefix_count=4)), res.PODS) == 35
    limited = of_spec(ip_prefix_count=4, kubelet={"maxPods": 110})
    assert units(await made("t3.large", limited), res.PODS) == 110
