"""The ``Drifted`` condition: whether a NodeClaim still matches its NodePool and node class (DIS §14).

Checks run in this order and the first reason wins: the pool's template hash, the pool's requirements, the instance types offered
to the pool, the provider's drift check, DaemonSets without room if the pool opted in to replacement, and expiration. Provider
calls are expensive, so their results are cached until the claim's pool or node class changes, at most five minutes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import structlog

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.controller_context import ControllerContext
from karpenter.model import conditions, labels, nodepool_hash
from karpenter.nodeclaim.drift_rules import (
    DAEMON_SETS_LACK_ROOM,
    EXPIRES_SOON,
    INSTANCE_TYPE_NOT_FOUND,
    OFFERING_CHECK_MIN_AGE,
    daemon_set_replacement_due,
    drift_reason,
    is_offered,
)
from karpenter.nodeclaim.expiration import replacement_due
from karpenter.nodeclaim.subreconciler import NodeClaimSubreconciler
from karpenter.providers.contract import InstanceDrift, InstanceNotFound
from karpenter.runtime.events import WARNING, ObjectEvent, involved_claim, involved_node, shortened
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft
from karpenter.scheduling.daemonset_fit import daemonset_shortfalls
from karpenter.state.snapshot import DaemonSetPod

#: How often a claim is checked without events, and how often its type is looked up among the pool's offerings (DIS-033).
DRIFT_POLL_SECONDS = 300.0
_OFFERING_CHECK_SECONDS = 1800.0
_log = structlog.get_logger()


@dataclass(frozen=True)
class _CloudDrift:
    """A cached answer of the provider's drift check, what it was valid for, and when it was given (event loop time)."""

    generation_key: tuple[str, str, int]
    drift: InstanceDrift | None
    checked_at: float


class DriftDetection(NodeClaimSubreconciler):
    """Sets or clears ``Drifted``; caches the results of provider calls per claim.

    ``expiration_window``: how long before its expiration a claim drifts.
    """

    def __init__(self, context: ControllerContext, expiration_window: timedelta) -> None:
        self._context = context
        self._expiration_window = expiration_window
        self._cloud_drift: dict[str, _CloudDrift] = {}
        self._offered_at: dict[str, float] = {}
        self._hashed_pools: dict[str, tuple[NodePool, NodePool]] = {}

    def forget(self, name: str) -> None:
        """Drop the cached results of provider calls for the claim."""
        self._cloud_drift.pop(name, None)
        self._offered_at.pop(name, None)

    def node_class_changed(self) -> None:
        """A node class changed: all cached drift results are outdated."""
        self._cloud_drift.clear()

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Set or clear ``Drifted``; raises ``ProviderError``, and then leaves it as it is (DIS-342)."""
        claim = draft.claim
        pool = self._context.state.pool(claim.metadata.labels.get(labels.NODE_POOL, ""))
        if pool is None:
            return
        if not draft.is_true(conditions.LAUNCHED):
            _clear_drifted(draft, "not launched")
            return
        draft.requeue_after(DRIFT_POLL_SECONDS)
        try:
            drift = await self._find_drift(claim, pool, draft)
        except InstanceNotFound:
            return
        if drift is None:
            _clear_drifted(draft, "not drifted")
        elif not _has_drift_condition(draft, drift):
            draft.set_condition(conditions.DRIFTED, conditions.TRUE, drift.reason, drift.message or drift.reason)
            draft.after_write(lambda: _log.debug("marking drifted", reason=drift.reason))

    async def _find_drift(self, claim: NodeClaim, pool: NodePool, draft: NodeClaimDraft) -> InstanceDrift | None:
        reason = drift_reason(claim, self._with_current_hash(pool), None, draft.now)
        if reason:
            return InstanceDrift(reason)
        if await self._is_not_offered(claim, pool, draft):
            return InstanceDrift(INSTANCE_TYPE_NOT_FOUND)
        cloud_drift = await self._cloud_drift_of(claim, pool)
        return cloud_drift or _daemon_set_drift(pool, draft) or self._expiration_drift(draft)

    def _expiration_drift(self, draft: NodeClaimDraft) -> InstanceDrift | None:
        """The claim expires soon (DIS-379): its replacement is launched before, and budgets are kept."""
        due = replacement_due(draft.claim, self._expiration_window)
        if due is None:
            return None
        if draft.now < due:
            draft.requeue_after((due - draft.now).total_seconds())
            return None
        return InstanceDrift(EXPIRES_SOON)

    def _with_current_hash(self, pool: NodePool) -> NodePool:
        """The pool with the hash of its current spec, cached per version: its annotation may lag behind a change of the spec."""
        meta = pool.metadata
        if meta.annotations.get(labels.NODE_POOL_HASH_VERSION) != nodepool_hash.NODE_POOL_HASH_VERSION:
            return pool
        hashed = self._hashed_pools.get(meta.name)
        if hashed is None or hashed[0] is not pool:
            annotations = {**meta.annotations, **nodepool_hash.hash_annotations(pool)}
            current = msgspec.structs.replace(pool, metadata=msgspec.structs.replace(meta, annotations=annotations))
            hashed = self._hashed_pools[meta.name] = (pool, current)
        return hashed[1]

    # -- provider calls -----------------------------------------------------------------------------------------------------

    async def _is_not_offered(self, claim: NodeClaim, pool: NodePool, draft: NodeClaimDraft) -> bool:
        """Whether the claim's instance type is no longer offered to the pool, available or not (DIS-345)."""
        created, now = claim.metadata.creation_timestamp, _monotonic_now()
        if created is None:
            return False
        remaining = created + OFFERING_CHECK_MIN_AGE - draft.now
        if remaining >= timedelta(0):
            draft.requeue_after(remaining.total_seconds() + 1)
            return False
        if now - self._offered_at.get(claim.metadata.name, -_OFFERING_CHECK_SECONDS) < _OFFERING_CHECK_SECONDS:
            return False
        types = await self._context.provider.instance_types(pool)
        if not is_offered(claim, types):
            return True
        self._offered_at[claim.metadata.name] = now
        return False

    async def _cloud_drift_of(self, claim: NodeClaim, pool: NodePool) -> InstanceDrift | None:
        name = claim.metadata.name
        generation_key = (claim.metadata.uid, claim.status.provider_id, pool.metadata.generation)
        cached = self._cloud_drift.get(name)
        # A pass that is requeued slightly early must not wait for another period: one second of tolerance.
        if (
            cached is None
            or cached.generation_key != generation_key
            or _monotonic_now() - cached.checked_at >= DRIFT_POLL_SECONDS - 1
        ):
            drift = await self._context.provider.drift(claim)
            cached = self._cloud_drift[name] = _CloudDrift(generation_key, drift, _monotonic_now())
        return cached.drift


