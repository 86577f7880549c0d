"""Drift of EC2 instances: what an instance has and what its node class asks for now (AWS-560 to AWS-570).

Two comparisons. `node_class_drift` compares the hash that was stamped on the claim at launch with that of the class
(`nodeclass_hash`). `instance_drift` compares what selectors find now with what the instance has: image, security groups, subnet,
capacity reservation and placement group, in this order; the first difference is the reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.ec2_descriptions import InstanceInfo
from karpenter.providers.aws.nodeclass.ami_selection import ami_for
from karpenter.providers.aws.nodeclass.nodeclass_hash import HASH_ANNOTATION, HASH_VERSION_ANNOTATION
from karpenter.providers.contract import ProviderError

NODE_CLASS_DRIFT = "NodeClassDrift"
AMI_DRIFT = "AMIDrift"
SECURITY_GROUP_DRIFT = "SecurityGroupDrift"
SUBNET_DRIFT = "SubnetDrift"
CAPACITY_RESERVATION_DRIFT = "CapacityReservationDrift"
PLACEMENT_GROUP_DRIFT = "PlacementGroupDrift"

_RESERVED_ONLY = "capacity-reservations-only"


class DriftNotDeterminable(ProviderError):
    """What the instance would be compared with is not known (AWS-567)."""


class NodeClassDrift(NamedTuple):
    """Why an instance no longer matches its class, and what exactly differs. Both are empty when it does match."""

    reason: str = ""
    message: str = ""


NO_DRIFT = NodeClassDrift()


class DriftComparison(NamedTuple):
    """An instance and what it is compared with.

    ``types`` are those of the class by name. ``group_id`` is the placement group the class's selector stands for, empty where it
    has no selector, None where it could not be resolved.
    """

    claim: NodeClaim
    node_class: EC2NodeClass
    instance: InstanceInfo
    types: Mapping[str, InstanceType]
    group_id: str | None


#: The fields in which two hashes of a class, by its name, differ, if known.
ChangedFields = Callable[[str, str, str], tuple[str, ...]]


def node_class_drift(claim: NodeClaim, node_class: EC2NodeClass, changed_fields: ChangedFields) -> NodeClassDrift:
    """Whether the class says something else now than when the instance was made (AWS-561)."""
    then, now = claim.metadata.annotations, node_class.metadata.annotations
    stamped = all(key in notes for notes in (then, now) for key in (HASH_ANNOTATION, HASH_VERSION_ANNOTATION))
    if (
        not stamped
        or then[HASH_VERSION_ANNOTATION] != now[HASH_VERSION_ANNOTATION]
        or then[HASH_ANNOTATION] == now[HASH_ANNOTATION]
    ):
        return NO_DRIFT
    fields = changed_fields(node_class.metadata.name, then[HASH_ANNOTATION], now[HASH_ANNOTATION])
    what = f": {', '.join(fields)}" if fields else ""
    return NodeClassDrift(NODE_CLASS_DRIFT, f"EC2NodeClass {node_class.metadata.name} was changed{what}")


async def confirmed_drift(comparison: DriftComparison, read: Callable[[], Awaitable[InstanceInfo]]) -> NodeClassDrift:
    """``instance_drift``, with the instance read again where a reservation is the reason: it may have ended (AWS-565)."""
    drift = instance_drift(comparison)
    return (
        instance_drift(comparison._replace(instance=await read()))
        if drift.reason == CAPACITY_RESERVATION_DRIFT
        else drift
    )


def instance_drift(comparison: DriftComparison) -> NodeClassDrift:
    """The first reason why the instance, not its class, has drifted. Raises ``DriftNotDeterminable``."""
    for check in _CHECKS:
        drift = check(comparison)
        if drift.reason:
            return drift
    return NO_DRIFT


def _ami_drift(comparison: DriftComparison) -> NodeClassDrift:
    own = comparison.claim.status.image_id
    name = comparison.instance.instance_type
    if not own:
        raise DriftNotDeterminable("the claim's status has no imageID")
    if name not in comparison.types:
        raise DriftNotDeterminable(f'finding node instance type "{name}"')
    if not comparison.node_class.status.amis:
        raise DriftNotDeterminable("no amis exist given constraints")
    now = ami_for(comparison.types[name], comparison.node_class.status.amis)
    if now is None:
        return NodeClassDrift(AMI_DRIFT, f"image {own} is not used any more, and none is for {name}")
    return (
        NO_DRIFT
        if now.id == own
        else NodeClassDrift(
            AMI_DRIFT, f"image {own} is not used any more for {name}, but {_ami_text(now.id, now.name)}"
        )
    )


def _ami_text(image_id: str, name: str) -> str:
    return f"{image_id} ({name})" if name else image_id


def _security_group_drift(comparison: DriftComparison) -> NodeClassDrift:
    expected = {group.id for group in comparison.node_class.status.security_groups}
    own = {group.group_id for group in comparison.instance.security_groups}
    if not expected:
        raise DriftNotDeterminable("no security groups are present in the status")
    if own == expected:
        return NO_DRIFT
    changes = (*(f"+{name}" for name in sorted(expected - own)), *(f"-{name}" for name in sorted(own - expected)))
    return NodeClassDrift(SECURITY_GROUP_DRIFT, f"security groups differ: {', '.join(changes)}")


def _subnet_drift(comparison: DriftComparison) -> NodeClassDrift:
    own = comparison.instance.subnet_id
    if not comparison.node_class.status.subnets:
        raise DriftNotDeterminable("no subnets exist given constraints")
    if own in {subnet.id for subnet in comparison.node_class.status.subnets}:
        return NO_DRIFT
    return NodeClassDrift(SUBNET_DRIFT, f"subnet {own} is not selected any more")


def _reservation_drift(comparison: DriftComparison) -> NodeClassDrift:
    own = comparison.instance.capacity_reservation_id
    reservation_ids = {reservation.id for reservation in comparison.node_class.status.capacity_reservations}
    if not _is_reserved(comparison.instance) or own in reservation_ids:
        return NO_DRIFT
    return NodeClassDrift(CAPACITY_RESERVATION_DRIFT, f"capacity reservation {own} is not selected any more")


def _is_reserved(instance: InstanceInfo) -> bool:
    """Whether it was launched into a reservation, not merely counted against an open one (AWS-523)."""
    specification = instance.capacity_reservation_specification
    only = specification is not None and specification.capacity_reservation_preference == _RESERVED_ONLY
    return only and bool(instance.capacity_reservation_id)


def _placement_group_drift(comparison: DriftComparison) -> NodeClassDrift:
    own = comparison.claim.metadata.labels.get(aws_labels.PLACEMENT_GROUP_ID, "")
    if comparison.group_id is None:
        raise DriftNotDeterminable(
            f"the placement group of EC2NodeClass {comparison.node_class.metadata.name} is not resolved"
        )
    if own == comparison.group_id:
        return NO_DRIFT
    return NodeClassDrift(
        PLACEMENT_GROUP_DRIFT, f"placement group is {own or 'none'}, not {comparison.group_id or 'none'}"
    )


_CHECKS = (_ami_drift, _security_group_drift, _subnet_drift, _reservation_drift, _placement_group_drift)
