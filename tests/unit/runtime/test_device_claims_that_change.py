"""Device claims that change while they are planned for: one pod waits with a reason, and nothing else is blocked (K15 §4)."""

from __future__ import annotations

import asyncio
from typing import Any

from karpenter.api import kinds
from karpenter.api.karpenter import NodePool
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.settings import Settings
from support.builders import pod
from support.device_builders import DRIVER, device_class, exactly, gpu_type, resource_claim, using
from support.instance_types import STD
from support.virtual_cluster import VirtualCluster, in_virtual_time, until

HEEDED = Settings(ignore_dra_requests=False)


async def gpus_for_sale(cluster: VirtualCluster) -> None:
    """A pool whose types have one GPU or four, beside others, and a class of all GPUs."""
    types = (*STD, gpu_type("g1", 1), gpu_type("g4", 4))

    async def for_sale(_pool: NodePool) -> tuple[InstanceType, ...]:
        return types

    cluster.cloud.instance_types = for_sale
    await cluster.node_class()
    await cluster.pool()
    await cluster.kube.create(kinds.DEVICE_CLASS, device_class())
    await cluster.start(HEEDED)


async def claimed(cluster: VirtualCluster, name: str, *expressions: str, count: int = 1) -> None:
    await cluster.kube.create(kinds.RESOURCE_CLAIM, resource_claim(name, exactly("r", count, *expressions)))


async def launched_claims(cluster: VirtualCluster) -> list[Any]:
    return await cluster.all(kinds.NODE_CLAIM)


async def _has(cluster: VirtualCluster, count: int) -> bool:
    return len(await launched_claims(cluster)) == count


@in_virtual_time
async def test_a_claim_that_nothing_can_meet_any_more_keeps_its_own_pod_only(cluster: VirtualCluster) -> None:
    """SCH-783, K15-150: the claim of one pod is made anew and asks for more devices than any type has."""
    await gpus_for_sale(cluster)
    await claimed(cluster, "one")
    await cluster.waiting(using("p", "one"))
    await until(lambda: _has(cluster, 1), 30)
    await cluster.kube.delete(kinds.RESOURCE_CLAIM, "one", "default")
    await claimed(cluster, "one", count=9)
    await claimed(cluster, "two")
    await cluster.waiting(using("late", "one"), using("other", "two"), pod("plain", {"cpu": "1"}))
    await until(lambda: _is_blocked(cluster, "late"), 60)
    events = await cluster.events("FailedScheduling", "late")
    assert events
    assert not await cluster.events("FailedScheduling", "other")
    assert not await cluster.events("FailedScheduling", "plain")
    assert len(await launched_claims(cluster)) >= 2


@in_virtual_time
async def test_a_claim_that_is_gone_or_cannot_be_read_keeps_its_own_pod_only(cluster: VirtualCluster) -> None:
    """K15-156: an expression that does not compile is the reason of its pod; a claim that is missing as well."""
    await gpus_for_sale(cluster)
    await claimed(cluster, "broken", "device.attributes[")
    await claimed(cluster, "good", f'device.driver == "{DRIVER}"')
    await cluster.waiting(using("gone", "missing"), using("bad", "broken"), using("fine", "good"))
    await until(lambda: _has(cluster, 1), 30)
    await until(lambda: _is_blocked(cluster, "bad"), 60)
    await until(lambda: _is_blocked(cluster, "gone"), 60)
    (event, *_) = await cluster.events("FailedScheduling", "bad")
    assert "failed to compile" in event.message
    assert not await cluster.events("FailedScheduling", "fine")
    assert not cluster.lines("Reconciler error")


async def _is_blocked(cluster: VirtualCluster, name: str) -> bool:
    return bool(await cluster.events("FailedScheduling", name))


@in_virtual_time
async def test_the_log_names_the_devices_that_a_claim_takes_and_releases(cluster: VirtualCluster) -> None:
    """K15-176: on level debug, once per change; an allocation with admin access takes none."""
    await gpus_for_sale(cluster)
    await claimed(cluster, "one")
    for device, own in (("gpu-0", {}), ("gpu-0", {}), ("gpu-1", {}), ("gpu-2", {"adminAccess": True})):
        result = {"request": "r", "driver": DRIVER, "pool": "n", "device": device, **own}
        status = {"status": {"allocation": {"devices": {"results": [result]}}}}
        await cluster.kube.patch(kinds.RESOURCE_CLAIM, "one", status, "default", subresource="status")
        await asyncio.sleep(1)
    lines = cluster.lines("updated tracked devices for claim")
    first, second = f"{DRIVER}/n/gpu-0", f"{DRIVER}/n/gpu-1"
    assert [(line["added"], line["removed"], line["tracked"]) for line in lines] == [
        ([first], [], [first]),
        ([second], [first], [second]),
        ([], [second], []),
    ]
    assert {line["level"] for line in lines} == {"DEBUG"}
    assert lines[0]["ResourceClaim"] == {"name": "one", "namespace": "default"}
