"""Whether a pool's nodes register: condition NodeRegistrationHealthy (OPS §1.7, API §13.3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Disruption, NodePool
from karpenter.api.meta import OwnerReference
from karpenter.kube.errors import Conflict, ServerUnavailable
from karpenter.providers.contract import LaunchFailed, ProviderError
from support.world import World, refusing, story

TYPE = "NodeRegistrationHealthy"
UNKNOWN = ("Unknown", "AwaitingReconciliation", "object is awaiting reconciliation")
ILL = ("False", "RegistrationFailed", "Failed to register node")


async def start_with_pool(world: World) -> NodePool:
    """A running controller with a pool that keeps its nodes."""
    await world.node_class()
    await world.pool(disruption=Disruption(consolidate_after="Never"))
    await world.start()
    await asyncio.sleep(6)
    return await world.kube.get(kinds.NODE_POOL, "np")


async def healthy(world: World) -> tuple[str, str, str]:
    """The condition, once outcomes have been written (API-645: every five seconds)."""
    await asyncio.sleep(6)
    return await world.pool_condition(TYPE)


async def good(world: World, pool: NodePool, name: str, **fields: Any) -> None:
    await world.owned_claim(pool, name, **fields)
    await asyncio.sleep(0.1)
    await world.join(name)
    await asyncio.sleep(0.5)


async def bad(world: World, pool: NodePool, *names: str) -> None:
    """Claims whose nodes never join."""
    for name in names:
        await world.owned_claim(pool, name)
    await asyncio.sleep(15 * 60 + 20)


async def generation(world: World) -> int:
    return (await world.kube.get(kinds.NODE_POOL, "np")).status.node_class_observed_generation


@story
async def test_a_pool_nothing_was_bought_for_is_neither_healthy_nor_ill(world: World) -> None:
    """OPS-L45, API-652: and the condition has no part in Ready (OPS-064, API-655)."""
    await start_with_pool(world)
    assert await world.pool_condition(TYPE) == UNKNOWN
    assert (await world.pool_condition("Ready"))[0] == "True"


@story
async def test_one_node_that_registers_makes_its_pool_healthy(world: World) -> None:
    """OPS-L27, OPS-L45, API-S252, API-653"""
    pool = await start_with_pool(world)
    await good(world, pool, "c")
    assert await healthy(world) == ("True", TYPE, "")


@story
async def test_two_nodes_that_never_join_make_their_pool_ill(world: World) -> None:
    """OPS-L45, API-S253, API-654, OPS-062; it stays Ready (OPS-064)."""
    pool = await start_with_pool(world)
    await bad(world, pool, "c")
    assert await healthy(world) == UNKNOWN
    await bad(world, pool, "d")
    assert await healthy(world) == ILL
    assert (await world.pool_condition("Ready"))[0] == "True"
    await good(world, pool, "e")
    assert await healthy(world) == ILL
    for name in ("f", "g"):
        await good(world, pool, name)
    assert await healthy(world) == ("True", TYPE, "")


@story
async def test_launches_that_fail_show_the_reason_of_the_cloud(world: World) -> None:
    """OPS-062, API-654"""
    pool = await start_with_pool(world)
    world.cloud.refuse("create", *(LaunchFailed("NoQuota", "ask for more") for _ in range(10**4)))
    for name in ("c", "d"):
        await world.owned_claim(pool, name)
    await asyncio.sleep(6 * 60)
    assert await healthy(world) == ("False", "NoQuota", "ask for more")


@pytest.mark.parametrize("owner", ["none", "another uid", "not a pool"])
@story
async def test_only_claims_of_the_very_pool_count(world: World, owner: str) -> None:
    """OPS-061, API-655"""
    await start_with_pool(world)
    references = {
        "none": (),
        "another uid": (OwnerReference(api_version="karpenter.sh/v1", kind="NodePool", name="np", uid="x"),),
        "not a pool": (OwnerReference(api_version="v1", kind="ConfigMap", name="np", uid="x"),),
    }[owner]
    await world.claim("c", pool="np", metadata={"owner_references": references})
    await asyncio.sleep(0.1)
    if await world.has(kinds.NODE_CLAIM, "c"):
        await world.join("c")
        await asyncio.sleep(1)
    assert await healthy(world) == UNKNOWN


@pytest.mark.parametrize("shown", ["True", "False"])
@story
async def test_a_new_process_starts_from_the_condition(world: World, shown: str) -> None:
    """API-651, OPS-063: True stands for one success, False for two failures."""
    pool = await start_with_pool(world)
    if shown == "True":
        await good(world, pool, "c")
    else:
        await bad(world, pool, "c", "d")
    await healthy(world)
    await world.stop()
    await world.start()
    await asyncio.sleep(1)
    assert (await healthy(world))[0] == shown
    await bad(world, pool, "e")
    assert (await healthy(world))[0] == shown
    await bad(world, pool, "f")
    assert (await healthy(world))[0] == "False"
    await good(world, pool, "g")
    assert (await healthy(world))[0] == "False"


@story
async def test_an_edit_of_the_pool_begins_anew(world: World) -> None:
    """API-652: what failed before says nothing about what is asked for now."""
    pool = await start_with_pool(world)
    await bad(world, pool, "c", "d")
    assert await healthy(world) == ILL
    await world.kube.patch(kinds.NODE_POOL, "np", {"spec": {"weight": 7}})
    assert await healthy(world) == UNKNOWN
    await bad(world, pool, "e")
    assert await healthy(world) == UNKNOWN


@story
async def test_an_edit_of_the_class_begins_anew(world: World) -> None:
    """API-S254, API-652, API-067"""
    pool = await start_with_pool(world)
    before = await generation(world)
    await good(world, pool, "c")
    assert (await healthy(world))[0] == "True"
    await world.kube.patch(kinds.KWOK_NODE_CLASS, "default", {"spec": {"nodeRegistrationDelay": "3s"}})
    assert await healthy(world) == UNKNOWN
    assert await generation(world) == before + 1
    await good(world, pool, "d")
    assert (await healthy(world))[0] == "True"


@story
async def test_an_edit_of_the_class_while_nobody_looked_begins_anew(world: World) -> None:
    """API-652"""
    pool = await start_with_pool(world)
    await good(world, pool, "c")
    assert (await healthy(world))[0] == "True"
    await world.stop()
    await world.kube.patch(kinds.KWOK_NODE_CLASS, "default", {"spec": {"nodeRegistrationDelay": "3s"}})
    await world.start()
    assert await healthy(world) == UNKNOWN


@story
async def test_without_its_class_nothing_is_said_about_a_pools_health(world: World) -> None:
    """API-652"""
    await world.pool()
    await world.start()
    await asyncio.sleep(6)
    assert await world.pool_condition(TYPE) == ("", "", "")
    assert await generation(world) == 0


@story
async def test_a_condition_taken_away_by_hand_begins_anew(world: World) -> None:
    """API-652"""
    pool = await start_with_pool(world)
    await bad(world, pool, "c", "d")
    assert await healthy(world) == ILL
    await world.edit(kinds.NODE_POOL, "np", {"conditions": []})
    assert await healthy(world) == UNKNOWN
    await bad(world, pool, "e")
    assert await healthy(world) == UNKNOWN
    assert (await world.pool_condition("Ready"))[0] == "True"


@pytest.mark.parametrize(
    "error",
    [lambda: Conflict("changed", status=409), lambda: ServerUnavailable("broken", status=500)],
    ids=["409", "500"],
)
@story
async def test_a_write_that_fails_loses_no_outcome_and_delays_no_claim(world: World, error: Any) -> None:
    """OPS-054 and the Beyond of OPS §1.3"""
    pool = await start_with_pool(world)
    world.wire.refuse = refusing(error, 10**6, "patch NodePool/status")
    await bad(world, pool, "c", "d")
    assert not await world.has(kinds.NODE_CLAIM, "c")
    assert await healthy(world) == UNKNOWN
    world.wire.refuse = lambda write: None
    assert await healthy(world) == ILL


@story
async def test_a_pool_made_again_under_its_name_starts_with_nothing(world: World) -> None:
    """API-650: per uid."""
    pool = await start_with_pool(world)
    await bad(world, pool, "c", "d")
    assert await healthy(world) == ILL
    await world.kube.delete(kinds.NODE_POOL, "np")
    await asyncio.sleep(1)
    again = await world.pool(disruption=Disruption(consolidate_after="Never"))
    assert await healthy(world) == UNKNOWN
    await bad(world, again, "e")
    assert await healthy(world) == UNKNOWN


@story
async def test_capacity_the_cloud_does_not_have_is_no_illness(world: World) -> None:
    """OPS-062: only what ran out of time counts."""
    from karpenter.providers.contract import InsufficientCapacity

    pool = await start_with_pool(world)
    world.cloud.refuse("create", *(InsufficientCapacity("none") for _ in range(5)))
    for name in ("c", "d", "e"):
        await world.owned_claim(pool, name)
    assert await healthy(world) == UNKNOWN
    assert world.ended_for("insufficient_capacity", "np") == 3


@story
async def test_a_retry_that_succeeds_in_time_is_no_failure(world: World) -> None:
    pool = await start_with_pool(world)
    world.cloud.refuse("create", *(ProviderError("not yet") for _ in range(5)))
    await world.owned_claim(pool)
    await asyncio.sleep(60)
    await world.join()
    assert (await healthy(world))[0] == "True"
