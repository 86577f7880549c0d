"""Static NodePools under a running controller (SCH §24): the number is kept, whatever comes in between."""

from __future__ import annotations

import asyncio

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption, NodeClaim
from karpenter.kube.errors import ServerUnavailable
from karpenter.model import labels
from karpenter.model.feature_gate_flags import parse_feature_gates
from karpenter.providers.contract import InsufficientCapacity
from karpenter.settings import Settings
from support.builders import pod
from support.virtual_cluster import VirtualCluster, in_virtual_time, refusing

ON = Settings(feature_gates=parse_feature_gates("StaticCapacity=true"))


async def claims(cluster: VirtualCluster) -> list[NodeClaim]:
    return await cluster.all(kinds.NODE_CLAIM)


async def names(cluster: VirtualCluster) -> list[str]:
    return [claim.metadata.name for claim in await claims(cluster)]


async def staying(cluster: VirtualCluster) -> list[str]:
    return [claim.metadata.name for claim in await claims(cluster) if claim.metadata.deletion_timestamp is None]


async def begin(cluster: VirtualCluster, replicas: int = 3, **fields: object) -> None:
    """A running controller with a static pool."""
    await cluster.node_class()
    await cluster.pool(replicas=replicas, **fields)
    await cluster.start(ON)
    await asyncio.sleep(0.5)


async def scale(cluster: VirtualCluster, replicas: int) -> None:
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"replicas": replicas}})
    await asyncio.sleep(0.5)


@in_virtual_time
async def test_a_static_pool_gets_its_nodes_and_gives_up_those_that_hurt_least(cluster: VirtualCluster) -> None:
    """S-260: the unlaunched goes first, then the empty one.

    DIS-562, DIS-S212: the log line has current, desired and the number of those that go.
    """
    await begin(cluster, 2)
    nodeclaims = await claims(cluster)
    assert {claim.metadata.owner_references[0].name for claim in nodeclaims} == {"np"}
    busy, empty = (claim.metadata.name for claim in nodeclaims)
    for name in (busy, empty):
        await cluster.join(name)
    await cluster.running("p", f"node-{busy}")
    cluster.cloud.hangs = {("create", "*")}
    await scale(cluster, 3)
    (unlaunched,) = set(await staying(cluster)) - {busy, empty}
    await scale(cluster, 2)
    assert await staying(cluster) == sorted([busy, empty])
    await scale(cluster, 3)
    await scale(cluster, 1)
    assert await staying(cluster) == [busy]
    line = cluster.lines("deprovisioning nodeclaims to satisfy replica count")[-1]
    assert (line["current"], line["desired"], line["deprovision-count"]) == (3, 1, 2)
    assert unlaunched not in cluster.cloud.launched


@in_virtual_time
async def test_with_the_gate_off_replicas_keep_no_nodes(cluster: VirtualCluster) -> None:
    """SCH-700"""
    await cluster.node_class()
    await cluster.pool(replicas=3)
    await cluster.start()
    await asyncio.sleep(130)
    assert await names(cluster) == []


@in_virtual_time
async def test_the_limit_on_nodes_stands_above_the_replicas(cluster: VirtualCluster) -> None:
    """SCH-702"""
    await begin(cluster, 3, limits={"nodes": "2"})
    assert len(await names(cluster)) == 2
    await asyncio.sleep(40)
    assert len(await names(cluster)) == 2
    assert cluster.lines("nodepool node limit reached")
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"limits": {"nodes": "4"}}})
    await asyncio.sleep(31)
    assert len(await names(cluster)) == 3


@in_virtual_time
async def test_a_claim_that_goes_is_replaced_at_once(cluster: VirtualCluster) -> None:
    """SCH-702"""
    await begin(cluster)
    first = await names(cluster)
    await asyncio.sleep(10)
    await cluster.kube.delete(kinds.NODE_CLAIM, first[0])
    await asyncio.sleep(2)
    assert len(await staying(cluster)) == 3


@in_virtual_time
async def test_at_its_limit_a_pool_replaces_a_claim_under_another_name(cluster: VirtualCluster) -> None:
    """As Karpenter does: its suite, and people's scripts, wait by name for the old one to be gone."""
    await begin(cluster, 3, limits={"nodes": "3"})
    first = await names(cluster)
    await cluster.kube.delete(kinds.NODE_CLAIM, first[0])
    await asyncio.sleep(60)
    after = await staying(cluster)
    assert len(after) == 3
    assert first[0] not in after
    assert set(first[1:]) < set(after)


