"""Cluster state: an incremental cache of watched objects, and the immutable snapshots that decisions are made on.

``cluster_state`` folds watch events into indexes, so that a snapshot costs what changed and not what exists. ``pod_signature``
identifies pods that scheduling cannot tell apart, ``state_node`` merges a Node and its NodeClaim. Nothing here calls the API
server or takes a decision.
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
