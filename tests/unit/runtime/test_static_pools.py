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
from support.world import World, refusing, story

ON = Settings(feature_gates=parse_feature_gates("StaticCapacity=true"))


async def claims(world: World) -> list[NodeClaim]:
    return await world.all(kinds.NODE_CLAIM)


async def names(world: World) -> list[str]:
    return [claim.metadata.name for claim in await claims(world)]


async def staying(world: World) -> list[str]:
    return [claim.metadata.name for claim in await claims(world) if claim.metadata.deletion_timestamp is None]


async def begin(world: World, replicas: int = 3, **fields: object) -> None:
    """A running controller with a static pool."""
    await world.node_class()
    await world.pool(replicas=replicas, **fields)
    await world.start(ON)
    await asyncio.sleep(0.5)


async def scale(world: World, replicas: int) -> None:
    await world.kube.patch(kinds.NODE_POOL, "np", {"spec": {"replicas": replicas}})
    await asyncio.sleep(0.5)


@story
async def test_a_static_pool_gets_its_nodes_and_gives_up_those_that_hurt_least(world: World) -> None:
    """S-260: the unlaunched goes first, then the empty one.

    DIS-562, DIS-S212: the log line has current, desired and the number of those that go.
    """
    await begin(world, 2)
    nodeclaims = await claims(world)
    assert {claim.metadata.owner_references[0].name for claim in nodeclaims} == {"np"}
    busy, empty = (claim.metadata.name for claim in nodeclaims)
    for name in (busy, empty):
        await world.join(name)
    await world.running("p", f"node-{busy}")
    world.cloud.hangs = {("create", "*")}
    await scale(world, 3)
    (unlaunched,) = set(await staying(world)) - {busy, empty}
    await scale(world, 2)
    assert await staying(world) == sorted([busy, empty])
    await scale(world, 3)
    await scale(world, 1)
    assert await staying(world) == [busy]
    line = world.lines("deprovisioning nodeclaims to satisfy replica count")[-1]
    assert (line["current"], line["desired"], line["deprovision-count"]) == (3, 1, 2)
    assert unlaunched not in world.cloud.bought


@story
async def test_with_the_gate_off_replicas_keep_no_nodes(world: World) -> None:
    """SCH-700"""
    await world.node_class()
    await world.pool(replicas=3)
    await world.start()
    await asyncio.sleep(130)
    assert await names(world) == []


@story
async def test_the_limit_on_nodes_stands_above_the_replicas(world: World) -> None:
    """SCH-702"""
    await begin(world, 3, limits={"nodes": "2"})
    assert len(await names(world)) == 2
    await asyncio.sleep(40)
    assert len(await names(world)) == 2
    assert world.lines("nodepool node limit reached")
    await world.kube.patch(kinds.NODE_POOL, "np", {"spec": {"limits": {"nodes": "4"}}})
    await asyncio.sleep(31)
    assert len(await names(world)) == 3


@story
async def test_a_claim_that_goes_is_replaced_at_once(world: World) -> None:
    """SCH-702"""
    await begin(world)
    first = await names(world)
    await asyncio.sleep(10)
    await world.kube.delete(kinds.NODE_CLAIM, first[0])
    await asyncio.sleep(2)
    assert len(await staying(world)) == 3


@story
async def test_at_its_limit_a_pool_replaces_a_claim_under_another_name(world: World) -> None:
    """As Karpenter does: its suite, and people's scripts, wait by name for the old one to be gone."""
    await begin(world, 3, limits={"nodes": "3"})
    first = await names(world)
    await world.kube.delete(kinds.NODE_CLAIM, first[0])
    await asyncio.sleep(60)
    after = await staying(world)
    assert len(after) == 3
    assert first[0] not in after
    assert set(first[1:]) < set(after)


@pytest.mark.parametrize("writes", range(1, 8))
@story
async def test_a_crash_during_creation_never_makes_one_too_many(world: World, writes: int) -> None:
    """Claim names are derived: the next process finds what the last one made."""
    await world.node_class()
    await world.start(ON)
    crashed = world.crash_after(writes)
    await world.pool(replicas=3)
    await crashed.wait()
    await world.crash()
    await world.start(ON)
    await asyncio.sleep(60)
    assert len(await staying(world)) == 3
    assert len(world.cloud.bought) == 3


@story
async def test_a_creation_that_fails_is_tried_again_under_the_same_name(world: World) -> None:
    await world.node_class()
    await world.pool(replicas=2)
    await world.start(ON)
    world.wire.refuse = refusing(lambda: ServerUnavailable("no"), 2, "create NodeClaim")
    await asyncio.sleep(10)
    asked = [write.name for write in world.wire.writes if str(write) == "create NodeClaim"]
    assert sorted(asked) == await staying(world)
    assert len(asked) == 2


@story
async def test_claims_without_a_node_are_replaced_ever_more_slowly(world: World) -> None:
    """A cloud that is sold out is not asked without end."""
    world.cloud.refuse("create", *(InsufficientCapacity("sold out") for _ in range(1000)))
    await begin(world, 1)
    await asyncio.sleep(300)
    asked = len([call for call in world.cloud.calls if call[0] == "create"])
    assert 5 <= asked <= 15
    world.cloud.refusals.clear()
    await asyncio.sleep(90)
    (claim,) = await claims(world)
    assert claim.status.provider_id


@story
async def test_a_pool_that_is_not_ready_gets_nothing_until_it_is(world: World) -> None:
    """SCH-702"""
    await world.node_class(ready="False")
    await world.pool(replicas=1)
    await world.start(ON)
    await asyncio.sleep(5)
    assert await names(world) == []
    await world.set_condition(kinds.KWOK_NODE_CLASS, "default", "Ready", "True")
    await asyncio.sleep(1)
    assert len(await names(world)) == 1


