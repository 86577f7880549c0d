"""Marking one machine as about to go, and freeing it again: the taint on its Node, the reason on its NodeClaim (DIS-302,
DIS-054).

What a mark consists of is in the API server, so that users see it and a later process finds it. Both halves are written against
the version that was read; a write by somebody else in between is read and met, a few times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from karpenter.act.draft import Draft
from karpenter.act.drain import tainted
from karpenter.act.patching import difference
from karpenter.act.world import World
from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.cluster.nodes import NodeView
from karpenter.kube.errors import Conflict, NotFound
from karpenter.model import conditions, labels, taints

#: How often a write that meets somebody else's is tried.
_TRIES = 3
_REASON = "DisruptionReason"
#: What tells of the decision on a NodeClaim that goes.
_NOTES = (labels.DISRUPTION_DECISION, labels.DISRUPTION_REPLACEMENTS)


@dataclass(frozen=True)
class Note:
    """What is written on a claim that is about to go: why, and as annotations by which decision."""

    reason: str
    annotations: Mapping[str, str] = field(default_factory=dict)


async def close(world: World, node: Node) -> None:
    """Close the node to new pods. Raises ``KubeError``."""
    await _rewrite_node(world, node, tainted)


async def explain(world: World, claim: NodeClaim, note: Note) -> None:
    """Say on the claim why its machine goes. Raises ``KubeError``."""

    def change(draft: Draft) -> None:
        draft.set(_REASON, conditions.TRUE, note.reason, note.reason)
        draft.merge_metadata({}, note.annotations)

    await _rewrite_claim(world, claim, change)


async def free(world: World, view: NodeView) -> None:
    """Undo both; what has gone or is going meanwhile is left as it is. Raises ``KubeError``."""
    if view.node is not None:
        node = world.state.node(view.node.metadata.name)
        with suppress(NotFound):
            await _rewrite_node(world, node or view.node, _opened)
    if view.claim is not None:
        claim = world.state.claim(view.claim.metadata.name)
        with suppress(NotFound):
            await _rewrite_claim(world, claim or view.claim, _take_back)


def _opened(node: Node) -> Node:
    if node.metadata.deletion_timestamp is not None:
        return node
    kept = tuple(taint for taint in node.spec.taints if not taints.same(taint, labels.DISRUPTED_TAINT))
    return msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=kept))


def _take_back(draft: Draft) -> None:
    if draft.claim.metadata.deletion_timestamp is None:
        draft.clear(_REASON)
        draft.drop_annotations(_NOTES)


async def _rewrite_node(world: World, node: Node, change: Callable[[Node], Node]) -> None:
    name = node.metadata.name
    for _ in range(_TRIES):
        patch = difference(node, change(node))
        if not patch:
            return
        try:
            await world.kube.patch(NODE, name, patch, resource_version=node.metadata.resource_version)
            return
        except Conflict:
            node = await world.kube.get(NODE, name)
    raise Conflict(f"node {name} keeps changing")


async def _rewrite_claim(world: World, claim: NodeClaim, change: Callable[[Draft], None]) -> None:
    name = claim.metadata.name
    for _ in range(_TRIES):
        draft = Draft(claim, world.clock.now())
        change(draft)
        try:
            await draft.write(world)
            return
        except Conflict:
            claim = await world.kube.get(NODE_CLAIM, name)
    raise Conflict(f"nodeclaim {name} keeps changing")


def is_left_behind(view: NodeView) -> bool:
    """Whether a machine that stays carries the taint or the condition of a removal nobody pursues (DIS-054)."""
    node, claim = view.node, view.claim
    if node is None or claim is None or view.leaving or not view.initialized:
        return False
    if node.metadata.deletion_timestamp is not None:
        return False
    is_tainted = any(taints.same(taint, labels.DISRUPTED_TAINT) for taint in node.spec.taints)
    return is_tainted or conditions.find(claim.status.conditions, _REASON) is not None
