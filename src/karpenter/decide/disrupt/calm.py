"""What makes consolidation wait although it would pay: young machines, and workloads that are being rolled out (issue: churn).

Both concern machines with pods only. An empty machine has its own quiet time, and nobody's work is lost with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.cluster.snapshot import Snapshot
from karpenter.decide.disrupt.command import Candidate
from karpenter.model import calm, durations, pods

_TEMPLATE_HASH = "pod-template-hash"
_REVISION = "controller-revision-hash"
#: Namespace, kind and name of what owns pods.
Workload = tuple[str, str, str]


def youth(candidate: Candidate, pool: NodePool, now: datetime) -> str:
    """Why a machine is too young to be consolidated; empty when it is not, or nobody knows its age."""
    created = candidate.view.claim.metadata.creation_timestamp if candidate.view.claim is not None else None
    least = calm.of_pool(pool).minimum_node_age
    if created is None or now - created >= least:
        return ""
    return f"Node is younger than {durations.text(least)}, the least age at which it may be consolidated"


class RollOuts:
    """The workloads that are being rolled out: pods of two versions of one of them are there at once."""

    def __init__(self, snapshot: Snapshot) -> None:
        versions: dict[Workload, str] = {}
        self._under_way: set[Workload] = set()
        for pod in _pods_of(snapshot):
            found = _version(pod)
            if found is not None and pods.is_active(pod) and versions.setdefault(found[0], found[1]) != found[1]:
                self._under_way.add(found[0])

    def holding(self, candidate: Candidate) -> str:
        """What is being rolled out on a machine, as a reason to wait; empty when nothing is."""
        return next(self.all_holding(candidate), "")

    def all_holding(self, candidate: Candidate) -> Iterator[str]:
        """All workloads that are being rolled out on a machine, each once, as reasons to wait."""
        told: set[Workload] = set()
        for pod in candidate.pods if self._under_way else ():
            found = _version(pod)
            if found is not None and found[0] in self._under_way - told:
                told.add(found[0])
                namespace, kind, name = found[0]
                yield f"{kind} {namespace}/{name} is being rolled out"


def _pods_of(snapshot: Snapshot) -> Iterator[Pod]:
    for view in snapshot.nodes:
        yield from view.pods
    for group in snapshot.groups:
        yield from group.pods


def _version(pod: Pod) -> tuple[Workload, str] | None:
    """Which workload the pod is of, and in which version; None for pods of no workload with versions."""
    own: Mapping[str, str] = pod.metadata.labels
    for owner in pod.metadata.owner_references:
        if owner.kind == "ReplicaSet" and (version := own.get(_TEMPLATE_HASH)):
            return (pod.metadata.namespace, "Deployment", owner.name.removesuffix(f"-{version}")), version
        if owner.kind == "StatefulSet" and (version := own.get(_REVISION)):
            return (pod.metadata.namespace, owner.kind, owner.name), version
    return None
