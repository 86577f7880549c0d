"""Keeping static NodePools at their number of nodes: create what is missing, delete what is too much (SCH §24).

A claim that cannot be launched is deleted and so missing again at once. Where that happened to the last ones made, the next wait:
a second at first, doubling to a minute.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from karpenter.act.creation import create
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import NODE_CLAIM
from karpenter.catalog.index import well_known_of
from karpenter.decide import static
from karpenter.decide.provision.finalise import static_claim
from karpenter.kube.errors import KubeError, NotFound
from karpenter.model import conditions, labels
from karpenter.model.quantities import check_quantities

#: How soon to look again where nothing is to do, and where the limit on nodes is reached (SCH-702).
_LOOK_AGAIN_SECONDS = 60.0
_FULL_SECONDS = 30.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
#: How many claims of all static pools are created or deleted at the same time.
_AT_ONCE = 64
_log = structlog.get_logger()


@dataclass(frozen=True)
class _Batch:
    """The claims a pool got last, when (on the event loop's clock), and how long the next wait if these are lost."""

    names: tuple[str, ...]
    at: float
    pause_seconds: float


class StaticKeeper:
    """Looks at static pools by name, and leaves all others alone."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: Nodes being created now, by pool (OPS-120).
        self._reserved: Counter[str] = Counter()
        self._last: dict[str, _Batch] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def grow(self, name: str) -> float | None:
        """Create the claims a pool lacks; seconds until the next look, None to wait for events.

        Raises ``KubeError`` and ``ProviderError``.
        """
        pool = self._pool(name)
        # Ready may still be about the pool before its last change, whose limits nobody has looked at yet.
        if pool is None or not conditions.is_true(pool.status.conditions, "Ready") or check_quantities(pool):
            return None
        held = static.counts(self._members(name))
        growth = static.growth(pool, held, self._reserved[name])
        if not growth.wanted:
            return _LOOK_AGAIN_SECONDS
        if not self._has_room(pool, growth):
            return _FULL_SECONDS
        pause = self._pause(name)
        if pause > 0:
            return pause
        _log.info(
            "provisioning nodeclaims to satisfy replica count",
            current=held.active,
            desired=pool.spec.replicas,
            **{"provision-count": growth.granted},
        )
        await self._create(pool, growth.granted)
        return _LOOK_AGAIN_SECONDS if growth.granted == growth.wanted else _FULL_SECONDS

    async def shrink(self, name: str) -> float | None:
        """Delete the claims a pool has too many of; seconds until the next look, None to wait for news. Raises ``KubeError``."""
        pool = self._pool(name)
        if pool is None:
            return None
        members = self._members(name)
        leaving = static.surplus(pool, members, self._world.clock.now())
        if leaving:
            _log.info(
                "deprovisioning nodeclaims to satisfy replica count",
                current=static.counts(members).active,
                desired=pool.spec.replicas,
                **{"deprovision-count": len(leaving)},
            )
            _raise_first(await asyncio.gather(*(self._delete(claim) for claim in leaving)))
        return _LOOK_AGAIN_SECONDS

    def _pool(self, name: str) -> NodePool | None:
        """The pool, if it is static, ours and there to stay."""
        pool = self._world.state.pool(name)
        if pool is None or pool.spec.replicas is None or pool.metadata.deletion_timestamp is not None:
            self._last.pop(name, None)
            return None
        return pool if self._world.manages(pool) else None

    def _members(self, pool: str) -> list[static.Member]:
        state = self._world.state
        return [
            static.Member(claim, state.pods_on(claim.status.node_name), state.is_chosen(claim.metadata.name))
            for claim in state.claims()
            if claim.metadata.labels.get(labels.NODE_POOL) == pool
        ]

    def _has_room(self, pool: NodePool, growth: static.Growth) -> bool:
        exceeded = static.exceeded(pool, self._world.state.views())
        if exceeded:
            _log.error("resource usage exceeds limit", **{"resource-name": ", ".join(exceeded)})
        elif not growth.granted:
            _log.info("nodepool node limit reached")
        return bool(growth.granted) and not exceeded

    def _pause(self, name: str) -> float:
        """How many seconds the next claims have to wait because the last ones were lost; 0 when they need not."""
        last = self._last.get(name)
        if last is None or not any(self._is_lost(claim) for claim in last.names):
            return 0.0
        return last.at + last.pause_seconds - _now()

    def _is_lost(self, name: str) -> bool:
        claim = self._world.state.claim(name)
        return claim is None or claim.metadata.deletion_timestamp is not None

    async def _create(self, pool: NodePool, how_many: int) -> None:
        """Create claims under the names of free slots. One that fails is created by the next look, under the same name."""
        name = pool.metadata.name
        self._reserved[name] += how_many
        try:
            types = await self._world.provider.instance_types(pool)
            well_known = labels.WELL_KNOWN | well_known_of(types)
            taken = {claim.metadata.name for claim in self._world.state.claims()}
            slots = static.free_slots(pool, taken, how_many, static.zones_to_spread_over(pool, types))
            self._remember(name, tuple(slot.name for slot in slots))
            claims = (static_claim(pool, slot.name, well_known, slot.zone) for slot in slots)
            _raise_first(await asyncio.gather(*(self._create_one(claim) for claim in claims)))
        finally:
            self._reserved[name] -= how_many

    def _remember(self, pool: str, names: tuple[str, ...]) -> None:
        last, now = self._last.get(pool), _now()
        is_again = (
            last is not None and now - last.at <= 2 * _LONGEST_PAUSE_SECONDS and any(map(self._is_lost, last.names))
        )
        pause = min(_LONGEST_PAUSE_SECONDS, 2 * last.pause_seconds) if last and is_again else _FIRST_PAUSE_SECONDS
        self._last[pool] = _Batch(names, now, pause)

    async def _create_one(self, claim: NodeClaim) -> KubeError | None:
        async with self._slots:
            try:
                await create(self._world, claim)
            except KubeError as error:
                return error
        return None

    async def _delete(self, claim: NodeClaim) -> KubeError | None:
        """Delete a claim; it counts as going from now on, not only once the watch says so."""
        name = claim.metadata.name
        self._world.state.mark(name)
        async with self._slots:
            _log.debug("deleting nodeclaim", NodeClaim={"name": name})
            try:
                await self._world.kube.delete(NODE_CLAIM, name, uid=claim.metadata.uid)
            except NotFound:
                return None
            except KubeError as error:
                self._world.state.unmark(name)
                return error
        return None


def _raise_first(results: Sequence[KubeError | None]) -> None:
    """Fail with the first fault, now that all others have had their try."""
    for error in results:
        if error is not None:
            raise error


def _now() -> float:
    return asyncio.get_running_loop().time()
