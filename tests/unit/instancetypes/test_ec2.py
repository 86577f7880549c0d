"""The packaged instance types against the published figures."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from karpenter.instancetypes import ec2_capacity, ec2_packaged_types, well_known_labels
from karpenter.instancetypes.instance_type import BurstableCpu, InstanceType, Offering
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements

SHAPES = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "instance_types.csv"
AWS = "karpenter.k8s.aws/instance-"
MIB = ec2_capacity.MIB * res.ONE_UNIT

# AWS-315: type, vCPU, MiB, arch, interfaces, addresses per interface, capacity MiB, pods, pods with one interface
# reserved, reserved millicores, reserved MiB, allocatable millicores, allocatable MiB.
WORKED = [
    ("t3.small", 2, 2048, "amd64", 3, 4, 1894, 11, 8, 70, 376, 1930, 1418),
    ("t3.large", 2, 8192, "amd64", 3, 12, 7577, 35, 24, 70, 640, 1930, 6837),
    ("t4g.small", 2, 2048, "arm64", 3, 4, 1835, 11, 8, 70, 376, 1930, 1359),
    ("t4g.medium", 2, 4096, "arm64", 3, 6, 3729, 17, 12, 70, 442, 1930, 3187),
    ("m5.xlarge", 4, 16384, "amd64", 4, 15, 15155, 58, 44, 80, 893, 3920, 14162),
    ("m5.metal", 96, 393216, "amd64", 15, 50, 363724, 737, 688, 310, 8362, 95690, 355262),
    ("c6g.large", 2, 4096, "arm64", 3, 10, 3729, 29, 20, 70, 574, 1930, 3055),
    ("g5.12xlarge", 48, 196608, "amd64", 15, 50, 181862, 737, 688, 190, 8362, 47810, 173400),
]


@pytest.mark.parametrize("row", WORKED, ids=[str(row[0]) for row in WORKED])
def test_the_worked_numbers_come_out(row: tuple[str | int, ...]) -> None:
    """AWS-315."""
    name, vcpus, memory, arch, interfaces, addresses, *expected = row
    assert isinstance(name, str)
    assert isinstance(arch, str)
    pods = ec2_capacity.max_pods(int(interfaces), int(addresses))
    instance_type = ec2_packaged_types.find_packaged_type(name)
    assert instance_type is not None
    assert [
        ec2_capacity.memory_capacity_mib(int(memory), arch),
        pods,
        ec2_capacity.max_pods(int(interfaces), int(addresses), 1),
        ec2_capacity.reserved_cpu_millis(int(vcpus)),
        ec2_capacity.reserved_memory_mib(pods),
        instance_type.allocatable[res.CPU],
        instance_type.allocatable[res.MEMORY] // MIB,
    ] == expected


def test_no_interface_left_means_no_pods() -> None:
    """AWS-T289."""
    assert ec2_capacity.max_pods(3, 12, 100) == 0


def test_without_hypervisor_share_only_firmware_is_taken_from_memory() -> None:
    """AWS-T281."""
    none = ec2_capacity.VM_MEMORY_OVERHEAD * 0
    assert ec2_capacity.memory_capacity_mib(8192, "amd64", none) == 8192
    assert ec2_capacity.memory_capacity_mib(2048, "arm64", none) == 1984


def _published() -> list[dict[str, str]]:
    if not SHAPES.exists():
        pytest.skip("the shared tables are not there")
    with SHAPES.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _count(text: str) -> int:
    return int(text or 0)


def _shape(row: dict[str, str]) -> ec2_capacity.EC2InstanceShape:
    neurons = _count(row["alloc_neuron"])
    return ec2_capacity.EC2InstanceShape(
        arch=row["arch"],
        vcpus=int(row["vcpu"]),
        memory_mib=int(row["memory_mib"]),
        interfaces=int(row["eni_default_card"]),
        ipv4_per_interface=int(row["ipv4_per_eni"]),
        gpu_manufacturer=row["gpu_manufacturer"],
        gpus=_count(row["gpu_count"]),
        neuron_devices=neurons,
        neuron_cores=_count(row["alloc_neuroncore"]) // neurons if neurons else 0,
    )


def _allocatable(shape: ec2_capacity.EC2InstanceShape) -> list[int]:
    left = res.subtract(ec2_capacity.instance_capacity(shape), ec2_capacity.instance_overhead(shape))
    gpu = ec2_capacity.GPU_RESOURCES.get(shape.gpu_manufacturer, "")
    return [
        left[res.CPU],
        left[res.MEMORY] // MIB,
        left[res.EPHEMERAL_STORAGE] // MIB,
        left[res.PODS] // res.ONE_UNIT,
        left.get(gpu, 0) // res.ONE_UNIT,
        left.get(ec2_capacity.NEURON, 0) // res.ONE_UNIT,
        left.get(ec2_capacity.NEURON_CORE, 0) // res.ONE_UNIT,
    ]


def test_allocatable_of_every_published_type_is_computed_exactly() -> None:
    """AWS-T280: all rows of the published reference."""
    rows = _published()
    columns = ("cpu_m", "memory_mib", "ephemeral_mib", "pods", "gpu", "neuron", "neuroncore")
    differing = {
        row["name"]: (allocatable, expected)
        for row in rows
        if (allocatable := _allocatable(_shape(row)))
        != (expected := [_count(row[f"alloc_{column}"]) for column in columns])
    }
    assert len(rows) == 1363
    assert differing == {}


def test_the_packaged_table_holds_every_priced_type_with_its_figures() -> None:
    """Shape, price, zones and labels agree with the source table for every type that has a price."""
    priced = [row for row in _published() if row["price_us_east_1"]]
    assert [
        packaged_instance_type.name for packaged_instance_type in ec2_packaged_types.packaged_instance_types()
    ] == sorted(row["name"] for row in priced)
    for row in priced:
        instance_type = ec2_packaged_types.find_packaged_type(row["name"])
        assert instance_type is not None
        assert instance_type.allocatable[res.MEMORY] // MIB == int(row["alloc_memory_mib"])
        assert _label(instance_type.name, f"{AWS}category") == row["category"]
        assert _label(instance_type.name, f"{AWS}generation") == row["generation"]
        assert _label(instance_type.name, f"{AWS}gpu-name") == row["gpu_name"]
        on_demand = {
            offering.price_per_hour
            for offering in instance_type.offerings
            if offering.capacity_type == labels.ON_DEMAND
        }
        assert on_demand <= {float(row["price_us_east_1"])}
        pod_eni = instance_type.capacity.get(ec2_capacity.POD_ENI, 0) // res.ONE_UNIT
        assert _count(row["alloc_pod_eni"]) in (0, pod_eni)
        assert instance_type.requirements["topology.k8s.aws/zone-id"].values == frozenset(
            filter(None, row["zones_us_east_1"].split("|"))
        )


def _label(name: str, key: str) -> str:
    instance_type = ec2_packaged_types.find_packaged_type(name)
    assert instance_type is not None
    return next(iter(instance_type.requirements[key].values), "")


def test_labels_of_a_gpu_instance() -> None:
    """AWS-321."""
    expected = {
        "category": "g",
        "generation": "4",
        "family": "g4dn",
        "size": "8xlarge",
        "cpu": "32",
        "cpu-manufacturer": "intel",
        "cpu-sustained-clock-speed-mhz": "2500",
        "memory": "131072",
        "ebs-bandwidth": "9500",
        "network-bandwidth": "50000",
        "gpu-name": "t4",
        "gpu-manufacturer": "nvidia",
        "gpu-count": "1",
        "gpu-memory": "16384",
        "local-nvme": "900",
        "hypervisor": "nitro",
    }
    assert {key: _label("g4dn.8xlarge", AWS + key) for key in expected} == expected


def test_labels_of_an_accelerator_instance() -> None:
    """AWS-321."""
    expected = {"accelerator-name": "inferentia2", "accelerator-manufacturer": "aws", "accelerator-count": "1"}
    assert {key: _label("inf2.xlarge", AWS + key) for key in expected} == expected
    assert _label("inf2.xlarge", f"{AWS}category") == "inf"


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("u-6tb1.56xlarge", "category", "u"),
        ("u-6tb1.56xlarge", "generation", "1"),
        ("m7i-flex.large", "capability-flex", "true"),
        ("m7i.large", "capability-flex", "false"),
        ("g6f.large", "gpu-count", "0"),
        ("m5.metal", "hypervisor", ""),
    ],
)
def test_labels_that_are_easy_to_get_wrong(name: str, key: str, value: str) -> None:
    """AWS-320, AWS-322: the fractional GPU counts 0, bare metal has the empty hypervisor as a value."""
    instance_type = ec2_packaged_types.find_packaged_type(name)
    assert instance_type is not None
    assert instance_type.requirements[AWS + key].values == {value}


def test_allocatable_is_capacity_less_overhead_in_one_group() -> None:
    """OPS-P2: 4 CPUs and 16 Gi less 100m and 1 Gi are one allocatable group of both offerings."""
    zones = tuple(
        Offering(Requirements((well_known_labels.label_in(labels.ZONE, zone),)), price_per_hour=1.0) for zone in "ab"
    )
    capacity = res.parse_resources({"cpu": 4, "memory": "16Gi"})
    overhead = res.parse_resources({"cpu": "100m", "memory": "1Gi"})
    (group,) = InstanceType("t", Requirements(()), capacity, overhead, zones).allocatable_groups()
    assert group.allocatable == res.parse_resources({"cpu": "3900m", "memory": "15Gi"})
    assert group.offerings == zones


def test_fractional_gpus_offer_no_whole_gpu() -> None:
    """AWS-322."""
    instance_type = ec2_packaged_types.find_packaged_type("g6f.large")
    assert instance_type is not None
    assert "nvidia.com/gpu" not in instance_type.capacity


def test_every_type_says_something_about_every_well_known_label() -> None:
    """SCH-116, OPS-235: a value set, or that the label does not exist; the name is the value of its label."""
    assert all(
        instance_type.requirements[labels.INSTANCE_TYPE].values == {instance_type.name}
        for instance_type in ec2_packaged_types.packaged_instance_types()
    )
    assert all(
        instance_type.requirements.keys() >= well_known_labels.INSTANCE_LABELS
        for instance_type in ec2_packaged_types.packaged_instance_types()
    )
    assert all(
        labels.NODE_POOL not in instance_type.requirements
        for instance_type in ec2_packaged_types.packaged_instance_types()
    )


def test_every_offering_names_zone_capacity_type_and_a_price() -> None:
    """OPS-236; no spot price exceeds on-demand."""
    offerings = [
        (packaged_instance_type, offering)
        for packaged_instance_type in ec2_packaged_types.packaged_instance_types()
        for offering in packaged_instance_type.offerings
    ]
    assert len(offerings) > 12_000
    for instance_type, offering in offerings:
        assert offering.zone in instance_type.requirements[labels.ZONE].values
        assert offering.capacity_type in instance_type.requirements[labels.CAPACITY_TYPE].values
        assert 0 < offering.price_per_hour <= max(other.price_per_hour for other in instance_type.offerings)


def test_the_packaged_types_are_read_once() -> None:
    """Callers may cache by identity (OPS-215)."""
    assert ec2_packaged_types.packaged_instance_types() is ec2_packaged_types.packaged_instance_types()
    assert ec2_packaged_types.find_packaged_type("no.such") is None


@pytest.mark.parametrize(
    ("name", "credits_per_hour", "surplus_price"),
    [
        ("t2.nano", 3, None),
        ("t2.2xlarge", 81.6, None),
        ("t3.nano", 6, 0.05),
        ("t3a.micro", 12, 0.05),
        ("t3.medium", 24, 0.05),
        ("t3.2xlarge", 192, 0.05),
        ("t4g.xlarge", 96, 0.04),
    ],
)
def test_burstable_types_guarantee_the_cpu_they_earn_credits_for(
    name: str, credits_per_hour: float, surplus_price: float | None
) -> None:
    """One credit is one vCPU for a minute; the figures are those of the EC2 user guide."""
    instance_type = ec2_packaged_types.find_packaged_type(name)
    assert instance_type is not None
    cpu = instance_type.burstable_cpu
    assert cpu is not None
    assert cpu.baseline_millis == round(credits_per_hour * 1000 / 60)
    assert cpu.surplus_price_per_vcpu_hour == surplus_price


@pytest.mark.parametrize("name", ["t3.medium", "t3a.medium", "t4g.medium"])
def test_without_a_surplus_price_a_type_in_mode_unlimited_has_all_of_its_cpu(name: str) -> None:
    """China's prices are in CNY. Planned as in mode ``standard``, a t3.medium would have 0.4 of its 2 vCPUs there."""
    assert ec2_packaged_types.burstable_cpu(name, "CNY") is None


