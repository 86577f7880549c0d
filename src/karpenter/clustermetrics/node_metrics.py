"""Gauges about Nodes: what they have, what pods ask of them, how old they are (OPS-425 to OPS-428)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from karpenter.api.core import Node, Pod
from karpenter.clustermetrics.cluster_collector import (
    ClusterCollector,
    ClusterMetricsSnapshot,
    decimal_text,
    pod_limits,
    resource_type_label,
)
from karpenter.metrics import Metrics
from karpenter.metrics.exposition import GaugeFamily, SeriesWriter, escape_label_value, label_pairs
from karpenter.model import labels, pods
from karpenter.model import resources as res
from karpenter.model.clock import Clock
from karpenter.model.resources import Resources
from karpenter.state.state_node import StateNode

_ALLOCATABLE = GaugeFamily("karpenter_nodes_allocatable", "What pods can use of a Node.")
_POD_REQUESTS = GaugeFamily("karpenter_nodes_total_pod_requests", "What a Node's pods request, DaemonSets included.")
_POD_LIMITS = GaugeFamily("karpenter_nodes_total_pod_limits", "What a Node's pods are limited to, DaemonSets included.")
_DAEMON_REQUESTS = GaugeFamily("karpenter_nodes_total_daemon_requests", "What a Node's DaemonSet pods request.")
_DAEMON_LIMITS = GaugeFamily("karpenter_nodes_total_daemon_limits", "What a Node's DaemonSet pods are limited to.")
_OVERHEAD = GaugeFamily("karpenter_nodes_system_overhead", "What of a Node's capacity pods cannot use.")
_LIFETIME = GaugeFamily("karpenter_nodes_current_lifetime_seconds", "A Node's age.")
_UTILIZATION = GaugeFamily(
    "karpenter_cluster_utilization_percent", "What pods request of what all Nodes together offer, in per cent."
)

#: Labels every series about a Node has, empty where the Node lacks the label.
_COMMON_LABELS = {
    labels.ZONE: "zone",
    labels.REGION: "region",
    labels.INSTANCE_TYPE: "instance_type",
    labels.ARCH: "arch",
    labels.OS: "os",
    labels.CAPACITY_TYPE: "capacity_type",
    labels.WINDOWS_BUILD: "windows_build",
}


def well_known_label_name(key: str) -> str:
    """A well-known label's name in series (OPS-428)."""
    return key.partition("/")[2].lower().replace("-", "_")


#: Labels providers declare. They are left out where the Node lacks them, which Prometheus reads as empty: most are.
_PROVIDER_LABELS = {key: well_known_label_name(key) for key in labels.WELL_KNOWN - labels.CORE_WELL_KNOWN}


class NodeLifetimeMetrics(ClusterCollector):
    """How old Nodes became (OPS-422)."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._seconds = metrics.nodes_lifetime_duration_seconds
        self._clock = clock

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """A Node that goes is asked for its age."""
        if new is not None or old is None:
            return
        pool = old.metadata.labels.get(labels.NODE_POOL, "")
        born = old.metadata.creation_timestamp
        if pool and born is not None:
            self._seconds.labels(nodepool=pool).observe((self._clock.now() - born).total_seconds())


class NodeMetrics(ClusterCollector):
    """Gauges about every Node. What pods are limited to is worked out once per view: views change with their pods."""

    def __init__(self) -> None:
        self._limits: dict[str, tuple[StateNode, Resources, Resources]] = {}

    def prepare(self, snapshot: ClusterMetricsSnapshot) -> SeriesWriter:
        """Everything is in the views."""
        return partial(self._write, snapshot)

    def _write(self, snapshot: ClusterMetricsSnapshot) -> Iterator[str]:
        labelled_nodes = [(node_label_pairs(view.node), view) for view in snapshot.views if view.node is not None]
        self._limits = {view.key: self._view_limits(view) for _, view in labelled_nodes}
        for family, amounts in self._families():
            yield from family.lines(_samples(labelled_nodes, amounts))
        yield from _LIFETIME.lines(
            (own, (snapshot.now - view.node.metadata.creation_timestamp).total_seconds())
            for own, view in labelled_nodes
            if view.node is not None and view.node.metadata.creation_timestamp is not None
        )
        yield from _UTILIZATION.lines(_utilization([view for _, view in labelled_nodes]))

    def _families(self) -> tuple[tuple[GaugeFamily, Callable[[StateNode], Resources]], ...]:
        return (
            (_ALLOCATABLE, lambda view: view.allocatable),
            (_POD_REQUESTS, lambda view: view.pod_requests),
            (_POD_LIMITS, lambda view: self._limits[view.key][1]),
            # Dashboards add pod and DaemonSet requests of a Node: a Node without DaemonSet pods has 0 of them, not none.
            (_DAEMON_REQUESTS, lambda view: {res.PODS: 0, **view.daemonset_requests}),
            (_DAEMON_LIMITS, lambda view: self._limits[view.key][2]),
            (_OVERHEAD, lambda view: res.subtract(view.capacity, view.allocatable)),
        )

    def _view_limits(self, view: StateNode) -> tuple[StateNode, Resources, Resources]:
        limit = self._limits.get(view.key)
        if limit is not None and limit[0] is view:
            return limit
        daemons = [pod for pod in view.pods if pods.is_daemonset_pod(pod)]
        return view, _total_limits(view.pods), _total_limits(daemons)


def node_label_pairs(node: Node) -> str:
    """The labels of a Node's series (OPS-428), as they stand between braces."""
    node_labels = node.metadata.labels
    pool = node_labels.get(labels.NODE_POOL, "")
    managed = "true" if pool else "false"
    phase = escape_label_value(node.status.phase)
    own = f'node_name="{node.metadata.name}",nodepool="{pool}",phase="{phase}",managed="{managed}"'
    always = [f'{name}="{node_labels.get(key, "")}"' for key, name in _COMMON_LABELS.items()]
    # Where two providers have a label of the same name, one of them counts, always the same.
    declared = {
        _PROVIDER_LABELS[key]: node_labels[key] for key in sorted(node_labels, reverse=True) if key in _PROVIDER_LABELS
    }
    return ",".join((own, *always, *[f'{name}="{value}"' for name, value in declared.items()]))


def _samples(
    labelled_views: Iterable[tuple[str, StateNode]], amounts: Callable[[StateNode], Resources]
) -> Iterator[tuple[str, str]]:
    for own, view in labelled_views:
        for name, amount in amounts(view).items():
            yield f'{own},resource_type="{resource_type_label(name)}"', decimal_text(amount)


def _total_limits(node_pods: Iterable[Pod]) -> Resources:
    return res.add(*[pod_limits(pod) for pod in node_pods])


def _utilization(views: Iterable[StateNode]) -> Iterator[tuple[str, float]]:
    offered: dict[str, int] = {}
    requested: dict[str, int] = {}
    for view in views:
        for name, amount in view.allocatable.items():
            offered[name] = offered.get(name, 0) + amount
        for name, amount in view.pod_requests.items():
            requested[name] = requested.get(name, 0) + amount
    for name, amount in offered.items():
        if amount:
            yield label_pairs(resource_type=resource_type_label(name)), 100 * requested.get(name, 0) / amount
