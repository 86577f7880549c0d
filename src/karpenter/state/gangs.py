"""Gangs: pods that must be scheduled together or not at all. Which gang a pod names, and what a decision knows of a gang."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from karpenter.api.core import Pod

#: Label of coscheduling, whose value is the name of a PodGroup.
COSCHEDULING_LABEL = "scheduling.x-k8s.io/pod-group"
JOB_SET_LABEL = "jobset.sigs.k8s.io/jobset-name"
LEADER_WORKER_SET_LABEL = "leaderworkerset.sigs.k8s.io/name"
LEADER_WORKER_GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"


class GangSource(StrEnum):
    """Whose word makes pods a gang."""

    WORKLOAD = "Workload"
    POD_GROUP = "PodGroup"
    COSCHEDULING = "PodGroup.scheduling.x-k8s.io"
    LEADER_WORKER_SET = "LeaderWorkerSet"
    JOB_SET = "JobSet"
    PROVISIONING_REQUEST = "ProvisioningRequest"


class GangKey(NamedTuple):
    """The identity of a gang. ``group`` tells the groups of one object apart."""

    source: GangSource
    namespace: str
    name: str
    group: str = ""

    def __str__(self) -> str:
        group = f"/{self.group}" if self.group else ""
        return f"{self.source} {self.namespace}/{self.name}{group}"


@dataclass(frozen=True)
class Gang:
    """A gang with pending pods. At least ``minimum`` of its pods must have a place, or none gets one.

    ``members`` are the uids of its pending pods, ``running`` counts those that are bound or have succeeded. ``topology_key``: all
    are to be in one domain of this label; empty where they may be anywhere. Gangs are served by ``priority``, then ``created``.
    ``error`` says why nothing can be planned for it. It is left alone until ``paused_until``.
    ``on_existing_nodes_only``: no node is launched for it.
    """

    name: str
    members: tuple[str, ...]
    minimum: int
    running: int = 0
    running_on: tuple[str, ...] = ()
    topology_key: str = ""
    priority: int = 0
    created: datetime | None = None
    paused_until: datetime | None = None
    error: str = ""
    on_existing_nodes_only: bool = False


def gang_key_of(pod: Pod) -> GangKey | None:
    """The gang that a pod says it belongs to; None if it says nothing. The scheduler's own fields come first."""
    meta, spec = pod.metadata, pod.spec
    if spec.scheduling_group is not None and spec.scheduling_group.pod_group_name:
        return GangKey(GangSource.POD_GROUP, meta.namespace, spec.scheduling_group.pod_group_name)
    if spec.workload_ref is not None:
        reference = spec.workload_ref
        replica = f"/{reference.pod_group_replica_key}" if reference.pod_group_replica_key else ""
        return GangKey(GangSource.WORKLOAD, meta.namespace, reference.name, reference.pod_group + replica)
    return _labelled_gang(meta.namespace, meta.labels) if meta.labels else None


def _labelled_gang(namespace: str, labels: Mapping[str, str]) -> GangKey | None:
    if name := labels.get(COSCHEDULING_LABEL):
        return GangKey(GangSource.COSCHEDULING, namespace, name)
    if name := labels.get(LEADER_WORKER_SET_LABEL):
        return GangKey(GangSource.LEADER_WORKER_SET, namespace, name, labels.get(LEADER_WORKER_GROUP_INDEX, ""))
    if name := labels.get(JOB_SET_LABEL):
        return GangKey(GangSource.JOB_SET, namespace, name)
    return None
