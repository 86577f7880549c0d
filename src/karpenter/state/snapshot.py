"""The immutable picture decisions are made on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from karpenter.api.core import Pod, PodDisruptionBudget, PodSpec
from karpenter.api.karpenter import NodePool
from karpenter.model.freezes import Freeze
from karpenter.model.resources import Resources
from karpenter.state.pod_counts import CountsByNode, NamespacedLabels
from karpenter.state.pod_signature import PodSignature
from karpenter.state.pod_volumes import ClusterVolumes
from karpenter.state.state_node import StateNode
from karpenter.state.topology_terms import TopologyTerm
from karpenter.state.workload_selectors import WorkloadSelectors

#: Namespace and name of a pod.
PodKey = tuple[str, str]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def pod_key(pod: Pod) -> PodKey:
    """Namespace and name."""
    return (pod.metadata.namespace, pod.metadata.name)


def creation_order(pod: Pod) -> tuple[datetime, str, str, str]:
    """Sort key: oldest first, ties by uid (SCH-231)."""
    meta = pod.metadata
    return (meta.creation_timestamp or _EPOCH, meta.uid, meta.namespace, meta.name)


@dataclass(frozen=True)
class PodGroup:
    """Pods of one class and one look that wait for a place, oldest first, ties by uid."""

    signature: PodSignature
    namespaced_labels: NamespacedLabels
    pods: tuple[Pod, ...]


@dataclass(frozen=True)
class DaemonSetPod:
    """One DaemonSet's pod as it will run on every node that takes it (SCH-210)."""

    name: str
    spec: PodSpec
    requests: Resources


@dataclass(frozen=True)
class ClusterSnapshot:
    """Everything a decision reads.

    Its order never tells in which order events arrived. ``groups`` are the pods waiting for a machine; ``planned`` says on which
    view (by key) the last pass placed a pod (by uid), so that an unchanged plan stays the same plan. ``census`` counts the
    bound pods of every look by node, ``repelling`` those with required anti-affinity by their terms; ``namespaces`` are their
    labels; ``volumes`` tells what pods' volumes mean for their place; ``held`` how many virtual pods of capacity buffers the last
    pass put on which view (by key); ``workloads`` who serves and owns pods, as far as it is watched; ``freeze`` the freeze over
    the whole cluster, whether it is on or over.
    """

    pod_groups: tuple[PodGroup, ...] = ()
    nodes: tuple[StateNode, ...] = ()
    pools: tuple[NodePool, ...] = ()
    daemonset_pods: tuple[DaemonSetPod, ...] = ()
    pdbs: tuple[PodDisruptionBudget, ...] = ()
    pod_counts: Mapping[NamespacedLabels, CountsByNode] = field(default_factory=dict)
    anti_affinity_counts: Mapping[tuple[TopologyTerm, ...], CountsByNode] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    planned_nodes: Mapping[str, str] = field(default_factory=dict)
    volumes: ClusterVolumes = field(default_factory=ClusterVolumes)
    virtual_pod_counts: Mapping[str, int] = field(default_factory=dict)
    workload_selectors: WorkloadSelectors = field(default_factory=WorkloadSelectors)
    freeze: Freeze | None = None
