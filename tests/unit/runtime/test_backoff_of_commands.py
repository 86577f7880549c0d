"""A failed command is not tried again at once, and delays no other (DIS §9.3 Beyond, DIS-493)."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption, NodeClaim
from karpenter.disruption.decide.command import DisruptionReason
from karpenter.model import conditions, labels
from karpenter.providers.contract import Instance, InsufficientCapacity
from support.consolidation_cases import begin, deployment, runs, scale
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

OPEN = Disruption(consolidate_after="Never", budgets=(Budget(nodes="100%"),))


async def drifted(cluster: VirtualCluster, *pools: str) -> None:
    """For each name a pool with one node and a pod that needs it; all nodes are drifted."""
    await cluster.node_class()
    for name in pools:
        await cluster.pool(name, disruption=OPEN)
    await cluster.start()
    for name in pools:
        await cluster.claim(f"{name}-old", pool=name)
    await asyncio.sleep(0.1)
    for name in pools:
        await cluster.join(f"{name}-old", f"{name}-old")
    await asyncio.sleep(1)
    for name in pools:
        selector = {labels.NODE_POOL: name}
        await cluster.running(f"{name}-pod", f"{name}-old", requests={"cpu": "3"}, node_selector=selector)
    for name in pools:
        change = {"spec": {"template": {"spec": {"requirements": [{"key": "x", "operator": "DoesNotExist"}]}}}}
        await cluster.kube.patch(kinds.NODE_POOL, name, change)
        claim = {"metadata": {"labels": {"x": "y"}}}
        await cluster.kube.patch(kinds.NODE_CLAIM, f"{name}-old", claim)


@in_virtual_time
async def test_a_replacement_that_cannot_be_had_is_tried_again_after_growing_pauses(cluster: VirtualCluster) -> None:
    """DIS-S198: one to two minutes, then twice that, and so on up to ten minutes."""
    await drifted(cluster, "a")
    cluster.cloud.refuse("create", *(InsufficientCapacity("nothing left") for _ in range(40)))
    tries: list[float] = []
    seen = 0
    for second in range(1800):
        now = len(cluster.lines("disrupting node(s)"))
        if now > seen:
            tries += [float(second)] * (now - seen)
            seen = now
        await asyncio.sleep(1)
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert 4 <= len(tries) <= 6
    expected = [min(60 * 2**number, 600) for number in range(len(pauses))]
    assert all(least <= pause <= least * 1.2 + 15 for least, pause in zip(expected, pauses, strict=True))
    assert [claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM)] == ["a-old"]


@in_virtual_time
async def test_one_pool_that_fails_keeps_no_other_waiting(cluster: VirtualCluster) -> None:
    """DIS-493, DIS-S011: the node of the other pool is replaced while the first pool's replacement cannot be launched."""
    await drifted(cluster, "a", "b")
    create = cluster.cloud.create

    async def picky(claim: NodeClaim) -> Instance:
        if claim.metadata.labels[labels.NODE_POOL] == "a":
            raise InsufficientCapacity("nothing left")
        return await create(claim)

    cluster.cloud.create = picky
    await asyncio.sleep(20)
    new = [claim.metadata.name for claim in await cluster.all(kinds.NODE_CLAIM) if claim.metadata.name.startswith("b-")]
    assert len(new) == 2
    await cluster.join(next(name for name in new if name != "b-old"))
    await asyncio.sleep(5)
    leaving = [c.metadata.name for c in await cluster.all(kinds.NODE_CLAIM) if c.metadata.deletion_timestamp]
    assert leaving == ["b-old"]


