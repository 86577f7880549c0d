"""A NodeClaim in a ``VirtualCluster`` at a stage of its life cycle: launched, registered, initialized, gone."""

from __future__ import annotations

import asyncio

from karpenter.api import kinds
from support.virtual_cluster import VirtualCluster


async def launched(cluster: VirtualCluster, **fields: object) -> None:
    """A running controller and one NodeClaim whose instance is launched."""
    await cluster.start()
    await cluster.claim(**fields)
    await asyncio.sleep(0.1)


async def registered(cluster: VirtualCluster, **fields: object) -> None:
    """A running controller and one NodeClaim whose Node is registered."""
    await launched(cluster, **fields)
    await cluster.join()
    await asyncio.sleep(0.1)


async def ready(cluster: VirtualCluster, name: str = "c", **fields: object) -> None:
    """A running controller, a NodeClaim and its initialized Node."""
    if cluster.manager is None:
        await cluster.start()
    await cluster.claim(name, **fields)
    await asyncio.sleep(0.1)
    await cluster.join(name)
    await asyncio.sleep(1)


async def all_gone(cluster: VirtualCluster, name: str = "c") -> bool:
    """Whether NodeClaim and Node are gone."""
    return not await cluster.has(kinds.NODE_CLAIM, name) and not await cluster.has(kinds.NODE, f"node-{name}")


def evicted(cluster: VirtualCluster) -> list[str]:
    """Names of the pods that eviction was requested for, in order."""
    return [write.name for write in cluster.connection.writes if write.verb == "evict"]
