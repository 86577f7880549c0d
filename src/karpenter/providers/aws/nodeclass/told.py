"""What one part of a look at a class finds out, and the conditions it is told by (AWS-057 to AWS-060, AWS-084)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from karpenter.api.ec2 import EC2NodeClass, EC2NodeClassStatus
from karpenter.api.meta import Condition
from karpenter.model.conditions import FALSE, TRUE, UNKNOWN, ConditionTypes

AMIS = "AMIsReady"
RESERVATIONS = "CapacityReservationsReady"
PLACEMENT_GROUP = "PlacementGroupReady"
SUBNETS = "SubnetsReady"
SECURITY_GROUPS = "SecurityGroupsReady"
INSTANCE_PROFILE = "InstanceProfileReady"
VALIDATION = "ValidationSucceeded"

_DEPENDENTS = (AMIS, SUBNETS, SECURITY_GROUPS, INSTANCE_PROFILE, PLACEMENT_GROUP, VALIDATION)

MINUTE = 60.0


def condition_types(reserved_capacity: bool) -> ConditionTypes:
    """The conditions of a class; that of reservations exists only while gate ReservedCapacity is on (AWS-058)."""
    return ConditionTypes("Ready", (*_DEPENDENTS, RESERVATIONS) if reserved_capacity else _DEPENDENTS)


class Told(NamedTuple):
    """What a part found: the class's status as it should be, conditions aside, and its own condition.

    Without a condition the one that is there stays (AWS-084). ``again_seconds`` is when the part wants to look again; a ``fault``
    is told and tried again with back-off; what is ``final`` stays as it is until somebody changes the class.
    """

    status: EC2NodeClassStatus
    condition: Condition | None = None
    again_seconds: float | None = None
    fault: Exception | None = None
    final: bool = False


class Part(Protocol):
    """One of the things a look does."""

    @property
    def condition(self) -> str:
        """The condition it decides."""

    async def look(self, node_class: EC2NodeClass) -> Told:
        """Look at the class, whose status holds what the parts before found. Raises ``AwsError`` and ``ProviderError``."""


def true(type_: str) -> Condition:
    """It is as it should be."""
    return Condition(type=type_, status=TRUE)


def false(type_: str, reason: str, message: str) -> Condition:
    """It is not, and why."""
    return Condition(type=type_, status=FALSE, reason=reason, message=message)


def unknown(type_: str, reason: str, message: str) -> Condition:
    """It cannot be said yet, and why."""
    return Condition(type=type_, status=UNKNOWN, reason=reason, message=message)
