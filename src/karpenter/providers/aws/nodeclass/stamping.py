"""The hash of a class, written on the class, and on claims that carry one of another version (AWS-572 to AWS-574).

Claims another implementation made carry hashes that cannot be compared with ours. Each is given the version and the hash of its
class as it is now, so that no upgrade drifts anything; one that had drifted before keeps its hash. Only when all are done the
class is stamped, so that an upgrade which is interrupted goes on where it stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import structlog

from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import Writer
from karpenter.model import conditions
from karpenter.providers.aws.nodeclass.hashing import HASH, HASH_VERSION, VERSION, static_hash
from karpenter.providers.aws.nodeclass.termination import uses
from karpenter.providers.aws.settings import Cluster

_AT_ONCE = 20
_log = structlog.get_logger()


class Stamps:
    """Keeps hashes up to date. ``claims`` tells all there are."""

    def __init__(self, kube: Writer, claims: Callable[[], Iterable[NodeClaim]]) -> None:
        self._kube = kube
        self._claims = claims

    async def put(self, node_class: EC2NodeClass, cluster: Cluster) -> EC2NodeClass:
        """The class stamped, and where the version changed its claims before. Raises ``KubeError``."""
        wanted = {HASH: static_hash(node_class, cluster), VERSION: HASH_VERSION}
        found = node_class.metadata.annotations
        if all(found.get(key) == value for key, value in wanted.items()):
            return node_class
        meta = node_class.metadata
        if found.get(VERSION) != HASH_VERSION:
            await self._take_over(meta.name, wanted)
        patch = {"metadata": {"annotations": wanted}}
        return await self._kube.patch(EC2_NODE_CLASS, meta.name, patch, resource_version=meta.resource_version)

    async def _take_over(self, name: str, wanted: Mapping[str, str]) -> None:
        foreign = [claim for claim in self._claims() if uses(claim, name) and _is_foreign(claim)]
        if not foreign:
            return
        slots = asyncio.Semaphore(_AT_ONCE)

        async def take(claim: NodeClaim) -> None:
            async with slots:
                with suppress(NotFound):
                    await self._stamp_claim(claim, wanted)

        await asyncio.gather(*map(take, foreign))
        told = {"EC2NodeClass": {"name": name}, "nodeclaims": len(foreign)}
        _log.info("took over nodeclaims stamped by another version", **told)

    async def _stamp_claim(self, claim: NodeClaim, wanted: Mapping[str, str]) -> None:
        """Against the version that was judged: a claim that has just drifted must not lose the hash it drifted by."""
        drifted = conditions.is_true(claim.status.conditions, "Drifted")
        changed = {VERSION: HASH_VERSION} if drifted else wanted
        meta = claim.metadata
        patch = {"metadata": {"annotations": changed}}
        await self._kube.patch(NODE_CLAIM, meta.name, patch, resource_version=meta.resource_version)


def _is_foreign(claim: NodeClaim) -> bool:
    return claim.metadata.annotations.get(VERSION) != HASH_VERSION
