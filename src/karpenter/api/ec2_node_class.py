"""EC2NodeClass (``karpenter.k8s.aws/v1``): how EC2 instances are launched (API §7, AWS §2).

The schema accepts whatever users could store before. The node class controller checks the rest and reports it in the conditions.
``spec.kubelet`` is open on purpose: its fields belong to the kubelet, not to us.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from karpenter.api.meta import Condition, ObjectMeta, Wire

AMIFamily = Literal["AL2", "AL2023", "Bottlerocket", "Custom", "Ubuntu", "Windows2019", "Windows2022", "Windows2025"]

#: API-248: 1-59000 Gi, 1-64000 G, up to 58 Ti or 64 T. A bare unit passes because it always has: ``model.ec2_volume_size`` gives
#: the text a meaning. All whole Ti up to 58 pass, which is more than users know.
VOLUME_SIZE = (
    r"^(([1-9][0-9]{0,3}|[1-4][0-9]{4}|5[0-8][0-9]{3}|59000)Gi"
    r"|([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-3][0-9]{3}|64000)G"
    r"|([1-9]|[1-4][0-9]|5[0-8])?Ti"
    r"|([1-9]|[1-5][0-9]|6[0-4])?T)$"
)


class SubnetSelectorTerm(Wire, frozen=True, kw_only=True):
    """Subnets by tags or by id."""

    tags: Annotated[Mapping[str, str], Meta(max_length=20)] = {}
    id: Annotated[str, Meta(pattern=r"subnet-[0-9a-z]+")] | None = None


class SecurityGroupSelectorTerm(Wire, frozen=True, kw_only=True):
    """Security groups by tags, id or name."""

    tags: Annotated[Mapping[str, str], Meta(max_length=20)] = {}
    id: Annotated[str, Meta(pattern=r"sg-[0-9a-z]+")] | None = None
    name: str | None = None


class CapacityReservationSelectorTerm(Wire, frozen=True, kw_only=True):
    """Capacity reservations by tags, id or match criteria; an owner narrows."""

    tags: Annotated[Mapping[str, str], Meta(max_length=20)] = {}
    id: Annotated[str, Meta(pattern=r"^cr-[0-9a-z]+$")] | None = None
    owner_id: Annotated[str, Meta(pattern=r"^[0-9]{12}$")] | None = msgspec.field(name="ownerID", default=None)
    instance_match_criteria: Literal["open", "targeted"] | None = None


class PlacementGroupSelector(Wire, frozen=True, kw_only=True):
    """One placement group, by name or by id."""

    name: Annotated[str, Meta(min_length=1)] | None = None
    id: Annotated[str, Meta(pattern=r"^pg-[0-9a-z]+$")] | None = None


class AMISelectorTerm(Wire, frozen=True, kw_only=True):
    """Images by alias (``al2023@latest``), tags, id, name or SSM parameter; an owner narrows."""

    alias: Annotated[str, Meta(max_length=30)] | None = None
    tags: Annotated[Mapping[str, str], Meta(max_length=20)] = {}
    id: Annotated[str, Meta(pattern=r"ami-[0-9a-z]+")] | None = None
    name: str | None = None
    owner: str | None = None
    ssm_parameter: str | None = None


class BlockDevice(Wire, frozen=True, kw_only=True):
    """An EBS volume. ``volume_size`` is text such as ``20Gi``; throughput in MiB/s, initialization rate too."""

    delete_on_termination: bool | None = None
    encrypted: bool | None = None
    iops: int | None = None
    kms_key_id: str | None = msgspec.field(name="kmsKeyID", default=None)
    snapshot_id: str | None = msgspec.field(name="snapshotID", default=None)
    throughput: int | None = None
    volume_initialization_rate: Annotated[int, Meta(ge=100, le=300)] | None = None
    volume_size: Annotated[str, Meta(pattern=VOLUME_SIZE)] | None = None
    volume_type: Literal["standard", "io1", "io2", "gp2", "sc1", "st1", "gp3"] | None = None


class BlockDeviceMapping(Wire, frozen=True, kw_only=True):
    """A volume and the device name it appears under."""

    device_name: str | None = None
    root_volume: bool = False
    ebs: BlockDevice | None = None


class NetworkInterface(Wire, frozen=True, kw_only=True):
    """One network interface of an instance."""

    network_card_index: Annotated[int, Meta(ge=0)]
    device_index: Annotated[int, Meta(ge=0)]
    interface_type: Literal["interface", "efa-only"]


class MetadataOptions(Wire, frozen=True, kw_only=True):
    """How the instance's metadata service answers."""

    http_endpoint: Literal["enabled", "disabled"] | None = "enabled"
    http_protocol_ipv6: Literal["enabled", "disabled"] | None = msgspec.field(
        name="httpProtocolIPv6", default="disabled"
    )
    http_put_response_hop_limit: Annotated[int, Meta(ge=1, le=64)] | None = 1
    http_tokens: Literal["required", "optional"] | None = "required"


