"""Gangs under a running controller: bought together, given back together, tried again after a pause."""

from __future__ import annotations

import asyncio

from karpenter.api import kinds
from karpenter.metrics.exposition import render_sync
from karpenter.model import labels
from karpenter.model.feature_gate_flags import parse_feature_gates
from karpenter.settings import Settings
from support.builders import pod
from support.gang_builders import gang_pods, pod_group
from support.metrics_scrape import Scrape
from support.provisioning_stories import claims, shop
from support.world import World, story

LARGE = {"cpu": "3"}
GANGS = Settings(feature_gates=parse_feature_gates("GangScheduling=true"))


def gangs_shown(world: World) -> tuple[float, float]:
    """How many gangs the metrics show as complete and as incomplete."""
    assert world.manager is not None
    scrape = Scrape(render_sync(world.manager.metrics.registry))
    complete, incomplete = (
        scrape.value("karpenter_scheduler_gangs_count", outcome=outcome) for outcome in ("complete", "incomplete")
    )
    return complete, incomplete


@story
async def test_nothing_is_bought_before_the_last_pod_of_a_gang_exists(world: World) -> None:
    await shop(world, GANGS)
    await world.kube.create(kinds.POD_GROUP, pod_group("train", 3))
    first, second, third = gang_pods("train", 3, LARGE)
    await world.waiting(first, second)
    await asyncio.sleep(30)
    assert await claims(world) == []
    events = await world.events("FailedScheduling")
    assert "PodGroup default/train waits for pods: 2 of at least 3 exist" in events[0].message
    assert gangs_shown(world) == (0, 1)
    await world.waiting(third)
    await asyncio.sleep(30)
    bought = await claims(world)
    assert bought
    assert {claim.metadata.annotations[labels.GANG] for claim in bought} == {"PodGroup default/train"}
    assert gangs_shown(world) == (1, 0)
    for member in (first, second, third):
        await world.gone(member.metadata.name)
    await asyncio.sleep(15)
    assert gangs_shown(world) == (0, 0)


@story
async def test_pods_are_planned_one_by_one_without_the_gate_and_kinds_that_are_missing_stop_nothing(
    world: World,
) -> None:
    await shop(world)
    await world.waiting(*gang_pods("train", 2, LARGE))
    await asyncio.sleep(30)
    assert len(await claims(world)) > 0


@story
async def test_nodes_of_a_gang_that_cannot_start_are_given_back_and_it_is_tried_again_after_a_pause(
    world: World,
) -> None:
    await shop(world, GANGS)
    await world.kube.create(kinds.POD_GROUP, pod_group("train", 3))
    members = gang_pods("train", 3, LARGE)
    await world.waiting(*members)
    await asyncio.sleep(20)
    bought = {claim.metadata.name for claim in await claims(world)}
    assert bought
    await world.gone(members[2].metadata.name)
    await asyncio.sleep(40)
    assert {claim.metadata.name for claim in await claims(world)} == bought
    await asyncio.sleep(60)
    assert [claim for claim in await claims(world) if claim.metadata.deletion_timestamp is None] == []
    assert {event.involved_object.name for event in await world.events("GangIncomplete")} == bought
    await world.waiting(pod("train-new", LARGE, scheduling_group=members[2].spec.scheduling_group))
    await asyncio.sleep(60)
    assert [claim for claim in await claims(world) if claim.metadata.deletion_timestamp is None]
