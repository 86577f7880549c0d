"""Requests to EC2 as frozen types: fleets, launch templates, dry runs. Field names are those of the API."""

from __future__ import annotations

from datetime import datetime

from msgspec import field

from karpenter.providers.aws.aws_types import AwsStruct, Tag

# -- launch templates (AWS §10) -------------------------------------------------------------------------------------------------


class EbsRequest(AwsStruct, frozen=True, kw_only=True):
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


class BlockDeviceRequest(AwsStruct, frozen=True, kw_only=True):
    """A volume and its device name."""

    device_name: str | None = None
    ebs: EbsRequest | None = None


class ConnectionTrackingRequest(AwsStruct, frozen=True, kw_only=True):
    """Idle time-outs in seconds."""

    tcp_established_timeout: int | None = None
    udp_stream_timeout: int | None = None
    udp_timeout: int | None = None


class NetworkInterfaceRequest(AwsStruct, frozen=True, kw_only=True):
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


class MetadataRequest(AwsStruct, frozen=True, kw_only=True):
    """How the instance's metadata service answers."""

    http_endpoint: str | None = None
    http_protocol_ipv6: str | None = field(name="HttpProtocolIpv6", default=None)
    http_put_response_hop_limit: int | None = None
    http_tokens: str | None = None
    instance_metadata_tags: str | None = None


class TagSpecification(AwsStruct, frozen=True, kw_only=True):
    """Tags for everything of one sort that a request makes."""

    resource_type: str
    tags: tuple[Tag, ...] = ()


class InstanceProfileRequest(AwsStruct, frozen=True, kw_only=True):
    """The instance profile, by name."""

    name: str


class MonitoringRequest(AwsStruct, frozen=True, kw_only=True):
    """Detailed monitoring; written even when off."""

    enabled: bool


class PlacementRequest(AwsStruct, frozen=True, kw_only=True):
    """Where to put it."""

    tenancy: str | None = None
    group_id: str | None = None
    partition_number: int | None = None


class EnclaveRequest(AwsStruct, frozen=True, kw_only=True):
    """Nitro Enclaves; written even when off."""

    enabled: bool


class CpuRequest(AwsStruct, frozen=True, kw_only=True):
    """Processor features."""

    nested_virtualization: str | None = None


class ReservationTarget(AwsStruct, frozen=True, kw_only=True):
    """One reservation."""

    capacity_reservation_id: str


class ReservationRequest(AwsStruct, frozen=True, kw_only=True):
    """Which reservations the instance may use."""

    capacity_reservation_preference: str | None = None
    capacity_reservation_target: ReservationTarget | None = None


class InstanceMarketOptionsRequest(AwsStruct, frozen=True, kw_only=True):
    """``spot``, ``capacity-block`` or ``interruptible-capacity-reservation``."""

    market_type: str


class LaunchTemplateData(AwsStruct, frozen=True, kw_only=True):
    """What a launch template says (AWS §10.2). ``user_data`` is base64."""

    image_id: str
    user_data: str = ""
    block_device_mappings: tuple[BlockDeviceRequest, ...] = ()
    iam_instance_profile: InstanceProfileRequest | None = None
    monitoring: MonitoringRequest | None = None
    metadata_options: MetadataRequest | None = None
    network_interfaces: tuple[NetworkInterfaceRequest, ...] = ()
    placement: PlacementRequest | None = None
    enclave_options: EnclaveRequest | None = None
    cpu_options: CpuRequest | None = None
    capacity_reservation_specification: ReservationRequest | None = None
    instance_market_options: InstanceMarketOptionsRequest | None = None
    tag_specifications: tuple[TagSpecification, ...] = ()


class LaunchTemplate(AwsStruct, frozen=True, kw_only=True):
    """A launch template as EC2 lists it."""

    launch_template_id: str
    launch_template_name: str
    create_time: datetime | None = None
    tags: tuple[Tag, ...] = ()


# -- fleets and instances (AWS §§9, 11) -----------------------------------------------------------------------------------------


class FleetOverride(AwsStruct, frozen=True, kw_only=True):
    """One way to make the instance."""

    instance_type: str
    subnet_id: str
    availability_zone: str
    image_id: str = ""
    priority: float | None = None


class TemplateReference(AwsStruct, frozen=True, kw_only=True):
    """A launch template by name."""

    launch_template_name: str
    version: str = field(default_factory=lambda: "$Latest")


class FleetTemplate(AwsStruct, frozen=True, kw_only=True):
    """A launch template and the ways to use it."""

    launch_template_specification: TemplateReference
    overrides: tuple[FleetOverride, ...]


class SpotOptions(AwsStruct, frozen=True, kw_only=True):
    """How spot pools are chosen."""

    allocation_strategy: str


class OnDemandOptions(AwsStruct, frozen=True, kw_only=True):
    """How on-demand types are chosen."""

    allocation_strategy: str


class ReservedCapacityOptions(AwsStruct, frozen=True, kw_only=True):
    """Which reservations count."""

    reservation_types: tuple[str, ...]


class TargetCapacity(AwsStruct, frozen=True, kw_only=True):
    """How many instances of which capacity type."""

    total_target_capacity: int
    default_target_capacity_type: str


class FleetRequest(AwsStruct, frozen=True, kw_only=True):
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


class TemplateAndOverrides(AwsStruct, frozen=True, kw_only=True):
    """Which of the ways was taken, or failed."""

    overrides: FleetOverride | None = None


class FleetInstanceSet(AwsStruct, frozen=True, kw_only=True):
    """Instances a fleet made in one way."""

    instance_ids: tuple[str, ...] = ()
    instance_type: str = ""
    lifecycle: str = ""
    launch_template_and_overrides: TemplateAndOverrides | None = None


class FleetError(AwsStruct, frozen=True, kw_only=True):
    """Why one way did not work."""

    error_code: str = ""
    error_message: str = ""
    lifecycle: str = ""
    launch_template_and_overrides: TemplateAndOverrides | None = None


class FleetAnswer(AwsStruct, frozen=True, kw_only=True):
    """The answer to CreateFleet."""

    fleet_id: str = ""
    instances: tuple[FleetInstanceSet, ...] = ()
    errors: tuple[FleetError, ...] = ()
