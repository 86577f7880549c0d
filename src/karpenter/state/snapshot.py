"""The immutable snapshot of the cluster that decisions are made on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from karpenter.api.core import Pod, PodDisruptionBudget, PodSpec
from karpenter.api.karpenter import NodePool
from karpenter.model.freezes import Freeze
from karpenter.model.pool_sleep import PoolSleep
from karpenter.model.resources import Resources
from karpenter.state.cluster_devices import ClusterDevices
from karpenter.state.gangs import Gang
from karpenter.state.pod_counts import CountsByNode, NamespacedLabels
from karpenter.state.pod_signature import PodSignature
from karpenter.state.pod_volumes import ClusterVolumes
from karpenter.state.rollout_controls import RolloutControl, WorkloadKey
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


def pod_priority(pod: Pod) -> int:
    """How important a pod is: its priority class as a number."""
    return pod.spec.priority or 0


def scheduling_order(pod: Pod) -> tuple[int, datetime, str, str, str]:
    """Sort key of pods that nothing else tells apart: the most important first, then the oldest."""
    return (-pod_priority(pod), *creation_order(pod))


@dataclass(frozen=True)
class PodGroup:
    """Pending pods with the same signature and namespaced labels, oldest first, ties by uid."""

    signature: PodSignature
    namespaced_labels: NamespacedLabels
    pods: tuple[Pod, ...]


@dataclass(frozen=True)
class DaemonSetPod:
    """The pod of one DaemonSet as it will run on every matching node (SCH-210)."""

    name: str
    spec: PodSpec
    requests: Resources


@dataclass(frozen=True)
class ClusterSnapshot:
    """Everything a decision reads, in an order that does not depend on the order of events.

    ``pod_groups`` are the pending pods; ``planned_nodes`` maps pods (by uid) to the state node (by key) of the last pass, so
    that an unchanged plan stays the same. ``pod_counts`` counts bound pods by namespaced labels and node,
    ``anti_affinity_counts`` those with required anti-affinity by their terms; ``namespaces`` holds the labels of namespaces;
    ``virtual_pod_counts`` is the number of virtual pods of capacity buffers that the last pass placed per state node (by key);
    ``workload_selectors`` holds selectors of Services and owners, if they are watched; ``rollout_controls`` those of
    workloads that differ from the default; ``freeze`` is the freeze of the whole cluster, active or over;
    ``sleeping_pools`` are the NodePools that sleep now, by name; ``devices`` are those that claims are met by, None while
    pods with claims are left alone (SCH-781). ``gangs`` are those that have pending pods, if gangs are planned with;
    ``indispensable_gangs`` names a running gang by each node (by name) without which its rest on others is too small.
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
    rollout_controls: Mapping[WorkloadKey, RolloutControl] = field(default_factory=dict)
    freeze: Freeze | None = None
    sleeping_pools: Mapping[str, PoolSleep] = field(default_factory=dict)
    devices: ClusterDevices | None = None
    gangs: tuple[Gang, ...] = ()
    indispensable_gangs: Mapping[str, str] = field(default_factory=dict)
