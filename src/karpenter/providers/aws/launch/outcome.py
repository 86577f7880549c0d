"""From a machine that was bought to what its claim is told (AWS-465 to AWS-470). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.catalog.types import InstanceType
from karpenter.model import labels, requirements
from karpenter.model.resources import Resources
from karpenter.providers.aws import facts, names
from karpenter.providers.aws.launch.plan import LaunchPlan
from karpenter.providers.aws.shapes import FleetAnswer, InstanceInfo
from karpenter.providers.contract import Instance

_RESERVATION_LABELS = frozenset({labels.RESERVATION_ID, names.RESERVATION_TYPE, names.RESERVATION_INTERRUPTIBLE})


@dataclass(frozen=True)
class Bought:
    """A machine, as far as labels and annotations follow from it. ``partition`` is 0 where it is not known (yet)."""

    instance_id: str
    instance_type: str
    zone: str
    capacity_type: str
    image_id: str = ""
    subnet_id: str = ""
    tenancy: str = names.DEFAULT
    reservation: str = ""
    reservation_kind: str = ""
    group_id: str = ""
    partition: int = 0
    has_efa: bool = False
    is_going: bool = False


def from_answer(answer: FleetAnswer, plan: LaunchPlan) -> tuple[Bought, ...]:
    """The machines of a fleet, in the order of the answer."""
    return tuple(_from_answer(answer, plan))


def _from_answer(answer: FleetAnswer, plan: LaunchPlan) -> Iterator[Bought]:
    for made in answer.instances:
        ways = made.launch_template_and_overrides
        override = ways.overrides if ways is not None else None
        name = (override.instance_type if override is not None else "") or made.instance_type
        zone = override.availability_zone if override is not None else ""
        offer = plan.offer(name, zone)
        for instance_id in made.instance_ids:
            yield Bought(
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


def from_info(info: InstanceInfo, reserved_capacity: bool) -> Bought:
    """A machine as EC2 describes it; ``reserved_capacity`` is the gate of that name."""
    kind = facts.capacity_type(info, reserved_capacity)
    is_reserved = kind == labels.RESERVED
    return Bought(
        instance_id=info.instance_id,
        instance_type=info.instance_type,
        zone=info.placement.availability_zone,
        capacity_type=kind,
        image_id=info.image_id,
        subnet_id=info.subnet_id,
        tenancy=facts.tenancy(info),
        reservation=info.capacity_reservation_id if is_reserved else "",
        reservation_kind=facts.reservation_kind(info) if is_reserved else "",
        group_id=info.placement.group_id,
        partition=info.placement.partition_number,
        has_efa=facts.efa_count(info) > 0,
        is_going=facts.is_going(info),
    )


def instance(
    bought: Bought, claim: NodeClaim, node_class: EC2NodeClass, instance_type: InstanceType | None, now: datetime
) -> Instance:
    """What the claim is told. A type that is not sold any more has no capacity to tell of."""
    own = {labels.NODE_POOL: claim.metadata.labels.get(labels.NODE_POOL, "")}
    return Instance(
        provider_id=facts.provider_id(bought.zone, bought.instance_id),
        claim_name=claim.metadata.name,
        labels={**machine_labels(bought, node_class, instance_type), **own},
        capacity=_present(instance_type.capacity, bought) if instance_type is not None else {},
        allocatable=_present(instance_type.allocatable, bought) if instance_type is not None else {},
        created_at=now,
        annotations=class_annotations(node_class),
        image_id=bought.image_id,
        terminating=bought.is_going,
    )


def machine_labels(bought: Bought, node_class: EC2NodeClass, instance_type: InstanceType | None) -> dict[str, str]:
    """Labels that follow from the machine (AWS-466)."""
    zone_ids = {subnet.zone: subnet.zone_id for subnet in node_class.status.subnets}
    found = _type_labels(instance_type) if instance_type is not None else {labels.INSTANCE_TYPE: bought.instance_type}
    found |= {labels.ZONE: bought.zone, labels.CAPACITY_TYPE: bought.capacity_type, names.TENANCY: bought.tenancy}
    if zone_ids.get(bought.zone):
        found[names.ZONE_ID] = zone_ids[bought.zone]
    if bought.reservation:
        is_interruptible = bought.reservation_kind == names.INTERRUPTIBLE
        found[labels.RESERVATION_ID] = bought.reservation
        found[names.RESERVATION_TYPE] = names.DEFAULT if is_interruptible else bought.reservation_kind
        found[names.RESERVATION_INTERRUPTIBLE] = "true" if is_interruptible else "false"
    if bought.group_id:
        found[names.GROUP_ID] = bought.group_id
        if (
            instance_type is not None
            and requirements.Requirements.of(instance_type.requirements, names.PARTITION).values
        ):
            found[names.PARTITION] = str(bought.partition) if bought.partition else ""
    return found


def class_annotations(node_class: EC2NodeClass) -> dict[str, str]:
    """What of the class the machine was made from (AWS-467)."""
    own = node_class.metadata.annotations
    return {
        names.CLASS_HASH: own.get(names.CLASS_HASH, ""),
        names.CLASS_HASH_VERSION: own.get(names.CLASS_HASH_VERSION, ""),
        names.PROFILE: node_class.status.instance_profile,
    }


def _type_labels(instance_type: InstanceType) -> dict[str, str]:
    return {
        key: next(iter(item.values))
        for key, item in instance_type.requirements.items()
        if key not in _RESERVATION_LABELS and not item.complement and len(item.values) == 1
    }


def _present(amounts: Resources, bought: Bought) -> Mapping[str, int]:
    """Without zeros, and with EFAs only where they were attached (AWS-468)."""
    return {name: amount for name, amount in amounts.items() if amount and (name != names.EFA or bought.has_efa)}
