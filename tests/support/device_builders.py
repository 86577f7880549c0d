"""Device claims for tests: classes, claims, slices, and instance types with devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from karpenter.api.core import Pod, PodResourceClaim, PodResourceClaimStatus
from karpenter.api.meta import ObjectMeta, WireQuantity
from karpenter.api.resource_claims import (
    AllocationResult,
    CapacityRequirements,
    CELDeviceSelector,
    Counter,
    CounterSet,
    Device,
    DeviceAllocationResult,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceConstraint,
    DeviceCounterConsumption,
    DeviceRequest,
    DeviceRequestAllocationResult,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from karpenter.api.scheduling_constraints import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from karpenter.instancetypes.instance_type import BindingGroup, DeviceTemplates, InstanceType
from support.builders import NOW, pod
from support.instance_types import shape

DRIVER = "gpu.example.com"


def cel(expression: str) -> DeviceSelector:
    return DeviceSelector(cel=CELDeviceSelector(expression=expression))


def device_class(name: str = "gpu", *expressions: str, resource: str | None = None) -> DeviceClass:
    """A class; without expressions that of every device of the driver."""
    selectors = tuple(cel(each) for each in expressions or (f'device.driver == "{DRIVER}"',))
    return DeviceClass(
        metadata=ObjectMeta(name=name, uid=f"uid-{name}"),
        spec=DeviceClassSpec(selectors=selectors, extended_resource_name=resource),
    )


def exactly(
    name: str = "r",
    count: int = 1,
    *expressions: str,
    of: str = "gpu",
    capacity: Mapping[str, WireQuantity] | None = None,
    **fields: object,
) -> DeviceRequest:
    """A request of one kind of device."""
    wanted = ExactDeviceRequest(
        device_class_name=of,
        selectors=tuple(cel(each) for each in expressions),
        count=count,
        allocation_mode="ExactCount",
        capacity=None if capacity is None else CapacityRequirements(requests=capacity),
        **fields,
    )
    return DeviceRequest(name=name, exactly=wanted)


def every(name: str = "r", *expressions: str, of: str = "gpu") -> DeviceRequest:
    """A request of mode All."""
    selectors = tuple(cel(each) for each in expressions)
    wanted = ExactDeviceRequest(device_class_name=of, selectors=selectors, allocation_mode="All")
    return DeviceRequest(name=name, exactly=wanted)


def alternative(name: str, count: int = 1, *expressions: str, of: str = "gpu") -> DeviceSubRequest:
    return DeviceSubRequest(
        name=name, device_class_name=of, selectors=tuple(cel(each) for each in expressions), count=count
    )


def first_available(name: str, *alternatives: DeviceSubRequest) -> DeviceRequest:
    return DeviceRequest(name=name, first_available=alternatives)


def claim_spec(*requests: DeviceRequest, constraints: Iterable[DeviceConstraint] = ()) -> ResourceClaimSpec:
    return ResourceClaimSpec(devices=DeviceClaim(requests=requests, constraints=tuple(constraints)))


def same(attribute: str, *requests: str) -> DeviceConstraint:
    return DeviceConstraint(match_attribute=f"{DRIVER}/{attribute}", requests=requests)


def resource_claim(
    name: str,
    *requests: DeviceRequest,
    constraints: Iterable[DeviceConstraint] = (),
    held: Iterable[tuple[str, str]] = (),
    on: str = "",
    by: Iterable[str] = (),
    **result: object,
) -> ResourceClaim:
    """A claim; with ``held`` (pool and device) on a node it is allocated there, and reserved for pods given by name."""
    results = tuple(
        DeviceRequestAllocationResult(request="r", driver=DRIVER, pool=pool, device=device, **result)
        for pool, device in held
    )
    terms = (
        NodeSelectorTerm(match_fields=(NodeSelectorRequirement(key="metadata.name", operator="In", values=(on,)),)),
    )
    allocation = AllocationResult(
        devices=DeviceAllocationResult(results=results), node_selector=NodeSelector(node_selector_terms=terms)
    )
    consumers = tuple(ResourceClaimConsumerReference(resource="pods", name=each, uid=f"uid-{each}") for each in by)
    return ResourceClaim(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", creation_timestamp=NOW),
        spec=claim_spec(*requests, constraints=constraints),
        status=ResourceClaimStatus(allocation=allocation if on else None, reserved_for=consumers),
    )


def claim_template(
    name: str, *requests: DeviceRequest, constraints: Iterable[DeviceConstraint] = ()
) -> ResourceClaimTemplate:
    return ResourceClaimTemplate(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=ResourceClaimTemplateSpec(spec=claim_spec(*requests, constraints=constraints)),
    )


def using(name: str, *claims: str, requests: Mapping[str, str | int] | None = None, **spec: object) -> Pod:
    """A pod that uses claims by name."""
    references = tuple(PodResourceClaim(name=each, resource_claim_name=each) for each in claims)
    return pod(name, requests or {"cpu": "100m"}, resource_claims=references, **spec)


def of_template(
    name: str,
    *templates: str,
    made: Mapping[str, str | None] | None = None,
    requests: Mapping[str, str | int] | None = None,
    **spec: object,
) -> Pod:
    """A pod with claims of templates; ``made``: the claims that were made for it, by template."""
    references = tuple(PodResourceClaim(name=each, resource_claim_template_name=each) for each in templates)
    statuses = tuple(
        PodResourceClaimStatus(name=each, resource_claim_name=claim) for each, claim in (made or {}).items()
    )
    status: dict[str, object] = {"resource_claim_statuses": statuses}
    return pod(name, requests or {"cpu": "100m"}, resource_claims=references, status=status, **spec)


def attribute(value: str | int | bool) -> DeviceAttribute:
    if isinstance(value, bool):
        return DeviceAttribute(bool_=value)
    return DeviceAttribute(int_=value) if isinstance(value, int) else DeviceAttribute(string=value)


def device(
    name: str,
    attributes: Mapping[str, str | int | bool] = {},
    capacity: Mapping[str, WireQuantity | DeviceCapacity] = {},
    takes: Mapping[str, Mapping[str, WireQuantity]] = {},
    **fields: object,
) -> Device:
    """A device; ``takes``: counters by counter set."""
    return Device(
        name=name,
        attributes={key: attribute(value) for key, value in attributes.items()},
        capacity={k: v if isinstance(v, DeviceCapacity) else DeviceCapacity(value=v) for k, v in capacity.items()},
        consumes_counters=tuple(
            DeviceCounterConsumption(counter_set=each, counters={k: Counter(value=v) for k, v in amounts.items()})
            for each, amounts in takes.items()
        ),
        **fields,
    )


def gpus(count: int, model: str = "a100", links: int = 0) -> tuple[Device, ...]:
    """So many GPUs of a model with 40 Gi; with ``links`` so many of them share a link."""
    return tuple(
        device(
            f"gpu-{number}",
            {"model": model, **({"link": f"l{number // links}"} if links else {})},
            {"memory": "40Gi"},
        )
        for number in range(count)
    )


def counter_set(name: str, **counters: WireQuantity) -> CounterSet:
    return CounterSet(name=name, counters={key: Counter(value=value) for key, value in counters.items()})


def slice_spec(
    *devices: Device,
    node: str | None = None,
    pool: str = "node",
    generation: int = 1,
    slices: int = 1,
    counters: Iterable[CounterSet] = (),
    driver: str = DRIVER,
    **fields: object,
) -> ResourceSliceSpec:
    return ResourceSliceSpec(
        driver=driver,
        pool=ResourcePool(name=node or pool, generation=generation, resource_slice_count=slices),
        node_name=node,
        devices=devices,
        shared_counters=tuple(counters),
        **fields,
    )


def published(name: str, spec: ResourceSliceSpec) -> ResourceSlice:
    return ResourceSlice(metadata=ObjectMeta(name=name, uid=f"uid-{name}"), spec=spec)


def with_devices(
    instance_type: InstanceType, *slices: ResourceSliceSpec, groups: Iterable[BindingGroup] = ()
) -> InstanceType:
    return replace(instance_type, devices=DeviceTemplates(slices, tuple(groups)))


def gpu_type(name: str, count: int, model: str = "a100", *, links: int = 0, cpu: int = 8) -> InstanceType:
    """A type with GPUs, which cost 1 USD each beside its CPU and memory."""
    plain = shape(name, {"cpu": cpu, "memory": "32Gi", "pods": 110})
    dearer = tuple(replace(each, price_per_hour=each.price_per_hour + count) for each in plain.offerings)
    return with_devices(replace(plain, offerings=dearer), slice_spec(*gpus(count, model, links)))
