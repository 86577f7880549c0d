"""The pieces of AWS's requests and answers that the provider speaks of, in AWS's own words.

Names are AWS's with underscores; on the wire they are theirs. Answers decode leniently (fields without a use are dropped, absent
ones are empty), requests leave out what is not set. Sizes and numbers have the units of the AWS API: MiB, GB, Mbit/s, seconds.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from karpenter.providers.aws.aws_types import AwsStruct, Tag

# -- instance types (AWS-280) -------------------------------------------------------------------------------------------------


class ProcessorInfo(AwsStruct, frozen=True, kw_only=True):
    """Of a type: architectures, clock in GHz, features."""

    supported_architectures: tuple[str, ...] = ()
    sustained_clock_speed_in_ghz: float | None = field(name="SustainedClockSpeedInGhz", default=None)
    supported_features: tuple[str, ...] = ()
    manufacturer: str = ""


class VCpuInfo(AwsStruct, frozen=True, kw_only=True):
    """Of a type."""

    default_vcpus: int = field(name="DefaultVCpus", default=0)


class MemoryInfo(AwsStruct, frozen=True, kw_only=True):
    """Of a type or an accelerator."""

    size_in_mib: int = field(name="SizeInMiB", default=0)


class InstanceStorageInfo(AwsStruct, frozen=True, kw_only=True):
    """Of a type: local disks."""

    total_size_in_gb: int = field(name="TotalSizeInGB", default=0)
    nvme_support: str = ""


class EbsOptimizedInfo(AwsStruct, frozen=True, kw_only=True):
    """Of a type."""

    maximum_bandwidth_in_mbps: int | None = None


class EbsInfo(AwsStruct, frozen=True, kw_only=True):
    """Of a type."""

    ebs_optimized_support: str = ""
    ebs_optimized_info: EbsOptimizedInfo | None = None


class NetworkCard(AwsStruct, frozen=True, kw_only=True):
    """Of a type."""

    network_card_index: int = 0
    maximum_network_interfaces: int = 0
    baseline_bandwidth_in_gbps: float | None = None


class EfaInfo(AwsStruct, frozen=True, kw_only=True):
    """Of a type."""

    maximum_efa_interfaces: int = 0


class NetworkInfo(AwsStruct, frozen=True, kw_only=True):
    """Of a type."""

    maximum_network_interfaces: int = 0
    default_network_card_index: int = 0
    network_cards: tuple[NetworkCard, ...] = ()
    ipv4_addresses_per_interface: int = field(name="Ipv4AddressesPerInterface", default=0)
    ena_support: str = ""
    network_performance: str = ""
    efa_info: EfaInfo | None = None
    encryption_in_transit_supported: bool = False


class GpuDevice(AwsStruct, frozen=True, kw_only=True):
    """GPUs of one sort."""

    name: str = ""
    manufacturer: str = ""
    count: int = 0
    memory_info: MemoryInfo | None = None


class GpuInfo(AwsStruct, frozen=True, kw_only=True):
    """Of a type."""

    gpus: tuple[GpuDevice, ...] = ()


class InferenceDevice(AwsStruct, frozen=True, kw_only=True):
    """Inference accelerators of one sort."""

    name: str = ""
    manufacturer: str = ""
    count: int = 0


class InferenceAcceleratorInfo(AwsStruct, frozen=True, kw_only=True):
    """Of a type."""

    accelerators: tuple[InferenceDevice, ...] = ()


class NeuronCoreInfo(AwsStruct, frozen=True, kw_only=True):
    """Of a Neuron device."""

    count: int = 0


class NeuronDevice(AwsStruct, frozen=True, kw_only=True):
    """Neuron devices of one sort."""

    name: str = ""
    count: int = 0
    core_info: NeuronCoreInfo | None = None


class NeuronInfo(AwsStruct, frozen=True, kw_only=True):
    """Of a type."""

    neuron_devices: tuple[NeuronDevice, ...] = ()


class PlacementGroupInfo(AwsStruct, frozen=True, kw_only=True):
    """Of a type."""

    supported_strategies: tuple[str, ...] = ()


class InstanceTypeInfo(AwsStruct, frozen=True, kw_only=True):
    """An entry of DescribeInstanceTypes."""

    instance_type: str
    supported_usage_classes: tuple[str, ...] = ()
    bare_metal: bool = False
    hypervisor: str = ""
    processor_info: ProcessorInfo = ProcessorInfo()
    vcpu_info: VCpuInfo = field(name="VCpuInfo", default=VCpuInfo())
    memory_info: MemoryInfo = MemoryInfo()
    instance_storage_info: InstanceStorageInfo | None = None
    ebs_info: EbsInfo | None = None
    network_info: NetworkInfo = NetworkInfo()
    gpu_info: GpuInfo | None = None
    inference_accelerator_info: InferenceAcceleratorInfo | None = None
    neuron_info: NeuronInfo | None = None
    placement_group_info: PlacementGroupInfo | None = None
    nitro_enclaves_support: str = ""


class InstanceTypeOffering(AwsStruct, frozen=True, kw_only=True):
    """An entry of DescribeInstanceTypeOfferings by zone: the type is sold there."""

    instance_type: str
    location: str


class SpotPrice(AwsStruct, frozen=True, kw_only=True):
    """An entry of DescribeSpotPriceHistory; USD an hour as text."""

    instance_type: str
    availability_zone: str
    spot_price: str
    timestamp: datetime | None = None


# -- network, images, reservations (AWS §§4-5) ----------------------------------------------------------------------------------


class SubnetInfo(AwsStruct, frozen=True, kw_only=True):
    """An entry of DescribeSubnets."""

    subnet_id: str
    vpc_id: str = ""
    availability_zone: str = ""
    availability_zone_id: str = ""
    available_ip_address_count: int = 0
    tags: tuple[Tag, ...] = ()


class SecurityGroupInfo(AwsStruct, frozen=True, kw_only=True):
    """An entry of DescribeSecurityGroups."""

    group_id: str
    group_name: str = ""
    vpc_id: str = ""
    tags: tuple[Tag, ...] = ()


class ImageInfo(AwsStruct, frozen=True, kw_only=True):
    """An entry of DescribeImages; dates are RFC 3339 texts."""

    image_id: str
    name: str = ""
    architecture: str = ""
    creation_date: str = ""
    deprecation_time: str = ""
    state: str = ""


class CapacityReservationInfo(AwsStruct, frozen=True, kw_only=True):
    """An entry of DescribeCapacityReservations."""

    capacity_reservation_id: str
    owner_id: str = ""
    instance_type: str = ""
    availability_zone: str = ""
    instance_match_criteria: str = ""
    reservation_type: str = ""
    interruptible: bool = False
    state: str = ""
    available_instance_count: int = 0
    end_date: datetime | None = None


class PlacementGroupInfoEntry(AwsStruct, frozen=True, kw_only=True):
    """An entry of DescribePlacementGroups."""

    group_id: str
    group_name: str = ""
    strategy: str = ""
    partition_count: int = 0
    spread_level: str = ""


class InstanceState(AwsStruct, frozen=True, kw_only=True):
    """pending, running, stopping, stopped, shutting-down, terminated."""

    name: str = ""


class InstancePlacement(AwsStruct, frozen=True, kw_only=True):
    """Where an instance is."""

    availability_zone: str = ""
    availability_zone_id: str = ""
    tenancy: str = ""
    group_id: str = ""
    partition_number: int = 0


class GroupIdentifier(AwsStruct, frozen=True, kw_only=True):
    """A security group of an instance."""

    group_id: str = ""


class NetworkInterfaceInfo(AwsStruct, frozen=True, kw_only=True):
    """A network interface of an instance."""

    interface_type: str = ""


class InstanceReservationSpecification(AwsStruct, frozen=True, kw_only=True):
    """Which reservations an instance may use."""

    capacity_reservation_preference: str = ""


class StateReason(AwsStruct, frozen=True, kw_only=True):
    """Why an instance changed its state, such as ``Client.InvalidKMSKey.InvalidState`` (AWS-858)."""

    code: str = ""
    message: str = ""


class InstanceInfo(AwsStruct, frozen=True, kw_only=True):
    """An entry of DescribeInstances."""

    instance_id: str
    image_id: str = ""
    instance_type: str = ""
    state: InstanceState = InstanceState()
    state_reason: StateReason | None = None
    placement: InstancePlacement = InstancePlacement()
    launch_time: datetime | None = None
    subnet_id: str = ""
    vpc_id: str = ""
    security_groups: tuple[GroupIdentifier, ...] = ()
    network_interfaces: tuple[NetworkInterfaceInfo, ...] = ()
    tags: tuple[Tag, ...] = ()
    spot_instance_request_id: str = ""
    instance_lifecycle: str = ""
    capacity_reservation_id: str = ""
    capacity_reservation_specification: InstanceReservationSpecification | None = None
    private_dns_name: str = ""
    private_ip_address: str = ""


class StateChange(AwsStruct, frozen=True, kw_only=True):
    """An entry of TerminateInstances' answer."""

    instance_id: str
    current_state: InstanceState = InstanceState()


class StatusDetail(AwsStruct, frozen=True, kw_only=True):
    """One check of an instance."""

    name: str = ""
    status: str = ""
    impaired_since: datetime | None = None


class StatusSummary(AwsStruct, frozen=True, kw_only=True):
    """Checks of one sort."""

    status: str = ""
    details: tuple[StatusDetail, ...] = ()


class InstanceScheduledEvent(AwsStruct, frozen=True, kw_only=True):
    """Something AWS plans to do to an instance."""

    code: str = ""
    description: str = ""
    not_before: datetime | None = None


class InstanceStatus(AwsStruct, frozen=True, kw_only=True):
    """An entry of DescribeInstanceStatus."""

    instance_id: str
    instance_status: StatusSummary = StatusSummary()
    system_status: StatusSummary = StatusSummary()
    events: tuple[InstanceScheduledEvent, ...] = ()