@pytest.mark.parametrize("writes", range(1, 8))
@in_virtual_time
async def test_a_crash_during_creation_never_makes_one_too_many(cluster: VirtualCluster, writes: int) -> None:
    """Claim names are derived: the next process finds what the last one made."""
    await cluster.node_class()
    await cluster.start(ON)
    crashed = cluster.crash_after(writes)
    await cluster.pool(replicas=3)
    await crashed.wait()
    await cluster.crash()
    await cluster.start(ON)
    await asyncio.sleep(60)
    assert len(await staying(cluster)) == 3
    assert len(cluster.cloud.launched) == 3


@in_virtual_time
async def test_a_creation_that_fails_is_tried_again_under_the_same_name(cluster: VirtualCluster) -> None:
    await cluster.node_class()
    await cluster.pool(replicas=2)
    await cluster.start(ON)
    cluster.connection.refuse = refusing(lambda: ServerUnavailable("no"), 2, "create NodeClaim")
    await asyncio.sleep(10)
    asked = [write.name for write in cluster.connection.writes if str(write) == "create NodeClaim"]
    assert sorted(asked) == await staying(cluster)
    assert len(asked) == 2


@in_virtual_time
async def test_claims_without_a_node_are_replaced_ever_more_slowly(cluster: VirtualCluster) -> None:
    """A cloud that is sold out is not asked without end."""
    cluster.cloud.refuse("create", *(InsufficientCapacity("sold out") for _ in range(1000)))
    await begin(cluster, 1)
    await asyncio.sleep(300)
    asked = len([call for call in cluster.cloud.calls if call[0] == "create"])
    assert 5 <= asked <= 15
    cluster.cloud.refusals.clear()
    await asyncio.sleep(90)
    (claim,) = await claims(cluster)
    assert claim.status.provider_id


@in_virtual_time
async def test_a_pool_that_is_not_ready_gets_nothing_until_it_is(cluster: VirtualCluster) -> None:
    """SCH-702"""
    await cluster.node_class(ready="False")
    await cluster.pool(replicas=1)
    await cluster.start(ON)
    await asyncio.sleep(5)
    assert await names(cluster) == []
    await cluster.set_condition(kinds.KWOK_NODE_CLASS, "default", "Ready", "True")
    await asyncio.sleep(1)
    assert len(await names(cluster)) == 1


@in_virtual_time
async def test_a_claim_too_many_is_given_up(cluster: VirtualCluster) -> None:
    """SCH-703: a claim that another client created for the pool counts as well."""
    await begin(cluster, 1)
    (own,) = await names(cluster)
    await cluster.join(own)
    await asyncio.sleep(1)
    cluster.cloud.hangs = {("create", "*")}
    await cluster.claim("stray", pool="np")
    await asyncio.sleep(1)
    assert await staying(cluster) == [own]


@in_virtual_time
async def test_nodes_are_spread_over_zones_where_the_pool_asks_for_it(cluster: VirtualCluster) -> None:
    """SCH §24 Beyond"""
    cluster.simulated()
    await cluster.node_class()
    made = await cluster.pool(replicas=0)
    await cluster.edit(kinds.NODE_POOL, made.metadata.name, annotations={labels.SPREAD_REPLICAS: labels.ZONE})
    await cluster.start(ON)
    await scale(cluster, 3)
    await asyncio.sleep(5)
    assert {claim.metadata.labels[labels.ZONE] for claim in await claims(cluster)} == {"z1", "z2", "z3"}


@in_virtual_time
async def test_empty_nodes_of_a_static_pool_stay(cluster: VirtualCluster) -> None:
    """DIS-563, DIS-S169"""
    await begin(cluster, 1)
    (name,) = await names(cluster)
    await cluster.join(name)
    await asyncio.sleep(300)
    assert await staying(cluster) == [name]


@in_virtual_time
async def test_pods_for_which_a_static_pool_is_too_small_get_the_reason_that_it_is_static_and_full(
    cluster: VirtualCluster,
) -> None:
    """SCH §24 Beyond"""
    await begin(cluster, 1)
    await cluster.waiting(pod("p", {"cpu": "100"}))
    await asyncio.sleep(5)
    (event,) = await cluster.events("FailedScheduling")
    assert "NodePool is static and full" in event.message
    assert len(await names(cluster)) == 1