def test_in_mode_standard_the_baseline_counts_in_every_currency() -> None:
    assert (
        ec2_packaged_types.burstable_cpu("t2.medium", "CNY")
        == ec2_packaged_types.burstable_cpu("t2.medium")
        == BurstableCpu(400)
    )


def test_every_burstable_type_of_the_reference_has_its_baseline() -> None:
    """The same types as EC2 calls burstable, and no more."""
    if not SHAPES.exists():
        pytest.skip("reference data is not there")
    with SHAPES.open(encoding="utf-8") as file:
        burstable = {row["name"] for row in csv.DictReader(file) if row["burstable"] == "true"}
        file.seek(0)
        names = [row["name"] for row in csv.DictReader(file)]
    assert {name for name in names if ec2_packaged_types.burstable_cpu(name) is not None} == burstable


@pytest.mark.parametrize(
    ("performance", "card_gbps", "mbps"),
    [
        ("200 Gigabit", [200.0, 200.0], 200_000),
        ("4x 100 Gigabit", [100.0] * 4, 400_000),
        ("3200 Gigabit", [200.0] * 8, 3_200_000),
        ("Up to 12.5 Gigabit", [0.75], 750),
        ("Moderate", [0.3], 300),
        ("", [], 0),
    ],
)
def test_bandwidth_of_several_cards_is_that_of_the_type(performance: str, card_gbps: list[float], mbps: int) -> None:
    """AWS-323: EC2 gives some types with two cards the whole bandwidth on each; "Up to" is a peak."""
    assert ec2_capacity.network_mbps(performance, card_gbps) == mbps


