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
from support.virtual_cluster import VirtualCluster, in_virtual_time


async def recorder(cluster: VirtualCluster) -> EventRecorder:
    """A recorder that writes already."""
    event_recorder = EventRecorder(cluster.kube, cluster.clock)
    cluster.also(event_recorder.run())
    await asyncio.sleep(0)
    return event_recorder


def said(name: str, reason: str = "Said", text: str = "text", *values: str) -> ObjectEvent:
    return ObjectEvent(involved_claim(ObjectMeta(name=name, uid=f"uid-{name}")), NORMAL, reason, text, values)


async def names(cluster: VirtualCluster) -> list[str]:
    return [event.involved_object.name for event in await cluster.events()]


@in_virtual_time
async def test_of_thirty_nominations_at_one_instant_ten_are_published(cluster: VirtualCluster) -> None:
    """OPS-E5, OPS-502"""
    events = await recorder(cluster)
    crowd = [pod(f"p{number}") for number in range(30)]
    nominated = [
        ObjectEvent(involved_pod(listed_pod), NORMAL, "Nominated", "Pod should schedule on: x") for listed_pod in crowd
    ]
    events.publish(*nominated)
    assert len(await cluster.events()) == 10
    await asyncio.sleep(1)
    events.publish(*nominated)
    assert len(await cluster.events()) == 10, "what was refused has taken its key"
    await asyncio.sleep(120)
    events.publish(*nominated)
    assert len(await cluster.events()) == 20


@in_virtual_time
async def test_nominations_go_on_at_five_a_second(cluster: VirtualCluster) -> None:
    """OPS-502"""
    events = await recorder(cluster)
    for number in range(100):
        events.publish(ObjectEvent(involved_pod(pod(f"p{number}")), NORMAL, "Nominated", "Pod should schedule on: x"))
        await asyncio.sleep(0.1)
    assert 55 <= len(await cluster.events()) <= 60


@in_virtual_time
async def test_other_events_are_not_limited_with_nominations(cluster: VirtualCluster) -> None:
    events = await recorder(cluster)
    events.publish(
        *(ObjectEvent(involved_pod(pod(f"p{number}")), NORMAL, "Evicted", "Evicted pod") for number in range(30))
    )
    assert len(await cluster.events()) == 30


@in_virtual_time
async def test_objects_that_share_a_name_do_not_silence_each_other(cluster: VirtualCluster) -> None:
    """OPS-505"""
    events = await recorder(cluster)
    meta = ObjectMeta(name="same", uid="u")
    other = ObjectMeta(name="same", uid="u", namespace="kube-system")
    about = (involved_node(meta), involved_claim(meta), involved_pool(meta), involved_node(other))
    events.publish(*(ObjectEvent(subject, WARNING, "Said", "text") for subject in about))
    assert len(await cluster.events()) == 4


@in_virtual_time
async def test_other_values_are_another_event_and_another_text_is_not(cluster: VirtualCluster) -> None:
    """OPS-501"""
    events = await recorder(cluster)
    events.publish(said("c", "Said", "one", "a"), said("c", "Said", "two", "a"), said("c", "Said", "three", "b"))
    assert [event.message for event in await cluster.events()] == ["one", "three"]


@in_virtual_time
async def test_one_object_gets_twenty_five_events_and_then_one_in_five_minutes(cluster: VirtualCluster) -> None:
    """OPS-503"""
    events = await recorder(cluster)
    events.publish(*(said("noisy", f"Reason{number}") for number in range(40)), said("quiet"))
    assert (await names(cluster)).count("noisy") == 25
    assert (await names(cluster)).count("quiet") == 1
    for number in range(40, 70):
        await asyncio.sleep(60)
        events.publish(said("noisy", f"Reason{number}"))
    assert (await names(cluster)).count("noisy") == 25 + 30 // 5


@in_virtual_time
async def test_objects_without_events_for_long_are_forgotten(cluster: VirtualCluster) -> None:
    events = await recorder(cluster)
    for number in range(9000):
        events.publish(said(f"c{number}"))
        if number % 500 == 0:
            await asyncio.sleep(1)
    await asyncio.sleep(1)
    assert len(events._correlator._buckets) <= 4096


@in_virtual_time
async def test_mentions_wait_for_the_process_to_lead_and_step_back_when_much_is_to_be_said(
    cluster: VirtualCluster,
) -> None:
    """OPS-362: followers watch, and tell nothing."""
    events = EventRecorder(cluster.kube, cluster.clock)
    events.publish_optional(said("early"))
    cluster.also(events.run())
    await asyncio.sleep(0)
    events.publish_optional(said("calm"))
    assert await names(cluster) == ["calm"]
    events.publish(*(said(f"c{number}") for number in range(600)))
    events.publish_optional(said("late"))
    await asyncio.sleep(1)
    assert len(await names(cluster)) == 601
    assert "late" not in await names(cluster)


