"""NodeClaims whose fields users edit."""

from __future__ import annotations

import asyncio
from typing import Any

from karpenter.api.karpenter import Disruption
from support.virtual_cluster import VirtualCluster


async def up(cluster: VirtualCluster, *names: str, consolidate_after: str = "Never") -> None:
    """A running controller, a pool, and initialized nodes of it: claims c, d, ... on nodes node-c, node-d, ..."""
    await cluster.node_class()
    pool = await cluster.pool(disruption=Disruption(consolidate_after=consolidate_after))
    await cluster.start()
    for name in names or ("c",):
        await cluster.owned_claim(pool, name)
    await asyncio.sleep(0.1)
    for name in names or ("c",):
        await cluster.join(name)
    await asyncio.sleep(1)


def bugs(cluster: VirtualCluster) -> list[dict[str, Any]]:
    return [line for line in cluster.lines() if "stacktrace" in line]
