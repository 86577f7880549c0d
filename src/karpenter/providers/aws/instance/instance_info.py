"""What EC2's description of an instance means (AWS-520, AWS-523, AWS-524). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels, requirements
from karpenter.model.resources import Resources
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_types import tag_map
from karpenter.providers.aws.ec2_descriptions import InstanceInfo
from karpenter.providers.aws.ec2_requests import FleetAnswer
from karpenter.providers.aws.instance.launch_plan import LaunchPlan
from karpenter.providers.contract import Instance, ProviderError

_PROVIDER_ID = re.compile(r"(?P<provider>[^:/]+):///(?P<zone>[^/]+)/(?P<id>[^/]+)", re.ASCII)
_EFA_TYPES = frozenset({"efa", "efa-only"})
#: The states of instances that end or have ended.
TERMINATING_STATES = frozenset({"shutting-down", "terminated"})

#: The states of instances that count (AWS-521); terminated instances do not exist any more.
LISTED_STATES = ("pending", "running", "stopping", "stopped", "shutting-down")


class InvalidProviderId(ProviderError):
    """A provider ID that is none of EC2's (AWS-520)."""


def format_provider_id(zone: str, instance_id: str) -> str:
    """How NodeClaims and Nodes name an instance (AWS-465)."""
    return f"aws:///{zone}/{instance_id}"


def parse_instance_id(text: str) -> str:
    """The instance a provider ID names. Raises ``InvalidProviderId``."""
    match = _PROVIDER_ID.fullmatch(text)
    if match is None:
        raise InvalidProviderId(f"provider ID {text!r} is not of the form aws:///<zone>/<instance id>")
    return match["id"]


def provider_id_of(info: InstanceInfo) -> str:
    """The provider ID of a described instance."""
    return format_provider_id(info.placement.availability_zone, info.instance_id)


def is_terminating(info: InstanceInfo) -> bool:
    """Whether it ends or has ended (AWS-470)."""
    return info.state.name in TERMINATING_STATES


def instance_capacity_type(info: InstanceInfo, reserved_capacity: bool) -> str:
    """How it is paid for (AWS-523); ``reserved_capacity`` is the gate of that name.

    One that merely fell into an open reservation is on-demand.
    """
    if info.spot_instance_request_id or info.instance_lifecycle == "spot":
        return labels.SPOT
    specification = info.capacity_reservation_specification
    is_bound = (
        specification is not None and specification.capacity_reservation_preference == "capacity-reservations-only"
    )
    return labels.RESERVED if reserved_capacity and info.capacity_reservation_id and is_bound else labels.ON_DEMAND


def instance_reservation_kind(info: InstanceInfo) -> str:
    """Of a reserved instance: ``default``, ``capacity-block`` or ``interruptible-capacity-reservation``."""
    kinds = (aws_labels.CAPACITY_BLOCK, aws_labels.INTERRUPTIBLE)
    return info.instance_lifecycle if info.instance_lifecycle in kinds else aws_labels.DEFAULT


def instance_tenancy(info: InstanceInfo) -> str:
    """``default`` or ``dedicated`` (AWS-524)."""
    return info.placement.tenancy or aws_labels.DEFAULT


def efa_interface_count(info: InstanceInfo) -> int:
    """How many of its interfaces are EFAs (AWS-524)."""
    return sum(interface_info.interface_type in _EFA_TYPES for interface_info in info.network_interfaces)


def tag_value(info: InstanceInfo, key: str) -> str:
    """The value of a tag, empty where it has none."""
    return tag_map(info.tags).get(key, "")


_RESERVATION_LABELS = frozenset(
    {labels.RESERVATION_ID, aws_labels.RESERVATION_TYPE, aws_labels.RESERVATION_INTERRUPTIBLE}
)


@dataclass(frozen=True)
class LaunchedInstance:
    """An instance, as far as labels and annotations follow from it. ``partition`` is 0 where it is not known (yet)."""

    instance_id: str
    instance_type: str
    zone: str
    capacity_type: str
    image_id: str = ""
    subnet_id: str = ""
    tenancy: str = aws_labels.DEFAULT
    reservation: str = ""
    reservation_kind: str = ""
    group_id: str = ""
    partition: int = 0
    has_efa: bool = False
    is_terminating: bool = False


def instances_of_fleet(answer: FleetAnswer, plan: LaunchPlan) -> tuple[LaunchedInstance, ...]:
    """The instances of a fleet, in the order of the answer."""
    return tuple(_instances_of_fleet(answer, plan))


def _instances_of_fleet(answer: FleetAnswer, plan: LaunchPlan) -> Iterator[LaunchedInstance]:
    for fleet_instance in answer.instances:
        ways = fleet_instance.launch_template_and_overrides
        override = ways.overrides if ways is not None else None
        name = (override.instance_type if override is not None else "") or fleet_instance.instance_type
        zone = override.availability_zone if override is not None else ""
        offer = plan.offering(name, zone)
        for instance_id in fleet_instance.instance_ids:
            yield LaunchedInstance(
                instance_id=instance_id,
                instance_type=name,
                zone=zone,
                capacity_type=plan.capacity_type,
                image_id=(override.image_id if override is not None else "") or (offer.image_id if offer else ""),
                subnet_id=override.subnet_id if override is not None else "",
                tenancy=plan.tenancy,
                reservation=offer.reservation if offer is not None else "",
                reservation_kind=plan.reservation_kind,
                group_id=plan.group_id,
                partition=plan.partition,
                has_efa=plan.has_efa,
            )


