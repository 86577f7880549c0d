"""Nodes that are made again under their name, second nodes, and NodeClaims written by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.api.core import Node
from karpenter.model import conditions, labels
from support.edited_nodeclaims import bugs, up
from support.world import World, story, until

# -- Nodes that come and go ------------------------------------------------------------------------------------------------


async def rejoined(world: World, **fields: Any) -> None:
    """While no controller runs the Node goes without its finalizer's work, and the kubelet makes it again."""
    old = await world.get_node()
    await forced_away(world)
    await world.join(**fields)
    assert (await world.get_node()).metadata.uid != old.metadata.uid
    await world.start()


async def forced_away(world: World) -> None:
    await world.stop()
    await world.edit(kinds.NODE, "node-c", finalizers=[])
    await world.kube.delete(kinds.NODE, "node-c")


@story
async def test_a_node_made_again_by_its_kubelet_is_registered_again(world: World) -> None:
    """Same name and provider ID, another uid, and closed as at the first time: it must not stay so."""
    await up(world)
    await rejoined(world)
    await asyncio.sleep(5)
    node = await world.get_node()
    assert node.spec.taints == ()
    assert node.metadata.labels[labels.REGISTERED] == node.metadata.labels[labels.INITIALIZED] == "true"
    assert node.metadata.labels[labels.NODE_POOL] == "np"
    assert node.metadata.finalizers == (labels.TERMINATION_FINALIZER,)
    assert conditions.is_true((await world.get_claim()).status.conditions, "Ready")
    assert len(world.lines("registered nodeclaim")) == 2
    assert len(world.cloud.instances) == 1


@story
async def test_a_node_made_again_is_initialised_only_when_it_is_ready_again(world: World) -> None:
    await up(world)
    await rejoined(world, ready="False")
    await asyncio.sleep(5)
    assert await world.condition("c", "Initialized") == ("Unknown", "NodeNotReady", "Node status is NotReady")
    assert labels.INITIALIZED not in (await world.get_node()).metadata.labels
    await world.set_ready("node-c", "True")
    await asyncio.sleep(1)
    assert (await world.condition("c", "Initialized") or ("",))[0] == "True"


@story
async def test_a_node_of_the_same_name_with_another_instance_is_not_the_claims(world: World) -> None:
    """The machine runs on and costs: that is said. When the machine goes, so does the claim."""
    await up(world)
    claim = await world.get_claim()
    await forced_away(world)
    await world.kube.create(kinds.NODE, _stranger("other:///machine"))
    await world.start()
    await asyncio.sleep(240)
    assert await world.events("NodeNotFound") == []
    await asyncio.sleep(120)
    (event,) = await world.events("NodeNotFound")
    assert (event.type, event.involved_object.name) == ("Warning", "c")
    assert claim.status.provider_id in event.message
    assert (await world.get_node()).metadata.finalizers == ()
    assert (await world.get_claim()).status.provider_id == claim.status.provider_id
    world.cloud.instances.clear()
    await asyncio.sleep(130)
    assert not await world.has(kinds.NODE_CLAIM, "c")
    assert await world.has(kinds.NODE, "node-c")
    assert world.ended_for("garbage_collected", "np") == 1
    assert bugs(world) == []


def _stranger(provider_id: str) -> Node:
    from karpenter.api.core import NodeSpec
    from karpenter.api.meta import ObjectMeta

    return Node(metadata=ObjectMeta(name="node-c"), spec=NodeSpec(provider_id=provider_id))


@story
async def test_a_second_node_of_a_registered_claim_is_reported_and_waited_out(world: World) -> None:
    """OPS-022 Beyond"""
    await up(world)
    await world.join("c", "twin")
    await asyncio.sleep(5)
    assert (await world.condition("c", "Registered") or ("",))[0] == "True"
    (event,) = await world.events("MultipleNodesFound")
    assert (event.type, event.involved_object.kind, event.involved_object.name) == ("Warning", "NodeClaim", "c")
    assert "Nodes node-c, twin have the same provider ID" in event.message
    assert world.lines("nodeclaim needs attention")[0]["reason"] == "MultipleNodesFound"
    await asyncio.sleep(240)
    assert len(await world.events("MultipleNodesFound")) == 1
    await world.kube.delete(kinds.NODE, "twin")
    await asyncio.sleep(1800)
    assert len(await world.events("MultipleNodesFound")) == 1
    assert conditions.is_true((await world.get_claim()).status.conditions, "Ready")
    assert bugs(world) == []


@story
async def test_a_second_node_that_appears_before_initialisation_holds_it_up(world: World) -> None:
    """OPS-040: none or several both fail."""
    await world.start()
    await world.claim()
    await asyncio.sleep(1)
    await world.join(ready="False")
    await asyncio.sleep(1)
    await world.join("c", "twin")
    await world.set_ready("node-c", "True")
    await asyncio.sleep(1)
    assert (await world.condition("c", "Initialized") or ())[:2] == ("Unknown", "NodeNotFound")
    await world.kube.delete(kinds.NODE, "twin")
    await asyncio.sleep(1)
    assert (await world.condition("c", "Initialized") or ("",))[0] == "True"


# -- claims written by hand ------------------------------------------------------------------------------------------------


ODD: dict[str, dict[str, Any]] = {
    "requests nobody can read": {"requests": {"cpu": "1e1.5"}},
    "negative requests": {"requests": {"cpu": "-1"}},
    "expires after all times": {"expire_after": "99999999999h"},
    "grace beyond all times": {"termination_grace_period": "99999999999h"},
    "labels of another pool": {"pool": "no-such-pool"},
    "a status of its own": {"metadata": {"labels": {labels.REGISTERED: "true"}}},
}


@pytest.mark.parametrize("fields", ODD.values(), ids=ODD.keys())
@story
async def test_an_odd_claim_written_by_hand_harms_nobody(world: World, fields: dict[str, Any]) -> None:
    world.simulated()
    await world.node_class()
    await world.start()
    await world.claim("odd", **fields)
    await world.claim("c")
    await until(lambda: _initialised(world, "c"), 60)
    await asyncio.sleep(900)
    assert await _initialised(world, "c")
    assert bugs(world) == []


async def _initialised(world: World, name: str) -> bool:
    return (await world.condition(name, "Initialized") or ("",))[0] == "True"
