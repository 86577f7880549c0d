"""Deletion costs of pods, behind the feature gate PodDeletionCostManagement: which replicas go first when a workload scales down.

``deletion_cost_ranking`` ranks nodes (pure), ``deletion_cost_controller`` does so once a minute, ``deletion_cost_writer`` writes.
"""
