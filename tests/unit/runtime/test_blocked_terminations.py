"""Endings that are held up, or that somebody has put a hand to: reported by name, healed where that can be, never looped.

What holds a node is in its claim's conditions at once; after five minutes it is a Warning event on Node and NodeClaim and a line
in the log, again after growing pauses.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.core import Event, Node, NodeSpec, NodeStatus
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.model import labels
from karpenter.providers.contract import ProviderError
from karpenter.runtime.backoff_schedules import MessageThrottle, ReportSchedule
from support import metrics_scrape
from support.builders import budget
from support.nodeclaim_stages import all_gone, ready
from support.world import START, World, after, story, until

PROTECTED = {labels.DO_NOT_DISRUPT: "true"}
HOLD = "example.com/hold"


async def strip(world: World, kind: object, name: str) -> None:
    """Somebody takes all finalizers off."""
    await world.kube.patch(kind, name, {"metadata": {"finalizers": []}})  # type: ignore[arg-type]


async def register_again(world: World) -> Node:
    """The kubelet of the claim's machine makes its Node anew."""
    provider_id = (await world.get_claim()).status.provider_id
    ready = Condition(type="Ready", status="True")
    return await world.kube.create(
        kinds.NODE,
        Node(
            metadata=ObjectMeta(name="node-c"),
            spec=NodeSpec(provider_id=provider_id),
            status=NodeStatus(conditions=(ready,)),
        ),
    )


def counted(world: World, series: str, **values: str) -> float:
    assert world.manager is not None
    return metrics_scrape.counted(world.manager.metrics.registry, f"karpenter_{series}", values) or 0.0


def ends(world: World) -> int:
    """How often the cloud was asked to end a machine."""
    return sum(call[0] == "delete" for call in world.cloud.calls)


def reported(world: World, kind: str) -> list[Event]:
    """Every report about an object of this kind, also those the server has forgotten."""
    written = [write.body for write in world.wire.writes if str(write) == "create Event"]
    return [
        element for element in written if element.reason == "FailedTermination" and element.involved_object.kind == kind
    ]


# -- Nodes that went another way -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["deleted-first", "stripped-first"])
@story
async def test_a_node_removed_past_its_finalizer_takes_its_claim_along(world: World, order: str) -> None:
    """DIS-S294, DIS-367: the machine would run on, paid for and of no use."""
    await ready(world)
    await world.running("kept", "node-c", meta={"annotations": PROTECTED})
    if order == "deleted-first":
        await world.kube.delete(kinds.NODE, "node-c")
        await strip(world, kinds.NODE, "node-c")
    else:
        await strip(world, kinds.NODE, "node-c")
        await world.kube.delete(kinds.NODE, "node-c")
    await until(lambda: all_gone(world), 20)
    assert world.cloud.instances == {}


@story
async def test_a_node_that_never_registered_may_come_and_go(world: World) -> None:
    """OPS-052: the registration timeout owns such a claim."""
    await world.start()
    await world.claim()
    await asyncio.sleep(0.1)
    await world.stop()
    await world.join()
    await world.start()
    await world.stop()
    claim = await world.get_claim()
    unregistered = [condition for condition in claim.status.conditions if condition.type != "Registered"]
    await world.kube.patch(
        kinds.NODE_CLAIM, "c", {"status": {"conditions": msgspec.to_builtins(unregistered)}}, subresource="status"
    )
    await strip(world, kinds.NODE, "node-c")
    await world.kube.delete(kinds.NODE, "node-c")
    await world.start()
    await asyncio.sleep(60)
    assert (await world.get_claim()).metadata.deletion_timestamp is None


