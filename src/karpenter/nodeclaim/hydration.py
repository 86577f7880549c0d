"""What claims and Nodes must carry to be known as what they are, put back where it is missing (OPS §1.9 and beyond).

Claims and Nodes of older versions lack the label of their node class; so far this is hydration as everybody knows it. The same
steps undo edits by hand that would make a machine unknown for ever: a provider ID changed, the pool's label, the Node's
registration marks, its owner or its finalizer taken away. Values that only differ are left alone, except where they identify.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE
from karpenter.api.meta import ObjectMeta
from karpenter.model import conditions, labels
from karpenter.nodeclaim.node_ownership import node_class_label, own_node, owner_references_with, owns
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft
from karpenter.runtime.patching import merge_patch
from karpenter.state import ClusterState

_log = structlog.get_logger()


class NodeClaimHydration:
    """Puts back what identifies a claim and its Node."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    async def reconcile_claim(self, draft: NodeClaimDraft) -> None:
        """The claim's provider ID, the name of its Node, and its labels."""
        self._restore_provider_id(draft)
        self._restore_node_name(draft)
        missing = dict(_missing_labels(draft.claim, self._context.state))
        if missing:
            draft.merge_metadata(missing)
            draft.after_write(lambda: _log.info("hydrated nodeclaim", labels=missing))

    def _restore_provider_id(self, draft: NodeClaimDraft) -> None:
        """The Node the claim registered with still says which machine it is."""
        node = own_node(draft.claim, self._context.state)
        if node is None or not draft.is_true("Registered"):
            return
        known, changed = node.spec.provider_id, draft.claim.status.provider_id
        if not known or changed == known:
            return
        draft.set_status(msgspec.structs.replace(draft.claim.status, provider_id=known))
        draft.after_write(lambda: _log.info("restored nodeclaim", **{"provider-id": known, "changed-to": changed}))

    def _restore_node_name(self, draft: NodeClaimDraft) -> None:
        """The only Node of the claim's provider ID, if it says that it is the claim's."""
        nodes = self._context.state.nodes_by_provider_id(draft.claim.status.provider_id)
        if len(nodes) != 1 or not draft.is_true("Registered") or not owns(draft.claim, nodes[0]):
            return
        if draft.claim.status.node_name != nodes[0].metadata.name:
            draft.set_status(msgspec.structs.replace(draft.claim.status, node_name=nodes[0].metadata.name))

    async def reconcile_node(self, draft: NodeClaimDraft) -> None:
        """The Node of a claim that had registered before this look; a Node several claims share is nobody's (OPS-081).

        Raises ``KubeError``.
        """
        provider_id = draft.claim.status.provider_id
        nodes = self._context.state.nodes_by_provider_id(provider_id)
        if (
            len(nodes) != 1
            or len(self._context.state.claims_by_provider_id(provider_id)) != 1
            or not _was_registered(draft)
        ):
            return
        node = nodes[0]
        if node.metadata.deletion_timestamp is not None:
            return
        wanted = hydrated_node(node, draft)
        patch = merge_patch(node, wanted)
        if patch:
            meta = node.metadata
            await self._context.kube.patch(NODE, meta.name, patch, resource_version=meta.resource_version)
            _log.info("hydrated node", Node={"name": meta.name}, restored=_changed_fields(meta, wanted.metadata))


def hydrated_node(node: Node, draft: NodeClaimDraft) -> Node:
    """A registered Node with all that makes it known as the draft's."""
    meta, own = node.metadata, draft.claim.metadata.labels
    marks = {**node_class_label(draft.claim), labels.REGISTERED: "true"}
    if draft.is_true("Initialized"):
        marks[labels.INITIALIZED] = "true"
    pool = {labels.NODE_POOL: own[labels.NODE_POOL]} if labels.NODE_POOL in own else {}
    changed = msgspec.structs.replace(
        meta,
        labels={**pool, **meta.labels, **marks},
        finalizers=tuple(dict.fromkeys((*meta.finalizers, labels.TERMINATION_FINALIZER))),
        owner_references=owner_references_with(draft.claim, node),
    )
    return msgspec.structs.replace(node, metadata=changed)


def _changed_fields(before: ObjectMeta, after: ObjectMeta) -> list[str]:
    """What differs: labels by their keys, other fields by their names."""
    found = sorted(key for key, value in after.labels.items() if before.labels.get(key) != value)
    found += ["finalizers"] if before.finalizers != after.finalizers else []
    return found + (["ownerReferences"] if before.owner_references != after.owner_references else [])


def _missing_labels(claim: NodeClaim, state: ClusterState) -> Iterator[tuple[str, str]]:
    """Labels the claim must have and does not (OPS-080): its class as the spec names it, its pool as its owner is called."""
    found = claim.metadata.labels
    for key, value in node_class_label(claim).items():
        if found.get(key) != value:
            yield key, value
    if labels.NODE_POOL in found:
        return
    for owner in claim.metadata.owner_references:
        pool = state.pool(owner.name) if owner.kind == "NodePool" else None
        if pool is not None and pool.metadata.uid == owner.uid:
            yield labels.NODE_POOL, owner.name


def _was_registered(draft: NodeClaimDraft) -> bool:
    return draft.is_true("Registered") and conditions.is_true(draft.stored.status.conditions, "Registered")
