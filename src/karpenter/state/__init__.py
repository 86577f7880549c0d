"""The state of the world: an incremental cache fed with objects, and the immutable snapshots decisions are made on.

``state`` folds one event at a time and keeps sums, classes and indexes up to date, so that a snapshot costs what changed and
not what exists. ``classes`` groups pods that scheduling cannot tell apart, ``nodes`` merges a Node and its NodeClaim into one
view. Nothing here talks to an API server or takes a decision.
"""

from karpenter.state.cluster_state import ClusterState
from karpenter.state.pod_signature import PodSignature, PodSignatureCache
from karpenter.state.pod_volumes import ClusterVolumes, PodVolumes
from karpenter.state.snapshot import ClusterSnapshot, DaemonSetPod, PodGroup
from karpenter.state.state_node import StateNode

__all__ = [
    "ClusterState",
    "DaemonSetPod",
    "StateNode",
    "PodSignature",
    "PodSignatureCache",
    "PodGroup",
    "PodVolumes",
    "ClusterSnapshot",
    "ClusterVolumes",
]
