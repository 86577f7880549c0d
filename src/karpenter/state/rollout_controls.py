"""What controls the roll-out of a workload: whether it goes on by itself, and how long it may make no progress.

Pods show that a roll-out is under way, but not that it is paused. Deployments and StatefulSets say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from karpenter.api.apps import RolloutWorkload
from karpenter.api.core import Pod
from karpenter.model.conditions import find_condition

#: Namespace, kind and name of what owns pods.
WorkloadKey = tuple[str, str, str]
_TEMPLATE_HASH = "pod-template-hash"
_REVISION = "controller-revision-hash"
#: The default ``progressDeadlineSeconds`` of a Deployment. StatefulSets have no deadline; theirs is the same.
DEFAULT_PROGRESS_DEADLINE = timedelta(minutes=10)
#: A longer deadline counts as this one.
_MAX_PROGRESS_DEADLINE = timedelta(minutes=15)
_ON_DELETE = "OnDelete"


@dataclass(frozen=True)
class RolloutControl:
    """``is_stopped``: the roll-out does not go on by itself, because it is paused, has failed, or waits for a user."""

    is_stopped: bool = False
    progress_deadline: timedelta = DEFAULT_PROGRESS_DEADLINE


#: A workload without settings of its own.
DEFAULT_ROLLOUT_CONTROL = RolloutControl()


def workload_version(pod: Pod) -> tuple[WorkloadKey, str] | None:
    """Which workload the pod is of, and in which version; None for pods of no workload with versions."""
    own = pod.metadata.labels
    for owner in pod.metadata.owner_references:
        if owner.kind == "ReplicaSet" and (version := own.get(_TEMPLATE_HASH)):
            return (pod.metadata.namespace, "Deployment", owner.name.removesuffix(f"-{version}")), version
        if owner.kind == "StatefulSet" and (version := own.get(_REVISION)):
            return (pod.metadata.namespace, owner.kind, owner.name), version
    return None


def rollout_control(workload: RolloutWorkload) -> RolloutControl:
    """What a Deployment or StatefulSet says about its roll-out."""
    seconds = workload.spec.progress_deadline_seconds
    deadline = DEFAULT_PROGRESS_DEADLINE if seconds is None else timedelta(seconds=seconds)
    return RolloutControl(_is_stopped(workload), min(deadline, _MAX_PROGRESS_DEADLINE))


def _is_stopped(workload: RolloutWorkload) -> bool:
    spec = workload.spec
    if spec.paused or spec.update_strategy.type == _ON_DELETE:
        return True
    return _is_status_current(workload) and (_has_failed(workload) or _waits_at_partition(workload))


def _is_status_current(workload: RolloutWorkload) -> bool:
    """Whether the status is about the present specification. Right after a change it is still about the roll-out before."""
    return workload.status.observed_generation >= workload.metadata.generation


def _has_failed(workload: RolloutWorkload) -> bool:
    """Whether a Deployment has exceeded its progress deadline."""
    progressing = find_condition(workload.status.conditions, "Progressing")
    return progressing is not None and progressing.status == "False"


def _waits_at_partition(workload: RolloutWorkload) -> bool:
    """Whether a StatefulSet has replaced all pods that its partition lets it replace."""
    rolling_update = workload.spec.update_strategy.rolling_update
    partition = rolling_update.partition if rolling_update is not None else None
    replicas = 1 if workload.spec.replicas is None else workload.spec.replicas
    return bool(partition) and workload.status.updated_replicas >= replicas - (partition or 0)
