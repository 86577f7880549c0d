"""Rules about manifests that are legal and probably not meant: budgets, pools, node classes, workloads, dashboards and alerts.

Pure: objects with their places in files go in, findings come out. ``karpenter lint`` reads the files and prints the findings.
"""
