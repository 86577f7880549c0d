"""The kinds the product speaks, and their way to and from JSON.

A ``Kind`` ties a struct to its place in the API. Structs carry no ``apiVersion`` or ``kind`` themselves: lists from an
API server leave them out, and on the way back ``encode`` writes them. ``decode`` is forgiving about explicit nulls
(API-020) and about nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeVar

import msgspec

from karpenter.api import (
    apps,
    autoscaling,
    batch,
    capacity_buffer,
    capacity_schedule,
    control_plane,
    core,
    ec2_node_class,
    karpenter,
    kwok_node_class,
    limit_range,
    machine_node_class,
    node_overlay,
    pod_groups,
    priority_class,
    provisioning_request,
    resource_claims,
    storage,
)
from karpenter.api.meta import Wire

T = TypeVar("T", bound=Wire)


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of object: where the API serves it and which struct holds it."""

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool
    type: type[T]

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def is_kind_of(self, reference: karpenter.NodeClassReference) -> bool:
        """Whether the reference is to an object of this kind, in whichever version."""
        return (reference.group, reference.kind) == (self.group, self.name)

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """URL path of the collection, an object or a subresource of it."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = f"/{name}" if name else ""
        return f"{root}{scope}/{self.plural}{tail}" + (f"/{subresource}" if subresource else "")

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[T]:
        return msgspec.json.Decoder(self.type)

    @cached_property
    def _type_meta(self) -> bytes:
        return f'{{"apiVersion":"{self.api_version}","kind":"{self.name}"'.encode()

    def decode(self, data: bytes | msgspec.Raw) -> T:
        """Decode one object.

        Raises ``msgspec.ValidationError`` naming the path of what does not fit, ``msgspec.DecodeError`` for broken JSON.
        """
        try:
            return self._decoder.decode(data)
        except msgspec.ValidationError:
            # Encoded again rather than converted: fields kept undecoded only exist as JSON.
            return self._decoder.decode(msgspec.json.encode(without_nulls(msgspec.json.decode(data))))

    def encode(self, obj: T) -> bytes:
        """JSON of one object, with ``apiVersion`` and ``kind``."""
        body = msgspec.json.encode(obj)
        return self._type_meta + (b"," if len(body) > 2 else b"") + body[1:]


def without_nulls(value: object) -> object:
    """A copy of decoded JSON without null-valued object members; nulls inside lists stay (API-020)."""
    if isinstance(value, dict):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [without_nulls(element) for element in value]
    return value


POD = Kind("", "v1", "pods", "Pod", True, core.Pod)
NODE = Kind("", "v1", "nodes", "Node", False, core.Node)
NAMESPACE = Kind("", "v1", "namespaces", "Namespace", False, core.Namespace)
CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap", True, core.ConfigMap)
EVENT = Kind("", "v1", "events", "Event", True, core.Event)
DAEMON_SET = Kind("apps", "v1", "daemonsets", "DaemonSet", True, apps.DaemonSet)
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment", True, apps.Deployment)
REPLICA_SET = Kind("apps", "v1", "replicasets", "ReplicaSet", True, apps.ReplicaSet)
STATEFUL_SET = Kind("apps", "v1", "statefulsets", "StatefulSet", True, apps.StatefulSet)
#: The same two, of which only the selectors are read: for watching all of them. Not among ``KINDS``.
SELECTOR_REPLICA_SET = Kind("apps", "v1", "replicasets", "ReplicaSet", True, apps.SelectorWorkload)
SELECTOR_STATEFUL_SET = Kind("apps", "v1", "statefulsets", "StatefulSet", True, apps.SelectorWorkload)
#: Workloads of which only selectors and the state of roll-outs are read: for watching all of them. Not among ``KINDS``.
ROLLOUT_DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment", True, apps.RolloutWorkload)
ROLLOUT_STATEFUL_SET = Kind("apps", "v1", "statefulsets", "StatefulSet", True, apps.RolloutWorkload)
#: What capacity buffers may name, as a watch of all of them needs it.
SCALED_WORKLOADS = tuple(
    Kind("apps", "v1", plural, name, True, apps.ChangingWorkload)
    for plural, name in (("deployments", "Deployment"), ("statefulsets", "StatefulSet"), ("replicasets", "ReplicaSet"))
)
#: Deployments and StatefulSets with their replicas and the managers that set them. Not among ``KINDS``.
SCALABLE_DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment", True, apps.ScalableWorkload)
SCALABLE_STATEFUL_SET = Kind("apps", "v1", "statefulsets", "StatefulSet", True, apps.ScalableWorkload)
#: Deployments with the settings of their programs. Not among ``KINDS``.
CONFIGURED_DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment", True, apps.ConfiguredDeployment)
SERVICE = Kind("", "v1", "services", "Service", True, core.Service)
REPLICATION_CONTROLLER = Kind(
    "", "v1", "replicationcontrollers", "ReplicationController", True, core.ReplicationController
)
JOB = Kind("batch", "v1", "jobs", "Job", True, batch.Job)
CRON_JOB = Kind("batch", "v1", "cronjobs", "CronJob", True, batch.CronJob)
HORIZONTAL_POD_AUTOSCALER = Kind(
    "autoscaling",
    "v2",
    "horizontalpodautoscalers",
    "HorizontalPodAutoscaler",
    True,
    autoscaling.HorizontalPodAutoscaler,
)
#: The same kind as older manifests write it. Not among ``KINDS``.
HORIZONTAL_POD_AUTOSCALER_V1 = replace(HORIZONTAL_POD_AUTOSCALER, version="v1")
PRIORITY_CLASS = Kind(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, priority_class.PriorityClass
)
LIMIT_RANGE = Kind("", "v1", "limitranges", "LimitRange", True, limit_range.LimitRange)
POD_TEMPLATE = Kind("", "v1", "podtemplates", "PodTemplate", True, core.PodTemplate)
POD_DISRUPTION_BUDGET = Kind(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, core.PodDisruptionBudget
)
PERSISTENT_VOLUME = Kind("", "v1", "persistentvolumes", "PersistentVolume", False, storage.PersistentVolume)
PERSISTENT_VOLUME_CLAIM = Kind(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, storage.PersistentVolumeClaim
)
VOLUME_ATTACHMENT = Kind(
    "storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", False, storage.VolumeAttachment
)
STORAGE_CLASS = Kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, storage.StorageClass)
CSI_NODE = Kind("storage.k8s.io", "v1", "csinodes", "CSINode", False, storage.CSINode)
RESOURCE_CLAIM = Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", True, resource_claims.ResourceClaim)
RESOURCE_CLAIM_TEMPLATE = Kind(
    "resource.k8s.io",
    "v1",
    "resourceclaimtemplates",
    "ResourceClaimTemplate",
    True,
    resource_claims.ResourceClaimTemplate,
)
DEVICE_CLASS = Kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False, resource_claims.DeviceClass)
#: Versions of the kinds above and the next that clusters before Kubernetes 1.34 serve instead; the structs read all of them.
OLDER_DEVICE_VERSIONS = ("v1beta2", "v1beta1")
RESOURCE_SLICE = Kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False, resource_claims.ResourceSlice)
#: Groups of pods, each served by some releases of Kubernetes only, behind a gate. Not among ``KINDS``.
GROUPED_WORKLOAD = Kind("scheduling.k8s.io", "v1alpha1", "workloads", "Workload", True, pod_groups.GroupedWorkload)
POD_GROUP = Kind("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", True, pod_groups.SchedulingPodGroup)
POD_GROUP_ALPHA = Kind("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup", True, pod_groups.SchedulingPodGroup)
COSCHEDULING_POD_GROUP = Kind(
    "scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", True, pod_groups.CoschedulingPodGroup
)
LEASE = Kind("coordination.k8s.io", "v1", "leases", "Lease", True, control_plane.Lease)
CUSTOM_RESOURCE_DEFINITION = Kind(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    False,
    control_plane.CustomResourceDefinition,
)
NODE_POOL = Kind("karpenter.sh", "v1", "nodepools", "NodePool", False, karpenter.NodePool)
NODE_CLAIM = Kind("karpenter.sh", "v1", "nodeclaims", "NodeClaim", False, karpenter.NodeClaim)
NODE_OVERLAY = Kind("karpenter.sh", "v1alpha1", "nodeoverlays", "NodeOverlay", False, node_overlay.NodeOverlay)
CAPACITY_BUFFER = Kind(
    "autoscaling.x-k8s.io", "v1beta1", "capacitybuffers", "CapacityBuffer", True, capacity_buffer.CapacityBuffer
)
PROVISIONING_REQUEST = Kind(
    "autoscaling.x-k8s.io",
    "v1",
    "provisioningrequests",
    "ProvisioningRequest",
    True,
    provisioning_request.ProvisioningRequest,
)
CAPACITY_SCHEDULE = Kind(
    "karpenter.sh", "v1alpha1", "capacityschedules", "CapacitySchedule", False, capacity_schedule.CapacitySchedule
)
KWOK_NODE_CLASS = Kind(
    "karpenter.kwok.sh", "v1alpha1", "kwoknodeclasses", "KWOKNodeClass", False, kwok_node_class.KWOKNodeClass
)
MACHINE_NODE_CLASS = Kind(
    "karpenter.machines",
    "v1alpha1",
    "machinenodeclasses",
    "MachineNodeClass",
    False,
    machine_node_class.MachineNodeClass,
)
EC2_NODE_CLASS = Kind("karpenter.k8s.aws", "v1", "ec2nodeclasses", "EC2NodeClass", False, ec2_node_class.EC2NodeClass)
#: Secrets are read and written by name only, in few namespaces. Not among ``KINDS``.
SECRET = Kind("", "v1", "secrets", "Secret", True, control_plane.Secret)
#: A question rather than an object, so not among ``KINDS``.
SUBJECT_ACCESS_REVIEW = Kind(
    "authorization.k8s.io",
    "v1",
    "subjectaccessreviews",
    "SubjectAccessReview",
    False,
    control_plane.SubjectAccessReview,
)
#: Another question.
TOKEN_REVIEW = Kind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False, control_plane.TokenReview)

#: Every kind, by (apiVersion, kind).
KINDS: dict[tuple[str, str], Kind[Wire]] = {
    (kind.api_version, kind.name): kind  # type: ignore[misc]
    for kind in (
        POD,
        NODE,
        NAMESPACE,
        CONFIG_MAP,
        EVENT,
        DAEMON_SET,
        DEPLOYMENT,
        REPLICA_SET,
        STATEFUL_SET,
        SERVICE,
        REPLICATION_CONTROLLER,
        JOB,
        CRON_JOB,
        HORIZONTAL_POD_AUTOSCALER,
        PRIORITY_CLASS,
        LIMIT_RANGE,
        POD_TEMPLATE,
        POD_DISRUPTION_BUDGET,
        PERSISTENT_VOLUME,
        PERSISTENT_VOLUME_CLAIM,
        VOLUME_ATTACHMENT,
        STORAGE_CLASS,
        CSI_NODE,
        RESOURCE_CLAIM,
        RESOURCE_CLAIM_TEMPLATE,
        DEVICE_CLASS,
        RESOURCE_SLICE,
        LEASE,
        CUSTOM_RESOURCE_DEFINITION,
        NODE_POOL,
        NODE_CLAIM,
        NODE_OVERLAY,
        CAPACITY_BUFFER,
        CAPACITY_SCHEDULE,
        KWOK_NODE_CLASS,
        MACHINE_NODE_CLASS,
        EC2_NODE_CLASS,
    )
}
