"""Hydration: restores identifying metadata of NodeClaims and Nodes where it is missing (OPS §1.9 and beyond).

Objects of older versions lack the label of their node class; Karpenter hydrates that, too. Beyond Karpenter, hydration reverts
manual edits that would orphan an instance: a changed provider ID, a removed NodePool label, registration label, owner reference
or finalizer. Other changed values are kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE
from karpenter.api.meta import ObjectMeta
from karpenter.controller_context import ControllerContext
from karpenter.model import conditions, labels
from karpenter.nodeclaim.node_ownership import node_class_label, own_node, owner_references_with, owns
from karpenter.nodeclaim.subreconciler import NodeClaimSubreconciler
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft
from karpenter.runtime.patching import merge_patch
from karpenter.state import ClusterState

_log = structlog.get_logger()


class NodeClaimHydration(NodeClaimSubreconciler):
    """Restores the identifying fields of a claim."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Restore the claim's provider ID, node name and labels."""
        self._restore_provider_id(draft)
        self._restore_node_name(draft)
        missing = dict(_missing_labels(draft.claim, self._context.state))
        if missing:
            draft.merge_metadata(missing)
            draft.after_write(lambda: _log.info("hydrated nodeclaim", labels=missing))

    def _restore_provider_id(self, draft: NodeClaimDraft) -> None:
        """Restore the provider ID from the Node the claim registered with."""
        node = own_node(draft.claim, self._context.state)
        if node is None or not draft.is_true(conditions.REGISTERED):
            return
        provider_id, stored = node.spec.provider_id, draft.claim.status.provider_id
        if not provider_id or stored == provider_id:
            return
        draft.set_status(msgspec.structs.replace(draft.claim.status, provider_id=provider_id))
        draft.after_write(lambda: _log.info("restored nodeclaim", **{"provider-id": provider_id, "changed-to": stored}))

    def _restore_node_name(self, draft: NodeClaimDraft) -> None:
        """Restore ``status.nodeName`` from the only Node of the claim's provider ID, if the claim owns it."""
        nodes = self._context.state.nodes_by_provider_id(draft.claim.status.provider_id)
        if len(nodes) != 1 or not draft.is_true(conditions.REGISTERED) or not owns(draft.claim, nodes[0]):
            return
        if draft.claim.status.node_name != nodes[0].metadata.name:
            draft.set_status(msgspec.structs.replace(draft.claim.status, node_name=nodes[0].metadata.name))


class NodeHydration(NodeClaimSubreconciler):
    """Restores the identifying fields of a registered claim's Node."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Hydrate the Node of a claim registered before this pass; skip a Node that several claims share (OPS-081).

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
        desired = hydrated_node(node, draft)
        patch = merge_patch(node, desired)
        if patch:
            meta = node.metadata
            await self._context.kube.patch(NODE, meta.name, patch, resource_version=meta.resource_version)
            _log.info("hydrated node", Node={"name": meta.name}, restored=_changed_fields(meta, desired.metadata))


def hydrated_node(node: Node, draft: NodeClaimDraft) -> Node:
    """A registered Node with all metadata that ties it to the draft's claim."""
    meta, claim_labels = node.metadata, draft.claim.metadata.labels
    required_labels = {**node_class_label(draft.claim), labels.REGISTERED: "true"}
    if draft.is_true(conditions.INITIALIZED):
        required_labels[labels.INITIALIZED] = "true"
    pool_label = {labels.NODE_POOL: claim_labels[labels.NODE_POOL]} if labels.NODE_POOL in claim_labels else {}
    changed = msgspec.structs.replace(
        meta,
        labels={**pool_label, **meta.labels, **required_labels},
        finalizers=tuple(dict.fromkeys((*meta.finalizers, labels.TERMINATION_FINALIZER))),
        owner_references=owner_references_with(draft.claim, node),
    )
    return msgspec.structs.replace(node, metadata=changed)


def _changed_fields(before: ObjectMeta, after: ObjectMeta) -> list[str]:
    """Changed label keys, and the names of other changed fields."""
    changed = sorted(key for key, value in after.labels.items() if before.labels.get(key) != value)
    changed += ["finalizers"] if before.finalizers != after.finalizers else []
    return changed + (["ownerReferences"] if before.owner_references != after.owner_references else [])


def _missing_labels(claim: NodeClaim, state: ClusterState) -> Iterator[tuple[str, str]]:
    """Labels the claim must have and lacks (OPS-080): its node class from the spec, its NodePool from the owner reference."""
    claim_labels = claim.metadata.labels
    for key, value in node_class_label(claim).items():
        if claim_labels.get(key) != value:
            yield key, value
    if labels.NODE_POOL in claim_labels:
        return
    for owner in claim.metadata.owner_references:
        pool = state.pool(owner.name) if owner.kind == "NodePool" else None
        if pool is not None and pool.metadata.uid == owner.uid:
            yield labels.NODE_POOL, owner.name


def _was_registered(draft: NodeClaimDraft) -> bool:
    return draft.is_true(conditions.REGISTERED) and conditions.is_true(
        draft.stored.status.conditions, conditions.REGISTERED
    )
