"""Budgets are never exceeded, whatever happens beside: seeded days of workloads that come and go, drift, and faults of the API
server.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget
from karpenter.kube.errors import Conflict, KubeError, ServerUnavailable, TooManyRequests
from karpenter.model import conditions, labels
from support.consolidation_cases import begin, deployment, scale
from support.fake_cloud import Write
from support.virtual_cluster import VirtualCluster, in_virtual_time

MOST = 2
#: Changes of a day in `make test`.
_FEW = 12
_WORKLOADS = ("a", "b", "c", "d")


async def away(cluster: VirtualCluster) -> list[str]:
    """Nodes that budgets count as disrupted: marked, or their claim is deleted and the instance still exists (DIS-145, 146)."""
    claims = {claim.status.provider_id: claim for claim in await cluster.all(kinds.NODE_CLAIM)}
    away = []
    for node in await cluster.all(kinds.NODE):
        claim = claims.get(node.spec.provider_id)
        if claim is None or conditions.is_true(claim.status.conditions, "InstanceTerminating"):
            continue
        is_marked = labels.DISRUPTED_TAINT in node.spec.taints
        if is_marked or claim.metadata.deletion_timestamp is not None:
            away.append(node.metadata.name)
    return away


async def change_something(cluster: VirtualCluster, numbers: random.Random) -> None:
    match numbers.choice(("scale", "scale", "scale", "drift", "protect")):
        case "scale":
            await scale(cluster, numbers.choice(_WORKLOADS), numbers.randint(0, 12))
        case "drift":
            change = {"metadata": {"labels": {"edition": str(numbers.randint(0, 10**6))}}}
            await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"template": change}})
        case "protect":
            result = await cluster.all(kinds.POD)
            if result:
                value = numbers.choice(("true", "90s", "false"))
                note = {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: value}}}
                await cluster.kube.patch(kinds.POD, numbers.choice(result).metadata.name, note, "default")


async def a_day(cluster: VirtualCluster, seed: int, faults: float, changes: int = 60) -> None:
    """Something changes every minute or two, for an hour and a quarter if it is sixty times; looked at every second."""
    numbers, fault_draws = random.Random(seed), random.Random(seed + 1)
    errors: tuple[type[KubeError], ...] = (Conflict, ServerUnavailable, TooManyRequests)

    def maybe(_: Write) -> None:
        if fault_draws.random() < faults:
            raise fault_draws.choice(errors)("bad weather")

    note = {labels.MINIMUM_NODE_AGE: "0s", labels.MINIMUM_SAVING_RATIO: "0"}
    await begin(cluster, *(deployment(name, 6) for name in _WORKLOADS), budgets=(Budget(nodes=str(MOST)),))
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"metadata": {"annotations": note}})
    cluster.connection.refuse = cluster.connection.after = maybe
    begun = 0
    for _ in range(changes):
        await change_something(cluster, numbers)
        for _ in range(numbers.randint(30, 120)):
            result = await away(cluster)
            assert len(result) <= MOST, result
            await asyncio.sleep(1)
        begun = len(cluster.lines("disrupting node(s)"))
    assert begun > changes // 12


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
@in_virtual_time
async def test_no_more_nodes_are_away_than_the_budget_allows(cluster: VirtualCluster, seed: int) -> None:
    """DIS-147, DIS-151"""
    await a_day(cluster, seed, 0.0, _FEW)


@in_virtual_time
async def test_no_more_nodes_are_away_than_the_budget_allows_on_a_bad_day(cluster: VirtualCluster) -> None:
    """DIS-147, DIS-151, while every tenth write fails before it is done, another tenth after."""
    await a_day(cluster, 3, 0.1, _FEW)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 130))
@in_virtual_time
async def test_no_more_nodes_are_away_than_the_budget_allows_on_many_days(cluster: VirtualCluster, seed: int) -> None:
    await a_day(cluster, seed, 0.05 * (seed % 3))
