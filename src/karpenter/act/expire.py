"""Expiration: a machine older than its claim allows goes at once, whatever budgets and pods say (OPS §1.12, DIS-360)."""

from __future__ import annotations

from datetime import timedelta

import structlog

from karpenter.act.draft import Draft
from karpenter.act.ending import give_up
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim
from karpenter.model import durations
from karpenter.model.durations import DurationError

_log = structlog.get_logger()


async def step(draft: Draft, world: World) -> None:
    """Give the claim up when its time is over, else look again exactly then. Raises ``KubeError``."""
    lifetime = _lifetime(draft.claim)
    created = draft.claim.metadata.creation_timestamp
    if lifetime is None or created is None:
        return
    left = created + lifetime - draft.now
    if left > timedelta():
        draft.look_again(left.total_seconds())
    elif await give_up(draft, world, "expired"):
        _log.debug("deleting expired nodeclaim")


def _lifetime(claim: NodeClaim) -> timedelta | None:
    """None for ever. Text no API server of ours would have taken is none, too; whoever wrote it is told where advice is given."""
    try:
        return durations.parse_or_never(claim.spec.expire_after)
    except DurationError:
        return None
