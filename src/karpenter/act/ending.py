"""Giving a claim up: deleted, counted once, its pods planned anew."""

from __future__ import annotations

from karpenter.act import counting
from karpenter.act.draft import Draft
from karpenter.act.world import World
from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import NotFound


async def give_up(draft: Draft, world: World, reason: str) -> bool:
    """Delete the claim for a reason of OPS-421; whether it was there. Nothing else of the draft is written.

    Raises ``KubeError``.
    """
    draft.gone = True
    try:
        await world.kube.delete(NODE_CLAIM, draft.name, uid=draft.claim.metadata.uid)
    except NotFound:
        return False
    draft.given_up = True
    counting.disrupted(world, draft.claim, reason)
    return True
