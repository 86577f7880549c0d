"""Figures about the running process for Prometheus: every series by name, in one registry per process.

Whoever does something worth counting is handed ``Metrics`` and counts it there; what can be read off the cluster's picture is
computed when it is asked for, so that a series never outlives its object.
"""

from karpenter.metrics.build_info import BuildInfo
from karpenter.metrics.registry import Metrics

__all__ = ["BuildInfo", "Metrics"]
