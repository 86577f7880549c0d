"""A cluster that Karpenter ran until now: its objects stay as they are, and it can have them back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.model import conditions, labels
from support.consolidation_cases import begin, deployment
from support.drift_cases import GOLD, launches
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

#: Karpenter's versions of the hash of a NodePool: 0.37, and 1.0 to 1.14.
_KARPENTER_VERSIONS = ("v2", "v3")
#: What Karpenter's hash of a template looks like (API-503).
_KARPENTER_HASH = "6821555240594823858"
_QUIET_SECONDS = 3 * 3600.0


async def _written_by_karpenter(cluster: VirtualCluster, version: str) -> None:
    """Give every object the hashes that Karpenter wrote, and nothing that only we write."""
    stamped = {labels.NODE_POOL_HASH: _KARPENTER_HASH, labels.NODE_POOL_HASH_VERSION: version}
    for kind in (kinds.NODE_POOL, kinds.NODE_CLAIM):
        for wire in await cluster.all(kind):
            ours = {key: None for key in wire.metadata.annotations if key not in labels.POOL_SETTINGS}
            await cluster.kube.patch(kind, wire.metadata.name, {"metadata": {"annotations": {**ours, **stamped}}})


async def _uids(cluster: VirtualCluster) -> tuple[set[str], set[str], set[str]]:
    """Uids of claims and Nodes, and of the pods that run."""
    claims, nodes, pods = [await cluster.all(kind) for kind in (kinds.NODE_CLAIM, kinds.NODE, kinds.POD)]
    return tuple({wire.metadata.uid for wire in wires} for wires in (claims, nodes, pods))


async def _hash_versions(cluster: VirtualCluster) -> set[str]:
    wires: list[Any] = [*await cluster.all(kinds.NODE_POOL), *await cluster.all(kinds.NODE_CLAIM)]
    return {wire.metadata.annotations.get(labels.NODE_POOL_HASH_VERSION, "") for wire in wires}


async def _is_any_drifted(cluster: VirtualCluster) -> bool:
    claims = await cluster.all(kinds.NODE_CLAIM)
    return any(conditions.is_true(claim.status.conditions, conditions.DRIFTED) for claim in claims)


async def _taken_over(cluster: VirtualCluster, version: str) -> tuple[set[str], set[str], set[str]]:
    """Nodes and pods of Karpenter's, under our controller; what there was before."""
    await begin(cluster, deployment("web", 12), deployment("db", 3, "2"))
    await asyncio.sleep(600)
    await cluster.stop()
    await _written_by_karpenter(cluster, version)
    before = await _uids(cluster)
    await cluster.start()
    return before


@pytest.mark.parametrize("version", _KARPENTER_VERSIONS)
@in_virtual_time
async def test_nodes_that_karpenter_made_stay_for_hours(cluster: VirtualCluster, version: str) -> None:
    """API-504, API-505: hashes of another version are stamped anew, nothing drifts, nothing is launched or disrupted."""
    before = await _taken_over(cluster, version)
    launched = launches(cluster)
    await asyncio.sleep(_QUIET_SECONDS)
    assert await _uids(cluster) == before
    assert launches(cluster) == launched
    assert not await _is_any_drifted(cluster)
    assert len(await _hash_versions(cluster)) == 1
    assert version not in await _hash_versions(cluster)


@in_virtual_time
async def test_a_change_after_the_takeover_still_drifts(cluster: VirtualCluster) -> None:
    """API-504: the new stamps are those of the template as it was, so that the next change is seen."""
    claims, _, _ = await _taken_over(cluster, "v3")
    await until(lambda: _has_only_own_stamps(cluster), 60)
    await cluster.kube.patch(kinds.NODE_POOL, "np", GOLD)
    await until(lambda: _are_replaced(cluster, claims), 4 * 3600, 30)


async def _has_only_own_stamps(cluster: VirtualCluster) -> bool:
    return "v3" not in await _hash_versions(cluster)


async def _are_replaced(cluster: VirtualCluster, claims: set[str]) -> bool:
    now, _, _ = await _uids(cluster)
    return bool(now) and not now & claims


@in_virtual_time
async def test_a_nodeclaim_of_karpenters_ends_in_order(cluster: VirtualCluster) -> None:
    """OPS-070: its finalizers are the same, so the node is drained, the instance ends, and pods come back elsewhere."""
    await _taken_over(cluster, "v3")
    (claim, *_) = await cluster.all(kinds.NODE_CLAIM)
    assert claim.metadata.finalizers == (labels.TERMINATION_FINALIZER,)
    await cluster.kube.delete(kinds.NODE_CLAIM, claim.metadata.name)
    await until(lambda: _is_gone(cluster, claim.metadata.name, claim.status.node_name), 600)


async def _is_gone(cluster: VirtualCluster, claim: str, node: str) -> bool:
    return not (await cluster.has(kinds.NODE_CLAIM, claim) or await cluster.has(kinds.NODE, node))


@in_virtual_time
async def test_karpenter_can_have_its_objects_back(cluster: VirtualCluster) -> None:
    """API-504 read from Karpenter's side: every stamp is of a version it does not know, so it writes its own and nothing drifts.

    What else it needs is as it was: finalizers, labels, provider IDs and status conditions of every NodeClaim.
    """
    await _taken_over(cluster, "v3")
    before = {claim.metadata.name: _seen_by_karpenter(claim) for claim in await cluster.all(kinds.NODE_CLAIM)}
    await asyncio.sleep(3600)
    await cluster.stop()
    after = {claim.metadata.name: _seen_by_karpenter(claim) for claim in await cluster.all(kinds.NODE_CLAIM)}
    assert after == before
    assert not await _hash_versions(cluster) & set(_KARPENTER_VERSIONS)


def _seen_by_karpenter(claim: Any) -> tuple[object, ...]:
    wanted = ("Launched", "Registered", "Initialized", "Ready")
    states = {condition.type: condition.status for condition in claim.status.conditions if condition.type in wanted}
    return (claim.metadata.finalizers, claim.metadata.labels, claim.spec, claim.status.provider_id, states)
