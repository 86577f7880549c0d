"""The pieces of AWS's requests and answers that the provider speaks of, in AWS's own words.

Names are AWS's with underscores; on the wire they are theirs. Answers decode leniently (fields nobody reads are dropped, absent
ones are empty), requests leave out what is not set. Sizes and numbers have the units of the AWS API: MiB, GB, Mbit/s, seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec
from msgspec import field


class Shape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="pascal"):
    """Base of everything here."""


class Tag(Shape, frozen=True, kw_only=True):
    """One tag."""

    key: str
    value: str = msgspec.field(default_factory=str)


def tags(values: Mapping[str, str]) -> tuple[Tag, ...]:
    """Tags of a map, sorted by key so that equal requests are equal texts."""
    return tuple(Tag(key=key, value=values[key]) for key in sorted(values))


def tag_map(values: tuple[Tag, ...]) -> dict[str, str]:
    """A map of tags."""
    return {tag.key: tag.value for tag in values}


class Filter(Shape, frozen=True, kw_only=True):
    """One filter of a describe call: any of the values."""

    name: str
    values: tuple[str, ...]


# -- instance types (AWS-280) -------------------------------------------------------------------------------------------------


class ProcessorInfo(Shape, frozen=True, kw_only=True):
    """Of a type: architectures, clock in GHz, features."""

    supported_architectures: tuple[str, ...] = ()
    sustained_clock_speed_in_ghz: float | None = field(name="SustainedClockSpeedInGhz", default=None)
    supported_features: tuple[str, ...] = ()
    manufacturer: str = ""


class VCpuInfo(Shape, frozen=True, kw_only=True):
    """Of a type."""

    default_vcpus: int = field(name="DefaultVCpus", default=0)


class MemoryInfo(Shape, frozen=True, kw_only=True):
    """Of a type or an accelerator."""

    size_in_mib: int = field(name="SizeInMiB", default=0)


class InstanceStorageInfo(Shape, frozen=True, kw_only=True):
    """Of a type: local disks."""

    total_size_in_gb: int = field(name="TotalSizeInGB", default=0)
    nvme_support: str = ""


class EbsOptimizedInfo(Shape, frozen=True, kw_only=True):
    """Of a type."""

    maximum_bandwidth_in_mbps: int | None = None


class EbsInfo(Shape, frozen=True, kw_only=True):
    """Of a type."""

    ebs_optimized_support: str = ""
    ebs_optimized_info: EbsOptimizedInfo | None = None


class NetworkCard(Shape, frozen=True, kw_only=True):
    """Of a type."""

    network_card_index: int = 0
    maximum_network_interfaces: int = 0
    baseline_bandwidth_in_gbps: float | None = None


class EfaInfo(Shape, frozen=True, kw_only=True):
    """Of a type."""

    maximum_efa_interfaces: int = 0


class NetworkInfo(Shape, frozen=True, kw_only=True):
    """Of a type."""

    maximum_network_interfaces: int = 0
    default_network_card_index: int = 0
    network_cards: tuple[NetworkCard, ...] = ()
    ipv4_addresses_per_interface: int = field(name="Ipv4AddressesPerInterface", default=0)
    ena_support: str = ""
    efa_info: EfaInfo | None = None
    encryption_in_transit_supported: bool = False


class GpuDevice(Shape, frozen=True, kw_only=True):
    """GPUs of one sort."""

    name: str = ""
    manufacturer: str = ""
    count: int = 0
    memory_info: MemoryInfo | None = None


class GpuInfo(Shape, frozen=True, kw_only=True):
    """Of a type."""

    gpus: tuple[GpuDevice, ...] = ()


class InferenceDevice(Shape, frozen=True, kw_only=True):
    """Inference accelerators of one sort."""

    name: str = ""
    manufacturer: str = ""
    count: int = 0


class InferenceAcceleratorInfo(Shape, frozen=True, kw_only=True):
    """Of a type."""

    accelerators: tuple[InferenceDevice, ...] = ()


class NeuronCoreInfo(Shape, frozen=True, kw_only=True):
    """Of a Neuron device."""

    count: int = 0


class NeuronDevice(Shape, frozen=True, kw_only=True):
    """Neuron devices of one sort."""

    name: str = ""
    count: int = 0
    core_info: NeuronCoreInfo | None = None


class NeuronInfo(Shape, frozen=True, kw_only=True):
    """Of a type."""

    neuron_devices: tuple[NeuronDevice, ...] = ()


class PlacementGroupInfo(Shape, frozen=True, kw_only=True):
    """Of a type."""

    supported_strategies: tuple[str, ...] = ()


class InstanceTypeInfo(Shape, frozen=True, kw_only=True):
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


class TypeOffering(Shape, frozen=True, kw_only=True):
    """An entry of DescribeInstanceTypeOfferings by zone: the type is sold there."""

    instance_type: str
    location: str


class SpotPrice(Shape, frozen=True, kw_only=True):
    """An entry of DescribeSpotPriceHistory; USD an hour as text."""

    instance_type: str
    availability_zone: str
    spot_price: str
    timestamp: datetime | None = None


# -- network, images, reservations (AWS §§4-5) ----------------------------------------------------------------------------------


class SubnetInfo(Shape, frozen=True, kw_only=True):
    """An entry of DescribeSubnets."""

    subnet_id: str
    vpc_id: str = ""
    availability_zone: str = ""
    availability_zone_id: str = ""
    available_ip_address_count: int = 0
    tags: tuple[Tag, ...] = ()


class SecurityGroupInfo(Shape, frozen=True, kw_only=True):
    """An entry of DescribeSecurityGroups."""

    group_id: str
    group_name: str = ""
    vpc_id: str = ""
    tags: tuple[Tag, ...] = ()


class ImageInfo(Shape, frozen=True, kw_only=True):
    """An entry of DescribeImages; dates are RFC 3339 texts."""

    image_id: str
    name: str = ""
    architecture: str = ""
    creation_date: str = ""
    deprecation_time: str = ""
    state: str = ""


class CapacityReservationInfo(Shape, frozen=True, kw_only=True):
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


class PlacementGroupInfoEntry(Shape, frozen=True, kw_only=True):
    """An entry of DescribePlacementGroups."""

    group_id: str
    group_name: str = ""
    strategy: str = ""
    partition_count: int = 0
    spread_level: str = ""


# -- launch templates (AWS §10) -------------------------------------------------------------------------------------------------


class EbsRequest(Shape, frozen=True, kw_only=True):
    """A volume to make; size in GiB."""

    delete_on_termination: bool | None = None
    encrypted: bool | None = None
    iops: int | None = None
    kms_key_id: str | None = None
    snapshot_id: str | None = None
    throughput: int | None = None
    volume_initialization_rate: int | None = None
    volume_size: int | None = None
    volume_type: str | None = None


class BlockDeviceRequest(Shape, frozen=True, kw_only=True):
    """A volume and its device name."""

    device_name: str | None = None
    ebs: EbsRequest | None = None


class ConnectionTrackingRequest(Shape, frozen=True, kw_only=True):
    """Idle time-outs in seconds."""

    tcp_established_timeout: int | None = None
    udp_stream_timeout: int | None = None
    udp_timeout: int | None = None


class InterfaceRequest(Shape, frozen=True, kw_only=True):
    """A network interface to make. Index fields are written even when 0."""

    device_index: int
    network_card_index: int | None = None
    interface_type: str | None = None
    groups: tuple[str, ...] = ()
    subnet_id: str | None = None
    associate_public_ip_address: bool | None = None
    ipv4_prefix_count: int | None = field(name="Ipv4PrefixCount", default=None)
    ipv6_prefix_count: int | None = field(name="Ipv6PrefixCount", default=None)
    ipv6_address_count: int | None = field(name="Ipv6AddressCount", default=None)
    primary_ipv6: bool | None = field(name="PrimaryIpv6", default=None)
    connection_tracking_specification: ConnectionTrackingRequest | None = None


class MetadataRequest(Shape, frozen=True, kw_only=True):
    """How the machine's metadata service answers."""

    http_endpoint: str | None = None
    http_protocol_ipv6: str | None = field(name="HttpProtocolIpv6", default=None)
    http_put_response_hop_limit: int | None = None
    http_tokens: str | None = None
    instance_metadata_tags: str | None = None


