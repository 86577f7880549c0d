"""What a launch template says: a function of the class, the cluster and the sort of machine (AWS §10.2). Pure.

Lists whose order means nothing are sorted, so equal wishes are equal templates, and a template's name is a hash of all of it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from karpenter.api.ec2 import BlockDeviceMapping, EC2NodeClass, EC2NodeClassSpec, NetworkInterface
from karpenter.model import labels
from karpenter.model.ec2_volumes import VolumeSizeError, volume_size_gib
from karpenter.providers.aws import names
from karpenter.providers.aws.settings import Cluster
from karpenter.providers.aws.shapes import (
    BlockDeviceRequest,
    ConnectionTrackingRequest,
    CpuRequest,
    EbsRequest,
    EnclaveRequest,
    InterfaceRequest,
    LaunchTemplateData,
    MarketRequest,
    MetadataRequest,
    MonitoringRequest,
    PlacementRequest,
    ProfileRequest,
    ReservationRequest,
    ReservationTarget,
    Tag,
    TagSpecification,
    tags,
)
from karpenter.providers.aws.userdata.families import family_of, metadata_options
from karpenter.providers.contract import LaunchFailed

NAME_PREFIX = "karpenter.k8s.aws/"
#: Regions whose EC2 does not know the metadata service's IPv6 switch (AWS-494).
_WITHOUT_IPV6_METADATA = frozenset(
    {
        "us-iso-east-1",
        "us-iso-west-1",
        "us-isob-east-1",
        "us-isob-west-1",
        "us-isof-south-1",
        "us-isof-east-1",
    }
)
_EFA_ONLY = "efa-only"
_HASH_LENGTH = 16


@dataclass(frozen=True)
class Machine:
    """A sort of machine: what one template's machines share.

    ``efa_count`` interfaces of type efa are asked for, 0 for none; ``reservation_kind`` and ``reservation`` are empty for what is
    not reserved, ``group_id`` without a placement group, ``partition`` 0 where the group has none or any will do.
    """

    image_id: str
    user_data: bytes = b""
    capacity_type: str = labels.ON_DEMAND
    tenancy: str = names.DEFAULT
    efa_count: int = 0
    is_sandbox: bool = False
    reservation: str = ""
    reservation_kind: str = ""
    group_id: str = ""
    partition: int = 0


@dataclass(frozen=True)
class Content:
    """A template as it will be made."""

    name: str
    data: LaunchTemplateData
    tags: TagSpecification


def content(data: LaunchTemplateData, tags_: Mapping[str, str]) -> Content:
    """A template of this data; its name is the same in every process (AWS-480)."""
    own = TagSpecification(resource_type="launch-template", tags=tags(tags_))
    digest = hashlib.sha256(msgspec.json.encode((data, own), order="sorted")).hexdigest()
    return Content(f"{NAME_PREFIX}{digest[:_HASH_LENGTH]}", data, own)


def template_data(
    node_class: EC2NodeClass,
    cluster: Cluster,
    machine: Machine,
    tags_: Mapping[str, str],
    reserved_capacity: bool,
) -> LaunchTemplateData:
    """What the template says. ``reserved_capacity`` is the gate of that name: without it reservations are not mentioned.

    Raises ``LaunchFailed`` for a volume without a size that means anything.
    """
    spec, status = node_class.spec, node_class.status
    return LaunchTemplateData(
        image_id=machine.image_id,
        user_data=base64.b64encode(machine.user_data).decode(),
        block_device_mappings=_block_devices(spec),
        iam_instance_profile=ProfileRequest(name=status.instance_profile) if status.instance_profile else None,
        monitoring=MonitoringRequest(enabled=bool(spec.detailed_monitoring)),
        metadata_options=_metadata(spec, cluster),
        network_interfaces=_interfaces(node_class, cluster, machine),
        placement=PlacementRequest(
            tenancy=machine.tenancy,
            group_id=machine.group_id or None,
            partition_number=machine.partition or None,
        ),
        enclave_options=EnclaveRequest(enabled=machine.is_sandbox),
        cpu_options=_cpu(spec),
        capacity_reservation_specification=_reservation(machine) if reserved_capacity else None,
        instance_market_options=_market(machine) if reserved_capacity else None,
        tag_specifications=_tag_specifications(machine, tags(tags_)),
    )


def _block_devices(spec: EC2NodeClassSpec) -> tuple[BlockDeviceRequest, ...]:
    """The class's volumes, else the family's (AWS-491)."""
    mappings = spec.block_device_mappings or family_of(spec).block_devices
    return tuple(map(_block_device, mappings))


def _block_device(mapping: BlockDeviceMapping) -> BlockDeviceRequest:
    ebs = mapping.ebs
    if ebs is None:
        return BlockDeviceRequest(device_name=mapping.device_name)
    volume = EbsRequest(
        delete_on_termination=ebs.delete_on_termination,
        encrypted=ebs.encrypted,
        iops=ebs.iops or None,
        kms_key_id=ebs.kms_key_id,
        snapshot_id=ebs.snapshot_id,
        throughput=ebs.throughput or None,
        volume_initialization_rate=ebs.volume_initialization_rate or None,
        volume_size=None if ebs.volume_size is None else _size_gib(mapping.device_name or "", ebs.volume_size),
        volume_type=ebs.volume_type,
    )
    return BlockDeviceRequest(device_name=mapping.device_name, ebs=volume)


def _size_gib(device: str, text: str) -> int:
    """Admission lets through sizes that are none (AWS-054)."""
    try:
        return volume_size_gib(text)
    except VolumeSizeError as error:
        raise LaunchFailed("LaunchFailed", f"block device {device}: volumeSize: {error}") from error


def _metadata(spec: EC2NodeClassSpec, cluster: Cluster) -> MetadataRequest:
    options = metadata_options(spec, cluster)
    return MetadataRequest(
        http_endpoint=options.http_endpoint,
        http_protocol_ipv6=None if cluster.region in _WITHOUT_IPV6_METADATA else options.http_protocol_ipv6,
        http_put_response_hop_limit=options.http_put_response_hop_limit,
        http_tokens=options.http_tokens,
        instance_metadata_tags="disabled",
    )


def _interfaces(node_class: EC2NodeClass, cluster: Cluster, machine: Machine) -> tuple[InterfaceRequest, ...]:
    """As the class says, else one per EFA the claim wants, else one (AWS-495 to AWS-499)."""
    plain = _interface(node_class, cluster)
    if node_class.spec.network_interfaces:
        groups = plain.groups
        return tuple(_configured(entry, plain, groups) for entry in node_class.spec.network_interfaces)
    if machine.efa_count:
        return tuple(
            msgspec.structs.replace(plain, network_card_index=card, device_index=min(card, 1), interface_type="efa")
            for card in range(machine.efa_count)
        )
    return (plain,)


def _interface(node_class: EC2NodeClass, cluster: Cluster) -> InterfaceRequest:
    spec = node_class.spec
    prefixes = spec.ip_prefix_count or None
    return InterfaceRequest(
        device_index=0,
        groups=tuple(sorted(group.id for group in node_class.status.security_groups)),
        associate_public_ip_address=spec.associate_public_ip_address,
        ipv4_prefix_count=None if cluster.is_ipv6 else prefixes,
        ipv6_prefix_count=prefixes if cluster.is_ipv6 else None,
        ipv6_address_count=1 if cluster.is_ipv6 else None,
        primary_ipv6=True if cluster.is_ipv6 else None,
        connection_tracking_specification=_tracking(spec),
    )


def _configured(entry: NetworkInterface, plain: InterfaceRequest, groups: tuple[str, ...]) -> InterfaceRequest:
    if entry.interface_type == _EFA_ONLY:
        return InterfaceRequest(
            device_index=entry.device_index,
            network_card_index=entry.network_card_index,
            interface_type=_EFA_ONLY,
            groups=groups,
        )
    return msgspec.structs.replace(
        plain,
        device_index=entry.device_index,
        network_card_index=entry.network_card_index,
        interface_type=entry.interface_type,
    )


def _tracking(spec: EC2NodeClassSpec) -> ConnectionTrackingRequest | None:
    asked = spec.connection_tracking
    if asked is None:
        return None
    return ConnectionTrackingRequest(
        tcp_established_timeout=asked.tcp_established_timeout,
        udp_stream_timeout=asked.udp_stream_timeout,
        udp_timeout=asked.udp_timeout,
    )


def _cpu(spec: EC2NodeClassSpec) -> CpuRequest | None:
    return (
        None if spec.cpu_options is None else CpuRequest(nested_virtualization=spec.cpu_options.nested_virtualization)
    )


def _reservation(machine: Machine) -> ReservationRequest:
    """Spot and on-demand machines must never fall into a reservation that happens to be open (AWS-503)."""
    if machine.capacity_type != labels.RESERVED:
        return ReservationRequest(capacity_reservation_preference="none")
    return ReservationRequest(
        capacity_reservation_preference="capacity-reservations-only",
        capacity_reservation_target=ReservationTarget(capacity_reservation_id=machine.reservation),
    )


def _market(machine: Machine) -> MarketRequest | None:
    is_special = machine.reservation_kind in (names.CAPACITY_BLOCK, names.INTERRUPTIBLE)
    return MarketRequest(market_type=machine.reservation_kind) if is_special else None


def _tag_specifications(machine: Machine, own: tuple[Tag, ...]) -> tuple[TagSpecification, ...]:
    kinds = ["network-interface"]
    if machine.capacity_type == labels.SPOT:
        kinds.append("spot-instances-request")
    return tuple(TagSpecification(resource_type=kind, tags=own) for kind in kinds)
