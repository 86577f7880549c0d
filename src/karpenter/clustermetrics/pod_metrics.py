"""Series about pods: what state each is in, and how long they take to get a node and to start (OPS §5.4).

Durations are observed only for pods this process has seen Pending: of others it does not know what they waited for, and a
restart would invent samples (OPS-447). A pod is followed from then until it is ready, finished or gone; what is followed gives
the gauges of waiting times as well, which therefore end with the waiting (OPS-448).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial

from karpenter.api.core import Pod
from karpenter.api.meta import OwnerReference
from karpenter.clustermetrics.cluster_collector import ClusterCollector, ClusterMetricsSnapshot
from karpenter.controller_context import ControllerContext
from karpenter.metrics.exposition import GaugeFamily, SeriesWriter, escape_label_value, label_pairs
from karpenter.model import conditions, labels, pods
from karpenter.scheduling.solution import Solution
from karpenter.state.snapshot import pod_key

_STATE = GaugeFamily("karpenter_pods_state", "A pod as it is now; the value is 1.")
_UNSTARTED = GaugeFamily("karpenter_pods_unstarted_time_seconds", "Since the creation of a pod that is not ready yet.")
_UNBOUND = GaugeFamily(
    "karpenter_pods_unbound_time_seconds", "Since the creation of a pod that is not bound and past Pending yet."
)
_PLANNED_UNSTARTED = GaugeFamily(
    "karpenter_pods_provisioning_unstarted_time_seconds",
    "Since the first plan with a place for a pod that is not ready yet.",
)
_PLANNED_UNBOUND = GaugeFamily(
    "karpenter_pods_provisioning_unbound_time_seconds",
    "Since the first plan with a place for a pod that is not bound and past Pending yet.",
)
_UNDECIDED = GaugeFamily(
    "karpenter_pods_provisioning_scheduling_undecided_time_seconds",
    "Since a pod was first seen to wait for a node, as long as nothing has been decided about it.",
)

_NODE_REGISTRATION_HEALTHY = "NodeRegistrationHealthy"
_PENDING_PHASES = ("Pending", "")


class PodStateMetrics(ClusterCollector):
    """One series per pod (OPS-440)."""

    def prepare(self, snapshot: ClusterMetricsSnapshot) -> SeriesWriter:
        """Everything is in pods and Nodes."""
        return partial(self._write, snapshot)

    @staticmethod
    def _write(snapshot: ClusterMetricsSnapshot) -> Iterator[str]:
        placed = {name: _node_label_pairs(name, node.metadata.labels) for name, node in snapshot.nodes.items()}
        yield from _STATE.lines((_pod_label_pairs(pod, placed), 1) for pod in snapshot.pods)


def _node_label_pairs(name: str, node_labels: Mapping[str, str]) -> str:
    """What a pod's series says of the node it is on."""
    pool = node_labels.get(labels.NODE_POOL, "")
    managed = "true" if pool else "false"
    return (
        f'node="{name}",nodepool="{pool}",zone="{node_labels.get(labels.ZONE, "")}",arch="{node_labels.get(labels.ARCH, "")}",'
        f'capacity_type="{node_labels.get(labels.CAPACITY_TYPE, "")}",'
        f'instance_type="{node_labels.get(labels.INSTANCE_TYPE, "")}",'
        f'managed="{managed}"'
    )


_NO_NODE = _node_label_pairs("", {})


def _pod_label_pairs(pod: Pod, placed: Mapping[str, str]) -> str:
    meta = pod.metadata
    node_name = pod.spec.node_name
    where = (placed.get(node_name) or _node_label_pairs(node_name, {})) if node_name else _NO_NODE
    owner = _owner_path(meta.namespace, meta.owner_references[0]) if meta.owner_references else ""
    return (
        f'name="{meta.name}",namespace="{meta.namespace}",owner="{owner}",scheduled="{"true" if node_name else "false"}",'
        f'phase="{escape_label_value(pod.status.phase)}",ready="{_ready(pod)}",{where}'
    )


