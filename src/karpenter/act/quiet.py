"""Quiet time: whether a node may be given back as far as its pool's ``consolidateAfter`` is concerned (DIS-241, DIS-327)."""

from __future__ import annotations

from datetime import timedelta

import structlog

from karpenter.act.draft import Draft
from karpenter.act.world import World
from karpenter.model import conditions, durations, labels

_log = structlog.get_logger()


def step(draft: Draft, world: World) -> None:
    """Set or clear ``Consolidatable``; asks for another look when the quiet time ends."""
    pool = world.state.pool(draft.claim.metadata.labels.get(labels.NODE_POOL, ""))
    if pool is None or pool.spec.replicas is not None:
        return
    period = durations.parse_or_never(pool.spec.disruption.consolidate_after)
    initialized = draft.condition("Initialized")
    if period is None:
        _clear(draft, "consolidation is disabled")
    elif initialized is None or initialized.status != conditions.TRUE:
        _clear(draft, "not initialized")
    else:
        since = draft.claim.status.last_pod_event_time or initialized.last_transition_time or draft.now
        left = since + period - draft.now
        if left > timedelta(0):
            draft.look_again(left.total_seconds())
            _clear(draft, "consolidateAfter has not passed")
        elif not draft.is_true("Consolidatable"):
            draft.set("Consolidatable", conditions.TRUE)
            _log.debug("marking consolidatable")


def _clear(draft: Draft, reason: str) -> None:
    if draft.condition("Consolidatable") is not None:
        draft.clear("Consolidatable")
        _log.debug("removing consolidatable status condition", reason=reason)
