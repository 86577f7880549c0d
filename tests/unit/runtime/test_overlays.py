"""NodeOverlays under a running controller: in force at once, together, and never half (SCH §26)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import ObjectMeta
from karpenter.api.node_overlay import NodeOverlay, NodeOverlaySpec, OverlayRequirement
from karpenter.kube.errors import Conflict
from karpenter.model import conditions, labels
from karpenter.model.feature_gate_flags import parse_feature_gates
from karpenter.nodeoverlay.overlaid_provider import OverlaidProvider
from karpenter.providers.contract import InsufficientCapacity, ProviderError
from karpenter.settings import Settings
from support.builders import pod
from support.world import World, refusing, story, until

ON = Settings(feature_gates=parse_feature_gates("NodeOverlay=true"))


def req(key: str, *values: str) -> OverlayRequirement:
    return OverlayRequirement(key=key, operator="In", values=values)


async def overlay(world: World, name: str, *requirements: OverlayRequirement, **spec: Any) -> None:
    node_overlay = NodeOverlay(metadata=ObjectMeta(name=name), spec=NodeOverlaySpec(requirements=requirements, **spec))
    await world.kube.create(kinds.NODE_OVERLAY, node_overlay)
    await asyncio.sleep(0.5)


async def verdict(world: World, name: str, type_: str = "ValidationSucceeded") -> tuple[str, str, str]:
    condition = conditions.find_condition((await world.kube.get(kinds.NODE_OVERLAY, name)).status.conditions, type_)
    return ("", "", "") if condition is None else (condition.status, condition.reason, condition.message)


async def begin(world: World) -> None:
    await world.node_class()
    await world.pool()
    await world.start(ON)
    await asyncio.sleep(0.5)


async def claims(world: World) -> list[NodeClaim]:
    return await world.all(kinds.NODE_CLAIM)


async def _has_claims(world: World) -> bool:
    return bool(await claims(world))


@story
async def test_pods_get_nodes_by_overlay_prices_and_claims_say_so(world: World) -> None:
    """S-250, SCH-620, SCH-760. API-167, API-458: the NodeClaim says that a price was overlaid, and no capacity."""
    await begin(world)
    await overlay(world, "discount", req(labels.INSTANCE_TYPE, "t7"), price="0.0001")
    await world.waiting(pod("p", {"cpu": "100m"}))
    await until(lambda: _has_claims(world))
    (claim,) = await claims(world)
    assert world.manager is not None
    assert world.manager.provisioner.last_plan.new_claims[0].instance_types[0] == "t7"
    assert claim.metadata.annotations[labels.PRICE_OVERLAY] == "true"
    assert labels.CAPACITY_OVERLAY not in claim.metadata.annotations
    assert (await verdict(world, "discount", "Ready"))[0] == "True"


@story
async def test_the_cloud_is_asked_for_what_is_cheapest_by_overlays(world: World) -> None:
    """SCH-760: the simulated cloud would buy the smallest type."""
    world.simulated()
    await begin(world)
    await overlay(world, "discount", req(labels.INSTANCE_TYPE, "t7"), req(labels.ZONE, "z2"), price_adjustment="-99%")
    await world.waiting(pod("p", {"cpu": "100m"}))
    await until(lambda: _are_launched(world))
    (claim,) = await claims(world)
    actual = claim.metadata.labels
    assert (actual[labels.INSTANCE_TYPE], actual[labels.ZONE]) == ("t7", "z2")
    assert "t0" in next(r.values for r in claim.spec.requirements if r.key == labels.INSTANCE_TYPE)


async def _are_launched(world: World) -> bool:
    return bool(await claims(world)) and all(claim.status.provider_id for claim in await claims(world))


@story
async def test_what_is_cheapest_but_sold_out_is_not_waited_for(world: World) -> None:
    await begin(world)
    await overlay(world, "discount", req(labels.INSTANCE_TYPE, "t7"), price="0")
    world.cloud.refuse("create", InsufficientCapacity("sold out"))
    await world.waiting(pod("p", {"cpu": "100m"}))
    await until(lambda: _are_launched(world))
    asked = [name for call, name in world.cloud.calls if call == "create"]
    assert len(asked) == 2
    assert len(set(asked)) == 1


@story
async def test_a_resource_that_overlays_add_is_bought_and_stays_expected_until_the_node_has_it(world: World) -> None:
    """S-251: the cloud is not asked for what it does not know, and nobody buys a second machine."""
    await begin(world)
    await overlay(world, "devices", req(labels.INSTANCE_TYPE, "t3"), capacity={"x/dev": "1"})
    await world.waiting(pod("p", {"cpu": "100m", "x/dev": "1"}))
    await until(lambda: _has_claims(world))
    await asyncio.sleep(60)
    (claim,) = await claims(world)
    assert claim.metadata.annotations[labels.CAPACITY_OVERLAY] == "true"
    assert claim.spec.resources.requests["x/dev"] == "1"
    assert claim.status.allocatable["x/dev"] == "1"


@story
async def test_with_the_gate_off_overlays_change_nothing(world: World) -> None:
    """SCH-750"""
    await world.node_class()
    await world.pool()
    await world.start()
    await overlay(world, "devices", req(labels.INSTANCE_TYPE, "t3"), capacity={"x/dev": "1"})
    await world.waiting(pod("p", {"cpu": "100m", "x/dev": "1"}))
    await asyncio.sleep(30)
    assert await claims(world) == []
    assert await verdict(world, "devices") == ("", "", "")


@story
async def test_a_clash_is_told_with_both_overlays_and_ends_when_a_weight_changes(world: World) -> None:
    """SCH-757, API-162 Beyond. SCH-751, API-165: an edit evaluates all overlays again."""
    await begin(world)
    await overlay(world, "a", req(labels.INSTANCE_TYPE, "t3"), price="1")
    await overlay(world, "b", req(labels.INSTANCE_TYPE, "t3", "t4"), price="2")
    status, reason, message = await verdict(world, "a")
    assert (status, reason) == ("False", "Conflict")
    assert message.startswith("conflict with another overlay: b also sets the price of instance type t3 in NodePool np")
    assert (await verdict(world, "b"))[0] == "True"
    assert (await verdict(world, "a", "Ready"))[0] == "False"
    assert world.lines("ignoring nodeoverlay")[0]["NodeOverlay"] == {"name": "a"}
    await world.kube.patch(kinds.NODE_OVERLAY, "a", {"spec": {"weight": 7}})
    await asyncio.sleep(0.5)
    assert (await verdict(world, "a"))[0] == "True"


@story
async def test_an_overlay_that_makes_no_sense_is_told_why(world: World) -> None:
    """API-163"""
    await begin(world)
    await overlay(world, "o", capacity={"vpc.amazonaws.com/efa": "1"})
    status, reason, message = await verdict(world, "o")
    assert (status, reason) == ("False", "RuntimeValidation")
    assert "restricted resource" in message


@story
async def test_nothing_is_bought_before_overlays_were_judged(world: World) -> None:
    """API-166, API-S113, SCH-752: one pool whose types cannot be had stays out, and is tried again.

    API-S112: the NodePool whose types cannot be had is tried again, the others go on.
    """
    await world.node_class()
    await world.pool("good")
    await world.pool("odd", weight=50)
    plain = world.cloud.instance_types
    broken = [True]

    async def types(nodepool: NodePool) -> Any:
        if nodepool.metadata.name == "odd" and broken[0]:
            raise ProviderError("no answer")
        return await plain(nodepool)

    world.cloud.instance_types = types  # type: ignore[method-assign]
    await world.start(ON)
    await asyncio.sleep(1)
    await overlay(world, "o", price="0.5")
    await asyncio.sleep(5)
    assert (await verdict(world, "o"))[0] == "True"
    await world.waiting(pod("p", {"cpu": "100m"}))
    await until(lambda: _has_claims(world))
    assert [claim.metadata.labels[labels.NODE_POOL] for claim in await claims(world)] == ["good"]
    broken[0] = False
    await asyncio.sleep(61)
    await world.waiting(pod("q", {"cpu": "64"}), pod("r", {"cpu": "7"}))
    await until(lambda: _of_pool(world, "odd"))


async def _of_pool(world: World, name: str) -> bool:
    return name in {claim.metadata.labels[labels.NODE_POOL] for claim in await claims(world)}


@story
async def test_a_verdict_that_meets_another_write_is_written_again(world: World) -> None:
    await begin(world)
    world.wire.refuse = refusing(lambda: Conflict("changed"), 1, "patch NodeOverlay/status")
    await overlay(world, "o", price="1")
    await asyncio.sleep(2)
    assert (await verdict(world, "o"))[0] == "True"


@story
async def test_overlays_at_rest_are_left_alone(world: World) -> None:
    """What we write of an overlay is no reason to judge it again."""
    await begin(world)
    await overlay(world, "o", price="1")
    asked = len(world.cloud.calls)
    written = len(world.writes("NodeOverlay"))
    assert written == 1
    await asyncio.sleep(3)
    assert len(world.writes("NodeOverlay")) == written
    assert len([call for call in world.cloud.calls[asked:] if call[0] == "instance_types"]) <= 2


@story
async def test_without_its_overlay_a_type_is_what_it_was(world: World) -> None:
    await begin(world)
    await overlay(world, "devices", capacity={"x/dev": "1"})
    await world.kube.delete(kinds.NODE_OVERLAY, "devices")
    await asyncio.sleep(0.5)
    await world.waiting(pod("p", {"x/dev": "1"}))
    await asyncio.sleep(20)
    assert await claims(world) == []


@pytest.mark.parametrize("gate", [True, False])
@story
async def test_overlays_are_applied_outside_of_what_is_measured_and_only_with_their_gate(
    world: World, gate: bool
) -> None:
    """OPS-244: the provider that the process hands in is measured; what it wraps around that are overlays."""
    await world.node_class()
    await world.pool()
    await world.start(Settings(feature_gates=parse_feature_gates(f"NodeOverlay={str(gate).lower()}")))
    assert world.manager is not None
    provider = world.manager.context.provider
    assert isinstance(provider, OverlaidProvider) is gate
    await asyncio.sleep(1)
    if isinstance(provider, OverlaidProvider):
        pool = await world.kube.get(kinds.NODE_POOL, "np")
        assert await provider.types_without_overlays(pool) == await world.cloud.instance_types(pool)