def test_every_packaged_type_has_its_bandwidth() -> None:
    """AWS-323: also the old types whose published figure is a word."""
    bandwidths = {name: facts.network_mbps for name, facts in ec2_packaged_types.published_type_facts().items()}
    assert [name for name, mbps in bandwidths.items() if not mbps] == []
    assert (bandwidths["i8ge.48xlarge"], bandwidths["m4.large"]) == (300_000, 450)


def _label_values(name: str, key: str) -> frozenset[str]:
    instance_type = ec2_packaged_types.find_packaged_type(name)
    assert instance_type is not None, name
    return instance_type.requirements.requirement_for(f"{AWS}{key}").values


@pytest.mark.parametrize(("name", "mbps"), [("g7.2xlarge", "40000"), ("g7.4xlarge", "80000"), ("g7.8xlarge", "100000")])
def test_network_bandwidth_is_that_of_release_1_15(name: str, mbps: str) -> None:
    """K15-A121: three sizes of g7 are corrected."""
    assert _label_values(name, "network-bandwidth") == {mbps}


def test_bandwidth_of_a_type_without_a_published_figure_is_what_ec2_says() -> None:
    """K15-A121: a Mac is no node of ours, but EC2 describes it by the same text; a type EC2 says nothing of has no label."""
    assert ec2_capacity.network_mbps("10 Gigabit", ()) == 10_000
    assert ec2_capacity.network_mbps("", ()) == 0


def test_prices_of_us_east_1_know_the_family_g7() -> None:
    """K15-A120: the table of 2026-07-20."""
    instance_type = ec2_packaged_types.find_packaged_type("g7.2xlarge")
    assert instance_type is not None
    assert {each.price_per_hour for each in instance_type.offerings if each.capacity_type == labels.ON_DEMAND} == {2.52}


@pytest.mark.parametrize(
    ("name", "interfaces"),
    [
        ("i4i.large", 9),
        ("c9g.large", 9),
        ("c9gd.xlarge", 18),
        ("hpc7g.4xlarge", 118),
        ("c8gb.metal-24xl", 98),
        ("m8in.metal-48xl", 98),
        ("m8idb.metal-48xl", 98),
        ("r8idn.metal-96xl", 98),
    ],
)
def test_branch_interfaces_are_those_of_release_1_15(name: str, interfaces: int) -> None:
    """K15-A122: i4i.large trunks now; families of the ninth generation and metal sizes are new."""
    instance_type = ec2_packaged_types.find_packaged_type(name)
    assert instance_type is not None
    assert instance_type.capacity[ec2_capacity.POD_ENI] == interfaces * res.ONE_UNIT
