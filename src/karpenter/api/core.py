"""The Kubernetes kinds that decisions read, each cut down to the fields that matter to them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from karpenter.api.meta import Condition, LabelSelector, ObjectMeta, Wire, WireResources


class Taint(Wire, frozen=True, kw_only=True):
    """A node taint."""

    key: str
    effect: str
    value: str = ""
    time_added: datetime | None = None


class Toleration(Wire, frozen=True, kw_only=True):
    """A pod toleration; an empty key with operator Exists tolerates every key."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeSelectorRequirement(Wire, frozen=True, kw_only=True):
    """One expression of a node selector term."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Wire, frozen=True, kw_only=True):
    """Expressions that must all hold."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class PreferredSchedulingTerm(Wire, frozen=True, kw_only=True):
    """A weighted node preference."""

    weight: int
    preference: NodeSelectorTerm


class NodeSelector(Wire, frozen=True, kw_only=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(Wire, frozen=True, kw_only=True):
    """Required (OR of terms) and preferred (weighted) node affinity."""

    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: tuple[PreferredSchedulingTerm, ...] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class PodAffinityTerm(Wire, frozen=True, kw_only=True):
    """Pods this pod wants near (or, in anti-affinity, far) within one topology domain."""

    topology_key: str
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Wire, frozen=True, kw_only=True):
    """A weighted pod (anti-)affinity preference."""

    weight: int
    pod_affinity_term: PodAffinityTerm


class PodAffinity(Wire, frozen=True, kw_only=True):
    """Required and preferred pod affinity or anti-affinity."""

    required: tuple[PodAffinityTerm, ...] = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=()
    )
    preferred: tuple[WeightedPodAffinityTerm, ...] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class Affinity(Wire, frozen=True, kw_only=True):
    """All affinities of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Wire, frozen=True, kw_only=True):
    """How evenly matching pods must spread over the domains of a topology key."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: str
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] = ()


class ResourceRequirements(Wire, frozen=True, kw_only=True):
    """Requests and limits of a container or pod; ``claims`` only tells that devices are claimed."""

    requests: WireResources = {}
    limits: WireResources = {}


class ContainerPort(Wire, frozen=True, kw_only=True):
    """A container port; only those with ``host_port`` matter to scheduling."""

    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = "TCP"


class Container(Wire, frozen=True, kw_only=True):
    """A container or init container; an init container that restarts ``Always`` is a sidecar."""

    name: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""


class PersistentVolumeClaimSource(Wire, frozen=True, kw_only=True):
    """Reference to a claim in the pod's namespace."""

    claim_name: str


class PersistentVolumeClaimSpec(Wire, frozen=True, kw_only=True):
    """What a claim asks for, and the volume it has: none until one is bound to it.

    An absent class is the cluster's default one, filled in when the claim is made; an empty class asks for no class at all.
    """

    storage_class_name: str | None = None
    volume_name: str = ""
    access_modes: tuple[str, ...] = ()