@story
async def test_a_node_registered_again_during_its_drain_is_drained_again(world: World) -> None:
    """Its pods are still there: the new Node gets the finalizer that the old one lost."""
    await ready(world)
    await world.kube.create(kinds.POD_DISRUPTION_BUDGET, budget("keep", {"app": "a"}, max_unavailable=0))
    await world.running("kept", "node-c", meta={"labels": {"app": "a"}})
    await world.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(3)
    old = (await world.get_node()).metadata.uid
    await strip(world, kinds.NODE, "node-c")
    await register_again(world)
    await asyncio.sleep(20)
    node = await world.get_node()
    assert node.metadata.uid != old
    assert node.metadata.deletion_timestamp is not None
    assert labels.DISRUPTED_TAINT in node.spec.taints
    assert world.cloud.instances != {}
    await world.gone("kept")
    await until(lambda: all_gone(world), 30)
    assert world.cloud.instances == {}


@story
async def test_a_claims_deletion_drains_a_node_whose_finalizer_somebody_took(world: World) -> None:
    await ready(world)
    await world.stop()
    await world.running("kept", "node-c", meta={"annotations": PROTECTED})
    await strip(world, kinds.NODE, "node-c")
    await world.kube.delete(kinds.NODE_CLAIM, "c")
    await world.start()
    await asyncio.sleep(30)
    assert (await world.get_node()).metadata.deletion_timestamp is not None
    await world.gone("kept")
    await until(lambda: all_gone(world), 30)


@story
async def test_a_claim_whose_finalizer_somebody_took_leaves_a_node_that_still_drains(world: World) -> None:
    """DIS-S291: no conditions, no deadline, but no pod is lost."""
    await ready(world)
    await world.running("busy", "node-c")
    await world.kube.delete(kinds.NODE_CLAIM, "c")
    await strip(world, kinds.NODE_CLAIM, "c")
    await asyncio.sleep(5)
    assert not await world.has(kinds.NODE_CLAIM, "c")
    assert await world.has(kinds.NODE, "node-c")
    assert [write.name for write in world.wire.writes if write.verb == "evict"] == ["busy"]
    await world.gone("busy")
    await until(lambda: all_gone(world), 20)


# -- finalizers of others --------------------------------------------------------------------------------------------


@story
async def test_a_foreign_finalizer_on_the_node_is_reported_and_waited_for(world: World) -> None:
    """The claim stays with its Node; nothing is written or asked while nothing changes."""
    await ready(world)
    await world.kube.patch(kinds.NODE, "node-c", {"metadata": {"finalizers": [labels.TERMINATION_FINALIZER, HOLD]}})
    await world.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(60)
    assert (await world.get_node()).metadata.finalizers == (HOLD,)
    assert await world.has(kinds.NODE_CLAIM, "c")
    writes, calls = len(world.writes()), ends(world)
    await asyncio.sleep(360)
    assert (len(world.writes()), ends(world)) == (writes, calls)
    events = await world.events("FailedTermination")
    assert {(event.involved_object.kind, event.type) for event in events} == {
        ("Node", "Warning"),
        ("NodeClaim", "Warning"),
    }
    assert all(f"Node node-c is held by finalizer {HOLD}" in event.message for event in events)
    await strip(world, kinds.NODE, "node-c")
    await until(lambda: all_gone(world), 20)


@story
async def test_a_foreign_finalizer_on_the_claim_is_reported_and_not_looped(world: World) -> None:
    await ready(world)
    await world.kube.patch(kinds.NODE_CLAIM, "c", {"metadata": {"finalizers": [labels.TERMINATION_FINALIZER, HOLD]}})
    await world.kube.delete(kinds.NODE_CLAIM, "c")
    await until(lambda: _released(world), 30)
    writes, calls = len(world.writes()), ends(world)
    await asyncio.sleep(400)
    assert (len(world.writes()), ends(world)) == (writes, calls)
    (event,) = await world.events("FailedTermination")
    assert event.involved_object.kind == "NodeClaim"
    assert f"NodeClaim c is held by finalizer {HOLD}" in event.message
    assert counted(world, "nodeclaims_terminated_total", nodepool="", capacity_type="on-demand", zone="z1") == 1