@in_virtual_time
async def test_an_event_that_occurs_again_raises_its_count(cluster: VirtualCluster) -> None:
    """As client-go does: one Event object per object, reason and message, with the first and the last time."""
    events = await recorder(cluster)
    for _ in range(5):
        events.publish(said("c"))
        await asyncio.sleep(180)
    (event,) = await cluster.all(kinds.EVENT)
    assert event.count == 5
    assert event.first_timestamp is not None
    assert event.last_timestamp == event.first_timestamp + timedelta(seconds=4 * 180)


@in_virtual_time
async def test_an_event_that_the_api_server_forgot_is_created_again(cluster: VirtualCluster) -> None:
    events = await recorder(cluster)
    for _ in range(2):
        events.publish(said("c"))
        await asyncio.sleep(2 * 3600)
    events.publish(said("c"))
    await asyncio.sleep(1)
    (event,) = await cluster.all(kinds.EVENT)
    assert event.count == 3


@in_virtual_time
async def test_many_messages_of_one_reason_are_combined(cluster: VirtualCluster) -> None:
    """From the tenth within ten minutes on, as client-go does."""
    events = await recorder(cluster)
    events.publish(*(said("c", "Said", f"text {number}", str(number)) for number in range(14)))
    await asyncio.sleep(1)
    stored = await cluster.all(kinds.EVENT)
    assert len(stored) == 10
    assert [event.count for event in stored if event.message.startswith("(combined from similar events): ")] == [5]


@in_virtual_time
async def test_messages_before_the_tenth_stay_events_of_their_own(cluster: VirtualCluster) -> None:
    """Which message of many is combined depends on their order, not on the hashes of a process."""
    events = await recorder(cluster)
    messages = [said("c", "Said", f"text {number}", str(number)) for number in range(10)]
    events.publish(*messages)
    await asyncio.sleep(180)
    events.publish(*messages[:9])
    await asyncio.sleep(1)
    counts = {event.message: event.count for event in await cluster.all(kinds.EVENT)}
    assert counts == {f"text {number}": 2 for number in range(9)} | {"(combined from similar events): text 9": 1}


@pytest.mark.parametrize("hours", [-1, 1])
@in_virtual_time
async def test_a_time_of_day_that_jumps_neither_suppresses_events_nor_repeats_them(
    cluster: VirtualCluster, hours: int
) -> None:
    """Two minutes are two minutes, whatever the wall clock says."""
    events = await recorder(cluster)
    events.publish(said("c"))
    cluster.clock._start += timedelta(hours=hours)
    events.publish(said("c"))
    await asyncio.sleep(1)
    assert len(await cluster.events()) == 1
    await asyncio.sleep(120)
    events.publish(said("c"))
    await asyncio.sleep(1)
    assert len(await cluster.events()) == 2


@in_virtual_time
async def test_long_messages_are_cut_at_what_the_api_takes(cluster: VirtualCluster) -> None:
    events = await recorder(cluster)
    events.publish(said("c", "Said", "x" * 5000))
    (event,) = await cluster.events()
    assert len(event.message) == 1024


@in_virtual_time
async def test_an_event_looks_as_tools_expect_it(cluster: VirtualCluster) -> None:
    """OPS-500"""
    events = await recorder(cluster)
    listed_pod = pod("p", meta={"namespace": "kube-system"})
    events.publish(ObjectEvent(involved_pod(listed_pod), WARNING, "FailedScheduling", "no"))
    (event,) = await cluster.events()
    assert isinstance(event, Event)
    assert event.metadata.namespace == event.involved_object.namespace == "kube-system"
    assert (event.involved_object.kind, event.involved_object.api_version) == ("Pod", "v1")
    assert event.involved_object.uid == listed_pod.metadata.uid
    assert (event.type, event.reason, event.count) == ("Warning", "FailedScheduling", 1)


@in_virtual_time
async def test_advice_is_given_once_an_hour_and_anew_after_an_edit(cluster: VirtualCluster) -> None:
    """API §2.2 Beyond"""
    events = await recorder(cluster)
    pool = node_pool()
    findings = [
        Finding("spec.limits.cpu", "negative", "is negative; nothing will be launched"),
        Finding("", "x", "odd"),
    ]
    for _ in range(3):
        events.publish(*advice_events(pool, findings))
    told = await cluster.events()
    assert {(event.type, event.reason, event.involved_object.kind) for event in told} == {
        ("Warning", "NodePoolAdvice", "NodePool")
    }
    assert sorted(event.message for event in told) == ["odd", "spec.limits.cpu: is negative; nothing will be launched"]
    edited = replaced(pool, metadata=replaced(pool.metadata, generation=2))
    events.publish(*advice_events(edited, findings))
    assert len(await cluster.events()) == 4
    await asyncio.sleep(timedelta(hours=1).total_seconds() + 1)
    events.publish(*advice_events(edited, findings[:1]))
    assert [event.message for event in await cluster.events()].count(str(findings[0])) == 3
