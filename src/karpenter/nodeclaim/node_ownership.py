"""Which Node belongs to which NodeClaim, beyond a common provider ID.

Users can edit the provider ID of a claim. A Node's provider ID is immutable, and the owner reference written at registration
carries the claim's uid. So if the two disagree, the Node is right.
"""

from __future__ import annotations

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.meta import OwnerReference
from karpenter.model import labels
from karpenter.state import ClusterState

_API_VERSION, _KIND = "karpenter.sh/v1", "NodeClaim"


def node_class_label(claim: NodeClaim) -> dict[str, str]:
    """The node class as a label (OPS-028): a manually created claim may lack it, and Node termination needs it (DIS-510)."""
    reference = claim.spec.node_class_ref
    return {f"{reference.group}/{reference.kind.lower()}": reference.name}


def owns(claim: NodeClaim, node: Node) -> bool:
    """Whether the Node has the claim as an owner."""
    uid = claim.metadata.uid
    return any((r.api_version, r.kind, r.uid) == (_API_VERSION, _KIND, uid) for r in node.metadata.owner_references)


def owner_references_with(claim: NodeClaim, node: Node) -> tuple[OwnerReference, ...]:
    """The Node's owner references including the claim's (OPS-024)."""
    references = node.metadata.owner_references
    if owns(claim, node):
        return references
    meta = claim.metadata
    owner_reference = OwnerReference(
        api_version=_API_VERSION, kind=_KIND, name=meta.name, uid=meta.uid, block_owner_deletion=True
    )
    return (*references, owner_reference)


def other_owner(claim: NodeClaim, node: Node, state: ClusterState) -> NodeClaim | None:
    """Another claim of the same provider ID that owns the Node; None when there is none."""
    for reference in node.metadata.owner_references:
        other = state.claim(reference.name) if reference.kind == _KIND else None
        if other is None or other.metadata.uid != reference.uid or other.metadata.uid == claim.metadata.uid:
            continue
        if other.status.provider_id == node.spec.provider_id:
            return other
    return None


def own_node(claim: NodeClaim, state: ClusterState) -> Node | None:
    """The Node the claim registered with, according to both objects, regardless of the claim's current provider ID."""
    node = state.node(claim.status.node_name)
    return node if node is not None and owns(claim, node) else None


def is_replacement_node(node: Node, claim: NodeClaim) -> bool:
    """Whether the Node replaces the one a registered claim registered with: a kubelet whose Node was deleted creates a new one,
    with the unregistered taint."""
    return labels.REGISTERED not in node.metadata.labels and not owns(claim, node)
