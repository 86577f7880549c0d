"""Whether a machine still is what its NodePool and its node class ask for: the ``Drifted`` condition (DIS §14).

The first reason found counts, in this order: the pool's template, the pool's requirements, what is sold to the pool, what the
cloud says of the instance, and DaemonSets without room where the pool's owner wants that mended. Asking the cloud has its
price, so it is asked again only when the claim's pool or class has changed, or after five minutes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import structlog

from karpenter.act.draft import Draft
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.decide.disrupt.drift import (
    DAEMON_SETS,
    INSTANCE_TYPE,
    SETTLED_AGE,
    drift_reason,
    is_sold,
    room_is_due,
)
from karpenter.model import conditions, hashing, labels
from karpenter.providers.contract import Drift, InstanceNotFound

#: How often a claim is looked at without news, and what is sold to its pool for its sake (DIS-033).
LOOK_SECONDS = 300.0
_MARKET_SECONDS = 1800.0
_DRIFTED = "Drifted"
_log = structlog.get_logger()


@dataclass(frozen=True)
class _Asked:
    """What the cloud said of a machine, of which state of things, and when (on the event loop's clock)."""

    about: tuple[str, str, int]
    drift: Drift | None
    at: float


class DriftWatch:
    """Finds out, and remembers what was expensive to find out."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: dict[str, _Asked] = {}
        self._sold_at: dict[str, float] = {}
        self._pools: dict[str, tuple[NodePool, NodePool]] = {}

    def forget(self, name: str) -> None:
        """The claim is gone."""
        self._asked.pop(name, None)
        self._sold_at.pop(name, None)

    def class_changed(self) -> None:
        """A node class was edited: what the cloud said before is out of date."""
        self._asked.clear()

    async def step(self, draft: Draft) -> None:
        """Set or clear ``Drifted``; raises ``ProviderError``, and then leaves it as it is (DIS-342)."""
        claim = draft.claim
        pool = self._world.state.pool(claim.metadata.labels.get(labels.NODE_POOL, ""))
        if pool is None:
            return
        if not draft.is_true("Launched"):
            _clear(draft, "not launched")
            return
        draft.look_again(LOOK_SECONDS)
        try:
            drift = await self._drift(claim, pool, draft)
        except InstanceNotFound:
            return
        if drift is None:
            _clear(draft, "not drifted")
        elif not _is_marked(draft, drift):
            draft.set(_DRIFTED, conditions.TRUE, drift.reason, drift.message or drift.reason)
            draft.announce(lambda: _log.debug("marking drifted", reason=drift.reason))

    async def _drift(self, claim: NodeClaim, pool: NodePool, draft: Draft) -> Drift | None:
        reason = drift_reason(claim, self._as_it_is(pool), None, draft.now)
        if reason:
            return Drift(reason)
        if await self._is_not_sold(claim, pool, draft):
            return Drift(INSTANCE_TYPE)
        return await self._asked_cloud(claim, pool) or _lacks_room(pool, draft)

    def _as_it_is(self, pool: NodePool) -> NodePool:
        """The pool with the hash of what it says now; its annotation may be about the edition before. Made once per edition."""
        meta = pool.metadata
        if meta.annotations.get(labels.NODE_POOL_HASH_VERSION) != hashing.NODE_POOL_HASH_VERSION:
            return pool
        known = self._pools.get(meta.name)
        if known is None or known[0] is not pool:
            notes = {**meta.annotations, labels.NODE_POOL_HASH: hashing.node_pool_hash(pool)}
            current = msgspec.structs.replace(pool, metadata=msgspec.structs.replace(meta, annotations=notes))
            known = self._pools[meta.name] = (pool, current)
        return known[1]

    # -- the cloud ----------------------------------------------------------------------------------------------------------

    async def _is_not_sold(self, claim: NodeClaim, pool: NodePool, draft: Draft) -> bool:
        """Whether the cloud has stopped offering such machines to the pool, available now or not (DIS-345)."""
        created, now = claim.metadata.creation_timestamp, _now()
        if created is None:
            return False
        left = created + SETTLED_AGE - draft.now
        if left >= timedelta(0):
            draft.look_again(left.total_seconds() + 1)
            return False
        if now - self._sold_at.get(claim.metadata.name, -_MARKET_SECONDS) < _MARKET_SECONDS:
            return False
        types = await self._world.provider.instance_types(pool)
        if not is_sold(claim, types):
            return True
        self._sold_at[claim.metadata.name] = now
        return False

    async def _asked_cloud(self, claim: NodeClaim, pool: NodePool) -> Drift | None:
        name = claim.metadata.name
        about = (claim.metadata.uid, claim.status.provider_id, pool.metadata.generation)
        known = self._asked.get(name)
        # A look that comes back a moment early must not wait for another round.
        if known is None or known.about != about or _now() - known.at >= LOOK_SECONDS - 1:
            drift = await self._world.provider.drift(claim)
            known = self._asked[name] = _Asked(about, drift, _now())
        return known.drift


def _lacks_room(pool: NodePool, draft: Draft) -> Drift | None:
    due = room_is_due(draft.claim, pool)
    if due is None:
        return None
    if draft.now < due:
        draft.look_again((due - draft.now).total_seconds())
        return None
    return Drift(DAEMON_SETS)


def _is_marked(draft: Draft, drift: Drift) -> bool:
    known = draft.condition(_DRIFTED)
    said = (drift.reason, drift.message or drift.reason)
    return known is not None and known.status == conditions.TRUE and (known.reason, known.message) == said


def _clear(draft: Draft, why: str) -> None:
    if draft.condition(_DRIFTED) is not None:
        draft.clear(_DRIFTED)
        draft.announce(lambda: _log.debug("removing drifted status condition", reason=why))


def _now() -> float:
    return asyncio.get_running_loop().time()
