"""The objects that a command works on, whether they come from files or from a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from karpenter.api import kinds
from karpenter.api.apps import DaemonSet, SelectorWorkload
from karpenter.api.autoscaling import HorizontalPodAutoscaler
from karpenter.api.capacity_buffer import CapacityBuffer
from karpenter.api.capacity_schedule import CapacitySchedule
from karpenter.api.core import (
    ConfigMap,
    Event,
    Namespace,
    Node,
    Pod,
    PodDisruptionBudget,
    ReplicationController,
    Service,
)
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import Kind
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.api.limit_range import LimitRange
from karpenter.api.machine_node_class import MachineNodeClass
from karpenter.api.meta import Wire
from karpenter.api.node_overlay import NodeOverlay
from karpenter.api.pod_groups import CoschedulingPodGroup, GroupedWorkload, SchedulingPodGroup
from karpenter.api.priority_class import PriorityClass
from karpenter.api.resource_claims import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from karpenter.api.storage import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass
from karpenter.cli.object_location import LocatedFinding
from karpenter.model.feature_gates import FeatureGate, FeatureGates
from karpenter.model.pod_templates import Workload
from karpenter.state.gang_index import GANG_KINDS, GangObject

_StorageObject = PersistentVolumeClaim | PersistentVolume | StorageClass | CSINode
_DeviceObject = ResourceClaim | ResourceClaimTemplate | DeviceClass | ResourceSlice
_PodOwner = SelectorWorkload | ReplicationController
_SchedulingObject = Pod | Node | NodePool | NodeClaim | DaemonSet | PodDisruptionBudget | Namespace
_WorkloadObject = Workload | HorizontalPodAutoscaler | PriorityClass | LimitRange
_NodeClass = KWOKNodeClass | EC2NodeClass | MachineNodeClass
_FeatureObject = NodeOverlay | CapacityBuffer | CapacitySchedule
PlanObject = (
    _SchedulingObject
    | _WorkloadObject
    | _NodeClass
    | _FeatureObject
    | _StorageObject
    | _DeviceObject
    | GangObject
    | Service
    | _PodOwner
    | ConfigMap
    | Event
)
#: Device claims and what meets them: always read of files, of a cluster where they are not ignored.
DEVICE_KINDS: tuple[Kind[Wire], ...] = (
    kinds.DEVICE_CLASS,  # type: ignore[assignment]
    kinds.RESOURCE_CLAIM,
    kinds.RESOURCE_CLAIM_TEMPLATE,
    kinds.RESOURCE_SLICE,
)
#: What the selectors of default spread constraints are worked out from: read only where there are such constraints.
WORKLOAD_KINDS: tuple[Kind[Wire], ...] = (
    kinds.SERVICE,  # type: ignore[assignment]
    kinds.REPLICATION_CONTROLLER,
    kinds.SELECTOR_REPLICA_SET,
    kinds.SELECTOR_STATEFUL_SET,
)
#: What says which pods belong together: always read of files, of a cluster where gangs are planned with.
_GANG_KINDS: tuple[Kind[Wire], ...] = GANG_KINDS  # type: ignore[assignment]
#: What pods are expanded from: always read of files, of a cluster where other replicas than the present ones are asked for.
EXPANDED_KINDS: tuple[Kind[Wire], ...] = (
    kinds.DEPLOYMENT,  # type: ignore[assignment]
    kinds.REPLICA_SET,
    kinds.STATEFUL_SET,
    kinds.HORIZONTAL_POD_AUTOSCALER,
    kinds.PRIORITY_CLASS,
    kinds.LIMIT_RANGE,
)
_OVERLAY_KINDS: tuple[Kind[Wire], ...] = (kinds.NODE_OVERLAY,)  # type: ignore[assignment]
#: Capacity buffers, and what they may name.
_BUFFER_KINDS: tuple[Kind[Wire], ...] = (
    kinds.CAPACITY_BUFFER,  # type: ignore[assignment]
    kinds.DEPLOYMENT,
    kinds.REPLICA_SET,
    kinds.STATEFUL_SET,
    kinds.POD_TEMPLATE,
)
#: What says that the whole cluster is frozen: read where it is asked what may go.
FREEZE_KINDS: tuple[Kind[Wire], ...] = (kinds.CONFIG_MAP,)  # type: ignore[assignment]


@dataclass
class ClusterObjects:
    """What was read. ``skipped`` counts objects by kinds a plan has no use for.

    ``problems`` are lines about objects that cannot be used, ``notices`` about what is probably not meant; those that are about
    a field of an object in a file are also in ``located_problems`` and ``located_notices``.
    ``heartbeats``: when kubelets reported last, of the Nodes of files.
    ``from_cluster``: from a running cluster, where not everything wrong is the user's to mend.
    ``plans_gangs``: gangs get places as a whole or not at all.
    ``includes_untried_pods``: pods that the scheduler has not tried yet wait with their siblings (``--include-untried-pods``).
    """

    pods: list[Pod] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    pools: list[NodePool] = field(default_factory=list)
    claims: list[NodeClaim] = field(default_factory=list)
    daemon_sets: list[DaemonSet] = field(default_factory=list)
    budgets: list[PodDisruptionBudget] = field(default_factory=list)
    namespaces: list[Namespace] = field(default_factory=list)
    volume_claims: list[PersistentVolumeClaim] = field(default_factory=list)
    volumes: list[PersistentVolume] = field(default_factory=list)
    storage_classes: list[StorageClass] = field(default_factory=list)
    csi_nodes: list[CSINode] = field(default_factory=list)
    devices: list[_DeviceObject] = field(default_factory=list)
    gangs: list[GangObject] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)
    owners: list[_PodOwner] = field(default_factory=list)
    config_maps: list[ConfigMap] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    workloads: list[Workload] = field(default_factory=list)
    autoscalers: list[HorizontalPodAutoscaler] = field(default_factory=list)
    priority_classes: list[PriorityClass] = field(default_factory=list)
    limit_ranges: list[LimitRange] = field(default_factory=list)
    node_classes: list[EC2NodeClass] = field(default_factory=list)
    kwok_node_classes: list[KWOKNodeClass] = field(default_factory=list)
    machine_node_classes: list[MachineNodeClass] = field(default_factory=list)
    overlays: list[NodeOverlay] = field(default_factory=list)
    buffers: list[CapacityBuffer] = field(default_factory=list)
    schedules: list[CapacitySchedule] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    located_problems: list[LocatedFinding] = field(default_factory=list)
    located_notices: list[LocatedFinding] = field(default_factory=list)
    heartbeats: list[datetime] = field(default_factory=list)
    from_cluster: bool = False
    plans_gangs: bool = False
    includes_untried_pods: bool = False

    def add(self, obj: PlanObject) -> None:
        """Put an object among its like."""
        match obj:
            case Pod():
                self.pods.append(obj)
            case Node():
                self.nodes.append(obj)
            case NodePool():
                self.pools.append(obj)
            case NodeClaim():
                self.claims.append(obj)
            case DaemonSet() | PodDisruptionBudget() | Namespace():
                self._add_surroundings(obj)
            case PersistentVolumeClaim() | PersistentVolume() | StorageClass() | CSINode():
                self._add_storage(obj)
            case ResourceClaim() | ResourceClaimTemplate() | DeviceClass() | ResourceSlice():
                self.devices.append(obj)
            case NodeOverlay() | CapacityBuffer() | CapacitySchedule():
                self._add_feature_object(obj)
            case Service() | SelectorWorkload() | ReplicationController() | ConfigMap() | Event():
                self._add_optional(obj)
            case _:
                self._add_other(obj)

    def _add_other(self, obj: _WorkloadObject | GangObject | _NodeClass) -> None:
        match obj:
            case GroupedWorkload() | SchedulingPodGroup() | CoschedulingPodGroup():
                self.gangs.append(obj)
                self.plans_gangs = True
            case EC2NodeClass() | KWOKNodeClass() | MachineNodeClass():
                self._add_node_class(obj)
            case HorizontalPodAutoscaler():
                self.autoscalers.append(obj)
            case PriorityClass():
                self.priority_classes.append(obj)
            case LimitRange():
                self.limit_ranges.append(obj)
            case _:
                self.workloads.append(obj)

    def _add_optional(self, obj: Service | _PodOwner | ConfigMap | Event) -> None:
        match obj:
            case Service():
                self.services.append(obj)
            case ConfigMap():
                self.config_maps.append(obj)
            case Event():
                self.events.append(obj)
            case _:
                self.owners.append(obj)

    def _add_surroundings(self, obj: DaemonSet | PodDisruptionBudget | Namespace) -> None:
        match obj:
            case DaemonSet():
                self.daemon_sets.append(obj)
            case PodDisruptionBudget():
                self.budgets.append(obj)
            case Namespace():
                self.namespaces.append(obj)

    def _add_feature_object(self, obj: _FeatureObject) -> None:
        match obj:
            case CapacityBuffer():
                self.buffers.append(obj)
            case CapacitySchedule():
                self.schedules.append(obj)
            case NodeOverlay():
                self.overlays.append(obj)

    def _add_node_class(self, obj: _NodeClass) -> None:
        match obj:
            case EC2NodeClass():
                self.node_classes.append(obj)
            case KWOKNodeClass():
                self.kwok_node_classes.append(obj)
            case MachineNodeClass():
                self.machine_node_classes.append(obj)

    def _add_storage(self, obj: _StorageObject) -> None:
        match obj:
            case PersistentVolumeClaim():
                self.volume_claims.append(obj)
            case PersistentVolume():
                self.volumes.append(obj)
            case StorageClass():
                self.storage_classes.append(obj)
            case CSINode():
                self.csi_nodes.append(obj)


def gated_kinds(gates: FeatureGates) -> tuple[Kind[Wire], ...]:
    """What to read of a cluster for the features that are on."""
    return (
        *(_OVERLAY_KINDS if FeatureGate.NODE_OVERLAY in gates else ()),
        *(_BUFFER_KINDS if FeatureGate.CAPACITY_BUFFER in gates else ()),
        *(_GANG_KINDS if FeatureGate.GANG_SCHEDULING in gates else ()),
    )


def objects_behind_gates(objects: ClusterObjects, gates: FeatureGates) -> Iterator[str]:
    """A line for each feature that is off and has objects in files: they count, and the controller ignores them."""
    for gate, kind, count in (
        (FeatureGate.NODE_OVERLAY, kinds.NODE_OVERLAY.name, len(objects.overlays)),
        (FeatureGate.CAPACITY_BUFFER, kinds.CAPACITY_BUFFER.name, len(objects.buffers)),
        (FeatureGate.GANG_SCHEDULING, kinds.POD_GROUP.name, len(objects.gangs)),
    ):
        if count and gate not in gates:
            yield f"{kind}s count in this plan; the controller ignores them without --feature-gates {gate}=true"
