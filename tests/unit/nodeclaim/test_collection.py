"""Claims whose instance the cloud does not know (OPS §1.11): what is judged, and what one that cannot be judged costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.kube.errors import KubeError, ServerUnavailable
from karpenter.providers.contract import ProviderError
from support.world import World, story

LINE = "garbage collecting nodeclaim with no cloudprovider representation"


async def up(world: World, count: int = 1) -> None:
    """A running controller and so many initialised nodes whose kubelets are silent now."""
    await world.start()
    for number in range(count):
        await world.claim(f"c{number}")
    await asyncio.sleep(0.1)
    for number in range(count):
        await world.join(f"c{number}")
    await asyncio.sleep(1)
    for number in range(count):
        await world.set_ready(f"node-c{number}", "False")


async def left(world: World) -> list[str]:
    return [obj.metadata.name for obj in await world.all(kinds.NODE_CLAIM)]


@story
async def test_a_collected_claim_is_counted_and_said_with_its_node(world: World) -> None:
    """OPS-091, DIS-365"""
    await up(world)
    provider_id = (await world.get_claim("c0")).status.provider_id
    world.cloud.instances.clear()
    await asyncio.sleep(125)
    assert await left(world) == []
    assert world.ended_for("garbage_collected") == 1
    (line,) = world.lines(LINE)
    assert (line["NodeClaim"], line["Node"], line["provider-id"]) == ({"name": "c0"}, {"name": "node-c0"}, provider_id)


@story
async def test_a_terminating_instance_is_as_good_as_none(world: World) -> None:
    """OPS-090"""
    await up(world)
    (instance,) = world.cloud.instances
    world.cloud.instances[instance] = replace(world.cloud.instances[instance], terminating=True)
    await asyncio.sleep(125)
    assert world.ended_for("garbage_collected") == 1


@story
async def test_a_node_that_cannot_be_read_keeps_its_claim_and_no_other(world: World) -> None:
    """OPS §1.11 Beyond: the next round judges it."""
    await up(world, 3)
    world.cloud.instances.clear()
    failing = refuse_reading(world, "node-c1", ServerUnavailable("broken", status=500))
    await asyncio.sleep(125)
    assert await left(world) == ["c1"]
    failing.clear()
    await asyncio.sleep(120)
    assert await left(world) == []
    assert world.ended_for("garbage_collected") == 3


def refuse_reading(world: World, name: str, error: KubeError) -> list[str]:
    """Reading the Node fails as long as its name is in the list that is returned."""
    failing = [name]
    read: Callable[..., Any] = world.wire.get

    async def get(kind: Any, wanted: str, *more: Any, **named: Any) -> Any:
        if kind is kinds.NODE and wanted in failing:
            raise error
        return await read(kind, wanted, *more, **named)

    world.wire.get = get  # type: ignore[method-assign]
    return failing


@story
async def test_a_kubelet_the_watch_believes_silent_is_asked_for_again(world: World) -> None:
    """OPS-090: a node's life hangs on it, so the API server has the word."""
    await up(world)
    world.cloud.instances.clear()
    manager = world.manager
    assert manager is not None
    manager.state.set_node = lambda node: None  # type: ignore[method-assign]
    await world.set_ready("node-c0", "True")
    await asyncio.sleep(125)
    assert await left(world) == ["c0"]


@story
async def test_twin_nodes_of_which_one_lives_keep_their_claim(world: World) -> None:
    await up(world)
    await world.join("c0", "twin")
    world.cloud.instances.clear()
    await asyncio.sleep(250)
    assert await left(world) == ["c0"]


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
@story
async def test_a_cloud_that_cannot_list_collects_nothing_and_is_asked_again(world: World, hangs: bool) -> None:
    await up(world)
    instances = dict(world.cloud.instances)
    if hangs:
        world.cloud.hangs.add(("list", "*"))
    else:
        world.cloud.refuse("list", ProviderError("no"), ProviderError("no"))
    world.cloud.instances.clear()
    await asyncio.sleep(200)
    assert await left(world) == ["c0"]
    assert world.lines("listing instances failed")
    world.cloud.instances.update(instances)
    world.cloud.hangs.clear()
    await asyncio.sleep(200)
    assert await left(world) == ["c0"]
    world.cloud.instances.clear()
    await asyncio.sleep(130)
    assert await left(world) == []


@story
async def test_many_claims_are_judged_together_but_not_all_at_once(world: World) -> None:
    """OPS-090: twenty in parallel."""
    await up(world, 50)
    world.cloud.instances.clear()
    at_once, most = 0, 0
    delete: Callable[..., Any] = world.wire.delete

    async def slowly(kind: Any, *more: Any, **named: Any) -> None:
        nonlocal at_once, most
        if kind is kinds.NODE_CLAIM:
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.5)
            at_once -= 1
        await delete(kind, *more, **named)

    world.wire.delete = slowly  # type: ignore[method-assign]
    await asyncio.sleep(125)
    assert most == 20
    assert world.ended_for("garbage_collected") == 50