@lru_cache(maxsize=4096)
def _owner_path(namespace: str, owner: OwnerReference) -> str:
    """The first owner as a path (OPS-446)."""
    return escape_label_value(f"/apis/{owner.api_version}/namespaces/{namespace}/{owner.kind.lower()}s/{owner.name}")


def _ready(pod: Pod) -> str:
    for condition in pod.status.conditions:  # asked of every pod there is
        if condition.type == "Ready":
            return "true" if condition.status == conditions.TRUE else "false"
    return "false"


@dataclass(frozen=True, slots=True)
class _TrackedPod:
    """A pod on its way: since when it is known to wait for a node, has been decided about, has a place planned for it.

    ``is_bound``: it has a node and is past Pending, as OPS-447 defines it.
    """

    pod: Pod
    first_seen: datetime | None = None
    decided_at: datetime | None = None
    planned_at: datetime | None = None
    is_bound: bool = False


class PodDurationMetrics(ClusterCollector):
    """How long pods take, and what pods have been waiting for how long (OPS-441 to OPS-443, OPS-118)."""

    def __init__(self, context: ControllerContext) -> None:
        self._state = context.state
        self._metrics = context.metrics
        self._clock = context.clock
        self._tracked: dict[str, _TrackedPod] = {}

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Follow a pod that waits, and observe the ends of its waiting."""
        if new is None or pods.is_finished(new):
            gone = new or old
            if gone is not None:
                self._tracked.pop(gone.metadata.uid, None)
        elif new.status.phase in _PENDING_PHASES:
            self._track_pending(new)
        elif new.metadata.uid in self._tracked:
            self._observe_progress(new, self._tracked[new.metadata.uid])

    def _track_pending(self, pod: Pod) -> None:
        tracked_pod = self._tracked.get(pod.metadata.uid, _TrackedPod(pod))
        self._tracked[pod.metadata.uid] = replace(tracked_pod, pod=pod)
        key, untried = pod_key(pod), self._state.untried_pods
        if tracked_pod.first_seen is None and (pods.is_provisionable(pod) or untried.is_pending(key)):
            for waiting in (pod, *untried.pending_because_of(key)):
                self._note_first_seen(waiting)

    def _note_first_seen(self, pod: Pod) -> None:
        tracked_pod = self._tracked.get(pod.metadata.uid)
        if tracked_pod is not None and tracked_pod.first_seen is None:
            self._tracked[pod.metadata.uid] = replace(tracked_pod, first_seen=self._clock.now())

    def _observe_progress(self, pod: Pod, tracked: _TrackedPod) -> None:
        """The pod is past Pending: it has a node, and perhaps is ready."""
        if not tracked.is_bound:
            at = self._condition_since(pod, "PodScheduled")
            claims = _has_device_claims(pod)
            bound = self._metrics.pods_bound_duration_seconds.labels(claims)
            _observe(bound.observe, pod.metadata.creation_timestamp, at)
            _observe(
                self._metrics.pods_provisioning_bound_duration_seconds.labels(claims).observe, tracked.planned_at, at
            )
        if not conditions.is_true(pod.status.conditions, "Ready"):
            self._tracked[pod.metadata.uid] = replace(tracked, pod=pod, is_bound=True)
            return
        at = self._condition_since(pod, "Ready")
        _observe(self._metrics.pods_startup_duration_seconds.observe, pod.metadata.creation_timestamp, at)
        _observe(self._metrics.pods_provisioning_startup_duration_seconds.observe, tracked.planned_at, at)
        del self._tracked[pod.metadata.uid]

    def _condition_since(self, pod: Pod, type_: str) -> datetime:
        condition = conditions.find_condition(pod.status.conditions, type_)
        since = condition.last_transition_time if condition is not None else None
        return since or self._clock.now()

    def on_plan(self, plan: Solution) -> None:
        """Note what a pass decided: a place counts as planned while its NodePool's nodes register (OPS-118)."""
        now = self._clock.now()
        for claim in plan.new_claims:
            self._record_decision(claim.pods, now if self._is_healthy(claim.node_pool) else None, now)
        for placed in plan.placed_on_existing:
            self._record_decision(placed.pods, now if self._is_healthy(self._pool_of(placed.node_key)) else None, now)
        self._record_decision((unplaced.pod for unplaced in plan.unschedulable), None, now)

    def _record_decision(self, decided_pods: Iterable[Pod], planned: datetime | None, now: datetime) -> None:
        for pod in decided_pods:
            tracked_pod = self._tracked.get(pod.metadata.uid)
            if tracked_pod is None or tracked_pod.is_bound or tracked_pod.pod.spec.node_name:
                continue
            if tracked_pod.decided_at is None:
                _observe(self._metrics.pods_scheduling_decision_duration_seconds.observe, tracked_pod.first_seen, now)
            since = (tracked_pod.planned_at or planned) if planned is not None else None
            self._tracked[pod.metadata.uid] = replace(
                tracked_pod, decided_at=tracked_pod.decided_at or now, planned_at=since
            )

    def _is_healthy(self, name: str) -> bool:
        pool = self._state.pool(name)
        return pool is not None and conditions.is_true(pool.status.conditions, _NODE_REGISTRATION_HEALTHY)

    def _pool_of(self, key: str) -> str:
        node = self._state.claim(key) or self._state.node(key)
        return node.metadata.labels.get(labels.NODE_POOL, "") if node is not None else ""

    def prepare(self, snapshot: ClusterMetricsSnapshot) -> SeriesWriter:
        """What is followed belongs to it."""
        return partial(self._write, tuple(self._tracked.values()), snapshot.now)

    @staticmethod
    def _write(followed: tuple[_TrackedPod, ...], now: datetime) -> Iterator[str]:
        unbound = [tracked_pod for tracked_pod in followed if not tracked_pod.is_bound]
        undecided = [
            tracked_pod
            for tracked_pod in unbound
            if tracked_pod.decided_at is None and not tracked_pod.pod.spec.node_name
        ]
        yield from _UNSTARTED.lines(_seconds(now, ((i.pod, i.pod.metadata.creation_timestamp) for i in followed)))
        yield from _UNBOUND.lines(
            _seconds(now, ((i.pod, i.pod.metadata.creation_timestamp) for i in unbound), _labels_until_bound)
        )
        yield from _PLANNED_UNSTARTED.lines(_seconds(now, ((i.pod, i.planned_at) for i in followed)))
        yield from _PLANNED_UNBOUND.lines(_seconds(now, ((i.pod, i.planned_at) for i in unbound), _labels_until_bound))
        yield from _UNDECIDED.lines(_seconds(now, ((i.pod, i.first_seen) for i in undecided)))


def _own_labels(pod: Pod) -> str:
    return label_pairs(name=pod.metadata.name, namespace=pod.metadata.namespace)


def _labels_until_bound(pod: Pod) -> str:
    """Also whether the pod has device claims (K15-463)."""
    meta = pod.metadata
    return label_pairs(name=meta.name, namespace=meta.namespace, dynamic_resources=_has_device_claims(pod))


def _seconds(
    now: datetime, since: Iterable[tuple[Pod, datetime | None]], labels_of: Callable[[Pod], str] = _own_labels
) -> Iterator[tuple[str, float]]:
    """Labels of each pod whose moment is known, and the seconds since then."""
    for pod, moment in since:
        if moment is not None:
            yield labels_of(pod), (now - moment).total_seconds()


def _has_device_claims(pod: Pod) -> str:
    return "true" if pod.spec.resource_claims else "false"


def _observe(observe: Callable[[float], None], since: datetime | None, until: datetime) -> None:
    """Observe a duration that has a beginning. The API gives the end in whole seconds, so the end may appear to be earlier."""
    if since is not None:
        observe(max(0.0, (until - since).total_seconds()))