@story
async def test_a_claim_too_many_is_given_up(world: World) -> None:
    """SCH-703: one that somebody else made for the pool counts as well."""
    await begin(world, 1)
    (own,) = await names(world)
    await world.join(own)
    await asyncio.sleep(1)
    world.cloud.hangs = {("create", "*")}
    await world.claim("stray", pool="np")
    await asyncio.sleep(1)
    assert await staying(world) == [own]


@story
async def test_nodes_are_spread_over_zones_where_the_pool_asks_for_it(world: World) -> None:
    """SCH §24 Beyond"""
    world.simulated()
    await world.node_class()
    made = await world.pool(replicas=0)
    await world.edit(kinds.NODE_POOL, made.metadata.name, annotations={labels.SPREAD_REPLICAS: labels.ZONE})
    await world.start(ON)
    await scale(world, 3)
    await asyncio.sleep(5)
    assert {claim.metadata.labels[labels.ZONE] for claim in await claims(world)} == {"z1", "z2", "z3"}


@story
async def test_empty_nodes_of_a_static_pool_stay(world: World) -> None:
    """DIS-563, DIS-S169"""
    await begin(world, 1)
    (name,) = await names(world)
    await world.join(name)
    await asyncio.sleep(300)
    assert await staying(world) == [name]


@story
async def test_pods_for_which_a_static_pool_is_too_small_learn_that_it_is_static_and_full(world: World) -> None:
    """SCH §24 Beyond"""
    await begin(world, 1)
    await world.waiting(pod("p", {"cpu": "100"}))
    await asyncio.sleep(5)
    (event,) = await world.events("FailedScheduling")
    assert "NodePool is static and full" in event.message
    assert len(await names(world)) == 1


@story
async def test_what_is_created_is_logged_and_counted(world: World) -> None:
    """OPS §5, SCH-630"""
    await begin(world, 2)
    line = world.lines("provisioning nodeclaims to satisfy replica count")[0]
    assert (line["current"], line["desired"], line["provision-count"]) == (0, 2, 2)
    assert (line["controller"], line["NodePool"]) == ("static.provisioning", {"name": "np"})
    assert len(world.lines("created nodeclaim")) == 2
    counted = world.counted("nodeclaims_created_total", reason="provisioned", nodepool="np", min_values_relaxed="false")
    assert counted == 2
    assert {claim.metadata.labels[labels.NODE_POOL] for claim in await claims(world)} == {"np"}


# -- drift of static pools (DIS §9.2, §18) ------------------------------------------------------------------------------------


async def drifting(world: World, replicas: int, budget: str, **fields: object) -> list[str]:
    """A static pool whose machines are all initialised and have drifted just now; their claims."""
    budgets = (Budget(nodes=budget, reasons=("Drifted",)),)
    await begin(world, replicas, disruption=Disruption(consolidate_after="Never", budgets=budgets), **fields)
    old = await names(world)
    for name in old:
        await world.join(name)
    await asyncio.sleep(1)
    change = {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}
    await world.kube.patch(kinds.NODE_POOL, "np", change)
    return old


async def tainted(world: World) -> int:
    return sum(labels.DISRUPTED_TAINT in node.spec.taints for node in await world.all(kinds.NODE))


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
@story
async def test_drifted_nodes_of_a_static_pool_are_replaced_within_budgets_and_limits(
    world: World, replicas: int, budget: str, limits: dict[str, str], begun: int
) -> None:
    """DIS-S205 to DIS-S208, DIS-225 to DIS-227: each by one of its pool, and no machine is lost or gained on the way."""
    old = await drifting(world, replicas, budget, limits=limits)
    await asyncio.sleep(15)
    assert await tainted(world) == begun
    new = [name for name in await names(world) if name not in old]
    assert len(new) == begun
    assert await staying(world) == sorted([*old, *new])
    for name in new:
        await world.join(name)
    await asyncio.sleep(5)
    left = [name for name in await staying(world) if name in old]
    assert len(left) == replicas - begun
    assert len(await staying(world)) >= replicas


@story
async def test_a_static_pool_ends_with_as_many_new_nodes_as_it_had(world: World) -> None:
    """DIS-S205: one after the other."""
    await drifting(world, 3, "1")
    old = {claim.metadata.uid for claim in await claims(world)}
    for _ in range(600):
        claims_now = await claims(world)
        nodes = {node.spec.provider_id for node in await world.all(kinds.NODE)}
        for claim in claims_now:
            launched = bool(claim.status.provider_id)
            if launched and claim.metadata.deletion_timestamp is None and claim.status.provider_id not in nodes:
                await world.join(claim.metadata.name)
        assert 3 <= len(await staying(world)) <= 4
        await asyncio.sleep(1)
    nodeclaims = await claims(world)
    assert len(nodeclaims) == 3
    assert old.isdisjoint(claim.metadata.uid for claim in nodeclaims)


@story
async def test_a_static_pool_that_shrinks_does_that_first(world: World) -> None:
    """DIS-S211: all are given up, and none is replaced."""
    await drifting(world, 3, "100%")
    await scale(world, 0)
    await asyncio.sleep(60)
    assert await staying(world) == []
    assert not world.lines("disrupting node(s)")


@story
async def test_a_protected_node_of_a_static_pool_stays(world: World) -> None:
    """DIS-S210"""
    await begin(world, 1, disruption=Disruption(budgets=(Budget(nodes="100%"),)))
    (name,) = await names(world)
    await world.join(name, annotations={labels.DO_NOT_DISRUPT: "true"})
    await asyncio.sleep(1)
    await world.kube.patch(kinds.NODE_POOL, "np", {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}})
    await asyncio.sleep(60)
    assert await names(world) == [name]