async def _released(world: World) -> bool:
    return (await world.get_claim()).metadata.finalizers == (HOLD,)


@story
async def test_a_pod_that_somebody_holds_is_named_until_it_is_not_waited_for_any_more(world: World) -> None:
    """DIS-010, DIS-S302"""
    await ready(world)
    await world.running("held", "node-c", meta={"finalizers": (HOLD,)})
    await world.kube.delete(kinds.POD, "held", "default", grace_period_seconds=0)
    await world.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(20)
    condition = await world.condition("c", "Drained")
    assert condition == ("Unknown", "Draining", f"past their grace period, held by finalizer {HOLD}: pod default/held")
    await until(lambda: all_gone(world), 90)


# -- the report ------------------------------------------------------------------------------------------------------


@story
async def test_what_holds_a_drain_is_said_after_five_minutes_and_then_ever_less_often(world: World) -> None:
    await ready(world)
    await world.kube.create(kinds.POD_DISRUPTION_BUDGET, budget("keep", {"app": "a"}, max_unavailable=0))
    await world.running("kept", "node-c", meta={"labels": {"app": "a"}})
    await world.kube.delete(kinds.NODE, "node-c")
    started = world.clock.now()
    await asyncio.sleep(20)
    cause = "PodDisruptionBudget default/keep allows no eviction now: pod default/kept"
    assert await world.condition("c", "Drained") == ("Unknown", "Draining", cause)
    await asyncio.sleep(270)
    assert await world.events("FailedTermination") == []
    await asyncio.sleep(50 * 60)
    events = reported(world, "NodeClaim")
    at = [(time - started).total_seconds() for time in world.event_times("FailedTermination", "NodeClaim")]
    assert [round(moment / 60) for moment in at] == [5, 10, 20, 40]
    # A Node that gets many events loses some to the limit every object has (OPS-503); the first report comes before that.
    assert reported(world, "Node")
    assert any(cause in event.message for event in await world.events("FailedDraining", "Node"))
    assert all(cause in event.message for event in events)
    lines = world.lines("termination is held up")
    assert len(lines) == len(at)
    assert lines[0]["blockers"] == [cause]
    assert lines[0]["Node"] == {"name": "node-c"}


@story
async def test_a_restart_does_not_start_the_five_minutes_anew(world: World) -> None:
    await ready(world)
    await world.running("kept", "node-c", meta={"annotations": PROTECTED})
    await world.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(250)
    await world.crash()
    await world.start()
    await asyncio.sleep(60)
    assert len(await world.events("FailedTermination", "Node")) == 1


@story
async def test_a_drain_that_goes_its_way_names_nobody_and_writes_little(world: World) -> None:
    """Conditions are written three times in a whole ending: Unknown, drained and detached with the machine ending."""
    await ready(world)
    for number in range(5):
        await world.running(f"p{number}", "node-c")
    before = len(world.writes("NodeClaim"))
    await world.kube.delete(kinds.NODE, "node-c")
    for number in range(5):
        await asyncio.sleep(3)
        await world.gone(f"p{number}")
    await until(lambda: all_gone(world), 30)
    statuses = [text for text in world.writes("NodeClaim")[before:] if text == "patch NodeClaim/status"]
    assert len(statuses) <= 3
    assert await world.events("FailedTermination") == []


@story
async def test_a_cause_that_changes_all_the_time_is_written_every_ten_seconds_at_most(world: World) -> None:
    await ready(world)
    for number in range(60):
        await world.running(f"p{number:02}", "node-c", meta={"annotations": PROTECTED})
    await world.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(3)
    before = len(world.writes("NodeClaim"))
    for number in range(55):
        await world.gone(f"p{number:02}")
        await asyncio.sleep(1)
    assert len(world.writes("NodeClaim")) - before <= 6
    condition = await world.condition("c", "Drained")
    assert condition is not None
    assert "p59" not in condition[2] or "other(s)" not in condition[2]


