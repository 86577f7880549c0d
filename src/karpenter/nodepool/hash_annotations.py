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

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import NODE_CLAIM, NODE_POOL
from karpenter.kube.errors import NotFound
from karpenter.model import conditions, labels, nodepool_hash
from karpenter.runtime.controller_context import ControllerContext

_MAX_CONCURRENT_WRITES = 20
_log = structlog.get_logger()


async def reconcile_hash(context: ControllerContext, pool: NodePool) -> None:
    """Bring the annotations of a pool, and where the version changed those of its claims, up to date. Raises ``KubeError``."""
    wanted = {
        labels.NODE_POOL_HASH: nodepool_hash.node_pool_hash(pool),
        labels.NODE_POOL_HASH_VERSION: nodepool_hash.NODE_POOL_HASH_VERSION,
    }
    found = pool.metadata.annotations
    if all(found.get(key) == value for key, value in wanted.items()):
        return
    if found.get(labels.NODE_POOL_HASH_VERSION) != nodepool_hash.NODE_POOL_HASH_VERSION:
        await _migrate_claim_hashes(context, pool.metadata.name, wanted)
    with suppress(NotFound):
        await context.kube.patch(NODE_POOL, pool.metadata.name, {"metadata": {"annotations": wanted}})


async def _migrate_claim_hashes(context: ControllerContext, pool: str, hash_annotations: dict[str, str]) -> None:
    foreign = [claim for claim in context.state.claims() if _has_other_hash_version(claim, pool)]
    if not foreign:
        return
    slots = asyncio.Semaphore(_MAX_CONCURRENT_WRITES)

    async def take(claim: NodeClaim) -> None:
        async with slots:
            with suppress(NotFound):
                await _write_claim_hash(context, claim, hash_annotations)

    await asyncio.gather(*(take(claim) for claim in foreign))
    _log.info("took over nodeclaims stamped by another version", NodePool={"name": pool}, nodeclaims=len(foreign))


def _has_other_hash_version(claim: NodeClaim, pool: str) -> bool:
    meta = claim.metadata
    version = meta.annotations.get(labels.NODE_POOL_HASH_VERSION)
    return meta.labels.get(labels.NODE_POOL) == pool and version != nodepool_hash.NODE_POOL_HASH_VERSION


async def _write_claim_hash(context: ControllerContext, claim: NodeClaim, hash_annotations: dict[str, str]) -> None:
    """Against the version that was judged: a claim that has just drifted must not lose the hash it drifted by."""
    drifted = conditions.is_true(claim.status.conditions, conditions.DRIFTED)
    changed = {labels.NODE_POOL_HASH_VERSION: nodepool_hash.NODE_POOL_HASH_VERSION} if drifted else hash_annotations
    version = claim.metadata.resource_version
    patch = {"metadata": {"annotations": changed}}
    await context.kube.patch(NODE_CLAIM, claim.metadata.name, patch, resource_version=version)
