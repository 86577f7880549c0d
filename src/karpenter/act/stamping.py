"""The hash of a pool's template, written on the pool, and on claims that carry one of another version (API-500 ff.).

Claims made by another implementation, or by an older version of ours, carry hashes that cannot be compared with today's. They
are taken over: each gets the version and the hash of its pool as it is now, so that nothing drifts by an upgrade. One that had
drifted before keeps its hash and stays drifted (API-504, DIS-355). Only when all are done the pool is stamped, so that an upgrade
which is interrupted goes on where it stopped.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import NODE_CLAIM, NODE_POOL
from karpenter.kube.errors import NotFound
from karpenter.model import conditions, hashing, labels

_AT_ONCE = 20
_log = structlog.get_logger()


async def stamp(world: World, pool: NodePool) -> None:
    """Bring the annotations of a pool, and where the version changed those of its claims, up to date. Raises ``KubeError``."""
    wanted = {
        labels.NODE_POOL_HASH: hashing.node_pool_hash(pool),
        labels.NODE_POOL_HASH_VERSION: hashing.NODE_POOL_HASH_VERSION,
    }
    found = pool.metadata.annotations
    if all(found.get(key) == value for key, value in wanted.items()):
        return
    if found.get(labels.NODE_POOL_HASH_VERSION) != hashing.NODE_POOL_HASH_VERSION:
        await _take_over(world, pool.metadata.name, wanted)
    with suppress(NotFound):
        await world.kube.patch(NODE_POOL, pool.metadata.name, {"metadata": {"annotations": wanted}})


async def _take_over(world: World, pool: str, wanted: dict[str, str]) -> None:
    foreign = [claim for claim in world.state.claims() if _is_foreign(claim, pool)]
    if not foreign:
        return
    slots = asyncio.Semaphore(_AT_ONCE)

    async def take(claim: NodeClaim) -> None:
        async with slots:
            with suppress(NotFound):
                await _stamp_claim(world, claim, wanted)

    await asyncio.gather(*(take(claim) for claim in foreign))
    _log.info("took over nodeclaims stamped by another version", NodePool={"name": pool}, nodeclaims=len(foreign))


def _is_foreign(claim: NodeClaim, pool: str) -> bool:
    meta = claim.metadata
    version = meta.annotations.get(labels.NODE_POOL_HASH_VERSION)
    return meta.labels.get(labels.NODE_POOL) == pool and version != hashing.NODE_POOL_HASH_VERSION


async def _stamp_claim(world: World, claim: NodeClaim, wanted: dict[str, str]) -> None:
    """Against the version that was judged: a claim that has just drifted must not lose the hash it drifted by."""
    drifted = conditions.is_true(claim.status.conditions, "Drifted")
    changed = {labels.NODE_POOL_HASH_VERSION: hashing.NODE_POOL_HASH_VERSION} if drifted else wanted
    version = claim.metadata.resource_version
    patch = {"metadata": {"annotations": changed}}
    await world.kube.patch(NODE_CLAIM, claim.metadata.name, patch, resource_version=version)