@story
async def test_the_clouds_error_is_in_the_condition_and_in_the_report(world: World) -> None:
    """DIS-S312: retried, the finalizers stay, and everybody can read why."""
    await ready(world)
    world.cloud.refuse("delete", *(ProviderError("zone z1 is shifted away") for _ in range(30)))
    await world.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(330)
    assert await world.condition("c", "Drained") == ("True", "Drained", "")
    assert await world.condition("c", "InstanceTerminating") == (
        "Unknown",
        "DeletionFailed",
        "zone z1 is shifted away",
    )
    (event,) = await world.events("FailedTermination", "NodeClaim")
    assert "the cloud does not end instance" in event.message
    assert "zone z1 is shifted away" in event.message
    world.cloud.refusals.clear()
    await until(lambda: all_gone(world), 90)


@story
async def test_the_clouds_error_is_told_on_a_claim_that_never_had_a_node(world: World) -> None:
    """OPS-L32"""
    await world.start()
    await world.claim()
    await asyncio.sleep(0.1)
    world.cloud.refuse("delete", *(ProviderError("broken") for _ in range(30)))
    await world.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(400)
    (event,) = await world.events("FailedTermination")
    assert "broken" in event.message
    assert labels.TERMINATION_FINALIZER in (await world.get_claim()).metadata.finalizers


@story
async def test_a_silent_node_is_not_drained_while_the_cloud_cannot_say_whether_its_instance_exists(
    world: World,
) -> None:
    """DIS-512: the cloud is asked again every five seconds, and its error is named; no pod is evicted meanwhile."""
    await ready(world)
    await world.running("busy", "node-c")
    await world.set_ready("node-c", "Unknown")
    world.cloud.refuse("get", *(ProviderError("cloud is down") for _ in range(1000)))
    await world.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(60)
    assert [write.name for write in world.wire.writes if write.verb == "evict"] == []
    assert 10 <= len([call for call in world.cloud.calls if call[0] == "get"]) <= 13
    condition = await world.condition("c", "Drained")
    assert condition is not None
    assert "cloud is down" in condition[2]
    world.cloud.refusals.clear()
    await until(lambda: _is_evicted(world, "busy"), 10)
    world.cloud.instances.clear()
    await until(lambda: all_gone(world), 20)


async def _is_evicted(world: World, name: str) -> bool:
    return name in [write.name for write in world.wire.writes if write.verb == "evict"]


@pytest.mark.parametrize("text", ["banana", "2026-01-01T00:00:00", "soon " * 200], ids=["word", "no-zone", "long"])
@story
async def test_a_deadline_nobody_can_read_is_reported_and_the_drain_goes_on_without(world: World, text: str) -> None:
    """DIS-513"""
    await ready(world)
    await world.running("kept", "node-c", meta={"annotations": PROTECTED}, termination_grace_period_seconds=30)
    await world.running("busy", "node-c")
    await world.kube.patch(kinds.NODE_CLAIM, "c", {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: text}}})
    await world.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(30)
    assert [write.name for write in world.wire.writes if write.verb == "evict"][:1] == ["busy"]
    condition = await world.condition("c", "Drained")
    assert condition is not None
    assert "is no RFC 3339 time" in condition[2]
    assert [event for event in await world.events("FailedDraining") if "is no RFC 3339 time" in event.message]
    assert len(world.lines("Reconciler error")) == 0
    await world.gone("kept")
    await world.gone("busy")
    await until(lambda: all_gone(world), 30)


@story
async def test_a_grace_period_beyond_all_times_forces_nobody(world: World) -> None:
    """API-028: admitted by the pattern, and nobody lives to see it."""
    await ready(world, termination_grace_period="99999999999h")
    await world.running("busy", "node-c", termination_grace_period_seconds=3600)
    await world.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(5)
    assert [write.verb for write in world.wire.writes if write.name == "busy" and write.kind == "Pod"] == ["evict"]
    assert world.lines("Reconciler error") == []
    await world.gone("busy")
    await until(lambda: all_gone(world), 30)


