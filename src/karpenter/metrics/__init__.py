"""Figures about the running process for Prometheus: every series by name, in one registry per process.

Components get ``Metrics`` and count their events there. Series that follow from the cluster state are computed at each scrape, so
that a series never outlives its object.
"""

from karpenter.metrics.build_info import BuildInfo
from karpenter.metrics.registry import Metrics

__all__ = ["BuildInfo", "Metrics"]