def instance_of_info(info: InstanceInfo, reserved_capacity: bool) -> LaunchedInstance:
    """An instance as EC2 describes it; ``reserved_capacity`` is the gate of that name."""
    kind = instance_capacity_type(info, reserved_capacity)
    is_reserved = kind == labels.RESERVED
    return LaunchedInstance(
        instance_id=info.instance_id,
        instance_type=info.instance_type,
        zone=info.placement.availability_zone,
        capacity_type=kind,
        image_id=info.image_id,
        subnet_id=info.subnet_id,
        tenancy=instance_tenancy(info),
        reservation=info.capacity_reservation_id if is_reserved else "",
        reservation_kind=instance_reservation_kind(info) if is_reserved else "",
        group_id=info.placement.group_id,
        partition=info.placement.partition_number,
        has_efa=efa_interface_count(info) > 0,
        is_terminating=is_terminating(info),
    )


def provider_instance(
    launched: LaunchedInstance,
    claim: NodeClaim,
    node_class: EC2NodeClass,
    instance_type: InstanceType | None,
    now: datetime,
) -> Instance:
    """The instance as the claim's status describes it. A type that is not sold any more has no capacity."""
    own = {labels.NODE_POOL: claim.metadata.labels.get(labels.NODE_POOL, "")}
    return Instance(
        provider_id=format_provider_id(launched.zone, launched.instance_id),
        claim_name=claim.metadata.name,
        labels={**instance_labels(launched, node_class, instance_type), **own},
        capacity=_nonzero(instance_type.capacity, launched) if instance_type is not None else {},
        allocatable=_nonzero(instance_type.allocatable, launched) if instance_type is not None else {},
        created_at=now,
        annotations=node_class_annotations(node_class),
        image_id=launched.image_id,
        terminating=launched.is_terminating,
    )


def instance_labels(
    launched: LaunchedInstance, node_class: EC2NodeClass, instance_type: InstanceType | None
) -> dict[str, str]:
    """Labels that follow from the instance (AWS-466)."""
    zone_ids = {subnet.zone: subnet.zone_id for subnet in node_class.status.subnets}
    own_labels = (
        _type_labels(instance_type) if instance_type is not None else {labels.INSTANCE_TYPE: launched.instance_type}
    )
    own_labels |= {
        labels.ZONE: launched.zone,
        labels.CAPACITY_TYPE: launched.capacity_type,
        aws_labels.TENANCY: launched.tenancy,
    }
    if zone_ids.get(launched.zone):
        own_labels[aws_labels.ZONE_ID] = zone_ids[launched.zone]
    if launched.reservation:
        is_interruptible = launched.reservation_kind == aws_labels.INTERRUPTIBLE
        own_labels[labels.RESERVATION_ID] = launched.reservation
        own_labels[aws_labels.RESERVATION_TYPE] = aws_labels.DEFAULT if is_interruptible else launched.reservation_kind
        own_labels[aws_labels.RESERVATION_INTERRUPTIBLE] = "true" if is_interruptible else "false"
    if launched.group_id:
        own_labels[aws_labels.PLACEMENT_GROUP_ID] = launched.group_id
        if (
            instance_type is not None
            and requirements.Requirements.requirement_for(
                instance_type.requirements, aws_labels.PLACEMENT_GROUP_PARTITION
            ).values
        ):
            own_labels[aws_labels.PLACEMENT_GROUP_PARTITION] = str(launched.partition) if launched.partition else ""
    return own_labels


def node_class_annotations(node_class: EC2NodeClass) -> dict[str, str]:
    """What of the class the instance was made from (AWS-467)."""
    own = node_class.metadata.annotations
    return {
        aws_labels.NODE_CLASS_HASH: own.get(aws_labels.NODE_CLASS_HASH, ""),
        aws_labels.NODE_CLASS_HASH_VERSION: own.get(aws_labels.NODE_CLASS_HASH_VERSION, ""),
        aws_labels.INSTANCE_PROFILE_NAME: node_class.status.instance_profile,
    }


def _type_labels(instance_type: InstanceType) -> dict[str, str]:
    return {
        key: next(iter(requirement.values))
        for key, requirement in instance_type.requirements.items()
        if key not in _RESERVATION_LABELS and not requirement.complement and len(requirement.values) == 1
    }


def _nonzero(amounts: Resources, launched: LaunchedInstance) -> Mapping[str, int]:
    """Without zeros, and with EFAs only where they were attached (AWS-468)."""
    return {
        name: amount
        for name, amount in amounts.items()
        if amount and (name != aws_labels.EFA_RESOURCE or launched.has_efa)
    }