class PersistentVolumeClaimTemplate(Wire, frozen=True, kw_only=True):
    """The claim that is made for a pod alone."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class EphemeralVolumeSource(Wire, frozen=True, kw_only=True):
    """A volume that lives as long as its pod, by a claim called after pod and volume."""

    volume_claim_template: PersistentVolumeClaimTemplate = PersistentVolumeClaimTemplate()


class InTreeDisk(Wire, frozen=True, kw_only=True):
    """A disk a pod names without a claim; which of the names it has depends on the cloud."""

    volume_id: str = msgspec.field(name="volumeID", default="")
    pd_name: str = ""
    disk_uri: str = msgspec.field(name="diskURI", default="")


class Volume(Wire, frozen=True, kw_only=True):
    """A pod volume; sources that do not influence where the pod may run are not decoded."""

    name: str = ""
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    ephemeral: EphemeralVolumeSource | None = None
    aws_elastic_block_store: InTreeDisk | None = None
    gce_persistent_disk: InTreeDisk | None = None
    azure_disk: InTreeDisk | None = None
    cinder: InTreeDisk | None = None


class PodResourceClaim(Wire, frozen=True, kw_only=True):
    """A dynamic resource claim of a pod."""

    name: str = ""


class PodSchedulingGate(Wire, frozen=True, kw_only=True):
    """A gate that holds a pod back from the scheduler."""

    name: str


class PodOS(Wire, frozen=True, kw_only=True):
    """The operating system a pod is written for."""

    name: str = ""


class PodSpec(Wire, frozen=True, kw_only=True):
    """What scheduling reads of a pod's specification."""

    node_name: str = ""
    node_selector: Mapping[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ResourceRequirements | None = None
    overhead: WireResources = {}
    volumes: tuple[Volume, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    host_network: bool = False
    os: PodOS | None = None
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    scheduler_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    termination_grace_period_seconds: int | None = None


class ContainerStatus(Wire, frozen=True, kw_only=True):
    """Resources a running container actually holds (in-place resize)."""

    name: str = ""
    resources: ResourceRequirements | None = None
    allocated_resources: WireResources = {}


class PodStatus(Wire, frozen=True, kw_only=True):
    """What decisions read of a pod's status."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    nominated_node_name: str = ""
    start_time: datetime | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resources: ResourceRequirements | None = None
    allocated_resources: WireResources = {}


class Pod(Wire, frozen=True, kw_only=True):
    """A pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeSpec(Wire, frozen=True, kw_only=True):
    """Node specification."""

    provider_id: str = msgspec.field(name="providerID", default="")
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeStatus(Wire, frozen=True, kw_only=True):
    """Node status."""

    capacity: WireResources = {}
    allocatable: WireResources = {}
    conditions: tuple[Condition, ...] = ()
    phase: str = ""


class Node(Wire, frozen=True, kw_only=True):
    """A node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class PodTemplateSpec(Wire, frozen=True, kw_only=True):
    """The pod a workload controller stamps out."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class DaemonSetSpec(Wire, frozen=True, kw_only=True):
    """DaemonSet specification."""

    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class DaemonSet(Wire, frozen=True, kw_only=True):
    """A DaemonSet; its pods are overhead on every node they fit."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DaemonSetSpec = DaemonSetSpec()


class ReplicatedSpec(Wire, frozen=True, kw_only=True):
    """Specification shared by Deployment and ReplicaSet."""

    replicas: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class ReplicatedStatus(Wire, frozen=True, kw_only=True):
    """Counts a Deployment or ReplicaSet reports."""

    replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    observed_generation: int = 0


class Deployment(Wire, frozen=True, kw_only=True):
    """A Deployment."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicatedSpec = ReplicatedSpec()
    status: ReplicatedStatus = ReplicatedStatus()


class ReplicaSet(Wire, frozen=True, kw_only=True):
    """A ReplicaSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicatedSpec = ReplicatedSpec()
    status: ReplicatedStatus = ReplicatedStatus()


class StatefulSet(Wire, frozen=True, kw_only=True):
    """A StatefulSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicatedSpec = ReplicatedSpec()
    status: ReplicatedStatus = ReplicatedStatus()


class SelectingSpec(Wire, frozen=True, kw_only=True):
    """Of a ReplicaSet or StatefulSet only which pods are its own."""

    selector: LabelSelector | None = None


class SelectingWorkload(Wire, frozen=True, kw_only=True):
    """A ReplicaSet or StatefulSet for whoever watches all of them and needs but their selectors."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SelectingSpec = SelectingSpec()


class LabelledSpec(Wire, frozen=True, kw_only=True):
    """Of a Service or ReplicationController only which pods it selects: those with these labels."""

    selector: Mapping[str, str] | None = None


class Service(Wire, frozen=True, kw_only=True):
    """A Service; without a selector it selects no pods."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LabelledSpec = LabelledSpec()


class ReplicationController(Wire, frozen=True, kw_only=True):
    """A ReplicationController."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LabelledSpec = LabelledSpec()


class PodTemplate(Wire, frozen=True, kw_only=True):
    """A template of pods that stands alone."""

    metadata: ObjectMeta = ObjectMeta()
    template: PodTemplateSpec = PodTemplateSpec()


class PodDisruptionBudgetSpec(Wire, frozen=True, kw_only=True):
    """How many of the selected pods must stay."""

    selector: LabelSelector | None = None
    min_available: str | int | None = None
    max_unavailable: str | int | None = None
    unhealthy_pod_eviction_policy: str | None = None


class PodDisruptionBudgetStatus(Wire, frozen=True, kw_only=True):
    """How many evictions are allowed now."""

    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    observed_generation: int = 0
    #: Pods whose eviction was granted and has not been seen yet, and since when.
    disrupted_pods: Mapping[str, datetime] = {}
    conditions: tuple[Condition, ...] = ()


class PodDisruptionBudget(Wire, frozen=True, kw_only=True):
    """A PodDisruptionBudget."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class Namespace(Wire, frozen=True, kw_only=True):
    """A namespace."""

    metadata: ObjectMeta = ObjectMeta()


class ConfigMap(Wire, frozen=True, kw_only=True):
    """A ConfigMap with text data."""

    metadata: ObjectMeta = ObjectMeta()
    data: Mapping[str, str] = {}


class LeaseSpec(Wire, frozen=True, kw_only=True):
    """Who holds a lease and until when. Times are RFC 3339 text with microseconds, as the API wants them."""

    holder_identity: str = ""
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Wire, frozen=True, kw_only=True):
    """A coordination lease."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


class ObjectReference(Wire, frozen=True, kw_only=True):
    """The object an event is about."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""


class EventSource(Wire, frozen=True, kw_only=True):
    """The component that wrote an event."""

    component: str = ""


class Event(Wire, frozen=True, kw_only=True):
    """A core/v1 event."""

    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = ""
    source: EventSource = EventSource()
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    count: int = 0


class VolumeAttachmentSource(Wire, frozen=True, kw_only=True):
    """What is attached; a volume without an object of its own (inline) has no name here."""

    persistent_volume_name: str = ""


class VolumeAttachmentSpec(Wire, frozen=True, kw_only=True):
    """Which volume is, or is to be, attached to which node."""

    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(Wire, frozen=True, kw_only=True):
    """A volume on a node; the cluster's attach/detach controller makes and removes it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()


class VolumeNodeAffinity(Wire, frozen=True, kw_only=True):
    """Which nodes can reach a volume."""

    required: NodeSelector | None = None


class CSIVolume(Wire, frozen=True, kw_only=True):
    """A volume of a CSI driver."""

    driver: str = ""


class VolumeSource(Wire, frozen=True, kw_only=True):
    """A source of a volume of which only the presence matters."""


class PersistentVolumeSpec(Wire, frozen=True, kw_only=True):
    """Which claim a volume belongs to, where it can be reached and what provides it."""

    claim_ref: ObjectReference | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIVolume | None = None
    local: VolumeSource | None = None
    host_path: VolumeSource | None = None
    aws_elastic_block_store: VolumeSource | None = None
    gce_persistent_disk: VolumeSource | None = None
    azure_disk: VolumeSource | None = None
    azure_file: VolumeSource | None = None
    cinder: VolumeSource | None = None
    portworx_volume: VolumeSource | None = None
    vsphere_volume: VolumeSource | None = None


class PersistentVolume(Wire, frozen=True, kw_only=True):
    """A volume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class PersistentVolumeClaimStatus(Wire, frozen=True, kw_only=True):
    """Whether a claim is Pending, Bound or Lost."""

    phase: str = ""


class PersistentVolumeClaim(Wire, frozen=True, kw_only=True):
    """What pods name when they want a volume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class TopologySelectorRequirement(Wire, frozen=True, kw_only=True):
    """A label and the values it may have."""

    key: str
    values: tuple[str, ...] = ()


class TopologySelectorTerm(Wire, frozen=True, kw_only=True):
    """Labels that must all fit."""

    match_label_expressions: tuple[TopologySelectorRequirement, ...] = ()


class StorageClass(Wire, frozen=True, kw_only=True):
    """How volumes of a class are made; an absent binding mode is Immediate."""

    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    volume_binding_mode: str = ""
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()


class VolumeNodeResources(Wire, frozen=True, kw_only=True):
    """How many volumes of a driver a node can hold; absent: as many as one likes."""

    count: int | None = None


class CSINodeDriver(Wire, frozen=True, kw_only=True):
    """A CSI driver that runs on a node."""

    name: str = ""
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(Wire, frozen=True, kw_only=True):
    """The CSI drivers of a node."""

    drivers: tuple[CSINodeDriver, ...] = ()


class CSINode(Wire, frozen=True, kw_only=True):
    """What CSI drivers say about the node of the same name."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CSINodeSpec = CSINodeSpec()


class CustomResourceDefinition(Wire, frozen=True, kw_only=True):
    """A CRD; only its existence and conditions are read back."""

    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
