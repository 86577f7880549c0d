"""The ``Consolidatable`` condition: True once no pod came or left for the NodePool's ``consolidateAfter`` (DIS-241, DIS-327).

``PodEventTracker`` records pod events in ``status.lastPodEventTime``, ``NodeClaimConsolidatable`` derives the condition.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

import structlog

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.api.kinds import NODE_CLAIM
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import NotFound
from karpenter.model import conditions, durations, labels, pods
from karpenter.model.clock import rfc3339
from karpenter.model.durations import DurationError
from karpenter.nodeclaim.subreconciler import NodeClaimSubreconciler
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft

_MAX_CLOCK_SKEW = timedelta(minutes=5)
_log = structlog.get_logger()


class NodeClaimConsolidatable(NodeClaimSubreconciler):
    """Sets or clears ``Consolidatable``."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Set or clear the condition; requeue the claim for the moment ``consolidateAfter`` will have passed."""
        pool = self._context.state.pool(draft.claim.metadata.labels.get(labels.NODE_POOL, ""))
        if pool is None or pool.spec.replicas is not None:
            return
        period = _consolidate_after(pool)
        initialized = draft.condition(conditions.INITIALIZED)
        if period is None:
            _clear_consolidatable(draft, "consolidation is disabled")
        elif initialized is None or initialized.status != conditions.TRUE:
            _clear_consolidatable(draft, "not initialized")
        else:
            since = _last_pod_event_time(draft) or initialized.last_transition_time or draft.now
            _reconcile_period(draft, since, period)


def _reconcile_period(draft: NodeClaimDraft, since: datetime, period: timedelta) -> None:
    remaining = since + period - draft.now
    if remaining > timedelta(0):
        draft.requeue_after(remaining.total_seconds())
        _clear_consolidatable(
            draft,
            "consolidateAfter has not passed",
            lastPodEventTime=rfc3339(since),
            consolidateAfter=durations.duration_text(period),
            timeSincePodEvent=durations.duration_text(draft.now - since),
        )
    elif not draft.is_true(conditions.CONSOLIDATABLE):
        draft.set_condition(conditions.CONSOLIDATABLE, conditions.TRUE)
        _log.debug("marking consolidatable")


def _consolidate_after(pool: NodePool) -> timedelta | None:
    """The pool's ``consolidateAfter``; None for ``Never`` and for invalid text, which the pool's conditions report."""
    try:
        return durations.parse_duration_or_never(pool.spec.disruption.consolidate_after)
    except DurationError:
        return None


def _last_pod_event_time(draft: NodeClaimDraft) -> datetime | None:
    """When a pod last came or left. A stored time further ahead than clock skew explains is ignored (DIS-241)."""
    stored = draft.claim.status.last_pod_event_time
    return stored if stored is None or stored <= draft.now + _MAX_CLOCK_SKEW else None


def _clear_consolidatable(draft: NodeClaimDraft, reason: str, **log_fields: str) -> None:
    if draft.condition(conditions.CONSOLIDATABLE) is not None:
        draft.clear_condition(conditions.CONSOLIDATABLE)
        _log.debug("removing consolidatable status condition", reason=reason, **log_fields)


#: At most one write per claim in this time (DIS-032).
POD_EVENT_INTERVAL = timedelta(seconds=10)


def is_pod_event(old: Pod | None, new: Pod | None) -> bool:
    """Whether the change means a pod came to its node or left it (DIS-330).

    The caller must skip the initial list after a start: its pods are new to the informer and no pod events (DIS §13 Beyond).
    """
    if new is None or not new.spec.node_name or pods.is_daemonset_pod(new):
        return False
    if old is None:
        return not pods.is_finished(new)
    bound = not old.spec.node_name
    finished = pods.is_finished(new) and not pods.is_finished(old)
    leaving = new.metadata.deletion_timestamp is not None and old.metadata.deletion_timestamp is None
    return bound or finished or leaving


class PodEventTracker:
    """Collects the latest pod event of each claim and writes it to the claim's status."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._latest_event: dict[str, datetime] = {}

    def record(self, pod: Pod) -> str:
        """Record a pod event; returns the name of the claim to reconcile, empty when there is none."""
        node = self._context.state.node(pod.spec.node_name)
        claim = self._context.state.claim_by_provider_id(node.spec.provider_id) if node is not None else None
        if claim is None or not self._context.is_managed(claim):
            return ""
        self._latest_event[claim.metadata.name] = self._context.clock.now()
        return claim.metadata.name

    async def reconcile(self, name: str) -> float | None:
        """Write the latest event of one claim, unless the stored one is recent enough."""
        event_time = self._latest_event.get(name)
        claim = self._context.state.claim(name)
        stored = claim.status.last_pod_event_time if claim is not None else None
        # A stored time in the future is overwritten as well: it was not written by us and would delay consolidation until then.
        if (
            event_time is not None
            and claim is not None
            and (stored is None or abs(event_time - stored) >= POD_EVENT_INTERVAL)
        ):
            patch = {"status": {"lastPodEventTime": rfc3339(event_time)}}
            with suppress(NotFound):
                await self._context.kube.patch(NODE_CLAIM, name, patch, subresource="status")
        # Drop the event only after the write: a failed write is retried. A newer event is kept for its own pass.
        if self._latest_event.get(name) == event_time:
            self._latest_event.pop(name, None)
        return None
