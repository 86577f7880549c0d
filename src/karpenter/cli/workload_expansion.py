"""Pods that workloads in the input do not have yet, as their controllers would create them.

A Deployment, ReplicaSet or StatefulSet gets its replicas less the pods already there, a Job as many as run at once, a CronJob the
pods of one run, a template that stands alone one pod. A HorizontalPodAutoscaler sets the replicas of its target: those the target
has now (within the autoscaler's range), its least or its most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from karpenter.api import kinds
from karpenter.api.apps import (
    Deployment,
    ReplicaSet,
    ReplicatedSpec,
    SelectorSpec,
    SelectorWorkload,
    StatefulSet,
    StatefulSetSpec,
)
from karpenter.api.autoscaling import HorizontalPodAutoscaler
from karpenter.api.batch import CronJob, Job, JobSpec
from karpenter.api.core import Pod, PodTemplate, PodTemplateSpec
from karpenter.api.meta import LabelSelector, ObjectMeta, OwnerReference
from karpenter.api.storage import PersistentVolumeClaim, PersistentVolumeClaimSource, Volume
from karpenter.cli.assumed_status import UNSCHEDULED_POD_STATUS, assumed_uid
from karpenter.cli.capacity_buffer_pods import buffer_template_references
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.cli.planning_options import ReplicaChoice
from karpenter.model import pods, selectors
from karpenter.model.pod_templates import Workload
from karpenter.model.pods import controller_of
from karpenter.model.workload_pods import (
    POD_INDEX_LABEL,
    REVISION_HASH_LABEL,
    STATEFUL_SET_POD_NAME_LABEL,
    TEMPLATE_HASH_LABEL,
    desired_replicas,
    pod_of_template,
    reference_to,
    replica_set_of,
    template_hash,
    with_labels,
)

_JOB_NAME_LABELS = ("batch.kubernetes.io/job-name", "job-name")
_FINISHED = ("Complete", "Failed")


def expand_workloads(objects: ClusterObjects, choice: ReplicaChoice) -> dict[str, int]:
    """Add to the objects what the controllers of their workloads would create. Returns replicas by the uid of the pods' owner."""
    expansion = _WorkloadExpansion(objects, choice)
    for workload in objects.workloads:
        expansion.expand(workload)
    expansion.note_autoscalers_without_target()
    return expansion.replicas_by_owner


