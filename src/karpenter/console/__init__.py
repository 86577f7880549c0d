"""What people want to know about a cluster, as frozen data: nodes, pods that wait, NodePools, spending, decisions, events.

``console_view`` builds it from a snapshot and the objects of the API server alone, so it also describes clusters that another
implementation of Karpenter runs.
"""
