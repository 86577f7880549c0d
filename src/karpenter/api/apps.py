"""Workloads (``apps/v1``): DaemonSets, whose pods every node runs, and the owners of the pods Karpenter places."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from karpenter.api.core import PodTemplateSpec
from karpenter.api.meta import Condition, LabelSelector, ObjectMeta, Wire
from karpenter.api.storage import PersistentVolumeClaim


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


class StatefulSetOrdinals(Wire, frozen=True, kw_only=True):
    """How the pods of a StatefulSet are numbered."""

    start: int = 0


class StatefulSetSpec(ReplicatedSpec, frozen=True, kw_only=True):
    """StatefulSet specification: every pod has its own claim of each template."""

    volume_claim_templates: tuple[PersistentVolumeClaim, ...] = ()
    ordinals: StatefulSetOrdinals | None = None


class StatefulSet(Wire, frozen=True, kw_only=True):
    """A StatefulSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: StatefulSetSpec = StatefulSetSpec()
    status: ReplicatedStatus = ReplicatedStatus()


class RollingUpdate(Wire, frozen=True, kw_only=True):
    """How a StatefulSet replaces its pods; those with an ordinal below ``partition`` stay as they are."""

    partition: int | None = None


class UpdateStrategy(Wire, frozen=True, kw_only=True):
    """When a StatefulSet replaces its pods: ``RollingUpdate`` or ``OnDelete``."""

    type: str = ""
    rolling_update: RollingUpdate | None = None


class RolloutSpec(Wire, frozen=True, kw_only=True):
    """Of a Deployment or StatefulSet only which pods are its own, and what controls its roll-outs."""

    selector: LabelSelector | None = None
    replicas: int | None = None
    paused: bool = False
    progress_deadline_seconds: int | None = None
    update_strategy: UpdateStrategy = UpdateStrategy()


class RolloutStatus(Wire, frozen=True, kw_only=True):
    """What a Deployment or StatefulSet reports of its roll-out; it is about the generation ``observed_generation``."""

    observed_generation: int = 0
    updated_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class RolloutWorkload(Wire, frozen=True, kw_only=True):
    """A Deployment or StatefulSet with only the fields that a watch of all of them needs."""

    metadata: ObjectMeta = ObjectMeta()
    spec: RolloutSpec = RolloutSpec()
    status: RolloutStatus = RolloutStatus()


class ChangingWorkload(Wire, frozen=True, kw_only=True):
    """A Deployment, StatefulSet or ReplicaSet with its metadata only: a new generation means that it changed."""

    metadata: ObjectMeta = ObjectMeta()


class SelectorSpec(Wire, frozen=True, kw_only=True):
    """Of a ReplicaSet or StatefulSet only which pods are its own."""

    selector: LabelSelector | None = None


class SelectorWorkload(Wire, frozen=True, kw_only=True):
    """A ReplicaSet or StatefulSet with only its selector, for a watch of all of them."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SelectorSpec = SelectorSpec()


class ManagedFieldsEntry(Wire, frozen=True, kw_only=True):
    """The fields of an object that one manager set last; ``fields`` is a tree of keys such as ``f:spec``."""

    manager: str = ""
    fields: Mapping[str, object] = msgspec.field(name="fieldsV1", default={})


class ManagedObjectMeta(ObjectMeta, frozen=True, kw_only=True):
    """Metadata with the owners of fields."""

    managed_fields: tuple[ManagedFieldsEntry, ...] = ()


class PodTemplateAnnotations(Wire, frozen=True, kw_only=True):
    """Of a pod template only its metadata."""

    metadata: ObjectMeta = ObjectMeta()


class ScalableSpec(Wire, frozen=True, kw_only=True):
    """Of a Deployment or StatefulSet only its replicas and the annotations of its pods."""

    replicas: int | None = None
    template: PodTemplateAnnotations = PodTemplateAnnotations()


class ScalableWorkload(Wire, frozen=True, kw_only=True):
    """A Deployment or StatefulSet as far as scaling it needs it."""

    metadata: ManagedObjectMeta = ManagedObjectMeta()
    spec: ScalableSpec = ScalableSpec()


class EnvironmentVariable(Wire, frozen=True, kw_only=True):
    """A variable of a container; without ``value`` it comes from elsewhere."""

    name: str = ""
    value: str | None = None


class ConfiguredContainer(Wire, frozen=True, kw_only=True):
    """Arguments and environment of a container. ``env_from``: where further variables come from."""

    args: tuple[str, ...] = ()
    env: tuple[EnvironmentVariable, ...] = ()
    env_from: tuple[Mapping[str, object], ...] = ()


class ConfiguredPodSpec(Wire, frozen=True, kw_only=True):
    """The containers of a pod."""

    containers: tuple[ConfiguredContainer, ...] = ()


class ConfiguredTemplate(Wire, frozen=True, kw_only=True):
    """A pod template."""

    spec: ConfiguredPodSpec = ConfiguredPodSpec()


class ConfiguredSpec(Wire, frozen=True, kw_only=True):
    """The specification of a Deployment."""

    template: ConfiguredTemplate = ConfiguredTemplate()


class ConfiguredDeployment(Wire, frozen=True, kw_only=True):
    """A Deployment of which only the settings of its programs are read."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ConfiguredSpec = ConfiguredSpec()
