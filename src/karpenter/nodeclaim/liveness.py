"""Liveness: a claim that does not launch or register in time is given up (OPS §1.6).

Each claim has one reason at most: while it has not launched, that it did not; afterwards, that it did not register. The time to
register begins with the launch, so that a slow launch takes nothing from a slow machine; a condition that changes starts its
clock anew (OPS-053).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from karpenter.model import conditions, durations, labels
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.nodeclaim_deletion import delete_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft

_log = structlog.get_logger()


@dataclass(frozen=True)
class LivenessTimeouts:
    """How long a claim may take to launch, and then its Node to register."""

    launch: timedelta = timedelta(minutes=5)
    registration: timedelta = timedelta(minutes=15)


#: The reference's (OPS-050, OPS-051).
DEFAULT_TIMEOUTS = LivenessTimeouts()


class NodeClaimLiveness:
    """Gives claims up that take too long."""

    def __init__(self, context: ControllerContext, timeouts: LivenessTimeouts) -> None:
        self._context = context
        self._timeouts = timeouts

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Give the claim up, or look again when it would be time to. Raises ``KubeError``."""
        if draft.is_true("Registered"):
            return
        if draft.is_true("Launched"):
            since = max(_condition_since(draft, "Registered"), _launched_at(draft))
            await self._check_timeout(draft, since, self._timeouts.registration, "registration_timeout")
        else:
            await self._check_timeout(
                draft, _condition_since(draft, "Launched"), self._timeouts.launch, "launch_timeout"
            )

    async def _check_timeout(self, draft: NodeClaimDraft, since: datetime, timeout: timedelta, reason: str) -> None:
        # Not the time the look began: the cloud may have taken a minute to answer since.
        left = since + timeout - self._context.clock.now()
        if left > timedelta():
            draft.requeue_after(left.total_seconds())
            return
        _log.debug("terminating due to timeout", timeout=durations.duration_text(timeout), reason=reason)
        if await delete_claim(draft, self._context, reason):
            pool = draft.claim.metadata.labels.get(labels.NODE_POOL, "")
            self._context.nodepool_health.record_failure(draft.claim, self._context.state.pool(pool))


def _condition_since(draft: NodeClaimDraft, condition_type: str) -> datetime:
    found = draft.condition(condition_type)
    known = found.last_transition_time if found is not None else None
    return known or draft.claim.metadata.creation_timestamp or draft.now


def _launched_at(draft: NodeClaimDraft) -> datetime:
    """When the launch was written down; one that cannot be written must not start the clock with every look."""
    stored = conditions.find_condition(draft.stored.status.conditions, "Launched")
    known = stored.last_transition_time if stored is not None and stored.status == conditions.TRUE else None
    return known or draft.claim.metadata.creation_timestamp or draft.now
