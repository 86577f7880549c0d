"""What the process shows of the cluster: gauges worked out when they are asked for, durations and events from what changes.

``ClusterMetrics`` receives every change and every plan and hands it to its collectors. When figures are asked for, it takes one
snapshot of the cluster from which all collectors write (OPS §5). It decides nothing, and nothing waits for it.
"""
