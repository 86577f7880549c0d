"""The dashboard "Karpenter / Scheduling and disruption": what waits, what is decided, what fails, how fast it all is."""

from __future__ import annotations

from monitoring.panels import Dashboard, Panel, Query, Row, bars, figure, lines, stacked
from monitoring.series import counted, events, largest, or_zero, quantile, rate, summed

_POOL = "=~$nodepool"
_QUANTILES = ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))


def _latency(name: str, /, **matchers: str) -> tuple[Query, ...]:
    return tuple(Query(quantile(share, name, **matchers), legend) for share, legend in _QUANTILES)


_WAITING = Row(
    "Scheduling",
    (
        Panel(
            "Unschedulable pods",
            "Pending pods for which the last plan had no place. Events FailedScheduling of the pods say why.",
            figure,
            (Query(largest("karpenter_scheduler_unschedulable_pods_count", controller="provisioner")),),
            width=4,
        ),
        Panel(
            "Ignored pods",
            "Pending pods that the last plan was not made for, for a reason of their own.",
            figure,
            (Query(largest("karpenter_scheduler_ignored_pods_count")),),
            width=4,
        ),
        Panel(
            "Longest wait of a planned pod",
            "How long the oldest pod has had a place in plans without being bound.",
            figure,
            (Query(or_zero(largest("karpenter_pods_provisioning_unbound_time_seconds"))),),
            unit="s",
            width=4,
        ),
        Panel(
            "Time to a decision",
            "From first seeing a pod that needs a node to the first decision about it.",
            lines,
            _latency("karpenter_pods_scheduling_decision_duration_seconds"),
            unit="s",
        ),
        Panel(
            "Time to a bound pod",
            "From a pod's creation to its being bound.",
            lines,
            _latency("karpenter_pods_bound_duration_seconds"),
            unit="s",
        ),
        Panel(
            "Duration of a plan",
            "How long one plan took.",
            lines,
            _latency("karpenter_scheduler_scheduling_duration_seconds", controller="provisioner"),
            unit="s",
        ),
        Panel(
            "Pending pods by effective zone",
            "Zones that node selectors and required affinity leave to pending pods.",
            stacked,
            (
                Query(
                    or_zero(
                        largest(
                            "karpenter_scheduler_pending_pods_by_effective_zone_count", "zone", controller="provisioner"
                        )
                    ),
                    "{{zone}}",
                ),
            ),
        ),
        Panel(
            "NodeClaims created",
            "By reason: provisioned for pods, or as replacement of a disruption.",
            bars,
            (Query(events("karpenter_nodeclaims_created_total", "reason", nodepool=_POOL), "{{reason}}"),),
        ),
        Panel(
            "Launch failures",
            "Calls that should have launched an instance and failed, by class of error.",
            bars,
            (
                Query(
                    or_zero(events("karpenter_cloudprovider_errors_total", "error", method="Create")),
                    "{{error}}",
                ),
            ),
        ),
        Panel(
            "NodeClaims that are not ready",
            "By condition that is not True. New ones pass through here.",
            stacked,
            (
                Query(
                    or_zero(
                        counted(
                            "operator_nodeclaim_status_condition_count",
                            "type",
                            type="=~Launched|Registered|Initialized",
                            status="!=True",
                        )
                    ),
                    "{{type}}",
                ),
            ),
        ),
    ),
)

