"""Alert rules: what an operator must know, how long it must last, what it means and what to do.

Rules use ``max`` over replicas, because a standby exports no cluster state. Windows are minutes, not seconds: a node takes a
minute to join. Severities: ``critical`` wakes somebody, ``warning`` is for working hours, ``info`` is for a channel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from monitoring.series import events, largest, series, summed

#: Where rules point for what to do. The chart puts the address of the documents in front of it.
RUNBOOKS = "docs/operations/alerts.md"
_GROUP = "karpenter"
_JOB = 'job="karpenter"'


@dataclass(frozen=True)
class Alert:
    """One rule. ``summary`` may use ``{{ $labels.x }}`` and ``{{ $value }}``; ``lasting`` is a Prometheus duration."""

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str
    meaning: str
    remedy: str


ALERTS = (
    Alert(
        "KarpenterDown",
        f"absent(up{{{_JOB}}} == 1)",
        "5m",
        "critical",
        "No replica of Karpenter answers Prometheus",
        "Prometheus reaches no metrics endpoint of the controller. New pods get no nodes while no controller runs.",
        "`kubectl get pods,events -n kube-system -l app.kubernetes.io/name=karpenter`. Where pods run and are ready, check the "
        "ServiceMonitor and network policies: the job must be named `karpenter`.",
    ),
    Alert(
        "KarpenterNoLeader",
        f"{summed('leader_election_master_status')} < 1",
        "5m",
        "critical",
        "No replica of Karpenter leads",
        "Only the leader acts. A replica that cannot write its Lease does not lead.",
        "`kubectl get lease -n kube-system karpenter-leader-election -o yaml` shows the holder and its last renewal. "
        "The log says why a renewal failed; usually the API server is slow or the permission on leases is missing.",
    ),
    Alert(
        "KarpenterClusterStateUnsynced",
        f"{largest('karpenter_cluster_state_synced')} < 1",
        "5m",
        "critical",
        "Karpenter does not see the cluster",
        "A watch brings no news. The controller decides nothing from a stale view.",
        "Search the log for `watch` and `list`. Check permissions (`karpenter doctor`) and the API server.",
    ),
    Alert(
        "KarpenterPodsUnschedulable",
        f"{largest('karpenter_scheduler_unschedulable_pods_count', controller='provisioner')} > 0",
        "15m",
        "warning",
        "{{ $value }} pods fit no node that Karpenter could launch",
        "The plan has no place for these pods, and waiting does not help.",
        "`karpenter explain pod NAMESPACE/NAME` or the pod's event FailedScheduling name the reason and the nearest fit.",
    ),
    Alert(
        "KarpenterPodsWaitTooLong",
        f"{largest('karpenter_pods_provisioning_unbound_time_seconds')} > 900",
        "1m",
        "warning",
        "A pod has had a place in plans for {{ $value | humanizeDuration }} and is not bound",
        "Instances are launched or planned, and pods do not reach them.",
        "Look at NodeClaims that are not Initialized: `kubectl get nodeclaims`. The next two alerts narrow it down.",
    ),
    Alert(
        "KarpenterLaunchFailures",
        f"{events('karpenter_cloudprovider_errors_total', 'error', '15m', method='Create')} > 5",
        "1m",
        "warning",
        "{{ $value }} launches failed within 15 minutes ({{ $labels.error }})",
        "The cloud refuses launches: no capacity, quota, permission, or a node class that is not ready.",
        "`kubectl describe nodeclaim` and the log message `failed launching nodeclaim` give the cloud's words. For "
        "InsufficientCapacityError allow more instance types or zones. For quotas ask the cloud for more.",
    ),
    Alert(
        "KarpenterNodeClaimNotInitialized",
        "count by (karpenter_sh_nodepool) ("
        + series("operator_nodeclaim_status_condition_current_status_seconds", type="Initialized", status="!=True")
        + " > 900)",
        "1m",
        "warning",
        "{{ $value }} NodeClaims of {{ $labels.karpenter_sh_nodepool }} are not initialized after 15 minutes",
        "The instance runs and its Node does not join, or it keeps startup taints or misses devices.",
        "`kubectl describe nodeclaim` names what it waits for. Where no Node came: user data, IAM role of the node, network.",
    ),
    Alert(
        "KarpenterNodePoolNotReady",
        f"{largest('operator_nodepool_status_condition_count', 'name, reason', type='Ready', status='False')} > 0",
        "10m",
        "warning",
        "NodePool {{ $labels.name }} is not ready ({{ $labels.reason }})",
        "The NodePool launches nothing: its node class is missing or not ready, or its own fields are invalid.",
        "`kubectl describe nodepool` and `kubectl describe ec2nodeclass` give the condition's message.",
    ),
    Alert(
        "KarpenterNodePoolLimitNear",
        largest("karpenter_nodepools_usage", "nodepool, resource_type")
        + " / "
        + largest("karpenter_nodepools_limit", "nodepool, resource_type")
        + " > 0.9",
        "15m",
        "info",
        "NodePool {{ $labels.nodepool }} uses {{ $value | humanizePercentage }} of its {{ $labels.resource_type }} limit",
        "At the limit pods wait.",
        "Raise `spec.limits` of the NodePool, or find out what grew.",
    ),
    Alert(
        "KarpenterNodesLosePods",
        f"{events('karpenter_pods_lost_by_new_nodes_total', 'nodepool', '30m')} > 3",
        "1m",
        "warning",
        "{{ $value }} new nodes of {{ $labels.nodepool }} lost the pods they were launched for",
        "Something makes new nodes unfit for their pods: a NoExecute taint, a webhook, another scheduler. Launches slow down by "
        "themselves, the cause remains.",
        "Compare the taints of new nodes with the NodePool's; look for events FailedScheduling of the pods.",
    ),
    Alert(
        "KarpenterChurn",
        f"sum ({events('karpenter_nodeclaims_disrupted_total', 'reason', '1h', reason='=~underutilized|drifted')})"
        f" > 0.5 * {largest('karpenter_cluster_state_node_count')} > 5",
        "10m",
        "warning",
        "{{ $value }} nodes were replaced within an hour",
        "More than half of the cluster was disrupted by choice within an hour.",
        "`karpenter freeze` stops voluntary disruption at once. Events of the NodeClaims and the log name reasons; "
        "then set budgets.",
    ),
    Alert(
        "KarpenterDrainStuck",
        f"{largest('operator_nodeclaim_termination_current_time_seconds', 'name')} > 3600",
        "5m",
        "warning",
        "NodeClaim {{ $labels.name }} has been terminating for {{ $value | humanizeDuration }}",
        "The drain waits: a PodDisruptionBudget allows no eviction, a pod must not be disrupted, a volume does not detach.",
        "`karpenter explain node NAME` lists what blocks the drain. A `terminationGracePeriod` in the NodePool bounds it.",
    ),
    Alert(
        "KarpenterEvictionsRefused",
        f"{events('karpenter_pods_eviction_requests_total', 'code', '30m', code='429')} > 100",
        "15m",
        "info",
        "PodDisruptionBudgets refused {{ $value }} evictions within 30 minutes",
        "Budgets allow fewer evictions than drains need.",
        "`kubectl get pdb -A` and look for ALLOWED DISRUPTIONS 0.",
    ),
    Alert(
        "KarpenterInconsistentNodeClaim",
        largest(
            "operator_status_condition_count", "name", kind="NodeClaim", type="ConsistentStateFound", status="False"
        )
        + " > 0",
        "10m",
        "info",
        "Node of NodeClaim {{ $labels.name }} differs from what was planned",
        "The Node offers less than the instance type promised, or lacks a taint.",
        "`kubectl describe nodeclaim` names the difference. Reserved resources in user data are the usual cause.",
    ),
    Alert(
        "KarpenterReconcilePanics",
        f"{events('controller_runtime_reconcile_panics_total', 'controller', '15m')} > 0",
        "1m",
        "warning",
        "Controller {{ $labels.controller }} met a bug",
        "The object is retried and other objects go on.",
        "Search the log for `Reconciler error` of that controller and report it.",
    ),
    Alert(
        "KarpenterReconcileErrors",
        f"{events('controller_runtime_reconcile_errors_total', 'controller', '15m')} > 30",
        "15m",
        "warning",
        "{{ $value }} reconciles of {{ $labels.controller }} failed within 15 minutes",
        "Calls to the API server or the cloud fail again and again.",
        "Search the log for `Reconciler error` of that controller. Conflicts (409) are harmless, 403 is a missing permission.",
    ),
    Alert(
        "KarpenterPriceUnknown",
        f"{events('karpenter_nodepools_cost_tracker_errors_total', 'nodepool', '1h')} > 0",
        "1m",
        "info",
        "Instances of {{ $labels.nodepool }} have no known price",
        "They count as free in cost figures.",
        "Check the price data of that instance type and region; on AWS the permission `pricing:GetProducts`.",
    ),
    Alert(
        "KarpenterFrozen",
        f"{largest('karpenter_nodepools_frozen', 'nodepool')} > 0",
        "24h",
        "info",
        "NodePool {{ $labels.nodepool }} has been frozen for a day",
        "A freeze without an end keeps nodes that could go, and drifted nodes stay.",
        "`karpenter thaw`, or give the freeze an end.",
    ),
    Alert(
        "KarpenterInterruptionsLate",
        "histogram_quantile(0.99, sum by (le) "
        f"(increase({series('karpenter_interruption_message_queue_duration_seconds_bucket')}[15m]))) > 60",
        "5m",
        "warning",
        "Interruption messages are handled {{ $value | humanizeDuration }} after they were sent",
        "Spot instances get two minutes of notice; late messages leave no time to drain.",
        "Check the queue's depth and the permission `sqs:ReceiveMessage`.",
    ),
)


def rules_yaml() -> str:
    """The rules as a file of Prometheus, also the ``spec`` of a PrometheusRule."""
    document = {"groups": [{"name": _GROUP, "rules": [_rule(alert) for alert in ALERTS]}]}
    head = "# Generated by `python -m monitoring` from monitoring/alerts.py.\n"
    return head + yaml.safe_dump(document, sort_keys=False, width=140)


def _rule(alert: Alert) -> dict[str, object]:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.lasting,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.meaning,
            "runbook_url": f"{RUNBOOKS}#{alert.name.lower()}",
        },
    }


def page() -> str:
    """The page about alerts: what each means and what to do."""
    return "\n".join(_page())


def _page() -> Iterator[str]:
    yield "# Alerts\n"
    yield "Generated by `python -m monitoring` from `monitoring/alerts.py`.\n"
    yield "The rules are in `charts/karpenter/alerts/karpenter.yaml`, a rule file of Prometheus. The chart makes a"
    yield "PrometheusRule of it (`prometheusRule.enabled`). Each rule links to its paragraph here.\n"
    for alert in ALERTS:
        yield f"## {alert.name}\n"
        yield f"{alert.meaning} Severity: {alert.severity}; after {alert.lasting}.\n"
        yield f"```promql\n{alert.expression}\n```\n"
        yield f"**What to do.** {alert.remedy}\n"
