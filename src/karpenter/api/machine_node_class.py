"""MachineNodeClass (``karpenter.machines/v1alpha1``): the node class of hosts that are powered on and off."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta

from karpenter.api.meta import Condition, ObjectMeta, Wire, WireResources

HOST_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
DRIVER_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
VARIABLE_PATTERN = r"^[A-Z][A-Z0-9_]*$"
PRICE_PATTERN = r"^[0-9]+(\.[0-9]+)?$"

#: Hosts need no preparation, so their class is ready without a controller.
READY_CONDITION = Condition(
    type="Ready", status="True", reason="Ready", last_transition_time=datetime(2024, 1, 1, 1, 1, 1, tzinfo=UTC)
)


class MachineHost(Wire, frozen=True, kw_only=True):
    """A host. Its Node has the same name."""

    name: Annotated[str, Meta(min_length=1, max_length=63, pattern=HOST_NAME_PATTERN)]
    capacity: WireResources
    labels: Mapping[str, str] = {}
    overhead: WireResources = {}
    cost_per_hour: Annotated[str, Meta(pattern=PRICE_PATTERN)] = "0"
    variables: Mapping[Annotated[str, Meta(pattern=VARIABLE_PATTERN)], str] = {}


class MachineNodeClassSpec(Wire, frozen=True, kw_only=True):
    """Hosts, and the driver that switches them."""

    power: Annotated[str, Meta(min_length=1, max_length=63, pattern=DRIVER_PATTERN)]
    hosts: Annotated[tuple[MachineHost, ...], Meta(max_length=500)] = ()


class MachineInUse(Wire, frozen=True, kw_only=True):
    """A host that is on for a NodeClaim, or on its way there or back."""

    host: str
    claim_name: str
    claim_uid: str = ""
    since: datetime
    terminating: bool = False
    labels: Mapping[str, str] = {}
    capacity: WireResources = {}
    overhead: WireResources = {}
    variables: Mapping[str, str] = {}


class MachineNodeClassStatus(Wire, frozen=True, kw_only=True):
    """The hosts in use. Ready unless a condition says otherwise."""

    in_use: tuple[MachineInUse, ...] = ()
    conditions: tuple[Condition, ...] = (READY_CONDITION,)


class MachineNodeClass(Wire, frozen=True, kw_only=True):
    """A fixed set of hosts that Karpenter powers on and off."""

    spec: MachineNodeClassSpec
    metadata: ObjectMeta = ObjectMeta()
    status: MachineNodeClassStatus = MachineNodeClassStatus()