class TagSpecification(Shape, frozen=True, kw_only=True):
    """Tags for everything of one sort that a request makes."""

    resource_type: str
    tags: tuple[Tag, ...] = ()


class ProfileRequest(Shape, frozen=True, kw_only=True):
    """The instance profile, by name."""

    name: str


class MonitoringRequest(Shape, frozen=True, kw_only=True):
    """Detailed monitoring; written even when off."""

    enabled: bool


class PlacementRequest(Shape, frozen=True, kw_only=True):
    """Where to put it."""

    tenancy: str | None = None
    group_id: str | None = None
    partition_number: int | None = None


class EnclaveRequest(Shape, frozen=True, kw_only=True):
    """Nitro Enclaves; written even when off."""

    enabled: bool


class CpuRequest(Shape, frozen=True, kw_only=True):
    """Processor features."""

    nested_virtualization: str | None = None


class ReservationTarget(Shape, frozen=True, kw_only=True):
    """One reservation."""

    capacity_reservation_id: str


class ReservationRequest(Shape, frozen=True, kw_only=True):
    """Which reservations the machine may use."""

    capacity_reservation_preference: str | None = None
    capacity_reservation_target: ReservationTarget | None = None


class MarketRequest(Shape, frozen=True, kw_only=True):
    """``capacity-block`` or ``interruptible-capacity-reservation``."""

    market_type: str