@story
async def test_a_server_whose_clock_is_ahead_is_not_asked_every_second(world: World) -> None:
    """DIS-536: the time it grants always seems too long; once in ten seconds is enough to say so."""
    await ready(world, termination_grace_period="300s")
    await world.running("slow", "node-c", termination_grace_period_seconds=6000)
    await world.kube.delete(kinds.POD, "slow", "default")
    asked: list[float] = []
    delete = world.wire.delete

    async def ahead(kind: object, name: str, *args: object, **more: object) -> None:
        if kind is kinds.POD:
            asked.append(world.elapsed)
        else:
            await delete(kind, name, *args, **more)  # type: ignore[arg-type]

    world.wire.delete = ahead  # type: ignore[method-assign]
    await world.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(60)
    assert 5 <= len(asked) <= 7
    assert all(later - earlier >= 10 for earlier, later in pairwise(asked))


# -- figures ---------------------------------------------------------------------------------------------------------


@story
async def test_an_ending_is_counted_once_and_timed(world: World) -> None:
    """OPS-412, OPS-416 to OPS-420, DIS-404 to DIS-409"""
    await world.pool("np")
    await ready(world, pool="np")
    world.cloud.lingers = 2
    await world.kube.delete(kinds.NODE, "node-c")
    await until(lambda: all_gone(world), 40)
    node = {"nodepool": "np"}
    assert counted(world, "nodes_drained_total", **node) == 1
    assert counted(world, "nodes_terminated_total", zone="z1", **node) == 1
    assert counted(world, "nodeclaims_terminated_total", zone="z1", capacity_type="on-demand", **node) == 1
    assert counted(world, "nodes_termination_duration_seconds_count", **node) == 1
    assert 10 <= counted(world, "nodes_termination_duration_seconds_sum", **node) <= 20
    assert counted(world, "nodeclaims_termination_duration_seconds_count", **node) == 1
    assert 10 <= counted(world, "nodeclaims_termination_duration_seconds_sum", **node) <= 20
    assert counted(world, "nodeclaims_instance_termination_duration_seconds_count", **node) == 1
    assert 5 <= counted(world, "nodeclaims_instance_termination_duration_seconds_sum", **node) <= 15


@story
async def test_a_request_the_server_writes_its_own_way_ends_like_any_other(world: World) -> None:
    """OPS-L35: a quantity in other words is no difference to be written again and again."""
    await ready(world, requests={"memory": "50000"})
    before = len(world.writes("NodeClaim"))
    await world.kube.delete(kinds.NODE_CLAIM, "c")
    await until(lambda: all_gone(world), 30)
    assert len(world.writes("NodeClaim")) - before <= 6


# -- the rules of telling --------------------------------------------------------------------------------------------


def test_reports_come_after_pauses_that_double_up_to_an_hour() -> None:
    report_schedule, moments = ReportSchedule.first(START), []
    for _ in range(7):
        moments.append((report_schedule.next_report_at - START).total_seconds() / 60)
        report_schedule = report_schedule.after_report(report_schedule.next_report_at)
    assert moments == [5, 10, 20, 40, 80, 140, 200]


def test_a_message_is_replaced_at_most_every_ten_seconds() -> None:
    messages = MessageThrottle()
    assert messages.text_to_write("k", "", "a", after(0)) == "a"
    assert messages.text_to_write("k", "a", "b", after(9)) == "a"
    assert messages.text_to_write("other", "a", "b", after(9)) == "b"
    assert messages.text_to_write("k", "a", "b", after(10)) == "b"
    assert messages.text_to_write("k", "b", "b", after(11)) == "b"
    messages.forget("k")
    assert messages.text_to_write("k", "b", "c", after(12)) == "c"