_DISRUPTION = Row(
    "Disruption",
    (
        Panel(
            "Eligible nodes",
            "Nodes that would be disrupted if no budget forbade it.",
            lines,
            (Query(largest("karpenter_voluntary_disruption_eligible_nodes", "reason"), "{{reason}}"),),
        ),
        Panel(
            "Budgets",
            "Disruptions that budgets allow at a time, and nodes that count against them.",
            lines,
            (
                Query(
                    largest("karpenter_nodepools_allowed_disruptions", "nodepool, reason", nodepool=_POOL),
                    "allowed {{nodepool}} {{reason}}",
                ),
                Query(
                    largest("karpenter_nodepools_nodes_consuming_budgets", "nodepool, reason", nodepool=_POOL),
                    "consumed {{nodepool}} {{reason}}",
                ),
            ),
        ),
        Panel(
            "Frozen NodePools",
            "NodePools whose nodes a freeze keeps from being disrupted.",
            figure,
            (Query(summed("karpenter_nodepools_frozen", nodepool=_POOL)),),
        ),
        Panel(
            "Decisions",
            "Disruption decisions begun, by reason and decision.",
            bars,
            (
                Query(
                    events("karpenter_voluntary_disruption_decisions_total", "reason, decision"),
                    "{{reason}} {{decision}}",
                ),
            ),
        ),
        Panel(
            "NodeClaims disrupted",
            "By reason, voluntary or not.",
            bars,
            (Query(events("karpenter_nodeclaims_disrupted_total", "reason", nodepool=_POOL), "{{reason}}"),),
        ),
        Panel(
            "Failed disruptions",
            "Decisions that failed while being executed, and candidates that failed validation.",
            bars,
            (
                Query(
                    or_zero(events("karpenter_voluntary_disruption_queue_failures_total", "reason")),
                    "failed {{reason}}",
                ),
                Query(
                    or_zero(events("karpenter_voluntary_disruption_failed_validations_total", "consolidation_type")),
                    "not validated {{consolidation_type}}",
                ),
            ),
        ),
        Panel(
            "Evictions",
            "Eviction requests by HTTP status: 429 is a PodDisruptionBudget that allows none.",
            bars,
            (Query(or_zero(events("karpenter_pods_eviction_requests_total", "code")), "{{code}}"),),
        ),
        Panel(
            "Node termination latency",
            "From a Node's deletion to the removal of its finalizer, last ten minutes.",
            lines,
            tuple(
                Query(
                    largest("karpenter_nodes_termination_duration_seconds", "nodepool", quantile=share),
                    f"{name} {{{{nodepool}}}}",
                )
                for share, name in (("0.5", "p50"), ("0.99", "p99"))
            ),
            unit="s",
        ),
    ),
)

_CONTROLLER = Row(
    "Controller",
    (
        Panel(
            "Reconcile errors",
            "Failed reconciles by controller.",
            lines,
            (Query(rate("controller_runtime_reconcile_errors_total", "controller"), "{{controller}}"),),
            unit="ops",
        ),
        Panel(
            "Reconcile latency",
            "99 % of the reconciles take less.",
            lines,
            (Query(quantile(0.99, "controller_runtime_reconcile_time_seconds", "controller"), "{{controller}}"),),
            unit="s",
        ),
        Panel(
            "Queues",
            "Keys that wait for a worker.",
            lines,
            (Query(summed("workqueue_depth", "name"), "{{name}}"),),
        ),
        Panel(
            "Requests to the API server",
            "By HTTP status.",
            lines,
            (Query(rate("client_go_request_total", "code"), "{{code}}"),),
            unit="reqps",
        ),
        Panel(
            "Calls to the cloud",
            "By method.",
            lines,
            (Query(rate("karpenter_cloudprovider_duration_seconds_count", "method"), "{{method}}"),),
            unit="reqps",
        ),
        Panel(
            "CPU", "Of each process.", lines, (Query(rate("process_cpu_seconds_total", "instance"), "{{instance}}"),)
        ),
        Panel(
            "Memory",
            "Resident memory of each process.",
            lines,
            (Query(largest("process_resident_memory_bytes", "instance"), "{{instance}}"),),
            unit="bytes",
        ),
        Panel("Leader", "1 while a process leads.", figure, (Query(summed("leader_election_master_status")),)),
    ),
)

_EC2 = Row(
    "EC2",
    (
        Panel(
            "Interruption messages",
            "Messages of the interruption queue by type.",
            bars,
            (
                Query(
                    or_zero(events("karpenter_interruption_received_messages_total", "message_type")),
                    "{{message_type}}",
                ),
            ),
        ),
        Panel(
            "Offerings without capacity",
            "Offerings that EC2 had no capacity for lately. Launches do not try them.",
            stacked,
            (
                Query(
                    or_zero(largest("karpenter_cloudprovider_unavailable_offerings", "capacity_type")),
                    "{{capacity_type}}",
                ),
            ),
        ),
        Panel(
            "Refused launches",
            "Refusals of CreateFleet by EC2's error code.",
            bars,
            (
                Query(
                    or_zero(events("karpenter_cloudprovider_instance_launch_failures_total", "reason")),
                    "{{reason}}",
                ),
            ),
        ),
        Panel(
            "Requests to AWS that failed",
            "By service, action and HTTP status; 0 where no answer came.",
            bars,
            (
                Query(
                    or_zero(events("aws_sdk_go_request_total", "service, action, status_code", status_code="!~2..")),
                    "{{service}} {{action}} {{status_code}}",
                ),
            ),
        ),
    ),
)

DECISIONS = Dashboard(
    "karpenter-decisions",
    "Karpenter / Scheduling and disruption",
    "What waits, what is decided, what fails, and how fast the controller is.",
    (_WAITING, _DISRUPTION, _CONTROLLER, _EC2),
)
