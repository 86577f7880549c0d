"""Where kinds carry the specification of a pod: their own or that of their template."""

from __future__ import annotations

from collections.abc import Mapping

from karpenter.api.apps import DaemonSet, Deployment, ReplicaSet, StatefulSet
from karpenter.api.batch import CronJob, Job
from karpenter.api.core import Pod, PodSpec, PodTemplate, PodTemplateSpec

#: Kinds whose controllers create pods that Karpenter launches nodes for; a template that stands alone counts as one pod.
Workload = Deployment | ReplicaSet | StatefulSet | Job | CronJob | PodTemplate
PodCarrier = Pod | DaemonSet | Workload

_TEMPLATE = ("spec", "template", "spec")
_POD_SPEC_PATHS: Mapping[type[PodCarrier], tuple[str, ...]] = {
    Pod: ("spec",),
    DaemonSet: _TEMPLATE,
    Deployment: _TEMPLATE,
    ReplicaSet: _TEMPLATE,
    StatefulSet: _TEMPLATE,
    Job: _TEMPLATE,
    CronJob: ("spec", "jobTemplate", *_TEMPLATE),
    PodTemplate: ("template", "spec"),
}


def pod_spec_path(carrier: type[object]) -> tuple[str, ...]:
    """The members that lead to the pod specification in an object of this type; empty where it carries none."""
    return next((path for kind, path in _POD_SPEC_PATHS.items() if kind is carrier), ())


def pod_spec_of(carrier: PodCarrier) -> PodSpec:
    """The specification of the pods of an object."""
    return carrier.spec if isinstance(carrier, Pod) else pod_template_of(carrier).spec


def pod_template_of(carrier: DaemonSet | Workload) -> PodTemplateSpec:
    """The template of the pods of an object."""
    match carrier:
        case PodTemplate():
            return carrier.template
        case CronJob():
            return carrier.spec.job_template.spec.template
        case _:
            return carrier.spec.template
