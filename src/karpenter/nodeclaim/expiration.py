"""Expiration: deletes NodeClaims older than their ``expireAfter``, regardless of budgets and pods (OPS §1.12, DIS-360).

Nodes that were created together expire together, and then take every replica of a workload with them (DIS-379). So a NodeClaim
drifts for a while before it expires: drift launches a replacement first and keeps budgets. What budgets, PodDisruptionBudgets or
missing capacity hold back is deleted when it expires. The alternative, to let nodes live longer than ``expireAfter``, would
break the promise that users rely on for compliance.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.controller_context import ControllerContext
from karpenter.model import durations
from karpenter.model.durations import DurationError
from karpenter.nodeclaim.subreconciler import NodeClaimSubreconciler
from karpenter.runtime.nodeclaim_deletion import delete_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft

#: The window before the expiration is at most this part of the lifetime.
_MAX_WINDOW_DIVISOR = 10
_log = structlog.get_logger()


class NodeClaimExpiration(NodeClaimSubreconciler):
    """Deletes expired NodeClaims."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Delete the claim if it has expired, otherwise requeue it for that moment. Raises ``KubeError``."""
        lifetime = expire_after(draft.claim)
        created = draft.claim.metadata.creation_timestamp
        if lifetime is None or created is None:
            return
        remaining = created + lifetime - draft.now
        if remaining > timedelta():
            draft.requeue_after(remaining.total_seconds())
        elif await delete_claim(draft, self._context, "expired"):
            _log.debug("deleting expired nodeclaim")


def expire_after(claim: NodeClaim) -> timedelta | None:
    """The claim's lifetime; None for ``Never`` and for text that is not a duration, which the claim's advice event reports."""
    try:
        return durations.parse_duration_or_never(claim.spec.expire_after)
    except DurationError:
        return None


def replacement_due(claim: NodeClaim, window: timedelta) -> datetime | None:
    """When a claim starts to be replaced ahead of its expiration; None if it never is.

    ``window``: how long before; at most a tenth of the lifetime, so that short-lived nodes are not replaced all the time.
    """
    lifetime, created = expire_after(claim), claim.metadata.creation_timestamp
    if lifetime is None or created is None or not window:
        return None
    return created + lifetime - min(window, lifetime / _MAX_WINDOW_DIVISOR)
