"""Expiration: deletes NodeClaims older than their ``expireAfter``, regardless of budgets and pods (OPS §1.12, DIS-360)."""

from __future__ import annotations

from datetime import timedelta

import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.model import durations
from karpenter.model.durations import DurationError
from karpenter.nodeclaim.subreconciler import NodeClaimSubreconciler
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.nodeclaim_deletion import delete_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft

_log = structlog.get_logger()


class NodeClaimExpiration(NodeClaimSubreconciler):
    """Deletes expired NodeClaims."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Delete the claim if it has expired, otherwise requeue it for that moment. Raises ``KubeError``."""
        lifetime = _expire_after(draft.claim)
        created = draft.claim.metadata.creation_timestamp
        if lifetime is None or created is None:
            return
        remaining = created + lifetime - draft.now
        if remaining > timedelta():
            draft.requeue_after(remaining.total_seconds())
        elif await delete_claim(draft, self._context, "expired"):
            _log.debug("deleting expired nodeclaim")


def _expire_after(claim: NodeClaim) -> timedelta | None:
    """The claim's lifetime; None for ``Never`` and for text that is not a duration, which the claim's advice event reports."""
    try:
        return durations.parse_duration_or_never(claim.spec.expire_after)
    except DurationError:
        return None
