"""Expiration: a machine older than its claim allows goes at once, whatever budgets and pods say (OPS §1.12, DIS-360)."""

from __future__ import annotations

from datetime import timedelta

import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.model import durations
from karpenter.model.durations import DurationError
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.nodeclaim_deletion import delete_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft

_log = structlog.get_logger()


async def reconcile_expiration(draft: NodeClaimDraft, context: ControllerContext) -> None:
    """Give the claim up when its time is over, else look again exactly then. Raises ``KubeError``."""
    lifetime = _expire_after(draft.claim)
    created = draft.claim.metadata.creation_timestamp
    if lifetime is None or created is None:
        return
    left = created + lifetime - draft.now
    if left > timedelta():
        draft.requeue_after(left.total_seconds())
    elif await delete_claim(draft, context, "expired"):
        _log.debug("deleting expired nodeclaim")


def _expire_after(claim: NodeClaim) -> timedelta | None:
    """None for ever. Text no API server of ours would have taken is none, too; whoever wrote it is told where advice is given."""
    try:
        return durations.parse_duration_or_never(claim.spec.expire_after)
    except DurationError:
        return None
