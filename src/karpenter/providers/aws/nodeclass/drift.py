"""Whether a machine is still what its class describes, as a function of what is known (AWS-560 to AWS-568).

Compared are, in this order, the hash of the class, the image, security groups, subnet, capacity reservation and placement group:
the machine's own against those in the class's status. The hash comes first and alone (``class_drift``): it needs neither the
machine nor the status, so it is told of classes that cannot be resolved, too, and costs no call. Where the status says nothing
there is no verdict but an error, as a class that lost its subnets for a minute must not roll its machines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.catalog.types import InstanceType
from karpenter.providers.aws import names
from karpenter.providers.aws.nodeclass.hashing import HASH, VERSION
from karpenter.providers.aws.nodeclass.images import image_for
from karpenter.providers.aws.shapes import InstanceInfo
from karpenter.providers.contract import ProviderError

NODE_CLASS = "NodeClassDrift"
AMI = "AMIDrift"
SECURITY_GROUP = "SecurityGroupDrift"
SUBNET = "SubnetDrift"
RESERVATION = "CapacityReservationDrift"
PLACEMENT_GROUP = "PlacementGroupDrift"

_RESERVED_ONLY = "capacity-reservations-only"


class DriftUnknown(ProviderError):
    """What the machine would be compared with is not known (AWS-567)."""


class Drift(NamedTuple):
    """Why a machine no longer matches its class, and what exactly differs. Both are empty when it does match."""

    reason: str = ""
    message: str = ""


NO_DRIFT = Drift()


class Machine(NamedTuple):
    """A machine and what it is compared with.

    ``types`` are those of the class by name. ``group_id`` is the placement group the class's selector stands for, empty where it
    has no selector, None where it could not be resolved.
    """

    claim: NodeClaim
    node_class: EC2NodeClass
    instance: InstanceInfo
    types: Mapping[str, InstanceType]
    group_id: str | None


#: The fields two hashes of a class, by its name, differ in, if anybody knows.
Changed = Callable[[str, str, str], tuple[str, ...]]


def class_drift(claim: NodeClaim, node_class: EC2NodeClass, changed: Changed) -> Drift:
    """Whether the class says something else now than when the machine was made (AWS-561)."""
    then, now = claim.metadata.annotations, node_class.metadata.annotations
    stamped = all(key in notes for notes in (then, now) for key in (HASH, VERSION))
    if not stamped or then[VERSION] != now[VERSION] or then[HASH] == now[HASH]:
        return NO_DRIFT
    fields = changed(node_class.metadata.name, then[HASH], now[HASH])
    what = f": {', '.join(fields)}" if fields else ""
    return Drift(NODE_CLASS, f"EC2NodeClass {node_class.metadata.name} was changed{what}")


async def confirmed(machine: Machine, read: Callable[[], Awaitable[InstanceInfo]]) -> Drift:
    """``drift_reason``, with the instance read again where a reservation is the reason: it may have ended (AWS-565)."""
    found = drift_reason(machine)
    return drift_reason(machine._replace(instance=await read())) if found.reason == RESERVATION else found


def drift_reason(machine: Machine) -> Drift:
    """The first reason why the machine, not its class, has drifted. Raises ``DriftUnknown``."""
    for check in _CHECKS:
        found = check(machine)
        if found.reason:
            return found
    return NO_DRIFT


def _image(machine: Machine) -> Drift:
    own = machine.claim.status.image_id
    name = machine.instance.instance_type
    if not own:
        raise DriftUnknown("the claim's status has no imageID")
    if name not in machine.types:
        raise DriftUnknown(f'finding node instance type "{name}"')
    if not machine.node_class.status.amis:
        raise DriftUnknown("no amis exist given constraints")
    now = image_for(machine.types[name], machine.node_class.status.amis)
    if now is None:
        return Drift(AMI, f"image {own} is not used any more, and none is for {name}")
    return (
        NO_DRIFT
        if now.id == own
        else Drift(AMI, f"image {own} is not used any more for {name}, but {_image_text(now.id, now.name)}")
    )


def _image_text(image_id: str, name: str) -> str:
    return f"{image_id} ({name})" if name else image_id


def _security_groups(machine: Machine) -> Drift:
    wanted = {group.id for group in machine.node_class.status.security_groups}
    own = {group.group_id for group in machine.instance.security_groups}
    if not wanted:
        raise DriftUnknown("no security groups are present in the status")
    if own == wanted:
        return NO_DRIFT
    changes = (*(f"+{item}" for item in sorted(wanted - own)), *(f"-{item}" for item in sorted(own - wanted)))
    return Drift(SECURITY_GROUP, f"security groups differ: {', '.join(changes)}")


def _subnet(machine: Machine) -> Drift:
    own = machine.instance.subnet_id
    if not machine.node_class.status.subnets:
        raise DriftUnknown("no subnets exist given constraints")
    if own in {subnet.id for subnet in machine.node_class.status.subnets}:
        return NO_DRIFT
    return Drift(SUBNET, f"subnet {own} is not selected any more")


def _reservation(machine: Machine) -> Drift:
    own = machine.instance.capacity_reservation_id
    known = {item.id for item in machine.node_class.status.capacity_reservations}
    if not _is_reserved(machine.instance) or own in known:
        return NO_DRIFT
    return Drift(RESERVATION, f"capacity reservation {own} is not selected any more")


def _is_reserved(instance: InstanceInfo) -> bool:
    """Whether it was bought from a reservation, not merely counted against an open one (AWS-523)."""
    asked = instance.capacity_reservation_specification
    only = asked is not None and asked.capacity_reservation_preference == _RESERVED_ONLY
    return only and bool(instance.capacity_reservation_id)


def _placement_group(machine: Machine) -> Drift:
    own = machine.claim.metadata.labels.get(names.GROUP_ID, "")
    if machine.group_id is None:
        raise DriftUnknown(f"the placement group of EC2NodeClass {machine.node_class.metadata.name} is not resolved")
    if own == machine.group_id:
        return NO_DRIFT
    return Drift(PLACEMENT_GROUP, f"placement group is {own or 'none'}, not {machine.group_id or 'none'}")


_CHECKS = (_image, _security_groups, _subnet, _reservation, _placement_group)
