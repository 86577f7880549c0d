"""Registration health of a pool: condition NodeRegistrationHealthy (OPS §1.7, API §13.3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Disruption, NodePool
from karpenter.api.meta import OwnerReference
from karpenter.kube.errors import Conflict, ServerUnavailable
from karpenter.providers.contract import LaunchFailed, ProviderError
from support.virtual_cluster import VirtualCluster, in_virtual_time, refusing

TYPE = "NodeRegistrationHealthy"
UNKNOWN = ("Unknown", "AwaitingReconciliation", "object is awaiting reconciliation")
ILL = ("False", "RegistrationFailed", "Failed to register node")


async def start_with_pool(cluster: VirtualCluster) -> NodePool:
    """A running controller with a pool that keeps its nodes."""
    await cluster.node_class()
    await cluster.pool(disruption=Disruption(consolidate_after="Never"))
    await cluster.start()
    await asyncio.sleep(6)
    return await cluster.kube.get(kinds.NODE_POOL, "np")


async def healthy(cluster: VirtualCluster) -> tuple[str, str, str]:
    """The condition, once outcomes have been written (API-645: every five seconds)."""
    await asyncio.sleep(6)
    return await cluster.pool_condition(TYPE)


async def good(cluster: VirtualCluster, pool: NodePool, name: str, **fields: Any) -> None:
    await cluster.owned_claim(pool, name, **fields)
    await asyncio.sleep(0.1)
    await cluster.join(name)
    await asyncio.sleep(0.5)


async def bad(cluster: VirtualCluster, pool: NodePool, *names: str) -> None:
    """Claims whose nodes never join."""
    for name in names:
        await cluster.owned_claim(pool, name)
    await asyncio.sleep(15 * 60 + 20)


async def generation(cluster: VirtualCluster) -> int:
    return (await cluster.kube.get(kinds.NODE_POOL, "np")).status.node_class_observed_generation


@in_virtual_time
async def test_a_pool_nothing_was_launched_for_is_neither_healthy_nor_ill(cluster: VirtualCluster) -> None:
    """OPS-L45, API-652: and the condition has no part in Ready (OPS-064, API-655)."""
    await start_with_pool(cluster)
    assert await cluster.pool_condition(TYPE) == UNKNOWN
    assert (await cluster.pool_condition("Ready"))[0] == "True"


@in_virtual_time
async def test_one_node_that_registers_makes_its_pool_healthy(cluster: VirtualCluster) -> None:
    """OPS-L27, OPS-L45, API-S252, API-653"""
    pool = await start_with_pool(cluster)
    await good(cluster, pool, "c")
    assert await healthy(cluster) == ("True", TYPE, "")


@in_virtual_time
async def test_two_nodes_that_never_join_make_their_pool_ill(cluster: VirtualCluster) -> None:
    """OPS-L45, API-S253, API-654, OPS-062; it stays Ready (OPS-064)."""
    pool = await start_with_pool(cluster)
    await bad(cluster, pool, "c")
    assert await healthy(cluster) == UNKNOWN
    await bad(cluster, pool, "d")
    assert await healthy(cluster) == ILL
    assert (await cluster.pool_condition("Ready"))[0] == "True"
    await good(cluster, pool, "e")
    assert await healthy(cluster) == ILL
    for name in ("f", "g"):
        await good(cluster, pool, name)
    assert await healthy(cluster) == ("True", TYPE, "")


@in_virtual_time
async def test_launches_that_fail_show_the_reason_of_the_cloud(cluster: VirtualCluster) -> None:
    """OPS-062, API-654"""
    pool = await start_with_pool(cluster)
    cluster.cloud.refuse("create", *(LaunchFailed("NoQuota", "ask for more") for _ in range(10**4)))
    for name in ("c", "d"):
        await cluster.owned_claim(pool, name)
    await asyncio.sleep(6 * 60)
    assert await healthy(cluster) == ("False", "NoQuota", "ask for more")


@pytest.mark.parametrize("owner", ["none", "another uid", "not a pool"])
@in_virtual_time
async def test_only_claims_of_the_very_pool_count(cluster: VirtualCluster, owner: str) -> None:
    """OPS-061, API-655"""
    await start_with_pool(cluster)
    references = {
        "none": (),
        "another uid": (OwnerReference(api_version="karpenter.sh/v1", kind="NodePool", name="np", uid="x"),),
        "not a pool": (OwnerReference(api_version="v1", kind="ConfigMap", name="np", uid="x"),),
    }[owner]
    await cluster.claim("c", pool="np", metadata={"owner_references": references})
    await asyncio.sleep(0.1)
    if await cluster.has(kinds.NODE_CLAIM, "c"):
        await cluster.join("c")
        await asyncio.sleep(1)
    assert await healthy(cluster) == UNKNOWN


@pytest.mark.parametrize("shown", ["True", "False"])
@in_virtual_time
async def test_a_new_process_starts_from_the_condition(cluster: VirtualCluster, shown: str) -> None:
    """API-651, OPS-063: True stands for one success, False for two failures."""
    pool = await start_with_pool(cluster)
    if shown == "True":
        await good(cluster, pool, "c")
    else:
        await bad(cluster, pool, "c", "d")
    await healthy(cluster)
    await cluster.stop()
    await cluster.start()
    await asyncio.sleep(1)
    assert (await healthy(cluster))[0] == shown
    await bad(cluster, pool, "e")
    assert (await healthy(cluster))[0] == shown
    await bad(cluster, pool, "f")
    assert (await healthy(cluster))[0] == "False"
    await good(cluster, pool, "g")
    assert (await healthy(cluster))[0] == "False"


@in_virtual_time
async def test_an_edit_of_the_pool_begins_anew(cluster: VirtualCluster) -> None:
    """API-652: earlier failures say nothing about the edited template."""
    pool = await start_with_pool(cluster)
    await bad(cluster, pool, "c", "d")
    assert await healthy(cluster) == ILL
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"weight": 7}})
    assert await healthy(cluster) == UNKNOWN
    await bad(cluster, pool, "e")
    assert await healthy(cluster) == UNKNOWN


@in_virtual_time
async def test_an_edit_of_the_class_begins_anew(cluster: VirtualCluster) -> None:
    """API-S254, API-652, API-067"""
    pool = await start_with_pool(cluster)
    before = await generation(cluster)
    await good(cluster, pool, "c")
    assert (await healthy(cluster))[0] == "True"
    await cluster.kube.patch(kinds.KWOK_NODE_CLASS, "default", {"spec": {"nodeRegistrationDelay": "3s"}})
    assert await healthy(cluster) == UNKNOWN
    assert await generation(cluster) == before + 1
    await good(cluster, pool, "d")
    assert (await healthy(cluster))[0] == "True"


@in_virtual_time
async def test_an_edit_of_the_class_while_no_controller_ran_starts_the_count_again(cluster: VirtualCluster) -> None:
    """API-652"""
    pool = await start_with_pool(cluster)
    await good(cluster, pool, "c")
    assert (await healthy(cluster))[0] == "True"
    await cluster.stop()
    await cluster.kube.patch(kinds.KWOK_NODE_CLASS, "default", {"spec": {"nodeRegistrationDelay": "3s"}})
    await cluster.start()
    assert await healthy(cluster) == UNKNOWN


@in_virtual_time
async def test_without_its_class_a_pool_has_no_registration_health(cluster: VirtualCluster) -> None:
    """API-652"""
    await cluster.pool()
    await cluster.start()
    await asyncio.sleep(6)
    assert await cluster.pool_condition(TYPE) == ("", "", "")
    assert await generation(cluster) == 0


@in_virtual_time
async def test_a_condition_taken_away_by_hand_begins_anew(cluster: VirtualCluster) -> None:
    """API-652"""
    pool = await start_with_pool(cluster)
    await bad(cluster, pool, "c", "d")
    assert await healthy(cluster) == ILL
    await cluster.edit(kinds.NODE_POOL, "np", {"conditions": []})
    assert await healthy(cluster) == UNKNOWN
    await bad(cluster, pool, "e")
    assert await healthy(cluster) == UNKNOWN
    assert (await cluster.pool_condition("Ready"))[0] == "True"


@pytest.mark.parametrize(
    "error",
    [lambda: Conflict("changed", status=409), lambda: ServerUnavailable("broken", status=500)],
    ids=["409", "500"],
)
@in_virtual_time
async def test_a_write_that_fails_loses_no_outcome_and_delays_no_claim(cluster: VirtualCluster, error: Any) -> None:
    """OPS-054 and the Beyond of OPS §1.3"""
    pool = await start_with_pool(cluster)
    cluster.connection.refuse = refusing(error, 10**6, "patch NodePool/status")
    await bad(cluster, pool, "c", "d")
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    assert await healthy(cluster) == UNKNOWN
    cluster.connection.refuse = lambda write: None
    assert await healthy(cluster) == ILL


@in_virtual_time
async def test_a_pool_made_again_under_its_name_starts_with_nothing(cluster: VirtualCluster) -> None:
    """API-650: per uid."""
    pool = await start_with_pool(cluster)
    await bad(cluster, pool, "c", "d")
    assert await healthy(cluster) == ILL
    await cluster.kube.delete(kinds.NODE_POOL, "np")
    await asyncio.sleep(1)
    again = await cluster.pool(disruption=Disruption(consolidate_after="Never"))
    assert await healthy(cluster) == UNKNOWN
    await bad(cluster, again, "e")
    assert await healthy(cluster) == UNKNOWN


@in_virtual_time
async def test_capacity_the_cloud_does_not_have_is_no_illness(cluster: VirtualCluster) -> None:
    """OPS-062: only what ran out of time counts."""
    from karpenter.providers.contract import InsufficientCapacity

    pool = await start_with_pool(cluster)
    cluster.cloud.refuse("create", *(InsufficientCapacity("none") for _ in range(5)))
    for name in ("c", "d", "e"):
        await cluster.owned_claim(pool, name)
    assert await healthy(cluster) == UNKNOWN
    assert cluster.ended_for("insufficient_capacity", "np") == 3


@in_virtual_time
async def test_a_retry_that_succeeds_in_time_is_no_failure(cluster: VirtualCluster) -> None:
    pool = await start_with_pool(cluster)
    cluster.cloud.refuse("create", *(ProviderError("not yet") for _ in range(5)))
    await cluster.owned_claim(pool)
    await asyncio.sleep(60)
    await cluster.join()
    assert (await healthy(cluster))[0] == "True"
