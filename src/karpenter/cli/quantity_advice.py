"""Quantities that are legal and absurd: ``m`` and ``M`` were exchanged, or memory is written without its unit.

100 million cores, half a byte of memory, and 1024 bytes where 1024Mi are meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from karpenter.api.capacity_buffer import CapacityBuffer
from karpenter.api.core import PodSpec, ResourceRequirements
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodePool
from karpenter.api.limit_range import LimitRange
from karpenter.api.machine_node_class import MachineNodeClass
from karpenter.api.meta import WireResources
from karpenter.cli.cluster_objects import PlanObject
from karpenter.model.pod_templates import PodCarrier, pod_spec_of, pod_spec_path
from karpenter.model.quantity import MILLI, QuantityError, parse_milli
from karpenter.model.structural_schema import child_path

_NUMBER_AND_UNIT = re.compile(r"(\d+(?:\.\d+)?)(m|M|k|Ki)?")
#: Units of amounts below 1Mi, and the unit that was probably meant.
_SMALL_UNITS = {"k": "M", "Ki": "Mi"}
_BYTES = frozenset({"memory", "ephemeral-storage"})
#: Thousandths of a byte: no process runs in less than 1Mi, so that less is a unit that was forgotten or confused.
_LEAST_MILLI_BYTES = 2**20 * MILLI
#: A number without a unit that is smaller than this was probably meant in Gi, a larger one in Mi ...
_LEAST_MEBIBYTES = 64
#: ... up to 64Gi. What a still larger one was meant in cannot be told.
_MOST_MEBIBYTES = 2**16
_RESERVED = ("kubeReserved", "systemReserved")
_EVICTION = ("evictionHard", "evictionSoft")
#: Amounts of memory or storage by their names, where the field has other names than resources.
_EVICTION_SIGNALS: Mapping[str, str] = {
    "memory.available": "memory",
    "nodefs.available": "ephemeral-storage",
    "imagefs.available": "ephemeral-storage",
}
_Amounts = Mapping[str, object]


def odd_quantities(obj: PlanObject) -> Iterator[tuple[str, str]]:
    """Path and sentence of each quantity of the object whose unit is probably another one, or missing."""
    for path, amounts in _amounts(obj):
        for name, value in amounts.items():
            if sentence := _sentence(_EVICTION_SIGNALS.get(name, name), str(value)):
                yield child_path(path, name), sentence


def _amounts(obj: PlanObject) -> Iterator[tuple[str, _Amounts]]:
    """Maps of quantities by their paths: what users write, and not what servers report."""
    match obj:
        case NodePool() | CapacityBuffer():
            yield "spec.limits", obj.spec.limits
        case EC2NodeClass():
            yield from _of_kubelet(obj.spec.kubelet)
        case MachineNodeClass():
            for index, host in enumerate(obj.spec.hosts):
                yield f"spec.hosts[{index}].capacity", host.capacity
        case LimitRange():
            for index, item in enumerate(obj.spec.limits):
                yield f"spec.limits[{index}].default", item.default
                yield f"spec.limits[{index}].defaultRequest", item.default_request
        case _ if isinstance(obj, PodCarrier):
            yield from _of_pods(pod_spec_of(obj), ".".join(pod_spec_path(type(obj))))


def _of_kubelet(kubelet: Mapping[str, object]) -> Iterator[tuple[str, _Amounts]]:
    for field in (*_RESERVED, *_EVICTION):
        amounts = kubelet.get(field)
        if isinstance(amounts, Mapping):
            yield f"spec.kubelet.{field}", amounts


def _of_pods(spec: PodSpec, path: str) -> Iterator[tuple[str, _Amounts]]:
    yield from _of_requirements(f"{path}.resources", spec.resources)
    for list_name, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for index, container in enumerate(containers):
            yield from _of_requirements(f"{path}.{list_name}[{index}].resources", container.resources)


def _of_requirements(path: str, resources: ResourceRequirements | None) -> Iterator[tuple[str, WireResources]]:
    if resources is not None:
        yield f"{path}.requests", resources.requests
        yield f"{path}.limits", resources.limits


def _sentence(resource: str, value: str) -> str:
    match = _NUMBER_AND_UNIT.fullmatch(value)
    number, unit = match.groups() if match is not None else ("", "")
    if resource == "cpu":
        return f"{value} are {number} million cores; did you mean {number}m?" if unit == "M" else ""
    if resource not in _BYTES or not 0 < _milli_bytes(value) < _LEAST_MILLI_BYTES:
        return ""
    if unit == "m":
        return f"{value} are {number} thousandths of a byte; did you mean {number}Mi?"
    if number and not unit:
        return f"{value} without a unit means bytes; {_unit_hint(number)}"
    if unit in _SMALL_UNITS:
        return f"{value} is less than 1Mi; did you mean {number}{_SMALL_UNITS[unit]}?"
    return f"{value} is less than 1Mi; write a larger amount, such as 512Mi"


def _unit_hint(number: str) -> str:
    amount = float(number)
    if amount >= _MOST_MEBIBYTES:
        return "write the unit, such as Mi"
    return f"did you mean {number}{'Mi' if amount >= _LEAST_MEBIBYTES else 'Gi'}?"


def _milli_bytes(value: str) -> int:
    """0 for what is no quantity: of the kubelet's thresholds some are percentages, and other checks judge the rest."""
    try:
        return parse_milli(value)
    except QuantityError:
        return 0
