"""What the process shows of the cluster: gauges worked out when they are asked for, durations and events from what changes.

One object, the ``Observatory``, hears of every change and every plan, and hands it to its parts; asked for figures, it takes
one picture of the cluster from which all parts write (OPS §5). It decides nothing, and nothing waits for it.
"""
