"""A cloud that hangs, does not answer or refuses for long: the effect on the claim concerned, and none on other claims."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from karpenter.api import kinds
from karpenter.providers.contract import LaunchFailed, ProviderError
from support.virtual_cluster import VirtualCluster, in_virtual_time, until


async def times_of(cluster: VirtualCluster, count: int, seconds: float) -> dict[str, list[float]]:
    """When the cloud was asked to create, per claim, in the next seconds."""
    began = cluster.elapsed
    asked: dict[str, list[float]] = {f"c{number}": [] for number in range(count)}
    called = cluster.cloud._called

    async def watched(method: str, about: str) -> None:
        if method == "create" and about in asked:
            asked[about].append(cluster.elapsed - began)
        await called(method, about)

    cluster.cloud._called = watched
    for number in range(count):
        await cluster.claim(f"c{number}")
    await asyncio.sleep(seconds)
    return asked


async def launched(cluster: VirtualCluster, name: str) -> bool:
    return (await cluster.condition(name, "Launched") or ("",))[0] == "True"


@pytest.mark.parametrize("wording", ["same", "different"])
@in_virtual_time
async def test_a_hundred_failing_launches_are_retried_with_growing_pauses_and_delay_no_other(
    cluster: VirtualCluster, wording: str
) -> None:
    """OPS-C5, OPS-008: 1, 2, 4 ... 60 s each, none more often; a healthy claim among them launches at once."""
    texts = ("no" if wording == "same" else f"request {number}" for number in range(10**4))
    cluster.cloud.refuse("create", *(LaunchFailed("Denied", text) for text in texts))
    await cluster.start()
    asked = await times_of(cluster, 100, 200)
    for moments in asked.values():
        pauses = [after - before for before, after in pairwise(moments)]
        for pause, least in zip(pauses, (1, 2, 4, 8, 16, 32, 60, 60), strict=False):
            assert least - 0.01 <= pause <= least + 1.5
        assert 8 <= len(moments) <= 9
    cluster.cloud.refusals.clear()
    began = cluster.elapsed
    await cluster.claim("healthy")
    await until(lambda: launched(cluster, "healthy"), 2, 0.05)
    assert cluster.elapsed - began < 0.5


@in_virtual_time
async def test_a_create_call_that_hangs_blocks_no_other_and_times_out(cluster: VirtualCluster) -> None:
    """OPS-733, OPS-050"""
    cluster.cloud.hangs.add(("create", "c"))
    await cluster.start()
    await cluster.claim("c")
    for number in range(20):
        await cluster.claim(f"d{number}")
    await asyncio.sleep(1)
    assert all([await launched(cluster, f"d{number}") for number in range(20)])
    await asyncio.sleep(65)
    condition = await cluster.condition("c", "Launched")
    assert condition == ("Unknown", "LaunchFailed", "launching an instance took longer than 60 s")
    await asyncio.sleep(5 * 60)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    assert cluster.ended_for("launch_timeout") == 1


@in_virtual_time
async def test_more_creates_hang_than_there_are_workers_and_the_rest_goes_on_within_minutes(
    cluster: VirtualCluster,
) -> None:
    """OPS-733: workers come free after a minute, and claims that hung wait longer than others each time."""
    await cluster.start()
    for number in range(600):
        cluster.cloud.hangs.add(("create", f"h{number}"))
        await cluster.claim(f"h{number}")
    await cluster.claim("c")
    await until(lambda: launched(cluster, "c"), 240, 1)


@in_virtual_time
async def test_a_create_whose_answer_is_lost_launches_one_instance(cluster: VirtualCluster) -> None:
    """OPS-211: asked again, the cloud knows the claim."""
    cluster.cloud.hangs.add(("created", "c"))
    await cluster.start()
    await cluster.claim("c")
    await asyncio.sleep(1)
    assert len(cluster.cloud.instances) == 1
    assert not await launched(cluster, "c")
    cluster.cloud.hangs.clear()
    await until(lambda: launched(cluster, "c"), 70, 1)
    assert len(cluster.cloud.launched) == 1


@in_virtual_time
async def test_a_delete_that_fails_for_long_keeps_the_claim_until_the_instance_is_gone(cluster: VirtualCluster) -> None:
    """OPS-L32, OPS-073: no node is forgotten because a cloud is tired."""
    await cluster.start()
    await cluster.claim("c")
    await asyncio.sleep(1)
    cluster.cloud.refuse("delete", *(ProviderError("tired") for _ in range(10**4)))
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(3600)
    assert await cluster.has(kinds.NODE_CLAIM, "c")
    assert len(cluster.cloud.instances) == 1
    asked = sum(call[0] == "delete" for call in cluster.cloud.calls)
    assert asked < 3600 / 30
    cluster.cloud.refusals.clear()
    await asyncio.sleep(130)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    assert cluster.cloud.instances == {}


@in_virtual_time
async def test_a_delete_that_hangs_delays_its_own_claim_only(cluster: VirtualCluster) -> None:
    """OPS-733"""
    await cluster.start()
    for name in ("c", "d"):
        await cluster.claim(name)
    await asyncio.sleep(1)
    cluster.cloud.hangs.add(("delete", (await cluster.get_claim("c")).status.provider_id))
    for name in ("c", "d"):
        await cluster.kube.delete(kinds.NODE_CLAIM, name)
    await asyncio.sleep(30)
    assert [obj.metadata.name for obj in await cluster.all(kinds.NODE_CLAIM)] == ["c"]
    cluster.cloud.hangs.clear()
    await asyncio.sleep(130)
    assert await cluster.all(kinds.NODE_CLAIM) == []
    assert cluster.cloud.instances == {}


@in_virtual_time
async def test_an_instance_whose_answer_was_lost_and_whose_claim_is_gone_is_collected(cluster: VirtualCluster) -> None:
    """OPS-266, OPS §1.8 Beyond: a crash in the middle of a launch, then the claim is deleted before the next try."""
    cluster.simulated()
    await cluster.node_class()
    await cluster.start()
    crashed = cluster.crash_after(3)  # finalizer, class label, the instance's record; its answer never comes
    await cluster.claim("c")
    await asyncio.wait_for(crashed.wait(), 10)
    await cluster.stop()
    await cluster.edit(kinds.NODE_CLAIM, "c", finalizers=[])
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await cluster.start()
    await asyncio.sleep(300)
    assert await cluster.all(kinds.CONFIG_MAP) == []


@pytest.mark.parametrize("broken", ["not ready", "missing"])
@in_virtual_time
async def test_a_class_that_is_no_good_ends_its_claims_and_is_named(cluster: VirtualCluster, broken: str) -> None:
    """OPS-P6, OPS-015, OPS-017, OPS-256"""
    cluster.simulated()
    if broken == "not ready":
        await cluster.node_class(ready="False")
    await cluster.start()
    await cluster.claim("c")
    await asyncio.sleep(5)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    expected = "NodeClassNotReady" if broken == "not ready" else "InsufficientCapacityError"
    (event,) = await cluster.events(expected)
    assert "KWOKNodeClass default" in event.message
    reason = "nodeclass_not_ready" if broken == "not ready" else "insufficient_capacity"
    assert cluster.ended_for(reason) == 1


@in_virtual_time
async def test_an_ending_instance_does_not_make_its_claim_unready(cluster: VirtualCluster) -> None:
    """OPS-076, API-605: nor does the generation that deletion raises."""
    cluster.cloud.lingers = 10
    await cluster.start()
    await cluster.claim("c")
    await asyncio.sleep(0.1)
    await cluster.join("c")
    await asyncio.sleep(1)
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(15)
    claim = await cluster.get_claim("c")
    assert (await cluster.condition("c", "InstanceTerminating") or ("",))[0] == "True"
    assert (await cluster.condition("c", "Ready") or ("",))[0] == "True"
    assert {condition.observed_generation for condition in claim.status.conditions} == {claim.metadata.generation}


@in_virtual_time
async def test_a_launch_error_is_reported_although_the_cloud_wrote_on_the_claim_before(
    cluster: VirtualCluster,
) -> None:
    """OPS-016: what the cloud wrote makes the write of the condition a stale one."""
    cluster.cloud.refuse("create", *(LaunchFailed("Denied", "no") for _ in range(100)))
    called, number = cluster.cloud._called, iter(range(10**4))

    async def writing(method: str, about: str) -> None:
        if method == "create":
            notes = {"example.com/attempt": str(next(number))}
            await cluster.kube.patch(kinds.NODE_CLAIM, about, {"metadata": {"annotations": notes}})
        await called(method, about)

    cluster.cloud._called = writing
    await cluster.start()
    await cluster.claim("c")
    await asyncio.sleep(10)
    assert await cluster.condition("c", "Launched") == ("Unknown", "Denied", "no")
