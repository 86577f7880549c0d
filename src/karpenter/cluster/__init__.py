"""The state of the world: an incremental cache fed with objects, and the immutable snapshots decisions are made on.

``state`` folds one event at a time and keeps sums, classes and indexes up to date, so that a snapshot costs what changed and
not what exists. ``classes`` groups pods that scheduling cannot tell apart, ``nodes`` merges a Node and its NodeClaim into one
view. Nothing here talks to an API server or takes a decision.
"""

from karpenter.cluster.classes import PodClass, PodClasses
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Daemon, PodGroup, Snapshot
from karpenter.cluster.state import ClusterState
from karpenter.cluster.volumes import PodVolumes, Volumes

__all__ = [
    "ClusterState",
    "Daemon",
    "NodeView",
    "PodClass",
    "PodClasses",
    "PodGroup",
    "PodVolumes",
    "Snapshot",
    "Volumes",
]