@in_virtual_time
async def test_what_is_created_is_logged_and_counted(cluster: VirtualCluster) -> None:
    """OPS §5, SCH-630"""
    await begin(cluster, 2)
    line = cluster.lines("provisioning nodeclaims to satisfy replica count")[0]
    assert (line["current"], line["desired"], line["provision-count"]) == (0, 2, 2)
    assert (line["controller"], line["NodePool"]) == ("static.provisioning", {"name": "np"})
    assert len(cluster.lines("created nodeclaim")) == 2
    counted = cluster.counted(
        "nodeclaims_created_total", reason="provisioned", nodepool="np", min_values_relaxed="false"
    )
    assert counted == 2
    assert {claim.metadata.labels[labels.NODE_POOL] for claim in await claims(cluster)} == {"np"}


# -- drift of static pools (DIS §9.2, §18) ------------------------------------------------------------------------------------


async def drifting(cluster: VirtualCluster, replicas: int, budget: str, **fields: object) -> list[str]:
    """A static pool whose nodes are all initialized and have drifted just now; their claims."""
    budgets = (Budget(nodes=budget, reasons=("Drifted",)),)
    await begin(cluster, replicas, disruption=Disruption(consolidate_after="Never", budgets=budgets), **fields)
    old = await names(cluster)
    for name in old:
        await cluster.join(name)
    await asyncio.sleep(1)
    change = {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}
    await cluster.kube.patch(kinds.NODE_POOL, "np", change)
    return old


async def tainted(cluster: VirtualCluster) -> int:
    return sum(labels.DISRUPTED_TAINT in node.spec.taints for node in await cluster.all(kinds.NODE))


@pytest.mark.parametrize(
    ("replicas", "budget", "limits", "begun"),
    [
        (4, "2", {}, 2),
        (5, "20%", {}, 1),
        (4, "100%", {"nodes": "4"}, 0),
        (5, "100%", {}, 5),
        (5, "100%", {"nodes": "6"}, 1),
    ],
    ids=["DIS-S205", "DIS-S206", "DIS-S207", "DIS-S208", "DIS-E2"],
)
@in_virtual_time
async def test_drifted_nodes_of_a_static_pool_are_replaced_within_budgets_and_limits(
    cluster: VirtualCluster, replicas: int, budget: str, limits: dict[str, str], begun: int
) -> None:
    """DIS-S205 to DIS-S208, DIS-225 to DIS-227: each by one of its pool, and no node is lost or gained on the way."""
    old = await drifting(cluster, replicas, budget, limits=limits)
    await asyncio.sleep(15)
    assert await tainted(cluster) == begun
    new = [name for name in await names(cluster) if name not in old]
    assert len(new) == begun
    assert await staying(cluster) == sorted([*old, *new])
    for name in new:
        await cluster.join(name)
    await asyncio.sleep(5)
    left = [name for name in await staying(cluster) if name in old]
    assert len(left) == replicas - begun
    assert len(await staying(cluster)) >= replicas


@in_virtual_time
async def test_a_static_pool_ends_with_as_many_new_nodes_as_it_had(cluster: VirtualCluster) -> None:
    """DIS-S205: one after the other."""
    await drifting(cluster, 3, "1")
    old = {claim.metadata.uid for claim in await claims(cluster)}
    for _ in range(600):
        claims_now = await claims(cluster)
        nodes = {node.spec.provider_id for node in await cluster.all(kinds.NODE)}
        for claim in claims_now:
            launched = bool(claim.status.provider_id)
            if launched and claim.metadata.deletion_timestamp is None and claim.status.provider_id not in nodes:
                await cluster.join(claim.metadata.name)
        assert 3 <= len(await staying(cluster)) <= 4
        await asyncio.sleep(1)
    nodeclaims = await claims(cluster)
    assert len(nodeclaims) == 3
    assert old.isdisjoint(claim.metadata.uid for claim in nodeclaims)


@in_virtual_time
async def test_a_static_pool_that_shrinks_does_that_first(cluster: VirtualCluster) -> None:
    """DIS-S211: all are given up, and none is replaced."""
    await drifting(cluster, 3, "100%")
    await scale(cluster, 0)
    await asyncio.sleep(60)
    assert await staying(cluster) == []
    assert not cluster.lines("disrupting node(s)")


@in_virtual_time
async def test_a_protected_node_of_a_static_pool_stays(cluster: VirtualCluster) -> None:
    """DIS-S210"""
    await begin(cluster, 1, disruption=Disruption(budgets=(Budget(nodes="100%"),)))
    (name,) = await names(cluster)
    await cluster.join(name, annotations={labels.DO_NOT_DISRUPT: "true"})
    await asyncio.sleep(1)
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}})
    await asyncio.sleep(60)
    assert await names(cluster) == [name]
