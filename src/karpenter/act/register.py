"""Registration: the machine joined; make its Node ours, then let pods in (OPS §1.3).

One write does it all: finalizer, owner, labels, taints, and the unregistered taint off. Before it, pods planned for the node are
nominated, because once that taint is gone the scheduler decides.
"""

from __future__ import annotations

import msgspec
import structlog

from karpenter.act.draft import Draft
from karpenter.act.events import WARNING, Happening, about_claim
from karpenter.act.nominate import Nominating
from karpenter.act.patching import difference
from karpenter.act.world import World
from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE
from karpenter.api.meta import OwnerReference
from karpenter.model import conditions, labels, taints

_log = structlog.get_logger()


async def step(draft: Draft, world: World, nominator: Nominating) -> None:
    """Register the claim's Node unless that is done. Several nodes under one provider ID are waited out, not final."""
    if draft.is_true("Registered") or not draft.is_true("Launched"):
        return
    nodes = world.state.nodes_of(draft.claim.status.provider_id)
    if not nodes:
        draft.set("Registered", conditions.UNKNOWN, "NodeNotFound", "Node not registered with cluster")
        return
    if len(nodes) > 1:
        draft.set("Registered", conditions.FALSE, "MultipleNodesFound", "Invariant violated, matched multiple nodes")
        return
    node = nodes[0]
    _expect_taint(draft, world, node)
    await nominator.nominate_for(draft.name, node.metadata.name)
    patch = difference(node, registered(node, draft.claim))
    if patch:
        await world.kube.patch(NODE, node.metadata.name, patch, resource_version=node.metadata.resource_version)
    draft.status(msgspec.structs.replace(draft.claim.status, node_name=node.metadata.name))
    draft.set("Registered", conditions.TRUE)
    draft.announce(lambda: _log.info("registered nodeclaim", Node={"name": node.metadata.name}))


def _expect_taint(draft: Draft, world: World, node: Node) -> None:
    """A node that came without the taint may have taken pods too early (OPS-023): say so and go on."""
    has_taint = any(taints.same(taint, labels.UNREGISTERED_TAINT) for taint in node.spec.taints)
    if has_taint or labels.REGISTERED in node.metadata.labels:
        return
    _log.error("node claim registration error", taint=labels.UNREGISTERED_TAINT.key)
    text = f"Missing {labels.UNREGISTERED_TAINT.key} taint which prevents registration race conditions on Karpenter-managed nodes"
    world.events.publish(Happening(about_claim(draft.claim.metadata), WARNING, "UnregisteredTaintMissing", text))


def registered(node: Node, claim: NodeClaim) -> Node:
    """The Node as registration leaves it (OPS-024 to OPS-026)."""
    meta = node.metadata
    found = node.spec.taints
    if meta.labels.get(labels.DO_NOT_SYNC_TAINTS) != "true":
        wanted = [taint.as_taint() for taint in (*claim.spec.taints, *claim.spec.startup_taints)]
        found = taints.merge(found, wanted)
    kept = tuple(taint for taint in found if not taints.same(taint, labels.UNREGISTERED_TAINT))
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(
            meta,
            labels={**meta.labels, **_class_label(claim), **claim.metadata.labels, labels.REGISTERED: "true"},
            annotations={**meta.annotations, **claim.metadata.annotations},
            finalizers=tuple(dict.fromkeys((*meta.finalizers, labels.TERMINATION_FINALIZER))),
            owner_references=_owned(meta.owner_references, claim),
        ),
        spec=msgspec.structs.replace(node.spec, taints=kept),
    )


def _class_label(claim: NodeClaim) -> dict[str, str]:
    """The node class as a label (OPS-028): a claim written by hand may lack it, and the Node's end depends on it (DIS-510)."""
    reference = claim.spec.node_class_ref
    return {f"{reference.group}/{reference.kind.lower()}": reference.name}


def _owned(references: tuple[OwnerReference, ...], claim: NodeClaim) -> tuple[OwnerReference, ...]:
    own = OwnerReference(
        api_version="karpenter.sh/v1",
        kind="NodeClaim",
        name=claim.metadata.name,
        uid=claim.metadata.uid,
        block_owner_deletion=True,
    )
    known = any((r.api_version, r.kind, r.uid) == (own.api_version, own.kind, own.uid) for r in references)
    return references if known else (*references, own)
