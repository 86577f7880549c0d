"""Static capacity: NodePools with a fixed number of nodes (feature gate StaticCapacity).

``replicas`` holds the pure rules, ``static_reconciler`` creates and deletes the claims.
"""
