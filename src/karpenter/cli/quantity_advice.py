"""Requests that are legal and absurd, because ``m`` and ``M`` were exchanged: 100 million cores, half a byte of memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from karpenter.api.core import ResourceRequirements
from karpenter.cli.cluster_objects import PlanObject
from karpenter.model.pod_templates import PodCarrier, pod_spec_of, pod_spec_path

_NUMBER_AND_UNIT = re.compile(r"(\d+(?:\.\d+)?)([mM])")


def odd_requests(obj: PlanObject) -> Iterator[tuple[str, str]]:
    """Path and sentence of each request or limit of a pod or a workload's template whose unit is probably another one."""
    if not isinstance(obj, PodCarrier):
        return
    spec, path = pod_spec_of(obj), ".".join(pod_spec_path(type(obj)))
    for list_name, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for index, container in enumerate(containers):
            yield from _of_container(f"{path}.{list_name}[{index}].resources", container.resources)


def _of_container(path: str, resources: ResourceRequirements) -> Iterator[tuple[str, str]]:
    for field, amounts in (("requests", resources.requests), ("limits", resources.limits)):
        for name, value in amounts.items():
            if sentence := _sentence(name, str(value)):
                yield f"{path}.{field}.{name}", sentence


def _sentence(resource: str, value: str) -> str:
    match = _NUMBER_AND_UNIT.fullmatch(value)
    if match is None:
        return ""
    number, unit = match.groups()
    if resource == "cpu" and unit == "M":
        return f"{value} are {number} million cores; did you mean {number}m?"
    if resource in ("memory", "ephemeral-storage") and unit == "m":
        return f"{value} are {number} thousandths of a byte; did you mean {number}Mi?"
    return ""