class _WorkloadExpansion:
    """Adds pods workload after workload. ``replicas_by_owner``: what the owner of pods is set to, by its uid."""

    def __init__(self, objects: ClusterObjects, choice: ReplicaChoice) -> None:
        self.replicas_by_owner: dict[str, int] = {}
        self._objects = objects
        self._choice = choice
        self._pods: defaultdict[str, list[Pod]] = defaultdict(list)
        for pod in objects.pods:
            self._pods[pod.metadata.namespace].append(pod)
        self._pod_names = {(pod.metadata.namespace, pod.metadata.name) for pod in objects.pods}
        self._claim_names = {(claim.metadata.namespace, claim.metadata.name) for claim in objects.volume_claims}
        self._autoscalers = {_target_of(autoscaler): autoscaler for autoscaler in objects.autoscalers}
        templates = buffer_template_references(objects)
        self._buffer_templates = {(namespace, template.kind.name, template.name) for namespace, template in templates}
        self._workload_keys = {_key(workload) for workload in objects.workloads}

    def expand(self, workload: Workload) -> None:
        """Add the pods that a workload is short of."""
        match workload:
            case Deployment():
                self._expand_deployment(workload)
            case ReplicaSet() if not self._is_owned_here(workload.metadata):
                self._expand_replica_set(workload)
            case StatefulSet():
                self._expand_stateful_set(workload)
            case Job():
                self._expand_job(workload)
            case CronJob():
                self._expand_cron_job(workload)
            case PodTemplate() if _key(workload) not in self._buffer_templates and not self._objects.from_cluster:
                self._add_pods(workload.template, workload.metadata, None, 1)

    def note_autoscalers_without_target(self) -> None:
        """Tell of autoscalers that scale nothing in the input."""
        for (namespace, kind, name), autoscaler in self._autoscalers.items():
            if (namespace, kind, name) not in self._workload_keys and not self._objects.from_cluster:
                self._objects.notices.append(
                    f"HorizontalPodAutoscaler {namespace}/{autoscaler.metadata.name}: {kind} {name} is not in the input; add it"
                )

    # -- replicas -------------------------------------------------------------------------------------------------------

    def _replicas(self, workload: Deployment | ReplicaSet | StatefulSet) -> int:
        spec: ReplicatedSpec = workload.spec
        autoscaler = self._autoscalers.get(_key(workload))
        if autoscaler is None or spec.replicas == 0:  # with 0 replicas an autoscaler is switched off
            return desired_replicas(spec)
        least, most = _range_of(autoscaler)
        if self._choice == "current":
            return min(max(desired_replicas(spec), least), most)
        return least if self._choice == "min" else most

    # -- Deployments and ReplicaSets --------------------------------------------------------------------------------------

    def _expand_deployment(self, deployment: Deployment) -> None:
        template, metadata = deployment.spec.template, deployment.metadata
        existing = self._selected_pods(metadata.namespace, deployment.spec, template)
        wanted = self._replicas(deployment)
        owner, labels = self._replica_set_of(deployment, existing, wanted)
        self._settle(existing, wanted)
        for pod in existing:
            if (controller := controller_of(pod.metadata)) is not None:
                self.replicas_by_owner.setdefault(controller.uid, 0)
        self.replicas_by_owner[owner.uid] = wanted
        self._add_pods(with_labels(template, labels), metadata, owner, wanted - len(existing))

    def _replica_set_of(
        self, deployment: Deployment, existing: Sequence[Pod], wanted: int
    ) -> tuple[OwnerReference, Mapping[str, str]]:
        """The owner of the Deployment's new pods and the label that tells its version; those of the pods there, if any."""
        for pod in existing:
            owner = controller_of(pod.metadata)
            if owner is not None and TEMPLATE_HASH_LABEL in pod.metadata.labels:
                return owner, {TEMPLATE_HASH_LABEL: pod.metadata.labels[TEMPLATE_HASH_LABEL]}
        version = template_hash(deployment.spec.template)
        replica_set = replica_set_of(deployment, f"{deployment.metadata.name}-{version}", wanted)
        uid = assumed_uid(kinds.REPLICA_SET.name, replica_set.metadata)
        metadata = msgspec.structs.replace(replica_set.metadata, uid=uid)
        self._add_selector(metadata, replica_set.spec.selector)
        return reference_to(kinds.REPLICA_SET, metadata), {TEMPLATE_HASH_LABEL: version}

    def _expand_replica_set(self, replica_set: ReplicaSet) -> None:
        template, metadata = replica_set.spec.template, replica_set.metadata
        existing = self._selected_pods(metadata.namespace, replica_set.spec, template)
        wanted = self._replicas(replica_set)
        self._settle(existing, wanted)
        self.replicas_by_owner[metadata.uid] = wanted
        self._add_selector(metadata, replica_set.spec.selector)
        owner = reference_to(kinds.REPLICA_SET, metadata)
        self._add_pods(template, metadata, owner, wanted - len(existing))

    def _selected_pods(self, namespace: str, spec: ReplicatedSpec, template: PodTemplateSpec) -> list[Pod]:
        """The workload's pods that are there, those that another kind of workload controls left out."""
        selector = spec.selector or LabelSelector(match_labels=template.metadata.labels)
        return [
            pod
            for pod in self._pods[namespace]
            if pods.is_active(pod)
            and ((owner := controller_of(pod.metadata)) is None or owner.kind == kinds.REPLICA_SET.name)
            and selectors.selector_matches(selector, pod.metadata.labels)
        ]

    def _settle(self, existing: list[Pod], wanted: int) -> None:
        """At the least replicas, pods beyond them are gone; those without a node go first."""
        surplus = len(existing) - wanted
        if self._choice != "min" or surplus <= 0:
            return
        ordered = sorted(existing, key=lambda pod: (bool(pod.spec.node_name), pod.metadata.name))
        gone = {id(pod) for pod in ordered[:surplus]}
        self._objects.pods = [pod for pod in self._objects.pods if id(pod) not in gone]
        existing[:] = ordered[surplus:]

    # -- StatefulSets -----------------------------------------------------------------------------------------------------

    def _expand_stateful_set(self, stateful_set: StatefulSet) -> None:
        spec, metadata = stateful_set.spec, stateful_set.metadata
        wanted = self._replicas(stateful_set)
        self.replicas_by_owner[metadata.uid] = wanted
        self._add_selector(metadata, spec.selector)
        owner = reference_to(kinds.STATEFUL_SET, metadata)
        revision = f"{metadata.name}-{template_hash(spec.template)}"
        first = spec.ordinals.start if spec.ordinals is not None else 0
        ordinals = range(first, first + wanted)
        self._remove_beyond(stateful_set, ordinals)
        for ordinal in ordinals:
            name = f"{metadata.name}-{ordinal}"
            if (metadata.namespace, name) in self._pod_names:
                continue
            labels = {STATEFUL_SET_POD_NAME_LABEL: name, POD_INDEX_LABEL: str(ordinal), REVISION_HASH_LABEL: revision}
            template = with_labels(self._with_claims(spec, name, metadata.namespace), labels)
            self._add_pod(pod_of_template(template, name, metadata.namespace, owner))

    def _remove_beyond(self, stateful_set: StatefulSet, ordinals: range) -> None:
        if self._choice != "min":
            return
        staying = {f"{stateful_set.metadata.name}-{ordinal}" for ordinal in ordinals}
        self._objects.pods = [
            pod
            for pod in self._objects.pods
            if (owner := controller_of(pod.metadata)) is None
            or owner.uid != stateful_set.metadata.uid
            or pod.metadata.name in staying
        ]

    def _with_claims(self, spec: StatefulSetSpec, pod_name: str, namespace: str) -> PodTemplateSpec:
        """The template with the pod's own claims for volumes, which are made where they are not there."""
        own = {claim.metadata.name: f"{claim.metadata.name}-{pod_name}" for claim in spec.volume_claim_templates}
        for claim in spec.volume_claim_templates:
            self._add_claim(claim, own[claim.metadata.name], namespace)
        volumes = [volume for volume in spec.template.spec.volumes if volume.name not in own]
        volumes += [
            Volume(name=name, persistent_volume_claim=PersistentVolumeClaimSource(claim_name=claim_name))
            for name, claim_name in own.items()
        ]
        pod_spec = msgspec.structs.replace(spec.template.spec, volumes=tuple(volumes))
        return msgspec.structs.replace(spec.template, spec=pod_spec)

    def _add_claim(self, template: PersistentVolumeClaim, name: str, namespace: str) -> None:
        if (namespace, name) in self._claim_names:
            return
        self._claim_names.add((namespace, name))
        metadata = ObjectMeta(name=name, namespace=namespace, labels=template.metadata.labels)
        uid = assumed_uid(kinds.PERSISTENT_VOLUME_CLAIM.name, metadata)
        claim = msgspec.structs.replace(template, metadata=msgspec.structs.replace(metadata, uid=uid))
        self._objects.volume_claims.append(claim)

    # -- Jobs and CronJobs ------------------------------------------------------------------------------------------------

    def _expand_job(self, job: Job) -> None:
        if _is_finished(job):
            return
        if job.spec.suspend:
            self._note_suspended("Job", job.metadata)
            return
        running = sum(pods.is_active(pod) for pod in self._pods_of_job(job.metadata))
        labels = dict.fromkeys(_JOB_NAME_LABELS, job.metadata.name)
        owner = reference_to(kinds.JOB, job.metadata)
        count = _parallel_pods(job.spec, job.status.succeeded) - running
        self._add_pods(with_labels(job.spec.template, labels), job.metadata, owner, count)

    def _expand_cron_job(self, cron_job: CronJob) -> None:
        """One run, unless a run is among the objects and not finished."""
        if cron_job.spec.suspend:
            self._note_suspended("CronJob", cron_job.metadata)
        elif not any(self._runs(cron_job)):
            template = cron_job.spec.job_template
            name = f"{cron_job.metadata.name}-run"
            metadata = ObjectMeta(name=name, namespace=cron_job.metadata.namespace, labels=template.metadata.labels)
            metadata = msgspec.structs.replace(metadata, uid=assumed_uid(kinds.JOB.name, metadata))
            self._expand_job(Job(metadata=metadata, spec=template.spec))

    def _runs(self, cron_job: CronJob) -> Iterator[Job]:
        for job in self._objects.workloads:
            owner = controller_of(job.metadata) if isinstance(job, Job) and not _is_finished(job) else None
            if owner is not None and owner.kind == kinds.CRON_JOB.name and owner.name == cron_job.metadata.name:
                yield job  # type: ignore[misc]

    def _pods_of_job(self, metadata: ObjectMeta) -> Iterator[Pod]:
        for pod in self._pods[metadata.namespace]:
            owner = controller_of(pod.metadata)
            if owner is not None and (owner.kind, owner.name) == (kinds.JOB.name, metadata.name):
                yield pod

    def _note_suspended(self, kind: str, metadata: ObjectMeta) -> None:
        self._objects.notices.append(f"{kind} {metadata.namespace}/{metadata.name} is suspended: it gets no pods")

    # -- what is added ----------------------------------------------------------------------------------------------------

    def _is_owned_here(self, metadata: ObjectMeta) -> bool:
        """Whether a workload of the input controls the object, and so decides about its pods."""
        owner = controller_of(metadata)
        return owner is not None and (metadata.namespace, owner.kind, owner.name) in self._workload_keys

    def _add_selector(self, metadata: ObjectMeta, selector: LabelSelector | None) -> None:
        """Default spread constraints are worked out from the selectors of workloads."""
        self._objects.owners.append(SelectorWorkload(metadata=metadata, spec=SelectorSpec(selector=selector)))

    def _add_pods(
        self, template: PodTemplateSpec, parent: ObjectMeta, owner: OwnerReference | None, count: int
    ) -> None:
        """Add so many pods, called after the workload with numbers that are free."""
        number = 0
        for _ in range(count):
            number = self._next_free_number(parent, number)
            name = f"{parent.name}-{number}"
            if owner is not None:
                self._add_pod(pod_of_template(template, name, parent.namespace, owner))
            else:
                metadata = msgspec.structs.replace(template.metadata, name=name, namespace=parent.namespace)
                self._add_pod(Pod(metadata=metadata, spec=template.spec))

    def _next_free_number(self, parent: ObjectMeta, number: int) -> int:
        number += 1
        while (parent.namespace, f"{parent.name}-{number}") in self._pod_names:
            number += 1
        return number

    def _add_pod(self, pod: Pod) -> None:
        metadata = msgspec.structs.replace(pod.metadata, uid=assumed_uid(kinds.POD.name, pod.metadata))
        self._pod_names.add((metadata.namespace, metadata.name))
        self._objects.pods.append(msgspec.structs.replace(pod, metadata=metadata, status=UNSCHEDULED_POD_STATUS))


_WorkloadKey = tuple[str, str, str]


def _key(workload: Workload) -> _WorkloadKey:
    """Namespace, kind and name."""
    return workload.metadata.namespace, type(workload).__name__, workload.metadata.name


def _target_of(autoscaler: HorizontalPodAutoscaler) -> _WorkloadKey:
    target = autoscaler.spec.scale_target_ref
    return autoscaler.metadata.namespace, target.kind, target.name


def _range_of(autoscaler: HorizontalPodAutoscaler) -> tuple[int, int]:
    least = 1 if autoscaler.spec.min_replicas is None else autoscaler.spec.min_replicas
    return least, max(least, autoscaler.spec.max_replicas)


def _is_finished(job: Job) -> bool:
    return any(condition.type in _FINISHED and condition.status == "True" for condition in job.status.conditions)


def _parallel_pods(spec: JobSpec, succeeded: int) -> int:
    """How many pods of a Job run at once."""
    parallelism = 1 if spec.parallelism is None else spec.parallelism
    return parallelism if spec.completions is None else max(0, min(parallelism, spec.completions - succeeded))
