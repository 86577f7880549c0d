"""Device claims that change while they are planned for: one pod waits with a reason, and nothing stops (K15 §4)."""

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
from support.world import World, story, until

HEEDED = Settings(ignore_dra_requests=False)


async def gpus_for_sale(world: World) -> None:
    """A pool whose types have one GPU or four, beside others, and a class of all GPUs."""
    types = (*STD, gpu_type("g1", 1), gpu_type("g4", 4))

    async def for_sale(_pool: NodePool) -> tuple[InstanceType, ...]:
        return types

    world.cloud.instance_types = for_sale  # type: ignore[method-assign]
    await world.node_class()
    await world.pool()
    await world.kube.create(kinds.DEVICE_CLASS, device_class())
    await world.start(HEEDED)


async def claimed(world: World, name: str, *expressions: str, count: int = 1) -> None:
    await world.kube.create(kinds.RESOURCE_CLAIM, resource_claim(name, exactly("r", count, *expressions)))


async def claims_bought(world: World) -> list[Any]:
    return await world.all(kinds.NODE_CLAIM)


async def _has(world: World, count: int) -> bool:
    return len(await claims_bought(world)) == count


@story
async def test_a_claim_that_nothing_can_meet_any_more_keeps_its_own_pod_only(world: World) -> None:
    """SCH-783, K15-150: the claim of one pod is made anew and asks for more devices than any type has."""
    await gpus_for_sale(world)
    await claimed(world, "one")
    await world.waiting(using("p", "one"))
    await until(lambda: _has(world, 1), 30)
    await world.kube.delete(kinds.RESOURCE_CLAIM, "one", "default")
    await claimed(world, "one", count=9)
    await claimed(world, "two")
    await world.waiting(using("late", "one"), using("other", "two"), pod("plain", {"cpu": "1"}))
    await until(lambda: _is_blocked(world, "late"), 60)
    events = await world.events("FailedScheduling", "late")
    assert events
    assert not await world.events("FailedScheduling", "other")
    assert not await world.events("FailedScheduling", "plain")
    assert len(await claims_bought(world)) >= 2


@story
async def test_a_claim_that_is_gone_or_cannot_be_read_keeps_its_own_pod_only(world: World) -> None:
    """K15-156: an expression that does not compile is the reason of its pod; a claim that is missing as well."""
    await gpus_for_sale(world)
    await claimed(world, "broken", "device.attributes[")
    await claimed(world, "good", f'device.driver == "{DRIVER}"')
    await world.waiting(using("gone", "missing"), using("bad", "broken"), using("fine", "good"))
    await until(lambda: _has(world, 1), 30)
    await until(lambda: _is_blocked(world, "bad"), 60)
    await until(lambda: _is_blocked(world, "gone"), 60)
    (event, *_) = await world.events("FailedScheduling", "bad")
    assert "failed to compile" in event.message
    assert not await world.events("FailedScheduling", "fine")
    assert not world.lines("Reconciler error")


async def _is_blocked(world: World, name: str) -> bool:
    return bool(await world.events("FailedScheduling", name))


@story
async def test_the_log_says_which_devices_a_claim_takes_and_gives_back(world: World) -> None:
    """K15-176: on level debug, once per change; an allocation with admin access takes none."""
    await gpus_for_sale(world)
    await claimed(world, "one")
    for device, own in (("gpu-0", {}), ("gpu-0", {}), ("gpu-1", {}), ("gpu-2", {"adminAccess": True})):
        result = {"request": "r", "driver": DRIVER, "pool": "n", "device": device, **own}
        status = {"status": {"allocation": {"devices": {"results": [result]}}}}
        await world.kube.patch(kinds.RESOURCE_CLAIM, "one", status, "default", subresource="status")
        await asyncio.sleep(1)
    lines = world.lines("updated tracked devices for claim")
    first, second = f"{DRIVER}/n/gpu-0", f"{DRIVER}/n/gpu-1"
    assert [(line["added"], line["removed"], line["tracked"]) for line in lines] == [
        ([first], [], [first]),
        ([second], [first], [second]),
        ([], [second], []),
    ]
    assert {line["level"] for line in lines} == {"DEBUG"}
    assert lines[0]["ResourceClaim"] == {"name": "one", "namespace": "default"}
