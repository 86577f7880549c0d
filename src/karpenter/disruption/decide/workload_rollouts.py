"""Roll-outs in progress: consolidation waits for them, because the roll-out itself will delete the pods of the old version.

Pods show that a roll-out is in progress: two versions exist, and the newer version has grown within the progress deadline, since
one of its pods was created or became ready. Several new pods of the old version are scaling, not a roll-out; a single one
replaces a pod that was evicted or lost. Two facts come from the Deployment or StatefulSet instead (``state.rollout_controls``):
the deadline, and whether the roll-out is stopped. It is stopped if it is paused, has failed, or waits for a user (OnDelete,
partition). A stopped roll-out delays nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from datetime import datetime, timedelta
from itertools import chain

from karpenter.api.core import Pod
from karpenter.disruption.decide.command import Candidate
from karpenter.disruption.decide.disruption_blockers import RolloutInProgress
from karpenter.model import pods
from karpenter.model.conditions import TRUE, find_condition
from karpenter.state.rollout_controls import DEFAULT_ROLLOUT_CONTROL, WorkloadKey, workload_version
from karpenter.state.snapshot import ClusterSnapshot

#: So many pods that the old version got since the roll-out's recent pods: it is scaled, not replaced.
_SCALING_PODS = 2


class WorkloadRollouts:
    """The workloads that are being rolled out at a time, each with the moment at which it stops delaying consolidation."""

    def __init__(self, snapshot: ClusterSnapshot, now: datetime) -> None:
        stopped = {workload for workload, control in snapshot.rollout_controls.items() if control.is_stopped}
        several = _workloads_with_several_versions(snapshot) - stopped
        pods_by_version: defaultdict[WorkloadKey, defaultdict[str, list[Pod]]] = defaultdict(lambda: defaultdict(list))
        for pod in _pods_of(snapshot, several) if several else ():
            version = workload_version(pod)
            if version is not None and version[0] in several and pods.is_active(pod):
                pods_by_version[version[0]][version[1]].append(pod)
        controls = snapshot.rollout_controls
        ends = (
            (workload, _rollout_end(versions, now, controls.get(workload, DEFAULT_ROLLOUT_CONTROL).progress_deadline))
            for workload, versions in pods_by_version.items()
        )
        self._end_by_workload = {workload: end for workload, end in ends if end is not None}

    @property
    def ends(self) -> Iterable[datetime]:
        """When roll-outs stop delaying consolidation if nothing happens."""
        return self._end_by_workload.values()

    def first_blocker(self, candidate: Candidate) -> RolloutInProgress | None:
        """The first workload with pods on the node that is being rolled out."""
        return next(self.blockers(candidate), None)

    def blockers(self, candidate: Candidate) -> Iterator[RolloutInProgress]:
        """All workloads with pods on the node that are being rolled out, each once."""
        reported: set[WorkloadKey] = set()
        for pod in candidate.reschedulable_pods if self._end_by_workload else ():
            version = workload_version(pod)
            if version is not None and version[0] in self._end_by_workload and version[0] not in reported:
                reported.add(version[0])
                namespace, kind, name = version[0]
                yield RolloutInProgress(kind, namespace, name, until=self._end_by_workload[version[0]])


def _workloads_with_several_versions(snapshot: ClusterSnapshot) -> set[WorkloadKey]:
    versions: dict[WorkloadKey, frozenset[str]] = {}
    several: set[WorkloadKey] = set()
    waiting = (
        {version[0]: frozenset((version[1],))}
        for group in snapshot.pod_groups
        for pod in group.pods
        if (version := workload_version(pod)) is not None and pods.is_active(pod)
    )
    for own in chain((node.versions_by_workload for node in snapshot.nodes), waiting):
        for workload, names in own.items():
            if len(names) > 1 or versions.setdefault(workload, names) != names:
                several.add(workload)
    return several


def _rollout_end(
    pods_by_version: Mapping[str, list[Pod]], now: datetime, progress_deadline: timedelta
) -> datetime | None:
    """When a workload with pods of several versions stops delaying consolidation; None if it does not delay it."""
    created = {version: sorted(_creation_times(members)) for version, members in pods_by_version.items()}
    dated = {version: times for version, times in created.items() if times}
    if not dated:
        return None
    newest = max(dated, key=lambda version: (dated[version][-1], version))
    progress = max(dated[newest][-1], max(_ready_times(pods_by_version[newest]), default=dated[newest][-1]))
    end = progress + progress_deadline
    if end <= now:
        return None
    recent = next((time for time in dated[newest] if now - time < progress_deadline), None)
    others = (time for version, times in dated.items() if version != newest for time in times)
    added_to_others = 0 if recent is None else sum(time > recent for time in others)
    return None if added_to_others >= _SCALING_PODS else end


def _creation_times(members: Iterable[Pod]) -> Iterator[datetime]:
    return (pod.metadata.creation_timestamp for pod in members if pod.metadata.creation_timestamp is not None)


def _ready_times(members: Iterable[Pod]) -> Iterator[datetime]:
    """When those of the pods that are ready became ready."""
    for pod in members:
        ready = find_condition(pod.status.conditions, "Ready")
        if ready is not None and ready.status == TRUE and ready.last_transition_time is not None:
            yield ready.last_transition_time


def _pods_of(snapshot: ClusterSnapshot, workloads: Set[WorkloadKey]) -> Iterator[Pod]:
    """Pods that wait, and those on nodes with pods of the workloads."""
    for node in snapshot.nodes:
        if not workloads.isdisjoint(node.versions_by_workload):
            yield from node.pods
    for group in snapshot.pod_groups:
        yield from group.pods
