"""The pods of a study: who comes when, what each requests, and when it leaves.

A pod of a service leaves at a moment, wherever it is then. A pod of a job leaves after it has run for a while; when its node goes
first, it starts anew. Times are whole seconds since the start of the study.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from karpenter.api.core import Container, Pod, PodSpec, ResourceRequirements
from karpenter.api.meta import ObjectMeta

NAMESPACE = "default"
WORKLOAD_LABEL = "app"


class WorkloadError(ValueError):
    """A trace or scenario cannot be used. The text names the file, the line and what is expected there."""


@dataclass(frozen=True, slots=True)
class WorkloadPodTemplate:
    """What pods of one kind look like. ``requests`` are wire quantities, such as ``{"cpu": "500m"}``."""

    workload: str
    requests: Mapping[str, str]
    spec: PodSpec = field(default_factory=PodSpec)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def pod(self, name: str) -> Pod:
        """The pod of this name. Extended resources are limits, too, as the API server demands."""
        limits = {key: value for key, value in self.requests.items() if "/" in key}
        container = Container(name="main", resources=ResourceRequirements(requests=self.requests, limits=limits))
        labels = {WORKLOAD_LABEL: self.workload}
        metadata = ObjectMeta(name=name, namespace=NAMESPACE, labels=labels, annotations=self.annotations)
        return Pod(metadata=metadata, spec=_with_container(self.spec, container))


def _with_container(spec: PodSpec, container: Container) -> PodSpec:
    return msgspec.structs.replace(spec, containers=(container,))


@dataclass(frozen=True, slots=True)
class PodLife:
    """One pod of a study. Exactly one of the last two is set, or neither for a pod that stays.

    ``leaves_at_seconds``: since the start of the study; ``runs_for_seconds``: since it became ready.
    """

    name: str
    template: WorkloadPodTemplate
    arrives_at_seconds: int
    leaves_at_seconds: int | None = None
    runs_for_seconds: int | None = None

    def presence_seconds(self, until: int) -> tuple[int, int]:
        """From when to when the pod wants a node, up to ``until``, if it never waits."""
        if self.leaves_at_seconds is not None:
            end = self.leaves_at_seconds
        elif self.runs_for_seconds is not None:
            end = self.arrives_at_seconds + self.runs_for_seconds
        else:
            end = until
        return min(self.arrives_at_seconds, until), min(end, until)


@dataclass(frozen=True, slots=True)
class Workload:
    """All pods of a study in the order of their arrival, and how long the study lasts."""

    name: str
    pods: tuple[PodLife, ...]
    duration_seconds: int


def ordered_workload(name: str, pods: list[PodLife], duration_seconds: int) -> Workload:
    """A workload of the pods that arrive in time, in the order of arrival and name."""
    arriving = (pod for pod in pods if pod.arrives_at_seconds < duration_seconds)
    return Workload(name, tuple(sorted(arriving, key=lambda pod: (pod.arrives_at_seconds, pod.name))), duration_seconds)
