"""The input of the rules: objects with their places, findings of the manifest reader, and what the NodePools can launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from karpenter.api.apps import Deployment, ReplicaSet, StatefulSet
from karpenter.api.batch import Job
from karpenter.api.core import Pod, PodSpec
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.lint.source_object import SourceObject
from karpenter.model.pod_templates import PodCarrier, pod_spec_of, pod_spec_path, pod_template_of
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate

T = TypeVar("T", bound=Wire)


@dataclass(frozen=True, slots=True)
class ReaderFinding:
    """What the reader of manifests says about an object: ``code`` as its checks name it."""

    where: SourceObject
    path: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class PoolOffer:
    """What a NodePool can launch. ``template`` is None where that is nothing.

    ``region`` is the region whose types count, ``named_region`` the same where the pool names it; both may be empty.
    """

    pool: NodePool
    region: str
    named_region: str
    index: TypeIndex
    template: NodePoolTemplate | None


@dataclass(frozen=True, slots=True)
class LintInput:
    """``offers`` by name of the NodePool; those of pools whose types are not known are missing."""

    objects: tuple[SourceObject, ...]
    problems: tuple[ReaderFinding, ...] = ()
    notices: tuple[ReaderFinding, ...] = ()
    offers: Mapping[str, PoolOffer] = field(default_factory=dict)

    def of_type(self, kind: type[T]) -> Iterator[tuple[SourceObject, T]]:
        """The objects of a kind, decoded."""
        for obj in self.objects:
            if isinstance(obj.wire, kind):
                yield obj, obj.wire

    def pod_specs(self) -> Iterator[PodSource]:
        """What carries pods: Pods, workloads, DaemonSets."""
        for obj in self.objects:
            if isinstance(obj.wire, PodCarrier):
                yield PodSource(obj, obj.wire, pod_spec_of(obj.wire), ".".join(pod_spec_path(type(obj.wire))))


@dataclass(frozen=True, slots=True)
class PodSource:
    """An object that carries pods. ``path`` leads to the pod specification."""

    where: SourceObject
    carrier: PodCarrier
    spec: PodSpec
    path: str

    @property
    def metadata(self) -> ObjectMeta:
        """That of the pods."""
        return self.carrier.metadata if isinstance(self.carrier, Pod) else pod_template_of(self.carrier).metadata

    @property
    def metadata_path(self) -> str:
        """Where that stands in the object."""
        return ".".join((*pod_spec_path(type(self.carrier))[:-1], "metadata"))

    @property
    def annotations(self) -> Mapping[str, str]:
        """Those of the pods."""
        return self.metadata.annotations

    @property
    def replicas(self) -> int:
        """How many pods there are at once by the manifest; 1 for a DaemonSet, of which each node has one."""
        match self.carrier:
            case Deployment() | ReplicaSet() | StatefulSet():
                return 1 if self.carrier.spec.replicas is None else self.carrier.spec.replicas
            case Job():
                return self.carrier.spec.parallelism or 1
            case _:
                return 1
