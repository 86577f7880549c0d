"""Where objects carry quantities, and which of those are none.

Wire quantities stay text until they are computed with; an object with an invalid one is rejected here, at the edge, so
that arithmetic further in never meets it and one bad object never stops the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from karpenter.api.capacity_buffer import CapacityBuffer
from karpenter.api.core import Container, ContainerStatus, Node, Pod, PodSpec, PodStatus, ResourceRequirements
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import WireQuantity, WireResources
from karpenter.api.node_overlay import NodeOverlay
from karpenter.model import quantity, structural_schema
from karpenter.model.pod_templates import PodCarrier, pod_spec_of, pod_spec_path
from karpenter.model.structural_schema import Finding

QuantityCarrier = PodCarrier | Node | NodePool | NodeClaim | NodeOverlay | CapacityBuffer
_LIKE_A_QUANTITY = re.compile(
    r"(?P<number>\d+(?:\.\d+)?)\s*(?:(?P<unit>[kmgt])(?P<binary>i)?b?|(?P<cores>v?cpus?|cores?))", re.IGNORECASE
)
_ResourceList = tuple[str, WireResources]


def check_quantities(obj: QuantityCarrier) -> tuple[Finding, ...]:
    """Each quantity of the object that cannot be read, by its path; empty when all can."""
    return tuple(
        finding for path, resources in _resource_lists(obj) for finding in _invalid_quantities(path, resources)
    )


def _invalid_quantities(path: str, resources: WireResources) -> Iterator[Finding]:
    for name, value in resources.items():
        try:
            quantity.parse_milli(value)
        except quantity.QuantityError as error:
            hint = f"; did you mean {meant}?" if (meant := _probably_meant(value)) else ""
            yield Finding(structural_schema.child_path(path, name), "quantity", f"{error}{hint}")


def _probably_meant(value: WireQuantity) -> str:
    """The quantity that a text such as ``4GB``, ``512mi`` or ``2 cores`` stands for; empty where it looks like none."""
    match = _LIKE_A_QUANTITY.fullmatch(str(value))
    if match is None:
        return ""
    number, unit, binary = match["number"], (match["unit"] or "").upper(), (match["binary"] or "").lower()
    if match["cores"] or not unit:
        return number
    return f"{number}{unit}i" if binary else f"{number}{unit.replace('K', 'k')}"


def _resource_lists(obj: QuantityCarrier) -> Iterator[_ResourceList]:
    match obj:
        case Pod(spec=spec, status=status):
            yield from _pod_spec(spec, "spec")
            yield from _pod_status(status)
        case Node():
            yield "status.capacity", obj.status.capacity
            yield "status.allocatable", obj.status.allocatable
        case NodePool():
            yield "spec.limits", obj.spec.limits
            yield "status.resources", obj.status.resources
        case CapacityBuffer():
            yield "spec.limits", obj.spec.limits
        case NodeOverlay():
            yield "spec.capacity", obj.spec.capacity
        case NodeClaim():
            yield "spec.resources.requests", obj.spec.resources.requests
            yield "status.capacity", obj.status.capacity
            yield "status.allocatable", obj.status.allocatable
        case _:
            yield from _pod_spec(pod_spec_of(obj), ".".join(pod_spec_path(type(obj))))


def _pod_spec(spec: PodSpec, path: str) -> Iterator[_ResourceList]:
    yield from _containers(spec.containers, f"{path}.containers")
    yield from _containers(spec.init_containers, f"{path}.initContainers")
    yield from _requirements(spec.resources, f"{path}.resources")
    yield f"{path}.overhead", spec.overhead


def _pod_status(status: PodStatus) -> Iterator[_ResourceList]:
    yield from _statuses(status.container_statuses, "status.containerStatuses")
    yield from _statuses(status.init_container_statuses, "status.initContainerStatuses")
    yield from _requirements(status.resources, "status.resources")
    yield "status.allocatedResources", status.allocated_resources


def _containers(containers: Iterable[Container], path: str) -> Iterator[_ResourceList]:
    for index, container in enumerate(containers):
        yield from _requirements(container.resources, f"{path}[{index}].resources")


def _statuses(statuses: Iterable[ContainerStatus], path: str) -> Iterator[_ResourceList]:
    for index, status in enumerate(statuses):
        yield from _requirements(status.resources, f"{path}[{index}].resources")
        yield f"{path}[{index}].allocatedResources", status.allocated_resources


def _requirements(resources: ResourceRequirements | None, path: str) -> Iterator[_ResourceList]:
    if resources is not None:
        yield f"{path}.requests", resources.requests
        yield f"{path}.limits", resources.limits
