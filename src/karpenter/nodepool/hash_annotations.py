"""The NodePool hash controller: writes the template hash to pools, and to claims with another hash version (API-500 ff.).

Claims created by another implementation or by an older version carry hashes that cannot be compared. They are migrated: each
gets the current hash version and the current hash of its pool, so that an upgrade causes no drift. A claim that has already
drifted keeps its hash and stays drifted (API-504, DIS-355). The pool is annotated last, so that an interrupted migration
continues where it stopped.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import NODE_CLAIM, NODE_POOL
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import NotFound
from karpenter.model import conditions, labels, nodepool_hash

_MAX_CONCURRENT_WRITES = 20
_log = structlog.get_logger()


async def reconcile_hash(context: ControllerContext, pool: NodePool) -> None:
    """Update the hash annotations of a pool and, after a version change, of its claims. Raises ``KubeError``."""
    desired = nodepool_hash.hash_annotations(pool)
    stored = pool.metadata.annotations
    if all(stored.get(key) == value for key, value in desired.items()):
        return
    if stored.get(labels.NODE_POOL_HASH_VERSION) != nodepool_hash.NODE_POOL_HASH_VERSION:
        await _migrate_claim_hashes(context, pool.metadata.name, desired)
    with suppress(NotFound):
        await context.kube.patch(NODE_POOL, pool.metadata.name, {"metadata": {"annotations": desired}})


async def _migrate_claim_hashes(context: ControllerContext, pool: str, hash_annotations: dict[str, str]) -> None:
    foreign = [claim for claim in context.state.claims() if _has_other_hash_version(claim, pool)]
    if not foreign:
        return
    slots = asyncio.Semaphore(_MAX_CONCURRENT_WRITES)

    async def migrate(claim: NodeClaim) -> None:
        async with slots:
            with suppress(NotFound):
                await _write_claim_hash(context, claim, hash_annotations)

    await asyncio.gather(*(migrate(claim) for claim in foreign))
    _log.info("took over nodeclaims stamped by another version", NodePool={"name": pool}, nodeclaims=len(foreign))


def _has_other_hash_version(claim: NodeClaim, pool: str) -> bool:
    meta = claim.metadata
    version = meta.annotations.get(labels.NODE_POOL_HASH_VERSION)
    return meta.labels.get(labels.NODE_POOL) == pool and version != nodepool_hash.NODE_POOL_HASH_VERSION


async def _write_claim_hash(context: ControllerContext, claim: NodeClaim, hash_annotations: dict[str, str]) -> None:
    """Write the hash against the resource version that was read: a claim that has just drifted must keep its hash."""
    drifted = conditions.is_true(claim.status.conditions, conditions.DRIFTED)
    changed = {labels.NODE_POOL_HASH_VERSION: nodepool_hash.NODE_POOL_HASH_VERSION} if drifted else hash_annotations
    version = claim.metadata.resource_version
    patch = {"metadata": {"annotations": changed}}
    await context.kube.patch(NODE_CLAIM, claim.metadata.name, patch, resource_version=version)
