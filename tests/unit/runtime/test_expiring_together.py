"""Nodes that were created together expire together (DIS-379): their workloads stay up."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption
from karpenter.settings import Settings
from support.drift_cases import PODS, all_running, errors, launches, start_pool, watch_pods
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

LIFETIME = timedelta(hours=1)
EXPIRING = {"template": {"expire_after": "1h"}}
ONE_BY_ONE = Disruption(consolidate_after="30s", budgets=(Budget(nodes="1"),))
CLOSED = Disruption(consolidate_after="30s", budgets=(Budget(nodes="0"),))


async def is_renewed(cluster: VirtualCluster, before: set[str]) -> bool:
    return before.isdisjoint({claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM)})


@in_virtual_time
async def test_nodes_that_expire_together_are_replaced_one_by_one_before(cluster: VirtualCluster) -> None:
    """DIS-379 Beyond: replacement first and within budgets; never more than one node's pods are missing."""
    nodes = await start_pool(cluster, disruption=ONE_BY_ONE, **EXPIRING)
    before = {claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM)}
    fewest = [PODS]
    cluster.also(watch_pods(cluster, fewest, [0]))
    await until(lambda: is_renewed(cluster, before), LIFETIME.total_seconds(), 5)
    assert cluster.elapsed > 0.9 * LIFETIME.total_seconds()
    assert fewest[0] >= PODS - PODS // nodes
    assert launches(cluster) == 2 * nodes
    assert await all_running(cluster)
    assert errors(cluster) == []
    assert cluster.lines("deleting expired nodeclaim") == []


@pytest.mark.parametrize(
    ("settings", "disruption"),
    [(Settings(expiration_window=timedelta()), ONE_BY_ONE), (Settings(), CLOSED)],
    ids=["no window", "closed budgets"],
)
@in_virtual_time
async def test_what_was_not_replaced_before_is_deleted_when_it_expires(
    cluster: VirtualCluster, settings: Settings, disruption: Disruption
) -> None:
    """DIS-360: without a window, as in Karpenter, and where budgets allow nothing, expiration is exact.

    API-090, DIS-150: a budget of 0 keeps no expired node.
    """
    nodes = await start_pool(cluster, settings=settings, disruption=disruption, **EXPIRING)
    claims = await cluster.all(kinds.NODE_CLAIM)
    await asyncio.sleep(LIFETIME.total_seconds() - cluster.elapsed - 5)
    assert {claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM)} == {
        claim.metadata.name for claim in claims
    }
    await asyncio.sleep(120)
    assert len(cluster.lines("deleting expired nodeclaim")) == nodes
