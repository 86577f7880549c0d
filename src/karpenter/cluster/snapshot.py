"""The immutable picture decisions are made on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from karpenter.api.core import Pod, PodDisruptionBudget, PodSpec
from karpenter.api.karpenter import NodePool
from karpenter.cluster.classes import PodClass
from karpenter.cluster.faces import Counts, Face
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.terms import Term
from karpenter.cluster.volumes import Volumes
from karpenter.cluster.workloads import Workloads
from karpenter.model.freezes import Freeze
from karpenter.model.resources import Resources

#: Namespace and name of a pod.
PodKey = tuple[str, str]

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def pod_key(pod: Pod) -> PodKey:
    """Namespace and name."""
    return (pod.metadata.namespace, pod.metadata.name)


def age(pod: Pod) -> tuple[datetime, str, str, str]:
    """Sort key: oldest first, ties by uid (SCH-231)."""
    meta = pod.metadata
    return (meta.creation_timestamp or _LONG_AGO, meta.uid, meta.namespace, meta.name)


@dataclass(frozen=True)
class PodGroup:
    """Pods of one class and one look that wait for a place, oldest first, ties by uid."""

    pod_class: PodClass
    face: Face
    pods: tuple[Pod, ...]


@dataclass(frozen=True)
class Daemon:
    """One DaemonSet's pod as it will run on every node that takes it (SCH-210)."""

    name: str
    spec: PodSpec
    requests: Resources


@dataclass(frozen=True)
class Snapshot:
    """Everything a decision reads.

    Its order never tells in which order events arrived. ``groups`` are the pods waiting for a machine; ``planned`` says on which
    view (by key) the last pass placed a pod (by uid), so that an unchanged plan stays the same plan. ``census`` counts the
    bound pods of every look by node, ``repelling`` those with required anti-affinity by their terms; ``namespaces`` are their
    labels; ``volumes`` tells what pods' volumes mean for their place; ``held`` how many virtual pods of capacity buffers the last
    pass put on which view (by key); ``workloads`` who serves and owns pods, as far as it is watched; ``freeze`` the freeze over
    the whole cluster, whether it is on or over.
    """

    groups: tuple[PodGroup, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    pools: tuple[NodePool, ...] = ()
    daemons: tuple[Daemon, ...] = ()
    budgets: tuple[PodDisruptionBudget, ...] = ()
    census: Mapping[Face, Counts] = field(default_factory=dict)
    repelling: Mapping[tuple[Term, ...], Counts] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    planned: Mapping[str, str] = field(default_factory=dict)
    volumes: Volumes = field(default_factory=Volumes)
    held: Mapping[str, int] = field(default_factory=dict)
    workloads: Workloads = field(default_factory=Workloads)
    freeze: Freeze | None = None