class ConnectionTracking(Wire, frozen=True, kw_only=True):
    """When idle connections are forgotten, in seconds."""

    tcp_established_timeout: Annotated[int, Meta(ge=60, le=432000)] | None = None
    udp_stream_timeout: Annotated[int, Meta(ge=60, le=180)] | None = None
    udp_timeout: Annotated[int, Meta(ge=30, le=60)] | None = None


class CpuOptions(Wire, frozen=True, kw_only=True):
    """Processor features to switch."""

    nested_virtualization: Literal["enabled", "disabled"] | None = None


class EnclaveOptions(Wire, frozen=True, kw_only=True):
    """Nitro Enclaves (K15-A20)."""

    enabled: bool


class EC2NodeClassSpec(Wire, frozen=True, kw_only=True):
    """What instances of this class are launched with."""

    subnet_selector_terms: Annotated[tuple[SubnetSelectorTerm, ...], Meta(max_length=30)] = ()
    security_group_selector_terms: Annotated[tuple[SecurityGroupSelectorTerm, ...], Meta(max_length=30)] = ()
    capacity_reservation_selector_terms: Annotated[
        tuple[CapacityReservationSelectorTerm, ...], Meta(max_length=30)
    ] = ()
    placement_group_selector: PlacementGroupSelector | None = None
    ami_selector_terms: Annotated[tuple[AMISelectorTerm, ...], Meta(max_length=30)] = ()
    ami_family: AMIFamily | None = None
    user_data: str | None = None
    role: str | None = None
    instance_profile: str | None = None
    tags: Mapping[str, str] = {}
    kubelet: Mapping[str, object] = {}
    block_device_mappings: Annotated[tuple[BlockDeviceMapping, ...], Meta(max_length=50)] = ()
    instance_store_policy: Literal["RAID0"] | None = None
    network_interfaces: Annotated[tuple[NetworkInterface, ...], Meta(max_length=150)] = ()
    detailed_monitoring: bool | None = None
    associate_public_ip_address: bool | None = msgspec.field(name="associatePublicIPAddress", default=None)
    ip_prefix_count: Annotated[int, Meta(ge=0)] | None = None
    metadata_options: MetadataOptions | None = None
    connection_tracking: ConnectionTracking | None = None
    context: str | None = None
    cpu_options: CpuOptions | None = None
    enclave_options: EnclaveOptions | None = None


class Subnet(Wire, frozen=True, kw_only=True):
    """A subnet for instances. ``zone_id`` names the same zone in every account."""

    id: str
    zone: str
    zone_id: str = msgspec.field(name="zoneID", default="")


class SecurityGroup(Wire, frozen=True, kw_only=True):
    """A security group of every instance."""

    id: str
    name: str = ""


class ImageRequirement(Wire, frozen=True, kw_only=True):
    """What an instance type has to be to run an image."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class AMI(Wire, frozen=True, kw_only=True):
    """An image, and the types it is for. One image may stand twice, for different types."""

    id: str
    requirements: tuple[ImageRequirement, ...]
    name: str = ""
    deprecated: bool = False


class CapacityReservation(Wire, frozen=True, kw_only=True):
    """A capacity reservation or capacity block for instances."""

    id: str
    availability_zone: str
    instance_type: str
    instance_match_criteria: str
    owner_id: str = msgspec.field(name="ownerID")
    reservation_type: str = "default"
    interruptible: bool = False
    state: str = "active"
    end_time: datetime | None = None


class EC2NodeClassStatus(Wire, frozen=True, kw_only=True):
    """What the class's selectors match. Launches, drift and validation read this and do not resolve again (AWS-147)."""

    subnets: tuple[Subnet, ...] = ()
    security_groups: tuple[SecurityGroup, ...] = ()
    amis: tuple[AMI, ...] = ()
    capacity_reservations: tuple[CapacityReservation, ...] = ()
    instance_profile: str = ""
    conditions: tuple[Condition, ...] = ()


class EC2NodeClass(Wire, frozen=True, kw_only=True):
    """Node class of EC2 instances."""

    metadata: ObjectMeta = ObjectMeta()
    spec: EC2NodeClassSpec = EC2NodeClassSpec()
    status: EC2NodeClassStatus = EC2NodeClassStatus()
