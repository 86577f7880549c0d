"""Quiet time: whether a node may be given back as far as its pool's ``consolidateAfter`` is concerned (DIS-241, DIS-327)."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog

from karpenter.act.draft import Draft
from karpenter.act.world import World
from karpenter.api.karpenter import NodePool
from karpenter.model import conditions, durations, labels
from karpenter.model.clock import rfc3339
from karpenter.model.durations import DurationError

_CLOCKS_DIFFER = timedelta(minutes=5)
_log = structlog.get_logger()


async def step(draft: Draft, world: World) -> None:
    """Set or clear ``Consolidatable``; asks for another look when the quiet time ends."""
    pool = world.state.pool(draft.claim.metadata.labels.get(labels.NODE_POOL, ""))
    if pool is None or pool.spec.replicas is not None:
        return
    period = _period(pool)
    initialized = draft.condition("Initialized")
    if period is None:
        _clear(draft, "consolidation is disabled")
    elif initialized is None or initialized.status != conditions.TRUE:
        _clear(draft, "not initialized")
    else:
        since = _last_event(draft) or initialized.last_transition_time or draft.now
        left = since + period - draft.now
        if left > timedelta(0):
            draft.look_again(left.total_seconds())
            _clear(
                draft,
                "consolidateAfter has not passed",
                lastPodEventTime=rfc3339(since),
                consolidateAfter=durations.text(period),
                timeSincePodEvent=durations.text(draft.now - since),
            )
        elif not draft.is_true("Consolidatable"):
            draft.set("Consolidatable", conditions.TRUE)
            _log.debug("marking consolidatable")


def _period(pool: NodePool) -> timedelta | None:
    """None where nothing is ever given back; also where the text is no duration, which the pool's own conditions say."""
    try:
        return durations.parse_or_never(pool.spec.disruption.consolidate_after)
    except DurationError:
        return None


def _last_event(draft: Draft) -> datetime | None:
    """When pods last came or left. A time further ahead than clocks differ was written by nobody who knew (DIS-241)."""
    stored = draft.claim.status.last_pod_event_time
    return stored if stored is None or stored <= draft.now + _CLOCKS_DIFFER else None


def _clear(draft: Draft, reason: str, **more: str) -> None:
    if draft.condition("Consolidatable") is not None:
        draft.clear("Consolidatable")
        _log.debug("removing consolidatable status condition", reason=reason, **more)
