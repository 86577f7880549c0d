"""Dynamic resource allocation (``resource.k8s.io``): claims, their templates, device classes and the slices that drivers publish.

The structs are those of ``v1``, which ``v1beta2`` shares. What ``v1beta1`` wrote elsewhere is read too: requests without
``exactly`` (`DeviceRequest.exact`) and devices below ``basic`` (`Device.flat`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from karpenter.api.meta import ObjectMeta, Wire, WireQuantity, WireResources
from karpenter.api.scheduling_constraints import NodeSelector

#: Takes every device that matches (``allocationMode``).
ALLOCATION_MODE_ALL = "All"
ALLOCATION_MODE_EXACT_COUNT = "ExactCount"


class CELDeviceSelector(Wire, frozen=True, kw_only=True):
    """A CEL expression over ``device``."""

    expression: str = ""


class DeviceSelector(Wire, frozen=True, kw_only=True):
    """A condition that a device must meet; CEL is the only kind."""

    cel: CELDeviceSelector | None = None


class DeviceToleration(Wire, frozen=True, kw_only=True):
    """A toleration of device taints; an empty key with operator Exists tolerates every key."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class CapacityRequirements(Wire, frozen=True, kw_only=True):
    """How much of a device's capacity a request consumes, by dimension."""

    requests: WireResources = {}


class ExactDeviceRequest(Wire, frozen=True, kw_only=True):
    """Devices of one class. ``allocation_mode`` is ExactCount with ``count`` devices (default 1), or All."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(ExactDeviceRequest, frozen=True, kw_only=True):
    """One alternative of a request."""

    name: str = ""


class DeviceRequest(ExactDeviceRequest, frozen=True, kw_only=True):
    """A request: ``exactly`` one kind of device, or the ``first_available`` of several alternatives.

    The inherited members are those of ``v1beta1``, which had no ``exactly``.
    """

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()

    @property
    def exact(self) -> ExactDeviceRequest | None:
        """The only alternative, in either version; None where there are several or none."""
        return self.exactly or (self if self.device_class_name else None)


class DeviceConstraint(Wire, frozen=True, kw_only=True):
    """Devices of these requests (all if empty) must agree, or differ, in an attribute."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(Wire, frozen=True, kw_only=True):
    """The devices of a claim."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()


class ResourceClaimSpec(Wire, frozen=True, kw_only=True):
    """What a claim asks for."""

    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(Wire, frozen=True, kw_only=True):
    """One allocated device, for a request or ``<request>/<sub-request>``."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    consumed_capacity: WireResources = {}


class DeviceAllocationResult(Wire, frozen=True, kw_only=True):
    """The allocated devices."""

    results: tuple[DeviceRequestAllocationResult, ...] = ()


class AllocationResult(Wire, frozen=True, kw_only=True):
    """The devices of a claim and the nodes that reach them; no selector means every node."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None


class ResourceClaimConsumerReference(Wire, frozen=True, kw_only=True):
    """A consumer of a claim."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Wire, frozen=True, kw_only=True):
    """The allocation, once there is one, and its consumers."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] = ()


class ResourceClaim(Wire, frozen=True, kw_only=True):
    """A claim for devices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaimTemplateSpec(Wire, frozen=True, kw_only=True):
    """The claim that is made for each pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Wire, frozen=True, kw_only=True):
    """A template of claims."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class DeviceClassSpec(Wire, frozen=True, kw_only=True):
    """Which devices are of the class, and the extended resource that pods may request instead."""

    selectors: tuple[DeviceSelector, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(Wire, frozen=True, kw_only=True):
    """A class of devices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceAttribute(Wire, frozen=True, kw_only=True):
    """One value of an attribute: exactly one member is set."""

    string: str | None = None
    int_: int | None = msgspec.field(name="int", default=None)
    bool_: bool | None = msgspec.field(name="bool", default=None)
    version: str | None = None


class CapacityRange(Wire, frozen=True, kw_only=True):
    """The amounts a request may consume: ``min``, then steps up to ``max``."""

    min: WireQuantity | None = None
    max: WireQuantity | None = None
    step: WireQuantity | None = None


class CapacityRequestPolicy(Wire, frozen=True, kw_only=True):
    """How requests for a part of a device's capacity are rounded."""

    default: WireQuantity | None = None
    valid_values: tuple[WireQuantity, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(Wire, frozen=True, kw_only=True):
    """One dimension of a device's capacity."""

    value: WireQuantity = 0
    request_policy: CapacityRequestPolicy | None = None


class Counter(Wire, frozen=True, kw_only=True):
    """A quantity that partitions of a device share."""

    value: WireQuantity = 0


class CounterSet(Wire, frozen=True, kw_only=True):
    """Named counters of a pool."""

    name: str = ""
    counters: Mapping[str, Counter] = {}


class DeviceCounterConsumption(Wire, frozen=True, kw_only=True):
    """What a device takes of a counter set."""

    counter_set: str = ""
    counters: Mapping[str, Counter] = {}


class DeviceTaint(Wire, frozen=True, kw_only=True):
    """A taint of a device."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: datetime | None = None


class BasicDevice(Wire, frozen=True, kw_only=True):
    """What a device is: attributes, capacity and the counters it consumes.

    ``binding_conditions``: conditions that a driver must report before pods bind.
    """

    attributes: Mapping[str, DeviceAttribute] = {}
    capacity: Mapping[str, DeviceCapacity] = {}
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool | None = None


class Device(BasicDevice, frozen=True, kw_only=True):
    """A device of a slice. ``basic`` holds its description in ``v1beta1``."""

    name: str = ""
    basic: BasicDevice | None = None

    @property
    def flat(self) -> BasicDevice:
        """The description, in either version."""
        return self.basic or self


class ResourcePool(Wire, frozen=True, kw_only=True):
    """The pool a slice belongs to, and how many slices this generation of it has."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Wire, frozen=True, kw_only=True):
    """A part of a pool of devices, for one node, for those that a selector selects, or for all."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(Wire, frozen=True, kw_only=True):
    """Devices that a driver publishes."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceSliceSpec = ResourceSliceSpec()
