"""Events: each said once, to the right object, and never more than an object can bear (OPS §6)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from karpenter.api import kinds
from karpenter.api.core import Event
from karpenter.api.meta import ObjectMeta
from karpenter.model.structural_schema import Finding
from karpenter.nodepool.readiness import advice_events
from karpenter.runtime.events import (
    NORMAL,
    WARNING,
    EventRecorder,
    ObjectEvent,
    involved_claim,
    involved_node,
    involved_pod,
    involved_pool,
)
from support.builders import node_pool, pod, replaced
from support.world import World, story


async def recorder(world: World) -> EventRecorder:
    """A recorder that writes already."""
    event_recorder = EventRecorder(world.kube, world.clock)
    world.also(event_recorder.run())
    await asyncio.sleep(0)
    return event_recorder


def said(name: str, reason: str = "Said", text: str = "text", *values: str) -> ObjectEvent:
    return ObjectEvent(involved_claim(ObjectMeta(name=name, uid=f"uid-{name}")), NORMAL, reason, text, values)


async def names(world: World) -> list[str]:
    return [event.involved_object.name for event in await world.events()]


@story
async def test_of_thirty_nominations_at_one_instant_ten_are_published(world: World) -> None:
    """OPS-E5, OPS-502"""
    events = await recorder(world)
    crowd = [pod(f"p{number}") for number in range(30)]
    nominated = [
        ObjectEvent(involved_pod(listed_pod), NORMAL, "Nominated", "Pod should schedule on: x") for listed_pod in crowd
    ]
    events.publish(*nominated)
    assert len(await world.events()) == 10
    await asyncio.sleep(1)
    events.publish(*nominated)
    assert len(await world.events()) == 10, "what was refused has taken its key"
    await asyncio.sleep(120)
    events.publish(*nominated)
    assert len(await world.events()) == 20


@story
async def test_nominations_go_on_at_five_a_second(world: World) -> None:
    """OPS-502"""
    events = await recorder(world)
    for number in range(100):
        events.publish(ObjectEvent(involved_pod(pod(f"p{number}")), NORMAL, "Nominated", "Pod should schedule on: x"))
        await asyncio.sleep(0.1)
    assert 55 <= len(await world.events()) <= 60


@story
async def test_other_events_are_not_limited_with_nominations(world: World) -> None:
    events = await recorder(world)
    events.publish(
        *(ObjectEvent(involved_pod(pod(f"p{number}")), NORMAL, "Evicted", "Evicted pod") for number in range(30))
    )
    assert len(await world.events()) == 30


@story
async def test_objects_that_share_a_name_do_not_silence_each_other(world: World) -> None:
    """OPS-505"""
    events = await recorder(world)
    meta = ObjectMeta(name="same", uid="u")
    other = ObjectMeta(name="same", uid="u", namespace="kube-system")
    about = (involved_node(meta), involved_claim(meta), involved_pool(meta), involved_node(other))
    events.publish(*(ObjectEvent(subject, WARNING, "Said", "text") for subject in about))
    assert len(await world.events()) == 4


@story
async def test_other_values_are_another_event_and_another_text_is_not(world: World) -> None:
    """OPS-501"""
    events = await recorder(world)
    events.publish(said("c", "Said", "one", "a"), said("c", "Said", "two", "a"), said("c", "Said", "three", "b"))
    assert [event.message for event in await world.events()] == ["one", "three"]


@story
async def test_one_object_gets_twenty_five_events_and_then_one_in_five_minutes(world: World) -> None:
    """OPS-503"""
    events = await recorder(world)
    events.publish(*(said("noisy", f"Reason{number}") for number in range(40)), said("quiet"))
    assert (await names(world)).count("noisy") == 25
    assert (await names(world)).count("quiet") == 1
    for number in range(40, 70):
        await asyncio.sleep(60)
        events.publish(said("noisy", f"Reason{number}"))
    assert (await names(world)).count("noisy") == 25 + 30 // 5


@story
async def test_objects_that_are_silent_for_long_are_forgotten(world: World) -> None:
    events = await recorder(world)
    for number in range(9000):
        events.publish(said(f"c{number}"))
        if number % 500 == 0:
            await asyncio.sleep(1)
    await asyncio.sleep(1)
    assert len(events._correlator._buckets) <= 4096


@story
async def test_mentions_wait_for_the_process_to_lead_and_step_back_when_much_is_to_be_said(world: World) -> None:
    """OPS-362: followers watch, and tell nothing."""
    events = EventRecorder(world.kube, world.clock)
    events.publish_optional(said("early"))
    world.also(events.run())
    await asyncio.sleep(0)
    events.publish_optional(said("calm"))
    assert await names(world) == ["calm"]
    events.publish(*(said(f"c{number}") for number in range(600)))
    events.publish_optional(said("late"))
    await asyncio.sleep(1)
    assert len(await names(world)) == 601
    assert "late" not in await names(world)


@story
async def test_an_event_that_occurs_again_raises_its_count(world: World) -> None:
    """As client-go does: one Event object per object, reason and message, with the first and the last time."""
    events = await recorder(world)
    for _ in range(5):
        events.publish(said("c"))
        await asyncio.sleep(180)
    (event,) = await world.all(kinds.EVENT)
    assert event.count == 5
    assert event.first_timestamp is not None
    assert event.last_timestamp == event.first_timestamp + timedelta(seconds=4 * 180)


@story
async def test_an_event_that_the_api_server_forgot_is_created_again(world: World) -> None:
    events = await recorder(world)
    for _ in range(2):
        events.publish(said("c"))
        await asyncio.sleep(2 * 3600)
    events.publish(said("c"))
    await asyncio.sleep(1)
    (event,) = await world.all(kinds.EVENT)
    assert event.count == 3


@story
async def test_many_messages_of_one_reason_are_combined(world: World) -> None:
    """From the tenth within ten minutes on, as client-go does."""
    events = await recorder(world)
    events.publish(*(said("c", "Said", f"text {number}", str(number)) for number in range(14)))
    await asyncio.sleep(1)
    stored = await world.all(kinds.EVENT)
    assert len(stored) == 10
    assert [event.count for event in stored if event.message.startswith("(combined from similar events): ")] == [5]


@story
async def test_messages_before_the_tenth_stay_events_of_their_own(world: World) -> None:
    """Which message of many is combined depends on their order, not on the hashes of a process."""
    events = await recorder(world)
    messages = [said("c", "Said", f"text {number}", str(number)) for number in range(10)]
    events.publish(*messages)
    await asyncio.sleep(180)
    events.publish(*messages[:9])
    await asyncio.sleep(1)
    counts = {event.message: event.count for event in await world.all(kinds.EVENT)}
    assert counts == {f"text {number}": 2 for number in range(9)} | {"(combined from similar events): text 9": 1}


@pytest.mark.parametrize("hours", [-1, 1])
@story
async def test_a_time_of_day_that_jumps_neither_suppresses_events_nor_repeats_them(world: World, hours: int) -> None:
    """Two minutes are two minutes, whatever the wall clock says."""
    events = await recorder(world)
    events.publish(said("c"))
    world.clock._start += timedelta(hours=hours)
    events.publish(said("c"))
    await asyncio.sleep(1)
    assert len(await world.events()) == 1
    await asyncio.sleep(120)
    events.publish(said("c"))
    await asyncio.sleep(1)
    assert len(await world.events()) == 2


@story
async def test_long_messages_are_cut_at_what_the_api_takes(world: World) -> None:
    events = await recorder(world)
    events.publish(said("c", "Said", "x" * 5000))
    (event,) = await world.events()
    assert len(event.message) == 1024


@story
async def test_an_event_looks_as_tools_expect_it(world: World) -> None:
    """OPS-500"""
    events = await recorder(world)
    listed_pod = pod("p", meta={"namespace": "kube-system"})
    events.publish(ObjectEvent(involved_pod(listed_pod), WARNING, "FailedScheduling", "no"))
    (event,) = await world.events()
    assert isinstance(event, Event)
    assert event.metadata.namespace == event.involved_object.namespace == "kube-system"
    assert (event.involved_object.kind, event.involved_object.api_version) == ("Pod", "v1")
    assert event.involved_object.uid == listed_pod.metadata.uid
    assert (event.type, event.reason, event.count) == ("Warning", "FailedScheduling", 1)


@story
async def test_advice_is_given_once_an_hour_and_anew_after_an_edit(world: World) -> None:
    """API §2.2 Beyond"""
    events = await recorder(world)
    pool = node_pool()
    findings = [Finding("spec.limits.cpu", "negative", "is negative; nothing will be bought"), Finding("", "x", "odd")]
    for _ in range(3):
        events.publish(*advice_events(pool, findings))
    told = await world.events()
    assert {(event.type, event.reason, event.involved_object.kind) for event in told} == {
        ("Warning", "NodePoolAdvice", "NodePool")
    }
    assert sorted(event.message for event in told) == ["odd", "spec.limits.cpu: is negative; nothing will be bought"]
    edited = replaced(pool, metadata=replaced(pool.metadata, generation=2))
    events.publish(*advice_events(edited, findings))  # type: ignore[arg-type]
    assert len(await world.events()) == 4
    await asyncio.sleep(timedelta(hours=1).total_seconds() + 1)
    events.publish(*advice_events(edited, findings[:1]))  # type: ignore[arg-type]
    assert [event.message for event in await world.events()].count(str(findings[0])) == 3
