"""The pods of a study: who comes when, what each requests, and when it leaves.

A pod of a service leaves at a moment, wherever it is then. A pod of a job leaves after it has run for a while; when its node goes
first, it starts anew. Times are whole seconds since the start of the study.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from karpenter.api import kinds
from karpenter.api.core import Container, Pod, PodSpec, ResourceRequirements
from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, OwnerReference, Wire
from karpenter.model.workload_pods import TEMPLATE_HASH_LABEL, reference_to

_DEFAULT_NAMESPACE = "default"
_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_LABEL = 63
WORKLOAD_LABEL = "app"
#: When a study begins by default: a Monday, midnight.
MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
W = TypeVar("W", bound=Wire)


class WorkloadError(ValueError):
    """A trace or scenario cannot be used. The text names the file, the line and what is expected there."""


@dataclass(frozen=True, slots=True)
class WorkloadPodTemplate:
    """What pods of one kind look like.

    ``requests`` are wire quantities of the whole pod, such as ``{"cpu": "500m"}``; of containers in ``spec`` only the ports
    count. ``owner`` is the workload controller that the pods say they are of; there is no such object.
    """

    workload: str
    requests: Mapping[str, str]
    spec: PodSpec = field(default_factory=PodSpec)
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: str = _DEFAULT_NAMESPACE
    owner: OwnerReference | None = None

    def pod(self, name: str) -> Pod:
        """The pod of this name. Extended resources are limits, too, as the API server demands."""
        limits = {key: value for key, value in self.requests.items() if "/" in key}
        container = Container(
            name="main",
            ports=tuple(port for each in self.spec.containers for port in each.ports),
            resources=ResourceRequirements(requests=self.requests, limits=limits),
        )
        metadata = ObjectMeta(
            name=name,
            namespace=self.namespace,
            labels=self.labels,
            annotations=self.annotations,
            owner_references=() if self.owner is None else (self.owner,),
        )
        return Pod(metadata=metadata, spec=msgspec.structs.replace(self.spec, containers=(container,)))


def workload_labels(workload: str) -> dict[str, str]:
    """The label by which selectors find the pods of a workload: its name, with the characters that a label may have."""
    return {WORKLOAD_LABEL: _NOT_IN_LABELS.sub("-", workload)[:_LONGEST_LABEL].strip("-._")}


def replica_set_template(template: WorkloadPodTemplate, revision: int) -> WorkloadPodTemplate:
    """The template as a revision of a Deployment: its pods are of the ReplicaSet of that revision."""
    owned = _owned_template(template, kinds.REPLICA_SET, f"{template.workload}-{revision}")
    return replace(owned, labels={**owned.labels, TEMPLATE_HASH_LABEL: str(revision)})


def job_template(template: WorkloadPodTemplate, name: str) -> WorkloadPodTemplate:
    """The template as that of the Job of this name."""
    return _owned_template(template, kinds.JOB, name)


def stateful_set_template(template: WorkloadPodTemplate) -> WorkloadPodTemplate:
    """The template as that of a StatefulSet."""
    return _owned_template(template, kinds.STATEFUL_SET, template.workload)


def _owned_template(template: WorkloadPodTemplate, kind: Kind[W], name: str) -> WorkloadPodTemplate:
    owner = reference_to(kind, ObjectMeta(name=name, uid=f"{kind.name}/{name}"))
    return replace(template, labels=workload_labels(template.workload), owner=owner)


@dataclass(frozen=True, slots=True)
class RunningPod:
    """A pod runs on this node when the study begins, and has for so many seconds."""

    node: str
    seconds: int


@dataclass(frozen=True, slots=True)
class PodLife:
    """One pod of a study. At most one of ``leaves_at_seconds`` and ``runs_for_seconds`` is set, neither for a pod that stays.

    ``leaves_at_seconds``: since the start of the study; ``runs_for_seconds``: since it became ready. ``running``: where it runs
    when the study begins; such a pod arrives at 0.
    """

    name: str
    template: WorkloadPodTemplate
    arrives_at_seconds: int
    leaves_at_seconds: int | None = None
    runs_for_seconds: int | None = None
    running: RunningPod | None = None

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
    """All pods of a study in the order of their arrival, how long the study lasts, and when it begins."""

    name: str
    pods: tuple[PodLife, ...]
    duration_seconds: int
    begins: datetime = MONDAY


def ordered_workload(name: str, pods: list[PodLife], duration_seconds: int) -> Workload:
    """A workload of the pods that arrive in time, in the order of arrival and name."""
    arriving = (pod for pod in pods if pod.arrives_at_seconds < duration_seconds)
    return Workload(name, tuple(sorted(arriving, key=lambda pod: (pod.arrives_at_seconds, pod.name))), duration_seconds)
