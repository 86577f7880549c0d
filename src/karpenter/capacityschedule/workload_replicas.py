"""Which replicas a Deployment or StatefulSet gets while its schedule sleeps, and afterwards (pure).

Decisions of others are respected: a workload that a user scales up at night stays as it is, and one whose replicas a GitOps
tool sets, or whose HorizontalPodAutoscaler would undo the change at once, is not touched at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from karpenter.api.apps import ScalableWorkload
from karpenter.api.autoscaling import HorizontalPodAutoscaler
from karpenter.capacityschedule.downscaler_annotations import (
    ORIGINAL_REPLICAS,
    DownscalerAnnotations,
    original_replicas,
)
from karpenter.kube.protocol import JsonObject
from karpenter.model import labels
from karpenter.model.texts import count_text

#: Field managers of tools that write replicas back within minutes.
_GITOPS_MANAGER = re.compile(
    r"^(argocd|argo-cd|kustomize-controller|helm-controller|flux|fleet|gitops|config-sync)", re.I
)


@dataclass(frozen=True)
class ScaleDownRules:
    """What holds for all workloads of a namespace. ``spares_do_not_disrupt``: pods that must not be disrupted still count."""

    began_at: datetime
    namespace_annotations: Mapping[str, str]
    spares_do_not_disrupt: bool
    autoscalers: tuple[HorizontalPodAutoscaler, ...] = ()


@dataclass(frozen=True)
class ReplicasChange:
    """A merge patch of a workload, and a sentence for its event. Without a patch the sentence says why it is left alone."""

    message: str
    patch: JsonObject | None = None


def change_for_sleep(
    kind: str, workload: ScalableWorkload, rules: ScaleDownRules, now: datetime
) -> ReplicasChange | None:
    """What happens to a workload while its schedule sleeps; None if nothing, and nothing is worth saying."""
    meta, replicas = workload.metadata, _replicas(workload)
    annotations = DownscalerAnnotations(meta.annotations, rules.namespace_annotations)
    target = annotations.downtime_replicas
    if labels.SCALED_DOWN in meta.labels:
        if replicas <= target:
            return None
        return ReplicasChange(
            f"{_last_writer(workload)} scaled to {replicas} while asleep; left alone until NodePools wake up"
        )
    is_new = meta.creation_timestamp is not None and meta.creation_timestamp > rules.began_at
    if replicas <= target or is_new or meta.deletion_timestamp is not None:
        return None
    conflict = next(_conflicts(kind, workload, rules, target, annotations.keeps_up(now)), "")
    if conflict:
        return ReplicasChange(f"not scaled down: {conflict}")
    return ReplicasChange(
        f"scaled down from {replicas} to {target} while NodePools sleep", _sleep_patch(replicas, target)
    )


def change_for_waking(
    workload: ScalableWorkload, namespace_annotations: Mapping[str, str], now: datetime
) -> ReplicasChange | None:
    """What a workload that was scaled down gets back; None if it was not, or has to wait for kube-downscaler's uptime."""
    meta, replicas = workload.metadata, _replicas(workload)
    annotations = DownscalerAnnotations(meta.annotations, namespace_annotations)
    own = meta.annotations.get(labels.REPLICAS_BEFORE_SLEEP, "")
    remembered = int(own) if own.isdecimal() else original_replicas(meta.annotations)
    if remembered is None and labels.SCALED_DOWN not in meta.labels:
        return None
    if annotations.keeps_down(now):
        return None
    forget = {
        "labels": {labels.SCALED_DOWN: None},
        "annotations": {labels.REPLICAS_BEFORE_SLEEP: None, ORIGINAL_REPLICAS: None},
    }
    if remembered is None or replicas > annotations.downtime_replicas:
        return ReplicasChange(f"keeps {count_text(replicas, 'replica')}: changed while asleep", {"metadata": forget})
    text = f"scaled back from {replicas} to {remembered}"
    return ReplicasChange(text, {"metadata": forget, "spec": {"replicas": remembered}})


def _replicas(workload: ScalableWorkload) -> int:
    return 1 if workload.spec.replicas is None else workload.spec.replicas


def _sleep_patch(replicas: int, target: int) -> JsonObject:
    """Both in one write: what is scaled down always knows its replicas."""
    metadata = {
        "labels": {labels.SCALED_DOWN: "true"},
        "annotations": {labels.REPLICAS_BEFORE_SLEEP: str(replicas)},
    }
    return {"metadata": metadata, "spec": {"replicas": target}}


def _conflicts(
    kind: str, workload: ScalableWorkload, rules: ScaleDownRules, target: int, kept_up_by: str
) -> Iterator[str]:
    if kept_up_by:
        yield f"annotation {kept_up_by}"
    template = workload.spec.template.metadata.annotations
    if rules.spares_do_not_disrupt and template.get(labels.DO_NOT_DISRUPT) == "true":
        yield f"its pods have annotation {labels.DO_NOT_DISRUPT}"
    for manager in _replica_managers(workload):
        if _GITOPS_MANAGER.match(manager):
            yield f"{manager} sets its replicas and would set them again; leave spec.replicas out of its manifest"
    for autoscaler in rules.autoscalers:
        reference = autoscaler.spec.scale_target_ref
        if (reference.kind, reference.name) == (kind, workload.metadata.name):
            yield from _autoscaler_conflict(autoscaler, target)


def _autoscaler_conflict(autoscaler: HorizontalPodAutoscaler, target: int) -> Iterator[str]:
    """A HorizontalPodAutoscaler rests while its target has no replicas, unless it may itself scale from zero."""
    name = autoscaler.metadata.name
    if autoscaler.spec.min_replicas == 0:
        yield f"HorizontalPodAutoscaler {name} scales from 0"
    elif target:
        yield f"HorizontalPodAutoscaler {name} would undo {count_text(target, 'replica')}; it rests only at 0"


def _replica_managers(workload: ScalableWorkload) -> Iterator[str]:
    for entry in workload.metadata.managed_fields:
        spec = entry.fields.get("f:spec")
        if isinstance(spec, Mapping) and "f:replicas" in spec:
            yield entry.manager


def _last_writer(workload: ScalableWorkload) -> str:
    return next(_replica_managers(workload), "somebody")
