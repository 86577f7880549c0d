"""The Kubernetes kinds that decisions read, each cut down to the fields that matter to them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from karpenter.api.meta import Condition, LabelSelector, ObjectMeta, ObjectReference, Wire, WireResources
from karpenter.api.scheduling_constraints import Affinity, Taint, Toleration, TopologySpreadConstraint
from karpenter.api.storage import Volume


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


class PodResourceClaim(Wire, frozen=True, kw_only=True):
    """A claim for devices of a pod: a claim by name, or a template that one is made of for the pod alone."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodResourceClaimStatus(Wire, frozen=True, kw_only=True):
    """The claim that was made for a pod of a template; without a name none is needed."""

    name: str = ""
    resource_claim_name: str | None = None


class PodSchedulingGate(Wire, frozen=True, kw_only=True):
    """A gate that holds a pod back from the scheduler."""

    name: str


class PodOS(Wire, frozen=True, kw_only=True):
    """The operating system a pod is written for."""

    name: str = ""


class PodWorkloadReference(Wire, frozen=True, kw_only=True):
    """The group of a Workload that a pod belongs to (Kubernetes 1.35). Each replica key is a group of its own."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str = ""


class PodSchedulingGroup(Wire, frozen=True, kw_only=True):
    """The PodGroup that a pod belongs to (Kubernetes 1.36 and later)."""

    pod_group_name: str = ""


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
    workload_ref: PodWorkloadReference | None = None
    scheduling_group: PodSchedulingGroup | None = None
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
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()


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


class NodeSystemInfo(Wire, frozen=True, kw_only=True):
    """What the kubelet reports of the machine, as far as it matters here."""

    boot_id: str = msgspec.field(name="bootID", default="")


class NodeStatus(Wire, frozen=True, kw_only=True):
    """Node status."""

    capacity: WireResources = {}
    allocatable: WireResources = {}
    conditions: tuple[Condition, ...] = ()
    phase: str = ""
    node_info: NodeSystemInfo = NodeSystemInfo()


class Node(Wire, frozen=True, kw_only=True):
    """A node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class PodTemplateSpec(Wire, frozen=True, kw_only=True):
    """The pod a workload controller stamps out."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class LabelMapSelectorSpec(Wire, frozen=True, kw_only=True):
    """Of a Service or ReplicationController only which pods it selects: those with these labels."""

    selector: Mapping[str, str] | None = None


class Service(Wire, frozen=True, kw_only=True):
    """A Service; without a selector it selects no pods."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LabelMapSelectorSpec = LabelMapSelectorSpec()


class ReplicationController(Wire, frozen=True, kw_only=True):
    """A ReplicationController."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LabelMapSelectorSpec = LabelMapSelectorSpec()


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
