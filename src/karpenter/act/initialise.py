"""Initialisation: the node is fully usable once nothing that was planned for it is still missing (OPS §1.5)."""

from __future__ import annotations

import structlog

from karpenter.act.draft import Draft
from karpenter.act.world import World
from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE
from karpenter.model import conditions, labels, taints
from karpenter.model import resources as res

_log = structlog.get_logger()


async def step(draft: Draft, world: World) -> None:
    """Set Initialized, or the first thing still missing as its reason (OPS-040)."""
    if draft.is_true("Initialized") or not draft.is_true("Registered"):
        return
    nodes = world.state.nodes_of(draft.claim.status.provider_id)
    if len(nodes) != 1:
        draft.set("Initialized", conditions.UNKNOWN, "NodeNotFound", "Node not registered with cluster")
        return
    missing = obstacle(nodes[0], draft.claim)
    if missing is not None:
        draft.set("Initialized", conditions.UNKNOWN, *missing)
        return
    node = nodes[0]
    if node.metadata.labels.get(labels.INITIALIZED) != "true":
        await world.kube.patch(NODE, node.metadata.name, {"metadata": {"labels": {labels.INITIALIZED: "true"}}})
    draft.set("Initialized", conditions.TRUE)
    draft.announce(lambda: _log.info("initialized nodeclaim", allocatable=dict(node.status.allocatable)))


def obstacle(node: Node, claim: NodeClaim) -> tuple[str, str] | None:
    """Reason and message of what is still missing, None when nothing is."""
    if not conditions.is_true(node.status.conditions, "Ready"):
        return "NodeNotReady", "Node status is NotReady"
    for expected in claim.spec.startup_taints:
        if any(taints.same(taint, expected.as_taint()) for taint in node.spec.taints):
            return "StartupTaintsExist", f'StartupTaint "{taints.text(expected.as_taint())}" still exists'
    for taint in node.spec.taints:
        if taints.is_ephemeral(taint):
            return "KnownEphemeralTaintsExist", f'KnownEphemeralTaint "{taints.text(taint)}" still exists'
    allocatable = res.parse(node.status.allocatable)
    for name, amount in res.parse(claim.spec.resources.requests).items():
        if amount and not allocatable.get(name):
            return "ResourceNotRegistered", f'Resource "{name}" was requested but not registered'
    return None
