"""Whether a machine still is what its NodePool and its node class ask for: the ``Drifted`` condition (DIS §14).

The first reason found counts, in this order: the pool's template, the pool's requirements, what is sold to the pool, and what the
cloud says of the instance. Asking the cloud costs something, so it is asked again only when the claim's pool or class has
changed, or after five minutes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta

import structlog

from karpenter.act.draft import Draft
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.catalog.types import InstanceType, Offering
from karpenter.model import conditions, hashing, labels
from karpenter.model.requirements import Requirements, from_labels, from_wire, intersects
from karpenter.providers.contract import InstanceNotFound

#: How often a claim is looked at without news, and what is sold to its pool for its sake (DIS-033).
LOOK_SECONDS = 300.0
_MARKET_SECONDS = 1800.0
#: A claim younger than that was bought from what was sold.
_YOUNG = timedelta(hours=1)
_DRIFTED = "Drifted"
#: What may be different for a machine that was bought from a reservation, which may end (DIS-345).
_RESERVED_KEYS = (labels.CAPACITY_TYPE, labels.RESERVATION_ID)
_log = structlog.get_logger()


@dataclass(frozen=True)
class _Asked:
    """What the cloud said of a machine, of which state of things, and when (on the event loop's clock)."""

    about: tuple[str, str, int]
    reason: str
    at: float


class Drift:
    """Finds out, and remembers what was expensive to find out."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: dict[str, _Asked] = {}
        self._sold_at: dict[str, float] = {}
        self._hashes: dict[str, tuple[str, int, str]] = {}

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
            reason = await self._reason(claim, pool, draft)
        except InstanceNotFound:
            return
        if not reason:
            _clear(draft, "not drifted")
        elif not _is_marked(draft, reason):
            draft.set(_DRIFTED, conditions.TRUE, reason, reason)
            draft.announce(lambda: _log.debug("marking drifted", reason=reason))

    async def _reason(self, claim: NodeClaim, pool: NodePool, draft: Draft) -> str:
        if self._has_other_template(claim, pool):
            return "NodePoolDrifted"
        if not _satisfies(claim, pool):
            return "RequirementsDrifted"
        if await self._is_not_sold(claim, pool, draft):
            return "InstanceTypeNotFound"
        return await self._cloud_reason(claim, pool)

    # -- the pool -----------------------------------------------------------------------------------------------------------

    def _has_other_template(self, claim: NodeClaim, pool: NodePool) -> bool:
        """DIS-343. Of hashes of our own version the pool's is worked out: its annotation may be about the edition before."""
        mine, its = claim.metadata.annotations, pool.metadata.annotations
        keys = (labels.NODE_POOL_HASH, labels.NODE_POOL_HASH_VERSION)
        if not all(key in found for key in keys for found in (mine, its)):
            return False
        version = mine[labels.NODE_POOL_HASH_VERSION]
        if version != its[labels.NODE_POOL_HASH_VERSION]:
            return False
        is_ours = version == hashing.NODE_POOL_HASH_VERSION
        return mine[labels.NODE_POOL_HASH] != (self._hash(pool) if is_ours else its[labels.NODE_POOL_HASH])

    def _hash(self, pool: NodePool) -> str:
        """Worked out once for each edition."""
        meta = pool.metadata
        uid, generation, known = self._hashes.get(meta.name, ("", 0, ""))
        if (uid, generation) != (meta.uid, meta.generation):
            known = hashing.node_pool_hash(pool)
            self._hashes[meta.name] = (meta.uid, meta.generation, known)
        return known

    # -- the cloud ----------------------------------------------------------------------------------------------------------

    async def _is_not_sold(self, claim: NodeClaim, pool: NodePool, draft: Draft) -> bool:
        """Whether the cloud has stopped offering such machines to the pool, available now or not (DIS-345)."""
        created, now = claim.metadata.creation_timestamp, _now()
        if created is None:
            return False
        left = created + _YOUNG - draft.now
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

    async def _cloud_reason(self, claim: NodeClaim, pool: NodePool) -> str:
        name = claim.metadata.name
        about = (claim.metadata.uid, claim.status.provider_id, pool.metadata.generation)
        known = self._asked.get(name)
        # A look that comes back a moment early must not wait for another round.
        if known is None or known.about != about or _now() - known.at >= LOOK_SECONDS - 1:
            reason = await self._world.provider.drift_reason(claim)
            known = self._asked[name] = _Asked(about, reason, _now())
        return known.reason


def _satisfies(claim: NodeClaim, pool: NodePool) -> bool:
    """Whether the claim's labels are what the pool's requirements ask for now (DIS-344)."""
    found = {labels.normalise(key): value for key, value in claim.metadata.labels.items()}
    wished = from_wire(pool.spec.template.spec.requirements)
    return all(item.allows(found[key]) if key in found else item.accepts_absent for key, item in wished.items())


def is_sold(claim: NodeClaim, types: tuple[InstanceType, ...]) -> bool:
    """Whether a claim's type is among those sold, with an offering that fits its labels, available or not (DIS-345)."""
    found = claim.metadata.labels
    name = found.get(labels.INSTANCE_TYPE, "")
    sold = next((item for item in types if item.name == name), None)
    if sold is None:
        return False
    is_reserved = found.get(labels.CAPACITY_TYPE) == labels.RESERVED
    own = from_labels(found).without(_RESERVED_KEYS if is_reserved else ())
    return any(_fits(own, offering, is_reserved=is_reserved) for offering in sold.offerings)


def _fits(own: Requirements, offering: Offering, *, is_reserved: bool) -> bool:
    if is_reserved and offering.capacity_type not in (labels.RESERVED, labels.ON_DEMAND):
        return False
    return intersects(own, offering.requirements)


def _is_marked(draft: Draft, reason: str) -> bool:
    known = draft.condition(_DRIFTED)
    return known is not None and known.status == conditions.TRUE and known.reason == reason


def _clear(draft: Draft, why: str) -> None:
    if draft.condition(_DRIFTED) is not None:
        draft.clear(_DRIFTED)
        draft.announce(lambda: _log.debug("removing drifted status condition", reason=why))


def _now() -> float:
    return asyncio.get_running_loop().time()
