"""All metrics, with Karpenter's names and labels (OPS §5).

An attribute is named like its series without the ``karpenter_`` prefix. Labels are those of the specification. All of them are
always set, and their values come from bounded sets: pools, zones, reasons, never pods or claims. Metrics that follow from cluster
state are not here: ``clustermetrics`` computes them when they are read.

The attributes stand in the order of the specification: build, claims and nodes (OPS §5.2), pools (§5.3), pods (§5.4), disruption
and scheduling (§5.5), the provider (§5.6), and the metrics of controller-runtime (§5.8), whose names carry no prefix.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence

from prometheus_client import Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from karpenter.metrics.build_info import BuildInfo
from karpenter.metrics.exposition import MetricsRegistry
from karpenter.metrics.summary import SummaryMetric

# No second series with the time of creation beside each counter: nothing reads them, and Karpenter has none.
disable_created_metrics()  # type: ignore[no-untyped-call]

#: Buckets of durations, in seconds (OPS-401).
# fmt: off
DURATION_BUCKETS_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0,
    1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0,
    15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 120.0, 150.0, 300.0, 450.0, 600.0,
)
# fmt: on
#: Buckets of calls to a cloud, in seconds (OPS-470).
STANDARD_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: Buckets of one reconcile, in seconds (OPS-492): those of durations, to a minute.
RECONCILE_BUCKETS_SECONDS = tuple(limit for limit in DURATION_BUCKETS_SECONDS if limit <= 60.0)
_HOUR, _DAY = 3600.0, 86400.0
#: Buckets of a node's age when it goes, in seconds (OPS-422).
LIFETIME_BUCKETS_SECONDS = (
    *(minutes * 60.0 for minutes in (15, 30, 45)),
    *(hours * _HOUR for hours in (1, 2, 4, 6, 8, 10, 12, 16, 20)),
    *(days * _DAY for days in (1, 2, 3, 5, 10, 15, 20, 25, 30)),
)

#: The two searches for consolidation that may run out of time; their series are there from the start (OPS-454).
CONSOLIDATION_SEARCHES = ("multi", "single")

_DISRUPTED = ("reason", "nodepool", "capacity_type", "consolidation_policy", "termination_mode")
_DECIDED = ("decision", "reason", "consolidation_type")
_SCORED = ("decision", "nodepool", "policy")
_CALLED = ("controller", "method", "provider")
_QUEUE = ("name", "controller")
#: Architectures under Go's names.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def exponential_buckets(first: float, factor: float, count: int) -> tuple[float, ...]:
    """``count`` bucket limits, each ``factor`` times the one before."""
    return tuple(first * factor**step for step in range(count))


#: Seconds: 10 doubled seven times (K15-458).
_REBOOT_BUCKETS = tuple(10.0 * 2**power for power in range(8))


class Metrics:
    """One process's series in one registry. ``now`` gives seconds that never go back."""

    def __init__(self, build: BuildInfo | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self.registry = MetricsRegistry()
        self._now = now
        self._declare_build(build or BuildInfo())
        self._declare_claims()
        self._declare_nodes()
        self._declare_pools()
        self._declare_pods()
        self._declare_disruption()
        self._declare_scheduling()
        self._declare_provider()
        self._declare_controllers()
        self._declare_queues()
        self._declare_process()
        self._declare_notifications()

    def _declare_build(self, build: BuildInfo) -> None:
        labels = ("version", "goversion", "goarch", "commit")
        machine = platform.machine().lower()
        self.build_info = self._gauge("build_info", "The running build; the value is 1.", labels)
        self.build_info.labels(
            version=build.version,
            goversion=f"python{platform.python_version()}",
            goarch=_ARCHITECTURES.get(machine, machine),
            commit=build.commit,
        ).set(1)

    def _declare_claims(self) -> None:
        self.nodeclaims_created_total = self._counter(
            "nodeclaims_created_total", "NodeClaims created.", ("reason", "nodepool", "min_values_relaxed")
        )
        self.nodeclaims_launched_total = self._counter(
            "nodeclaims_launched_total",
            "NodeClaims whose instance was launched.",
            ("nodepool", "instance_type", "capacity_type", "zone"),
        )
        self.nodeclaims_terminated_total = self._counter(
            "nodeclaims_terminated_total", "NodeClaims fully gone.", ("nodepool", "capacity_type", "zone")
        )
        self.nodeclaims_disrupted_total = self._counter(
            "nodeclaims_disrupted_total", "NodeClaims whose end this process began.", _DISRUPTED
        )
        self.pods_disruption_initiated_total = self._counter(
            "pods_disruption_initiated_total", "Pods to be moved, on nodes whose end this process began.", _DISRUPTED
        )
        self.nodeclaims_unhealthy_disrupted_total = self._counter(
            "nodeclaims_unhealthy_disrupted_total",
            "NodeClaims replaced because their Node was broken.",
            ("condition", "nodepool", "capacity_type", "image_id", "termination_mode"),
        )
        self.nodeclaims_instance_termination_duration_seconds = self._histogram(
            "nodeclaims_instance_termination_duration_seconds",
            "From asking the cloud to end an instance to its being gone.",
            ("nodepool",),
            exponential_buckets(1.0, 2.0, 11),
        )
        self.nodeclaims_termination_duration_seconds = self._histogram(
            "nodeclaims_termination_duration_seconds",
            "From a NodeClaim's deletion to its removal.",
            ("nodepool",),
            exponential_buckets(1.0, 2.0, 12),
        )

    def _declare_nodes(self) -> None:
        self.nodes_created_total = self._counter("nodes_created_total", "Nodes registered.", ("nodepool", "zone"))
        self.nodes_terminated_total = self._counter("nodes_terminated_total", "Nodes removed.", ("nodepool", "zone"))
        self.nodes_drained_total = self._counter("nodes_drained_total", "Nodes whose drain finished.", ("nodepool",))
        self.nodes_termination_duration_seconds = self._summary(
            "nodes_termination_duration_seconds",
            "From a Node's deletion to the removal of its finalizer.",
            ("nodepool",),
        )
        self.nodes_reboots_total = self._counter(
            "nodes_reboots_total", "Reboots by node repair that ended.", ("result",)
        )
        self.nodes_reboot_duration_seconds = self._histogram(
            "nodes_reboot_duration_seconds", "From the request of a reboot to its end.", ("result",), _REBOOT_BUCKETS
        )
        self.nodes_reboot_recovery_duration_seconds = self._histogram(
            "nodes_reboot_recovery_duration_seconds",
            "From the call to the provider until the node is back.",
            (),
            _REBOOT_BUCKETS,
        )
        self.nodes_lifetime_duration_seconds = self._histogram(
            "nodes_lifetime_duration_seconds", "A Node's age when it goes.", ("nodepool",), LIFETIME_BUCKETS_SECONDS
        )

    def _declare_pools(self) -> None:
        self.nodepools_cost_tracker_errors_total = self._counter(
            "nodepools_cost_tracker_errors_total", "NodeClaims whose instance has no known price.", ("nodepool",)
        )
        self.nodepools_asleep = self._gauge(
            "nodepools_asleep", "Whether a NodePool sleeps by a CapacitySchedule.", ("nodepool",)
        )
        self.capacity_schedules_scaled_workloads_total = self._counter(
            "capacity_schedules_scaled_workloads_total", "Workloads that CapacitySchedules scaled.", ("direction",)
        )

    def _declare_pods(self) -> None:
        self.pods_startup_duration_seconds = self._summary(
            "pods_startup_duration_seconds", "From a pod's creation to its being ready.", ()
        )
        self.pods_bound_duration_seconds = self._duration(
            "pods_bound_duration_seconds",
            "From a pod's creation to its having a node and being past Pending.",
            ("dynamic_resources",),
        )
        self.pods_provisioning_bound_duration_seconds = self._duration(
            "pods_provisioning_bound_duration_seconds",
            "From the first plan with a place for a pod to its having a node and being past Pending.",
            ("dynamic_resources",),
        )
        # Served from the start, as those without labels are.
        for has_device_claims in ("true", "false"):
            self.pods_bound_duration_seconds.labels(has_device_claims)
            self.pods_provisioning_bound_duration_seconds.labels(has_device_claims)
        self.pods_provisioning_startup_duration_seconds = self._duration(
            "pods_provisioning_startup_duration_seconds",
            "From the first plan with a place for a pod to its being ready.",
        )
        self.pods_scheduling_decision_duration_seconds = self._duration(
            "pods_scheduling_decision_duration_seconds",
            "From first seeing a pod that waits for a node to the first decision about it.",
        )
        self.pods_lost_by_new_nodes_total = self._counter(
            "pods_lost_by_new_nodes_total", "Nodes that lost the pods they were launched for.", ("nodepool",)
        )
        self.pods_eviction_requests_total = self._counter(
            "pods_eviction_requests_total", "Eviction requests by the HTTP status of the answer.", ("code",)
        )
        self.pods_drained_total = self._counter(
            "pods_drained_total", "Pods that were made to leave a node, by the reason of its end.", ("reason",)
        )

    def _declare_disruption(self) -> None:
        self.voluntary_disruption_decision_evaluation_duration_seconds = self._duration(
            "voluntary_disruption_decision_evaluation_duration_seconds",
            "How long a search for nodes to disrupt took.",
            ("reason", "consolidation_type"),
        )
        self.voluntary_disruption_decisions_total = self._counter(
            "voluntary_disruption_decisions_total", "Disruption decisions.", _DECIDED
        )
        self.voluntary_disruption_decisions_by_nodepool_total = self._counter(
            "voluntary_disruption_decisions_by_nodepool_total",
            "Disruption decisions per NodePool concerned.",
            ("nodepool", *_DECIDED),
        )
        self.voluntary_disruption_terminate_first_decisions_total = self._counter(
            "voluntary_disruption_terminate_first_decisions_total",
            "Disruption decisions by which a node goes before its replacement is launched.",
            ("nodepool", "reason", "terminate_first_reason"),
        )
        self.pod_deletion_cost_nodes_with_pending_annotation_writes = self._gauge(
            "pod_deletion_cost_nodes_with_pending_annotation_writes",
            "Nodes with pods whose deletion cost waits to be written.",
            ("nodepool",),
        )
        self.pod_deletion_cost_pod_annotation_writes_total = self._counter(
            "pod_deletion_cost_pod_annotation_writes_total", "Writes of deletion costs on pods.", ("result",)
        )
        self.voluntary_disruption_eligible_nodes = self._gauge(
            "voluntary_disruption_eligible_nodes", "Nodes that would go if no budget forbade it.", ("reason",)
        )
        self.voluntary_disruption_consolidation_timeouts_total = self._counter(
            "voluntary_disruption_consolidation_timeouts_total",
            "Searches for consolidation that ran out of time.",
            ("consolidation_type",),
        )
        for search in CONSOLIDATION_SEARCHES:
            self.voluntary_disruption_consolidation_timeouts_total.labels(consolidation_type=search)
        self.voluntary_disruption_failed_validations_total = self._counter(
            "voluntary_disruption_failed_validations_total",
            "Candidates that failed validation.",
            ("consolidation_type",),
        )
        self.consolidation_score = self._histogram(
            "consolidation_score",
            "What a consolidation saves by what it disrupts, each as a share of the NodePool's.",
            _SCORED,
            (0.1, 0.25, 0.33, 0.5, 1.0, 2.0, 5.0, 10.0),
        )
        self.consolidation_moves_total = self._counter(
            "consolidation_moves_total", "Consolidations that were weighed, per NodePool.", _SCORED
        )
        self.voluntary_disruption_queue_failures_total = self._counter(
            "voluntary_disruption_queue_failures_total", "Disruptions that failed while being carried out.", _DECIDED
        )

    def _declare_scheduling(self) -> None:
        self.scheduler_scheduling_duration_seconds = self._duration(
            "scheduler_scheduling_duration_seconds", "How long working out a plan took.", ("controller",)
        )

    def _declare_provider(self) -> None:
        self.cloudprovider_duration_seconds = self._histogram(
            "cloudprovider_duration_seconds", "Calls to the cloud.", _CALLED, STANDARD_BUCKETS_SECONDS
        )
        self.cloudprovider_errors_total = self._counter(
            "cloudprovider_errors_total",
            "Calls to the cloud that failed, by kind of error.",
            (*_CALLED, "error", "nodepool"),
        )

    def _declare_controllers(self) -> None:
        own = ("controller",)
        self.controller_runtime_reconcile_total = Counter(
            "controller_runtime_reconcile_total", "Reconciles by result.", (*own, "result"), registry=self.registry
        )
        self.controller_runtime_reconcile_errors_total = Counter(
            "controller_runtime_reconcile_errors_total", "Failed reconciles.", own, registry=self.registry
        )
        self.controller_runtime_terminal_reconcile_errors_total = Counter(
            "controller_runtime_terminal_reconcile_errors_total",
            "Failed reconciles that are not retried.",
            own,
            registry=self.registry,
        )
        self.controller_runtime_reconcile_panics_total = Counter(
            "controller_runtime_reconcile_panics_total", "Reconciles that ended in a bug.", own, registry=self.registry
        )
        self.controller_runtime_reconcile_timeouts_total = Counter(
            "controller_runtime_reconcile_timeouts_total", "Reconciles that timed out.", own, registry=self.registry
        )
        self.controller_runtime_max_concurrent_reconciles = Gauge(
            "controller_runtime_max_concurrent_reconciles", "Most reconciles at once.", own, registry=self.registry
        )
        self.controller_runtime_active_workers = Gauge(
            "controller_runtime_active_workers", "Reconciles in progress.", own, registry=self.registry
        )
        self.controller_runtime_reconcile_time_seconds = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "How long a reconcile took.",
            own,
            buckets=RECONCILE_BUCKETS_SECONDS,
            registry=self.registry,
        )

    def _declare_notifications(self) -> None:
        self.notifications_total = self._counter(
            "notifications_total", "Events for webhooks, by what became of them.", ("destination", "outcome")
        )
        self.notifications_waiting = self._gauge(
            "notifications_waiting", "Events that wait for a webhook.", ("destination",)
        )

    def _declare_queues(self) -> None:
        buckets = exponential_buckets(1e-8, 10.0, 12)
        self.workqueue_depth = Gauge(
            "workqueue_depth", "Keys waiting for a worker.", (*_QUEUE, "priority"), registry=self.registry
        )
        self.workqueue_adds_total = Counter("workqueue_adds_total", "Keys added.", _QUEUE, registry=self.registry)
        self.workqueue_retries_total = Counter(
            "workqueue_retries_total", "Keys that were queued again for later.", _QUEUE, registry=self.registry
        )
        self.workqueue_queue_duration_seconds = Histogram(
            "workqueue_queue_duration_seconds",
            "How long a key waited for a worker.",
            _QUEUE,
            buckets=buckets,
            registry=self.registry,
        )
        self.workqueue_work_duration_seconds = Histogram(
            "workqueue_work_duration_seconds",
            "How long a worker processed a key.",
            _QUEUE,
            buckets=buckets,
            registry=self.registry,
        )
        self.workqueue_unfinished_work_seconds = Gauge(
            "workqueue_unfinished_work_seconds",
            "Seconds of work in progress that no duration has counted yet.",
            _QUEUE,
            registry=self.registry,
        )
        self.workqueue_longest_running_processor_seconds = Gauge(
            "workqueue_longest_running_processor_seconds",
            "How long the longest reconcile in progress has lasted.",
            _QUEUE,
            registry=self.registry,
        )

    def _declare_process(self) -> None:
        self.leader_election_master_status = Gauge(
            "leader_election_master_status", "1 while this process leads.", ("name",), registry=self.registry
        )
        self.leader_election_slowpath_total = Counter(
            "leader_election_slowpath_total",
            "Renewals of the lease that needed a fresh read of it.",
            ("name",),
            registry=self.registry,
        )
        self.client_go_request_duration_seconds = Histogram(
            "client_go_request_duration_seconds",
            "Requests to the API server.",
            ("verb", "group", "version", "kind", "subresource"),
            buckets=exponential_buckets(0.001, 1.5, 20),
            registry=self.registry,
        )
        self.client_go_request_total = Counter(
            "client_go_request_total",
            "Requests to the API server by HTTP status and method.",
            ("code", "method"),
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)

    def _counter(self, name: str, help_text: str, labels: Sequence[str]) -> Counter:
        return Counter(f"karpenter_{name}", help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, labels: Sequence[str]) -> Gauge:
        return Gauge(f"karpenter_{name}", help_text, labels, registry=self.registry)

    def _histogram(self, name: str, help_text: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        return Histogram(f"karpenter_{name}", help_text, labels, buckets=buckets, registry=self.registry)

    def _duration(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Histogram:
        return self._histogram(name, help_text, labels, DURATION_BUCKETS_SECONDS)

    def _summary(self, name: str, help_text: str, labels: Sequence[str]) -> SummaryMetric:
        return SummaryMetric(f"karpenter_{name}", help_text, labels, self.registry, self._now)
