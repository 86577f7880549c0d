"""The subreconcilers of an EC2NodeClass: their results and the conditions they set (AWS-057 to AWS-060, AWS-084)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Protocol

from karpenter.api.ec2_node_class import EC2NodeClass, EC2NodeClassStatus
from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.api.meta import Condition
from karpenter.model.conditions import FALSE, TRUE, UNKNOWN, ConditionTypes
from karpenter.providers.aws.aws_context import AwsEventRecorder

AMIS_READY = "AMIsReady"
CAPACITY_RESERVATIONS_READY = "CapacityReservationsReady"
PLACEMENT_GROUP_READY = "PlacementGroupReady"
SUBNETS_READY = "SubnetsReady"
SECURITY_GROUPS_READY = "SecurityGroupsReady"
INSTANCE_PROFILE_READY = "InstanceProfileReady"
VALIDATION_SUCCEEDED = "ValidationSucceeded"

_DEPENDENT_CONDITIONS = (
    AMIS_READY,
    SUBNETS_READY,
    SECURITY_GROUPS_READY,
    INSTANCE_PROFILE_READY,
    PLACEMENT_GROUP_READY,
    VALIDATION_SUCCEEDED,
)

MINUTE = 60.0


def node_class_condition_types(reserved_capacity: bool) -> ConditionTypes:
    """The conditions of a class; that of reservations exists only while gate ReservedCapacity is on (AWS-058)."""
    return ConditionTypes(
        "Ready", (*_DEPENDENT_CONDITIONS, CAPACITY_RESERVATIONS_READY) if reserved_capacity else _DEPENDENT_CONDITIONS
    )


class SubreconcileResult(NamedTuple):
    """The result of a subreconciler: the class's status as it should be, without conditions, and the condition it decides.

    Without a condition the present one stays (AWS-084). ``requeue_after`` is when to reconcile again, in seconds. An ``error`` is
    logged and retried with back-off. A ``terminal`` result stays until the class changes.
    """

    status: EC2NodeClassStatus
    condition: Condition | None = None
    requeue_after: float | None = None
    error: Exception | None = None
    terminal: bool = False


class NodeClassSubreconciler(Protocol):
    """One step of reconciling a class."""

    @property
    def condition(self) -> str:
        """The condition it decides."""

    async def reconcile(self, node_class: EC2NodeClass) -> SubreconcileResult:
        """Reconcile the class; its status holds the results of the steps before. Raises ``AwsError`` and ``ProviderError``."""


def condition_true(type_: str, message: str = "") -> Condition:
    """The condition is met; ``message`` qualifies that."""
    return Condition(type=type_, status=TRUE, message=message)


def condition_false(type_: str, reason: str, message: str) -> Condition:
    """It is not, and why."""
    return Condition(type=type_, status=FALSE, reason=reason, message=message)


def condition_unknown(type_: str, reason: str, message: str) -> Condition:
    """It cannot be said yet, and why."""
    return Condition(type=type_, status=UNKNOWN, reason=reason, message=message)


class NodeClassChangeLog:
    """Remembers what was last said of each class under each topic."""

    def __init__(self) -> None:
        self._last_values: dict[tuple[str, str], Hashable] = {}

    def has_changed(self, topic: str, node_class: EC2NodeClass, value: Hashable) -> bool:
        """Whether this differs from what was said last; it counts as said from now on."""
        key = (node_class.metadata.uid, topic)
        if self._last_values.get(key) == value:
            return False
        self._last_values[key] = value
        return True

    def forget(self, uid: str) -> None:
        """A class is gone."""
        for key in [key for key in self._last_values if key[0] == uid]:
            del self._last_values[key]


class NodeClassWarnings:
    """Warning events about a class, each when it begins to apply."""

    def __init__(self, events: AwsEventRecorder, changes: NodeClassChangeLog) -> None:
        self._events = events
        self._changes = changes

    def warn_if_changed(self, node_class: EC2NodeClass, reason: str, message: str) -> None:
        """Publish the warning if there is one (an empty message means that there is none) and it is new."""
        if self._changes.has_changed(reason, node_class, message) and message:
            self._events.warning(EC2_NODE_CLASS, node_class.metadata, reason, message)
