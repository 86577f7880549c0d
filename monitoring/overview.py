"""The dashboard "Karpenter / Overview": what there is, what waits, what came and went (docs/spec, operations §9.2)."""

from __future__ import annotations

from monitoring.panels import Dashboard, Panel, Query, Row, bar, bars, figure, lines, shares, stacked
from monitoring.series import counted, events, largest, or_zero, summed

_POOL = "=~$nodepool"
_HOURS_PER_MONTH = 730

_NOW = Row(
    "Now",
    (
        Panel(
            "Active nodes",
            "Nodes and launched NodeClaims whose Node has not joined yet.",
            figure,
            (Query(largest("karpenter_cluster_state_node_count")),),
            width=4,
        ),
        Panel(
            "Pending pods",
            "Pods in phase Pending, whoever they wait for.",
            figure,
            (Query(or_zero(counted("karpenter_pods_state", phase="Pending"))),),
            width=4,
        ),
        Panel(
            "CPU utilization",
            "CPU that pods request, as a share of what all nodes offer. It is not the use of CPU.",
            bar,
            (Query(largest("karpenter_cluster_utilization_percent", resource_type="cpu")),),
            unit="percent",
        ),
        Panel(
            "Memory utilization",
            "Memory that pods request, as a share of what all nodes offer.",
            bar,
            (Query(largest("karpenter_cluster_utilization_percent", resource_type="memory")),),
            unit="percent",
        ),
        Panel(
            "Cost per month",
            "Present price of all nodes of NodePools times 730 hours.",
            figure,
            (Query(f"{summed('karpenter_nodepools_cost_total', nodepool=_POOL)} * {_HOURS_PER_MONTH}"),),
            unit="currencyUSD",
            width=4,
        ),
    ),
)

_NODES = Row(
    "Nodes",
    (
        Panel(
            "Node provisioning timeline",
            "Above the line: instances launched, by instance type. Below: NodeClaims disrupted, by reason.",
            bars,
            (
                Query(
                    events("karpenter_nodeclaims_launched_total", "instance_type, capacity_type", nodepool=_POOL),
                    "+ {{instance_type}} ({{capacity_type}})",
                ),
                Query(
                    f"-({events('karpenter_nodeclaims_disrupted_total', 'reason', nodepool=_POOL)})",
                    "- {{reason}}",
                ),
            ),
            width=16,
        ),
        Panel(
            "Instance type distribution",
            "Nodes by instance type.",
            shares,
            (
                Query(
                    counted("karpenter_nodes_allocatable", "instance_type", resource_type="cpu", nodepool=_POOL),
                    "{{instance_type}}",
                ),
            ),
            width=8,
        ),
        Panel(
            "Nodes by NodePool",
            "Nodes of each NodePool.",
            stacked,
            (
                Query(
                    summed("karpenter_nodepools_usage", "nodepool", resource_type="nodes", nodepool=_POOL),
                    "{{nodepool}}",
                ),
            ),
            width=8,
        ),
        Panel(
            "Nodes by zone",
            "Nodes in each zone.",
            stacked,
            (Query(counted("karpenter_nodes_allocatable", "zone", resource_type="cpu", nodepool=_POOL), "{{zone}}"),),
            width=8,
        ),
        Panel(
            "Nodes by capacity type",
            "Spot, on-demand and reserved nodes.",
            stacked,
            (
                Query(
                    counted("karpenter_nodes_allocatable", "capacity_type", resource_type="cpu", nodepool=_POOL),
                    "{{capacity_type}}",
                ),
            ),
            width=8,
        ),
    ),
)

_PODS = Row(
    "Pods",
    (
        Panel(
            "Pods by phase",
            "All pods of the cluster.",
            stacked,
            (Query(counted("karpenter_pods_state", "phase"), "{{phase}}"),),
            width=8,
        ),
        Panel(
            "Pod startup latency",
            "From a pod's creation to its being ready; pods that this process saw pending, last ten minutes.",
            lines,
            tuple(
                Query(largest("karpenter_pods_startup_duration_seconds", quantile=share), name)
                for share, name in (("0.5", "p50"), ("0.9", "p90"), ("0.99", "p99"))
            ),
            unit="s",
            width=8,
        ),
        Panel(
            "Requested of allocatable",
            "What pods request as a share of what the NodePool's nodes offer.",
            lines,
            tuple(
                Query(
                    f"100 * {summed('karpenter_nodes_total_pod_requests', 'nodepool', resource_type=resource, nodepool=_POOL)}"
                    f" / {summed('karpenter_nodes_allocatable', 'nodepool', resource_type=resource, nodepool=_POOL)}",
                    f"{{{{nodepool}}}} {resource}",
                )
                for resource in ("cpu", "memory")
            ),
            unit="percent",
            width=8,
        ),
    ),
)

OVERVIEW = Dashboard(
    "karpenter-overview",
    "Karpenter / Overview",
    "Nodes, pods and cost at a glance.",
    (_NOW, _NODES, _PODS),
)
