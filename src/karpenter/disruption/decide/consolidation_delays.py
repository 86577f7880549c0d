"""What delays consolidation although it would save money: young nodes, and workloads in a rollout.

Both apply to nodes with pods only. An empty node has ``consolidateAfter``, and deleting it interrupts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.disruption.decide.command import Candidate
from karpenter.disruption.decide.disruption_blockers import NodeTooYoung, RolloutInProgress
from karpenter.model import consolidation_thresholds, labels, pod_disruption, pods
from karpenter.model import resources as res
from karpenter.model.budget_windows import TimeSpan
from karpenter.model.consolidation_thresholds import LEAN_CONSOLIDATION, ConsolidationDefaults
from karpenter.model.disruption_rules import disruption_rules
from karpenter.state.snapshot import ClusterSnapshot

#: Of the requests a node was launched for; below it the default minimum age ends early.
_KEPT_SHARE = 0.75
_TEMPLATE_HASH = "pod-template-hash"
_REVISION = "controller-revision-hash"
#: Namespace, kind and name of what owns pods.
WorkloadKey = tuple[str, str, str]


def node_age_blocker(
    candidate: Candidate, pool: NodePool, now: datetime, defaults: ConsolidationDefaults = LEAN_CONSOLIDATION
) -> NodeTooYoung | None:
    """That a node is too young to be consolidated; None if it is old enough or its age is unknown."""
    created = candidate.state_node.claim.metadata.creation_timestamp if candidate.state_node.claim is not None else None
    thresholds = consolidation_thresholds.consolidation_thresholds(pool, defaults)
    minimum_age = thresholds.minimum_node_age
    if created is None or now - created >= minimum_age:
        return None
    if thresholds.is_default_age and _lost_its_pods(candidate):
        return None
    try:
        until = created + minimum_age
    except OverflowError:
        until = None  # an unparseable setting holds forever
    return NodeTooYoung(minimum_age, until=until)


def _lost_its_pods(candidate: Candidate) -> bool:
    """Whether the node's pods request less than ``_KEPT_SHARE`` of the CPU and of the memory its NodeClaim was launched for."""
    claim = candidate.state_node.claim
    launched_for = res.parse_resources(claim.spec.resources.requests) if claim is not None else {}
    return bool(launched_for) and all(
        candidate.state_node.pod_requests.get(name, 0) < _KEPT_SHARE * launched_for.get(name, 0)
        for name in (res.CPU, res.MEMORY)
        if launched_for.get(name, 0)
    )


class WorkloadRollouts:
    """The workloads that are being rolled out: pods of two versions of one of them are there at once."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        versions: dict[WorkloadKey, str] = {}
        self._in_progress: set[WorkloadKey] = set()
        for pod in _pods_of(snapshot):
            workload_version = _workload_version(pod)
            if (
                workload_version is not None
                and pods.is_active(pod)
                and versions.setdefault(workload_version[0], workload_version[1]) != workload_version[1]
            ):
                self._in_progress.add(workload_version[0])

    def first_blocker(self, candidate: Candidate) -> RolloutInProgress | None:
        """The first workload with pods on the node that is being rolled out."""
        return next(self.blockers(candidate), None)

    def blockers(self, candidate: Candidate) -> Iterator[RolloutInProgress]:
        """All workloads with pods on the node that are being rolled out, each once."""
        reported: set[WorkloadKey] = set()
        for pod in candidate.reschedulable_pods if self._in_progress else ():
            version = _workload_version(pod)
            if version is not None and version[0] in self._in_progress - reported:
                reported.add(version[0])
                namespace, kind, name = version[0]
                yield RolloutInProgress(kind, namespace, name)


def _pods_of(snapshot: ClusterSnapshot) -> Iterator[Pod]:
    for view in snapshot.nodes:
        yield from view.pods
    for group in snapshot.pod_groups:
        yield from group.pods


def _workload_version(pod: Pod) -> tuple[WorkloadKey, str] | None:
    """Which workload the pod is of, and in which version; None for pods of no workload with versions."""
    own: Mapping[str, str] = pod.metadata.labels
    for owner in pod.metadata.owner_references:
        if owner.kind == "ReplicaSet" and (version := own.get(_TEMPLATE_HASH)):
            return (pod.metadata.namespace, "Deployment", owner.name.removesuffix(f"-{version}")), version
        if owner.kind == "StatefulSet" and (version := own.get(_REVISION)):
            return (pod.metadata.namespace, owner.kind, owner.name), version
    return None


def time_driven_changes(
    snapshot: ClusterSnapshot,
    now: datetime,
    within_seconds: float,
    defaults: ConsolidationDefaults = LEAN_CONSOLIDATION,
) -> Iterator[datetime]:
    """Moments after ``now`` at which budgets open or close, freezes end, nodes come of age or protections run out."""
    end = now + timedelta(seconds=within_seconds)
    youth: dict[str, timedelta] = {}
    for pool in snapshot.pools:
        yield from (
            edge for edge in disruption_rules(pool, snapshot.freeze).transitions(TimeSpan(now, end)) if edge > now
        )
        youth[pool.metadata.name] = consolidation_thresholds.consolidation_thresholds(pool, defaults).minimum_node_age
    for view in snapshot.nodes:
        created = view.claim.metadata.creation_timestamp if view.claim is not None else None
        age = youth.get(view.pool)
        if created is not None and age is not None and now - created < age < end - created:
            yield created + age
        for pod in view.pods:
            if labels.DO_NOT_DISRUPT in pod.metadata.annotations:
                protection = pod_disruption.disruption_protection(pod, now)
                if protection is not None and protection.active and protection.until is not None:
                    yield protection.until
