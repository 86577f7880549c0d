"""Launch templates: what they contain, and which exist (AWS §10.2).

The content is a pure function of the node class, the cluster and what instances of one template share. Lists whose order means
nothing are sorted, so equal inputs are equal templates, and a template's name is a hash of all of it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import itemgetter

import msgspec
import structlog

from karpenter.api.ec2_node_class import BlockDeviceMapping, EC2NodeClass, EC2NodeClassSpec, NetworkInterface
from karpenter.model import labels
from karpenter.model.clock import Clock
from karpenter.model.ec2_volume_size import VolumeSizeError, volume_size_gib
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_apis import LaunchTemplateApi
from karpenter.providers.aws.aws_errors import TEMPLATE_EXISTS, TEMPLATE_NOT_FOUND_CODES, AwsError
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.aws_types import Ec2Filter, Tag, tag_list, tag_map
from karpenter.providers.aws.ec2_requests import (
    BlockDeviceRequest,
    ConnectionTrackingRequest,
    CpuRequest,
    EbsRequest,
    EnclaveRequest,
    InstanceMarketOptionsRequest,
    InstanceProfileRequest,
    LaunchTemplate,
    LaunchTemplateData,
    MetadataRequest,
    MonitoringRequest,
    NetworkInterfaceRequest,
    PlacementRequest,
    ReservationRequest,
    ReservationTarget,
    TagSpecification,
)
from karpenter.providers.aws.userdata.ami_families import ami_family_of, metadata_options
from karpenter.providers.contract import LaunchFailed

NAME_PREFIX = "karpenter.k8s.aws/"
#: Regions whose EC2 does not know the metadata service's IPv6 switch (AWS-494).
_WITHOUT_IPV6_METADATA = frozenset(
    {"us-iso-east-1", "us-iso-west-1", "us-isob-east-1", "us-isob-west-1", "us-isof-south-1", "us-isof-east-1"}
)
_EFA_ONLY = "efa-only"
_HASH_LENGTH = 16


@dataclass(frozen=True)
class LaunchTemplateParameters:
    """What the instances of one template share.

    ``efa_count`` interfaces of type efa are asked for, 0 for none; ``reservation_kind`` and ``reservation`` are empty for what is
    not reserved, ``group_id`` without a placement group, ``partition`` 0 where the group has none or any will do.
    """

    image_id: str
    user_data: bytes = b""
    capacity_type: str = labels.ON_DEMAND
    tenancy: str = aws_labels.DEFAULT
    efa_count: int = 0
    reservation: str = ""
    reservation_kind: str = ""
    group_id: str = ""
    partition: int = 0


@dataclass(frozen=True)
class LaunchTemplateContent:
    """A template as it will be made."""

    name: str
    data: LaunchTemplateData
    tags: TagSpecification


def launch_template_content(data: LaunchTemplateData, tags_: Mapping[str, str]) -> LaunchTemplateContent:
    """A template of this data; its name is the same in every process (AWS-480)."""
    own = TagSpecification(resource_type="launch-template", tags=tag_list(tags_))
    digest = hashlib.sha256(msgspec.json.encode((data, own), order="sorted")).hexdigest()
    return LaunchTemplateContent(f"{NAME_PREFIX}{digest[:_HASH_LENGTH]}", data, own)


def template_data(
    node_class: EC2NodeClass,
    cluster: AwsClusterInfo,
    parameters: LaunchTemplateParameters,
    tags_: Mapping[str, str],
    reserved_capacity: bool,
) -> LaunchTemplateData:
    """What the template says. ``reserved_capacity`` is the gate of that name: without it reservations are not mentioned.

    Raises ``LaunchFailed`` for a volume without a size that means anything.
    """
    spec, status = node_class.spec, node_class.status
    return LaunchTemplateData(
        image_id=parameters.image_id,
        user_data=base64.b64encode(parameters.user_data).decode(),
        block_device_mappings=_block_devices(spec),
        iam_instance_profile=InstanceProfileRequest(name=status.instance_profile) if status.instance_profile else None,
        monitoring=MonitoringRequest(enabled=bool(spec.detailed_monitoring)),
        metadata_options=_metadata_options(spec, cluster),
        network_interfaces=_network_interfaces(node_class, cluster, parameters),
        placement=PlacementRequest(
            tenancy=parameters.tenancy,
            group_id=parameters.group_id or None,
            partition_number=parameters.partition or None,
        ),
        enclave_options=EnclaveRequest(enabled=spec.enclave_options is not None and spec.enclave_options.enabled),
        cpu_options=_cpu_options(spec),
        capacity_reservation_specification=_reservation_specification(parameters) if reserved_capacity else None,
        instance_market_options=_market_options(parameters) if reserved_capacity else None,
        tag_specifications=_tag_specifications(parameters, tag_list(tags_)),
    )


def _block_devices(spec: EC2NodeClassSpec) -> tuple[BlockDeviceRequest, ...]:
    """The class's volumes, else the family's (AWS-491)."""
    mappings = spec.block_device_mappings or ami_family_of(spec).block_devices
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


def _metadata_options(spec: EC2NodeClassSpec, cluster: AwsClusterInfo) -> MetadataRequest:
    options = metadata_options(spec, cluster)
    return MetadataRequest(
        http_endpoint=options.http_endpoint,
        http_protocol_ipv6=None if cluster.region in _WITHOUT_IPV6_METADATA else options.http_protocol_ipv6,
        http_put_response_hop_limit=options.http_put_response_hop_limit,
        http_tokens=options.http_tokens,
        instance_metadata_tags="disabled",
    )


def _network_interfaces(
    node_class: EC2NodeClass, cluster: AwsClusterInfo, parameters: LaunchTemplateParameters
) -> tuple[NetworkInterfaceRequest, ...]:
    """As the class says, else one per EFA the claim wants, else one (AWS-495 to AWS-499)."""
    plain = _network_interface(node_class, cluster)
    if node_class.spec.network_interfaces:
        groups = plain.groups
        return tuple(_configured_interface(entry, plain, groups) for entry in node_class.spec.network_interfaces)
    if parameters.efa_count:
        return tuple(
            msgspec.structs.replace(plain, network_card_index=card, device_index=min(card, 1), interface_type="efa")
            for card in range(parameters.efa_count)
        )
    return (plain,)


def _network_interface(node_class: EC2NodeClass, cluster: AwsClusterInfo) -> NetworkInterfaceRequest:
    spec = node_class.spec
    prefixes = spec.ip_prefix_count or None
    return NetworkInterfaceRequest(
        device_index=0,
        groups=tuple(sorted(group.id for group in node_class.status.security_groups)),
        associate_public_ip_address=spec.associate_public_ip_address,
        ipv4_prefix_count=None if cluster.is_ipv6 else prefixes,
        ipv6_prefix_count=prefixes if cluster.is_ipv6 else None,
        ipv6_address_count=1 if cluster.is_ipv6 else None,
        primary_ipv6=True if cluster.is_ipv6 else None,
        connection_tracking_specification=_connection_tracking(spec),
    )


def _configured_interface(
    entry: NetworkInterface, plain: NetworkInterfaceRequest, groups: tuple[str, ...]
) -> NetworkInterfaceRequest:
    if entry.interface_type == _EFA_ONLY:
        return NetworkInterfaceRequest(
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


def _connection_tracking(spec: EC2NodeClassSpec) -> ConnectionTrackingRequest | None:
    tracking = spec.connection_tracking
    if tracking is None:
        return None
    return ConnectionTrackingRequest(
        tcp_established_timeout=tracking.tcp_established_timeout,
        udp_stream_timeout=tracking.udp_stream_timeout,
        udp_timeout=tracking.udp_timeout,
    )


def _cpu_options(spec: EC2NodeClassSpec) -> CpuRequest | None:
    return (
        None if spec.cpu_options is None else CpuRequest(nested_virtualization=spec.cpu_options.nested_virtualization)
    )


def _reservation_specification(parameters: LaunchTemplateParameters) -> ReservationRequest:
    """Spot and on-demand instances must never fall into a reservation that happens to be open (AWS-503)."""
    if parameters.capacity_type != labels.RESERVED:
        return ReservationRequest(capacity_reservation_preference="none")
    return ReservationRequest(
        capacity_reservation_preference="capacity-reservations-only",
        capacity_reservation_target=ReservationTarget(capacity_reservation_id=parameters.reservation),
    )


def _market_options(parameters: LaunchTemplateParameters) -> InstanceMarketOptionsRequest | None:
    is_special = parameters.reservation_kind in (aws_labels.CAPACITY_BLOCK, aws_labels.INTERRUPTIBLE)
    return InstanceMarketOptionsRequest(market_type=parameters.reservation_kind) if is_special else None


def _tag_specifications(parameters: LaunchTemplateParameters, own: tuple[Tag, ...]) -> tuple[TagSpecification, ...]:
    kinds = ["network-interface"]
    if parameters.capacity_type == labels.SPOT:
        kinds.append("spot-instances-request")
    return tuple(TagSpecification(resource_type=kind, tags=own) for kind in kinds)


#: How long an unused template is kept.
TEMPLATE_UNUSED_FOR = timedelta(hours=12)
#: So many templates of a cluster are kept, a tenth of an account's default quota. Beyond it, the least recently used go first.
MAX_TEMPLATES = 500
#: A template used this recently may be named by a request that EC2 has not answered yet.
TEMPLATE_IN_USE_FOR = timedelta(minutes=5)
_COLLECTION_PERIOD = timedelta(hours=1)
_log = structlog.get_logger()


class LaunchTemplateProvider:
    """The cluster's launch templates."""

    def __init__(self, ec2: LaunchTemplateApi, cluster: AwsClusterInfo, clock: Clock) -> None:
        self._ec2 = ec2
        self._cluster = cluster
        self._clock = clock
        self._last_used: dict[str, datetime] = {}
        self._owners: dict[str, str] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._next_collection = clock.now()

    @property
    def count(self) -> int:
        """How many templates of the cluster there are, as far as this process knows."""
        return len(self._last_used)

    @property
    def is_collection_due(self) -> bool:
        """Whether an hour has passed since the last collection, or there are too many templates."""
        return self.count > MAX_TEMPLATES or self._clock.now() >= self._next_collection

    async def ensure(self, content: LaunchTemplateContent) -> str:
        """The name of the template, once it exists (AWS-482). Raises ``AwsError``."""
        async with self._locks.setdefault(content.name, asyncio.Lock()):
            if content.name not in self._last_used and not await self._exists(content.name):
                await self._create(content)
            self._last_used[content.name] = self._clock.now()
            self._owners[content.name] = tag_map(content.tags.tags).get(aws_labels.NODE_CLASS, "")
        return content.name

    def forget(self, template_names: Iterable[str]) -> None:
        """These may be gone: look again before they are used (AWS-457)."""
        for name in template_names:
            self._last_used.pop(name, None)
            self._owners.pop(name, None)

    async def delete(self, name: str) -> None:
        """Delete a template, if there is one of this name. An error is only logged."""
        try:
            for template in await self._ec2.describe_launch_templates(names=(name,)):
                await self._delete(template)
        except AwsError as error:
            if error.code not in TEMPLATE_NOT_FOUND_CODES:
                _log.warning("deleting a launch template failed", error=str(error), **{"launch-template-name": name})

    async def hydrate(self) -> None:
        """Know the templates there are, as when this process begins to lead (AWS-484). An error is only logged."""
        try:
            templates = await self._list_own()
        except AwsError as error:
            _log.error("listing launch templates failed", error=str(error))
            return
        for launch_template in templates:
            self._track(launch_template)

    async def collect_garbage(self, classes: Iterable[str]) -> tuple[str, ...]:
        """Delete templates of deleted classes, those unused for hours, and the least recently used beyond ``MAX_TEMPLATES``.

        Returns their names. Raises ``AwsError``. A template this process does not know was used by another one: its age begins
        when it is first seen.
        """
        alive = frozenset(classes)
        by_age = sorted(((self._track(template), template) for template in await self._list_own()), key=itemgetter(0))
        excess = len(by_age) - MAX_TEMPLATES
        deleted: list[str] = []
        for last, template in by_age:
            name, unused_for = template.launch_template_name, self._clock.now() - last
            is_excess = len(deleted) < excess and unused_for > TEMPLATE_IN_USE_FOR
            is_garbage = self._owners[name] not in alive or unused_for > TEMPLATE_UNUSED_FOR
            if (is_excess or is_garbage) and await self._delete_unused(template, last):
                deleted.append(name)
        self._next_collection = self._clock.now() + _COLLECTION_PERIOD
        return tuple(deleted)

    def forget_class(self, node_class: str) -> None:
        """A class is gone, and its end took its templates along: one of the same name makes its own."""
        self.forget([name for name, owner in self._owners.items() if owner == node_class])

    def _track(self, template: LaunchTemplate) -> datetime:
        """When a template there is was used last, as far as this process knows."""
        self._owners[template.launch_template_name] = tag_map(template.tags).get(aws_labels.NODE_CLASS, "")
        return self._last_used.setdefault(template.launch_template_name, self._clock.now())

    async def _list_own(self) -> tuple[LaunchTemplate, ...]:
        cluster = Ec2Filter(name=f"tag:{aws_labels.CLUSTER_TAG}", values=(self._cluster.name,))
        return await self._ec2.describe_launch_templates(filters=(cluster,))

    async def _exists(self, name: str) -> bool:
        try:
            templates = await self._ec2.describe_launch_templates(names=(name,))
        except AwsError as error:
            if error.code in TEMPLATE_NOT_FOUND_CODES:
                return False
            raise
        if len(templates) != 1:
            raise AwsError("UnexpectedAnswer", f"expected one launch template {name}, found {len(templates)}")
        _log.debug("discovered launch template", **{"launch-template-name": name}, id=templates[0].launch_template_id)
        return True

    async def _create(self, content: LaunchTemplateContent) -> None:
        try:
            template = await self._ec2.create_launch_template(content.name, content.data, content.tags)
        except AwsError as error:
            # Made by another process, or by a call of ours whose answer was lost; the name says that it is the same.
            if error.code == TEMPLATE_EXISTS:
                return
            raise
        _log.debug("created launch template", **{"launch-template-name": content.name}, id=template.launch_template_id)

    async def _delete_unused(self, template: LaunchTemplate, since: datetime) -> bool:
        """Delete a template unless it was used since; returns whether it was deleted."""
        if self._last_used.get(template.launch_template_name) != since:
            return False
        await self._delete(template)
        return True

    async def _delete(self, template: LaunchTemplate) -> None:
        name = template.launch_template_name
        async with self._locks.setdefault(name, asyncio.Lock()):
            self.forget((name,))
            try:
                await self._ec2.delete_launch_template(template.launch_template_id)
            except AwsError as error:
                if error.code not in TEMPLATE_NOT_FOUND_CODES:
                    raise
        _log.debug("deleted launch template", **{"launch-template-name": name}, id=template.launch_template_id)
