"""A controller with one NodePool, for tests of provisioning."""

from __future__ import annotations

from typing import Any

from karpenter.api import kinds
from karpenter.api.karpenter import Disruption
from karpenter.settings import Settings
from support.virtual_cluster import VirtualCluster

CALM = Disruption(consolidate_after="Never")


async def start_with_pool(cluster: VirtualCluster, settings: Settings | None = None, **pool: Any) -> None:
    """A running controller with a class and a pool, on the scripted cloud."""
    await cluster.node_class()
    await cluster.pool(**{"disruption": CALM, **pool})
    await cluster.start(settings)


async def claims(cluster: VirtualCluster) -> list[Any]:
    return await cluster.all(kinds.NODE_CLAIM)