class LaunchTemplateData(Shape, frozen=True, kw_only=True):
    """What a launch template says (AWS §10.2). ``user_data`` is base64."""

    image_id: str
    user_data: str = ""
    block_device_mappings: tuple[BlockDeviceRequest, ...] = ()
    iam_instance_profile: ProfileRequest | None = None
    monitoring: MonitoringRequest | None = None
    metadata_options: MetadataRequest | None = None
    network_interfaces: tuple[InterfaceRequest, ...] = ()
    placement: PlacementRequest | None = None
    enclave_options: EnclaveRequest | None = None
    cpu_options: CpuRequest | None = None
    capacity_reservation_specification: ReservationRequest | None = None
    instance_market_options: MarketRequest | None = None
    tag_specifications: tuple[TagSpecification, ...] = ()


class LaunchTemplate(Shape, frozen=True, kw_only=True):
    """A launch template as EC2 lists it."""

    launch_template_id: str
    launch_template_name: str
    create_time: datetime | None = None
    tags: tuple[Tag, ...] = ()


# -- fleets and instances (AWS §§9, 11) -----------------------------------------------------------------------------------------


class FleetOverride(Shape, frozen=True, kw_only=True):
    """One way to make the machine."""

    instance_type: str
    subnet_id: str
    availability_zone: str
    image_id: str = ""
    priority: float | None = None


class TemplateReference(Shape, frozen=True, kw_only=True):
    """A launch template by name."""

    launch_template_name: str
    version: str = field(default_factory=lambda: "$Latest")


class FleetTemplate(Shape, frozen=True, kw_only=True):
    """A launch template and the ways to use it."""

    launch_template_specification: TemplateReference
    overrides: tuple[FleetOverride, ...]


class SpotOptions(Shape, frozen=True, kw_only=True):
    """How spot pools are chosen."""

    allocation_strategy: str


class OnDemandOptions(Shape, frozen=True, kw_only=True):
    """How on-demand types are chosen."""

    allocation_strategy: str


class ReservedCapacityOptions(Shape, frozen=True, kw_only=True):
    """Which reservations count."""

    reservation_types: tuple[str, ...]


class TargetCapacity(Shape, frozen=True, kw_only=True):
    """How many machines of which capacity type."""

    total_target_capacity: int
    default_target_capacity_type: str


class FleetRequest(Shape, frozen=True, kw_only=True):
    """A CreateFleet request (AWS §9.4). ``client_token`` makes a repeated request the same one."""

    launch_template_configs: tuple[FleetTemplate, ...]
    target_capacity_specification: TargetCapacity
    tag_specifications: tuple[TagSpecification, ...] = ()
    spot_options: SpotOptions | None = None
    on_demand_options: OnDemandOptions | None = None
    reserved_capacity_options: ReservedCapacityOptions | None = None
    context: str | None = None
    client_token: str = ""
    type: str = field(default_factory=lambda: "instant")


class TemplateAndOverrides(Shape, frozen=True, kw_only=True):
    """Which of the ways was taken, or failed."""

    overrides: FleetOverride | None = None


class FleetInstances(Shape, frozen=True, kw_only=True):
    """Machines a fleet made in one way."""

    instance_ids: tuple[str, ...] = ()
    instance_type: str = ""
    lifecycle: str = ""
    launch_template_and_overrides: TemplateAndOverrides | None = None


class FleetError(Shape, frozen=True, kw_only=True):
    """Why one way did not work."""

    error_code: str = ""
    error_message: str = ""
    lifecycle: str = ""
    launch_template_and_overrides: TemplateAndOverrides | None = None


class FleetAnswer(Shape, frozen=True, kw_only=True):
    """The answer to CreateFleet."""

    fleet_id: str = ""
    instances: tuple[FleetInstances, ...] = ()
    errors: tuple[FleetError, ...] = ()