def _daemon_set_drift(pool: NodePool, draft: NodeClaimDraft) -> InstanceDrift | None:
    due = daemon_set_replacement_due(draft.claim, pool)
    if due is None:
        return None
    if draft.now < due:
        draft.requeue_after((due - draft.now).total_seconds())
        return None
    return InstanceDrift(DAEMON_SETS_LACK_ROOM)


def _has_drift_condition(draft: NodeClaimDraft, drift: InstanceDrift) -> bool:
    condition = draft.condition(conditions.DRIFTED)
    expected = (drift.reason, drift.message or drift.reason)
    return (
        condition is not None
        and condition.status == conditions.TRUE
        and (condition.reason, condition.message) == expected
    )


def _clear_drifted(draft: NodeClaimDraft, reason: str) -> None:
    if draft.condition(conditions.DRIFTED) is not None:
        draft.clear_condition(conditions.DRIFTED)
        draft.after_write(lambda: _log.debug("removing drifted status condition", reason=reason))


def _monotonic_now() -> float:
    return asyncio.get_running_loop().time()


#: How long a list of DaemonSet pods is reused: building it visits all their pods.
_DAEMON_SET_LIST_SECONDS = 60.0
_PRIORITY_HINT = "a higher priority class lets it displace other pods"


class DaemonSetFitCheck(NodeClaimSubreconciler):
    """Checks whether nodes have room for their DaemonSet pods, with a list of DaemonSets at most one minute old."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._daemon_sets: tuple[DaemonSetPod, ...] = ()
        self._daemon_sets_listed_at = -_DAEMON_SET_LIST_SECONDS

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Set or clear ``DaemonSetsFit`` on an initialized claim."""
        state_node = self._context.state.state_node_of(draft.claim) if draft.is_true(conditions.INITIALIZED) else None
        if state_node is None:
            return
        shortfalls = daemonset_shortfalls(self._list_daemon_sets(), state_node)
        daemon_sets = sorted(shortfall.daemon_set for shortfall in shortfalls)
        previous = draft.condition(conditions.DAEMON_SETS_FIT)
        if daemon_sets:
            text = f"No room for the pods of DaemonSet(s) {shortened(daemon_sets)}: {_PRIORITY_HINT}"
            draft.set_condition(conditions.DAEMON_SETS_FIT, conditions.FALSE, DAEMON_SETS_LACK_ROOM, text)
            if previous is None or previous.message != text:
                draft.after_write(lambda: self._publish(draft, text))
        elif previous is not None:
            draft.clear_condition(conditions.DAEMON_SETS_FIT)

    def _list_daemon_sets(self) -> tuple[DaemonSetPod, ...]:
        now = asyncio.get_running_loop().time()
        if now - self._daemon_sets_listed_at >= _DAEMON_SET_LIST_SECONDS:
            self._daemon_sets, self._daemon_sets_listed_at = self._context.state.daemonset_pods(), now
        return self._daemon_sets

    def _publish(self, draft: NodeClaimDraft, text: str) -> None:
        nodes = self._context.state.nodes_by_provider_id(draft.claim.status.provider_id)
        for involved in (involved_claim(draft.claim.metadata), *(involved_node(node.metadata) for node in nodes)):
            self._context.events.publish(ObjectEvent(involved, WARNING, DAEMON_SETS_LACK_ROOM, text, (text,)))
