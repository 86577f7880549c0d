"""Liveness: deletes NodeClaims that do not launch or register in time (OPS §1.6).

The launch timeout applies until the claim is Launched, the registration timeout afterwards. The registration timeout starts with
the launch, so that a slow launch does not shorten it; a change of the condition restarts the timeout (OPS-053).

Conditions carry times of this process's clock, the creation that of the API server. Where the two clocks disagree by more than a
timeout, every claim would be too old when it is created, and instances would be launched and terminated without end. So the
creation is taken as a time of this process's clock (``ServerClockOffset``), and bounds conditions that were written before the
clock jumped: none is older than its claim, none lies in the future.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from karpenter.controller_context import ControllerContext
from karpenter.model import conditions, durations, labels
from karpenter.nodeclaim.subreconciler import NodeClaimSubreconciler
from karpenter.runtime.nodeclaim_deletion import delete_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft

_log = structlog.get_logger()


@dataclass(frozen=True)
class LivenessTimeouts:
    """How long a claim may take to launch, and after that to register."""

    launch: timedelta = timedelta(minutes=5)
    registration: timedelta = timedelta(minutes=15)

    @property
    def total(self) -> timedelta:
        """The longest time from creation to registration."""
        return self.launch + self.registration


#: Karpenter's timeouts (OPS-050, OPS-051).
DEFAULT_TIMEOUTS = LivenessTimeouts()


class NodeClaimLiveness(NodeClaimSubreconciler):
    """Deletes claims that exceed a timeout."""

    def __init__(self, context: ControllerContext, timeouts: LivenessTimeouts) -> None:
        self._context = context
        self._timeouts = timeouts

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Delete the claim if its timeout has passed, otherwise requeue it for that moment. Raises ``KubeError``."""
        if draft.is_true(conditions.REGISTERED):
            return
        if draft.is_true(conditions.LAUNCHED):
            since = max(_condition_since(draft, conditions.REGISTERED), _launched_at(draft))
            await self._check_timeout(draft, since, self._timeouts.registration, "registration_timeout")
        else:
            await self._check_timeout(
                draft, _condition_since(draft, conditions.LAUNCHED), self._timeouts.launch, "launch_timeout"
            )

    async def _check_timeout(self, draft: NodeClaimDraft, since: datetime, timeout: timedelta, reason: str) -> None:
        # Not draft.now: the launch call of this pass may have taken a minute.
        now = self._context.clock.now()
        created = self._created_at(draft, now)
        if created is not None:
            since = max(since, created) if since <= now else created
        remaining = since + timeout - now
        if remaining > timedelta():
            draft.requeue_after(remaining.total_seconds())
            return
        _log.debug("terminating due to timeout", timeout=durations.duration_text(timeout), reason=reason)
        if await delete_claim(draft, self._context, reason):
            pool = draft.claim.metadata.labels.get(labels.NODE_POOL, "")
            self._context.nodepool_health.record_failure(draft.claim, self._context.state.pool(pool))

    def _created_at(self, draft: NodeClaimDraft, now: datetime) -> datetime | None:
        """By this process's clock; None where it is not known how far that is off."""
        created = draft.claim.metadata.creation_timestamp
        if created is None:
            return None
        return self._context.server_clock.local_time(created, now, asyncio.get_running_loop().time())


def _condition_since(draft: NodeClaimDraft, condition_type: str) -> datetime:
    """When the condition changed last; for one that is not there the creation."""
    condition = draft.condition(condition_type)
    since = condition.last_transition_time if condition is not None else None
    return since or draft.claim.metadata.creation_timestamp or draft.now


def _launched_at(draft: NodeClaimDraft) -> datetime:
    """When Launched became True as stored. An unwritten condition does not count: it would restart the timeout in every pass."""
    condition = conditions.find_condition(draft.stored.status.conditions, conditions.LAUNCHED)
    since = condition.last_transition_time if condition is not None and condition.status == conditions.TRUE else None
    return since or draft.claim.metadata.creation_timestamp or draft.now
