"""Pods that a Cluster Autoscaler beside this controller scales a node group up for: they wait for it for a while.

Both see the same pending pods. Which acts first is chance, and if both act, nodes come twice. Cluster Autoscaler publishes an
event about the pod when it acts. With ``--defer-to-cluster-autoscaler`` no plan has such a pod until its node is there, or until
Cluster Autoscaler itself would give up waiting for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from karpenter.api.core import Event, Pod
from karpenter.kube.informer import WatchScope
from karpenter.state.snapshot import ClusterSnapshot, PodGroup

#: The event that Cluster Autoscaler publishes about a pod when it has asked for a node.
SCALE_UP_REASON = "TriggeredScaleUp"
#: Only these events are watched.
SCALE_UP_EVENTS = WatchScope(field_selector=f"reason={SCALE_UP_REASON},involvedObject.kind=Pod")
#: How long Cluster Autoscaler waits for a node (its --max-node-provision-time), and this controller for Cluster Autoscaler.
PATIENCE = timedelta(minutes=15)

_log = structlog.get_logger()


class ClusterAutoscalerScaleUps:
    """When Cluster Autoscaler last said of a pod, by uid, that it scales up for it."""

    def __init__(self) -> None:
        self._times: dict[str, datetime] = {}
        self._logged: set[str] = set()

    def on_event(self, _old: Event | None, new: Event | None) -> None:
        """An event of ``SCALE_UP_EVENTS``. A deleted one has only grown old."""
        time = None if new is None else new.last_timestamp or new.metadata.creation_timestamp
        if new is not None and time is not None and new.involved_object.uid:
            uid = new.involved_object.uid
            self._times[uid] = max(time, self._times.get(uid, time))

    def removed_from(self, snapshot: ClusterSnapshot, now: datetime) -> ClusterSnapshot:
        """The snapshot without pending pods that Cluster Autoscaler is scaling up for."""
        self._times = {uid: time for uid, time in self._times.items() if now - time < PATIENCE}
        if not self._times:
            return snapshot
        groups = tuple(self._without_deferred(snapshot.pod_groups))
        return snapshot if groups == snapshot.pod_groups else replace(snapshot, pod_groups=groups)

    def _without_deferred(self, groups: tuple[PodGroup, ...]) -> Iterator[PodGroup]:
        for group in groups:
            left = tuple([pod for pod in group.pods if pod.metadata.uid not in self._times])
            self._log_deferred(pod for pod in group.pods if pod.metadata.uid in self._times)
            if left:
                yield group if len(left) == len(group.pods) else replace(group, pods=left)

    def _log_deferred(self, pods: Iterator[Pod]) -> None:
        """Log once per pod: operators look for the reason why no NodeClaim comes."""
        for pod in pods:
            if pod.metadata.uid not in self._logged:
                self._logged.add(pod.metadata.uid)
                name = {"name": pod.metadata.name, "namespace": pod.metadata.namespace}
                _log.info("pod waits for cluster-autoscaler, which is scaling a node group up for it", Pod=name)
        self._logged &= self._times.keys()
