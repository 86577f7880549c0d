"""A node is initialized once the drivers of claimed devices have published theirs (OPS-040, row 6)."""

from __future__ import annotations

import asyncio

from karpenter.api import kinds
from karpenter.model import labels
from karpenter.settings import Settings
from support.device_builders import DRIVER, gpus, published, slice_spec
from support.nodeclaim_stages import registered
from support.virtual_cluster import VirtualCluster, in_virtual_time

WAITING = ("Unknown", "DRADriverPoolsNotPublished", f'DRA driver "{DRIVER}" has not published a complete resource pool')
INITIALIZED = ("True", "Initialized", "")
ASKING = {"annotations": {labels.REQUESTED_DRA_DRIVERS: f" {DRIVER}, "}}


@in_virtual_time
async def test_initialization_waits_for_the_slices_of_requested_drivers(cluster: VirtualCluster) -> None:
    """OPS-040 row 6, OPS-044, API-457, K15-175: the pool of a requested driver must be complete on the node."""
    cluster.settings = Settings(ignore_dra_requests=False)
    await registered(cluster, metadata=ASKING)
    assert await cluster.condition("c", "Initialized") == WAITING
    part = published("part", slice_spec(*gpus(1), node="node-c", slices=2))
    await cluster.kube.create(kinds.RESOURCE_SLICE, part)
    await asyncio.sleep(0.1)
    assert await cluster.condition("c", "Initialized") == WAITING
    rest = published("rest", slice_spec(node="node-c", slices=2))
    await cluster.kube.create(kinds.RESOURCE_SLICE, rest)
    await asyncio.sleep(0.1)
    assert await cluster.condition("c", "Initialized") == INITIALIZED


@in_virtual_time
async def test_nothing_is_waited_for_while_claims_are_ignored(cluster: VirtualCluster) -> None:
    """OPS-040 row 6 applies only with DRA on."""
    await registered(cluster, metadata=ASKING)
    assert await cluster.condition("c", "Initialized") == INITIALIZED
