"""What EC2's description of a machine means (AWS-520, AWS-523, AWS-524). Pure."""

from __future__ import annotations

import re

from karpenter.model import labels
from karpenter.providers.aws import names
from karpenter.providers.aws.shapes import InstanceInfo, tag_map
from karpenter.providers.contract import ProviderError

_PROVIDER_ID = re.compile(r"(?P<provider>[^:/]+):///(?P<zone>[^/]+)/(?P<id>[^/]+)", re.ASCII)
_EFA_TYPES = frozenset({"efa", "efa-only"})
#: The states of machines that end or have ended.
ENDING = frozenset({"shutting-down", "terminated"})

#: The states of machines that count (AWS-521); who is terminated is gone.
STATES = ("pending", "running", "stopping", "stopped", "shutting-down")


class BadProviderId(ProviderError):
    """A provider ID that is none of EC2's (AWS-520)."""


def provider_id(zone: str, instance_id: str) -> str:
    """How NodeClaims and Nodes name a machine (AWS-465)."""
    return f"aws:///{zone}/{instance_id}"


def instance_id(text: str) -> str:
    """The instance a provider ID names. Raises ``BadProviderId``."""
    found = _PROVIDER_ID.fullmatch(text)
    if found is None:
        raise BadProviderId(f"provider ID {text!r} is not of the form aws:///<zone>/<instance id>")
    return found["id"]


def own_provider_id(info: InstanceInfo) -> str:
    """The provider ID of a described machine."""
    return provider_id(info.placement.availability_zone, info.instance_id)


def is_going(info: InstanceInfo) -> bool:
    """Whether it ends or has ended (AWS-470)."""
    return info.state.name in ENDING


def capacity_type(info: InstanceInfo, reserved_capacity: bool) -> str:
    """How it is paid for (AWS-523); ``reserved_capacity`` is the gate of that name.

    One that merely fell into an open reservation is on-demand.
    """
    if info.spot_instance_request_id or info.instance_lifecycle == "spot":
        return labels.SPOT
    asked = info.capacity_reservation_specification
    is_bound = asked is not None and asked.capacity_reservation_preference == "capacity-reservations-only"
    return labels.RESERVED if reserved_capacity and info.capacity_reservation_id and is_bound else labels.ON_DEMAND


def reservation_kind(info: InstanceInfo) -> str:
    """Of a reserved machine: ``default``, ``capacity-block`` or ``interruptible-capacity-reservation``."""
    known = (names.CAPACITY_BLOCK, names.INTERRUPTIBLE)
    return info.instance_lifecycle if info.instance_lifecycle in known else names.DEFAULT


def tenancy(info: InstanceInfo) -> str:
    """``default`` or ``dedicated`` (AWS-524)."""
    return info.placement.tenancy or names.DEFAULT


def efa_count(info: InstanceInfo) -> int:
    """How many of its interfaces are EFAs (AWS-524)."""
    return sum(item.interface_type in _EFA_TYPES for item in info.network_interfaces)


def tag(info: InstanceInfo, key: str) -> str:
    """The value of a tag, empty where it has none."""
    return tag_map(info.tags).get(key, "")