@in_virtual_time
async def test_an_image_that_does_not_work_is_tried_on_one_node_at_a_time(cluster: VirtualCluster) -> None:
    """K15-360: all replacements at once, none registers; then one after growing pauses. Once one is ready the others follow."""
    await drifted_together(cluster, "n0", "n1", "n2")
    old = {"n0", "n1", "n2"}
    await until(lambda: _has_launched(cluster, old, 3), 60)
    await until(lambda: _has_launched(cluster, old, 0), 3600, 5)
    tries = 0
    most = 0
    for _ in range(720):
        new = await _launched_beside(cluster, old)
        most = max(most, len(new))
        tries = len(cluster.lines("disrupting node(s)")) - 3
        if tries == 3 and new:
            break
        await asyncio.sleep(5)
    assert (tries, most) == (3, 1)
    assert "did not become ready: one at a time is tried" in " ".join(await _messages(cluster))
    (name,) = await _launched_beside(cluster, old)
    await cluster.join(name)
    await until(lambda: _has_disrupted(cluster, 8), 900, 1)


async def drifted_together(cluster: VirtualCluster, *names: str) -> None:
    """Nodes of one NodePool, each with a pod that needs a node of its own; all drift now."""
    await cluster.node_class()
    await cluster.pool("np", disruption=OPEN)
    await cluster.start()
    for name in names:
        await cluster.claim(name, pool="np")
    await asyncio.sleep(0.1)
    for name in names:
        await cluster.join(name, name)
    await asyncio.sleep(1)
    for name in names:
        await cluster.running(f"pod-{name}", name, requests={"cpu": "3"}, node_selector={labels.NODE_POOL: "np"})
    change = {"spec": {"template": {"spec": {"requirements": [{"key": "x", "operator": "DoesNotExist"}]}}}}
    await cluster.kube.patch(kinds.NODE_POOL, "np", change)
    for name in names:
        await cluster.kube.patch(kinds.NODE_CLAIM, name, {"metadata": {"labels": {"x": "y"}}})


async def _launched_beside(cluster: VirtualCluster, old: set[str]) -> set[str]:
    """Replacements that are neither ready nor going."""
    claims = await cluster.all(kinds.NODE_CLAIM)
    return {
        claim.metadata.name
        for claim in claims
        if claim.metadata.name not in old
        and claim.metadata.deletion_timestamp is None
        and not conditions.is_true(claim.status.conditions, conditions.INITIALIZED)
    }


async def _has_launched(cluster: VirtualCluster, old: set[str], number: int) -> bool:
    return len(await _launched_beside(cluster, old)) == number


async def _has_disrupted(cluster: VirtualCluster, number: int) -> bool:
    return len(cluster.lines("disrupting node(s)")) == number


async def _messages(cluster: VirtualCluster) -> list[str]:
    return [event.message for event in await cluster.all(kinds.EVENT)]


@in_virtual_time
async def test_pods_whose_move_was_undone_are_not_moved_again_soon(cluster: VirtualCluster) -> None:
    """A workload that comes back right after it was packed together: the second time it is left alone for a while.

    DIS-495, in part: a move that the cluster did not follow is compared with later plans, and reported.
    """
    await begin(cluster, deployment("web", 12))
    await asyncio.sleep(300)
    await scale(cluster, "web", 4)
    await until(lambda: _has_moved(cluster), 600, 1)
    await asyncio.sleep(60)
    await scale(cluster, "web", 12)
    await until(lambda: runs(cluster, 12), 120)
    assert cluster.lines("consolidation was undone")
    assert cluster.manager is not None
    backoff = cluster.manager.command_history.backoff
    assert len({line["owner"] for line in cluster.lines("consolidation was undone")}) == 1
    excluded = backoff.excluded_nodes(cluster.manager.state.state_nodes(), asyncio.get_running_loop().time())
    assert excluded.keys() == {DisruptionReason.UNDERUTILIZED}
    assert excluded[DisruptionReason.UNDERUTILIZED]


async def _has_moved(cluster: VirtualCluster) -> bool:
    assert cluster.manager is not None
    return any(
        entry.reason == "Underutilized" and entry.outcome == "succeeded"
        for entry in cluster.manager.command_history.journal.entries()
    )