class InstanceState(Shape, frozen=True, kw_only=True):
    """pending, running, stopping, stopped, shutting-down, terminated."""

    name: str = ""


class PlacementInfo(Shape, frozen=True, kw_only=True):
    """Where a machine is."""

    availability_zone: str = ""
    availability_zone_id: str = ""
    tenancy: str = ""
    group_id: str = ""
    partition_number: int = 0


class GroupIdentifier(Shape, frozen=True, kw_only=True):
    """A security group of a machine."""

    group_id: str = ""


class InterfaceInfo(Shape, frozen=True, kw_only=True):
    """A network interface of a machine."""

    interface_type: str = ""


class ReservationSpecification(Shape, frozen=True, kw_only=True):
    """Which reservations a machine may use."""

    capacity_reservation_preference: str = ""


class StateReason(Shape, frozen=True, kw_only=True):
    """Why a machine changed its state, such as ``Client.InvalidKMSKey.InvalidState`` (AWS-858)."""

    code: str = ""
    message: str = ""


class InstanceInfo(Shape, frozen=True, kw_only=True):
    """An entry of DescribeInstances."""

    instance_id: str
    image_id: str = ""
    instance_type: str = ""
    state: InstanceState = InstanceState()
    state_reason: StateReason | None = None
    placement: PlacementInfo = PlacementInfo()
    launch_time: datetime | None = None
    subnet_id: str = ""
    vpc_id: str = ""
    security_groups: tuple[GroupIdentifier, ...] = ()
    network_interfaces: tuple[InterfaceInfo, ...] = ()
    tags: tuple[Tag, ...] = ()
    spot_instance_request_id: str = ""
    instance_lifecycle: str = ""
    capacity_reservation_id: str = ""
    capacity_reservation_specification: ReservationSpecification | None = None
    private_dns_name: str = ""
    private_ip_address: str = ""


class StateChange(Shape, frozen=True, kw_only=True):
    """An entry of TerminateInstances' answer."""

    instance_id: str
    current_state: InstanceState = InstanceState()


class StatusDetail(Shape, frozen=True, kw_only=True):
    """One check of a machine."""

    name: str = ""
    status: str = ""
    impaired_since: datetime | None = None


class StatusSummary(Shape, frozen=True, kw_only=True):
    """Checks of one sort."""

    status: str = ""
    details: tuple[StatusDetail, ...] = ()


class ScheduledEvent(Shape, frozen=True, kw_only=True):
    """Something AWS plans to do to a machine."""

    code: str = ""
    description: str = ""
    not_before: datetime | None = None


class InstanceStatus(Shape, frozen=True, kw_only=True):
    """An entry of DescribeInstanceStatus."""

    instance_id: str
    instance_status: StatusSummary = StatusSummary()
    system_status: StatusSummary = StatusSummary()
    events: tuple[ScheduledEvent, ...] = ()


# -- other services -------------------------------------------------------------------------------------------------------------


class RoleInfo(Shape, frozen=True, kw_only=True):
    """A role in an instance profile."""

    role_name: str = ""


class InstanceProfile(Shape, frozen=True, kw_only=True):
    """An instance profile."""

    instance_profile_name: str
    path: str = ""
    roles: tuple[RoleInfo, ...] = ()
    tags: tuple[Tag, ...] = ()


class Message(Shape, frozen=True, kw_only=True):
    """A message of a queue. ``attributes`` has ``SentTimestamp`` in milliseconds."""

    message_id: str = ""
    receipt_handle: str = ""
    body: str | None = None
    attributes: Mapping[str, str] = {}


class KubernetesNetworkConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Of an EKS cluster."""

    service_ipv4_cidr: str = field(name="serviceIpv4Cidr", default="")
    service_ipv6_cidr: str = field(name="serviceIpv6Cidr", default="")
    ip_family: str = ""


class CertificateAuthority(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Of an EKS cluster: base64 of PEM."""

    data: str = ""


class EksCluster(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An EKS cluster. This service, alone, spells its fields with a small letter first."""

    name: str = ""
    arn: str = ""
    version: str = ""
    endpoint: str = ""
    kubernetes_network_config: KubernetesNetworkConfig | None = None
    certificate_authority: CertificateAuthority | None = None


class ZonalShift(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A zone an EKS cluster shifts away from."""

    away_from: str = ""
    applied_status: str = ""
    expiry_time: datetime | None = None
