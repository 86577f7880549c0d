"""The dashboard "Karpenter / Cost": what the nodes cost, what of it is requested, how far plans are from the bound."""

from __future__ import annotations

from monitoring.panels import Dashboard, Panel, Query, Row, figure, lines, shares, stacked
from monitoring.series import counted, events, largest, or_zero, summed

_POOL = "=~$nodepool"
_COST = summed("karpenter_nodepools_cost_total", nodepool=_POOL)
_COST_BY_POOL = summed("karpenter_nodepools_cost_total", "nodepool", nodepool=_POOL)
_HOURS_PER_MONTH = 730
_GIB = 2**30


def _of_pool(name: str, resource: str) -> str:
    return summed(name, "nodepool", resource_type=resource, nodepool=_POOL)


def _share(resource: str) -> str:
    """What pods request of what nodes offer, by NodePool, 0 to 1."""
    return f"({_of_pool('karpenter_nodes_total_pod_requests', resource)} / {_of_pool('karpenter_nodes_allocatable', resource)})"


#: A node is as full as its fuller resource: what is left of the other cannot be used without it.
_IDLE = f"{_COST_BY_POOL} * (1 - ({_share('cpu')} > {_share('memory')} or {_share('memory')}))"

_SPENDING = Row(
    "Spending",
    (
        Panel("Cost per hour", "Present price of all nodes.", figure, (Query(_COST),), unit="currencyUSD", width=4),
        Panel(
            "Cost per month",
            "The same for 730 hours.",
            figure,
            (Query(f"{_COST} * {_HOURS_PER_MONTH}"),),
            unit="currencyUSD",
            width=4,
        ),
        Panel(
            "Cost of unrequested capacity per hour",
            "Price of what no pod requests, by the fuller of CPU and memory in each NodePool.",
            figure,
            (Query(f"sum ({_IDLE})"),),
            unit="currencyUSD",
            width=4,
        ),
        Panel(
            "Price of a requested vCPU per hour",
            "Cost per hour divided by the CPU that pods request. Compare it over time, not between clusters.",
            figure,
            (
                Query(
                    f"{_COST} / {summed('karpenter_nodes_total_pod_requests', resource_type='cpu', nodepool=_POOL)}",
                ),
            ),
            unit="currencyUSD",
            width=4,
        ),
        Panel(
            "Price of a requested GiB per hour",
            "Cost per hour divided by the memory that pods request.",
            figure,
            (
                Query(
                    f"{_COST} / "
                    f"({summed('karpenter_nodes_total_pod_requests', resource_type='memory', nodepool=_POOL)} / {_GIB})",
                ),
            ),
            unit="currencyUSD",
            width=4,
        ),
        Panel(
            "Spot share of nodes",
            "Spot nodes of all nodes, in percent.",
            figure,
            (
                Query(
                    "100 * ("
                    + or_zero(
                        counted(
                            "karpenter_nodes_allocatable", resource_type="cpu", capacity_type="spot", nodepool=_POOL
                        )
                    )
                    + f") / {counted('karpenter_nodes_allocatable', resource_type='cpu', nodepool=_POOL)}",
                ),
            ),
            unit="percent",
            width=4,
        ),
        Panel(
            "Cost per hour by NodePool",
            "Present price of the nodes of each NodePool.",
            stacked,
            (Query(_COST_BY_POOL, "{{nodepool}}"),),
            unit="currencyUSD",
            width=12,
        ),
        Panel(
            "Cost of unrequested capacity by NodePool",
            "Price per hour of what no pod requests.",
            stacked,
            (Query(_IDLE, "{{nodepool}}"),),
            unit="currencyUSD",
            width=12,
        ),
    ),
)

_PLANS = Row(
    "Plans and limits",
    (
        Panel(
            "Price of the last plan against its lower bound",
            "No plan for the same pods costs less than the bound. Plans without new nodes change nothing here.",
            lines,
            (
                Query(largest("karpenter_scheduler_plan_price"), "price"),
                Query(largest("karpenter_scheduler_plan_price_lower_bound"), "lower bound"),
            ),
            unit="currencyUSD",
            width=8,
        ),
        Panel(
            "Gap of the last plan",
            "Price above the lower bound. No plan could save more.",
            lines,
            (Query(f"100 * {largest('karpenter_scheduler_plan_price_gap')}", "gap"),),
            unit="percent",
            width=8,
        ),
        Panel(
            "Use of NodePool limits",
            "What the nodes of a NodePool have, as a share of its limits.",
            lines,
            (
                Query(
                    "100 * "
                    + largest("karpenter_nodepools_usage", "nodepool, resource_type", nodepool=_POOL)
                    + " / "
                    + largest("karpenter_nodepools_limit", "nodepool, resource_type", nodepool=_POOL),
                    "{{nodepool}} {{resource_type}}",
                ),
            ),
            unit="percent",
            width=8,
        ),
        Panel(
            "Nodes removed to save money",
            "Nodes that emptiness and consolidation removed in the last hour, by reason.",
            shares,
            (
                Query(
                    or_zero(
                        events(
                            "karpenter_nodeclaims_disrupted_total",
                            "reason",
                            "1h",
                            reason="=~empty|underutilized",
                            nodepool=_POOL,
                        )
                    ),
                    "{{reason}}",
                ),
            ),
            width=8,
        ),
        Panel(
            "Launches by instance type",
            "Instances launched in the last hour.",
            shares,
            (
                Query(
                    events("karpenter_nodeclaims_launched_total", "instance_type, capacity_type", "1h", nodepool=_POOL),
                    "{{instance_type}} {{capacity_type}}",
                ),
            ),
            width=8,
        ),
        Panel(
            "NodeClaims without a known price",
            "They count as free above.",
            figure,
            (Query(or_zero(summed("karpenter_nodepools_cost_tracker_errors_total"))),),
            width=8,
        ),
    ),
)

MONEY = Dashboard("karpenter-cost", "Karpenter / Cost", "What the nodes cost and why.", (_SPENDING, _PLANS))
