"""Terminations that are blocked, or edited by users: reported by name, repaired where possible, never looped.

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
from support.virtual_cluster import START, VirtualCluster, after, in_virtual_time, until

PROTECTED = {labels.DO_NOT_DISRUPT: "true"}
HOLD = "example.com/hold"


async def remove_finalizers(cluster: VirtualCluster, kind: object, name: str) -> None:
    """Remove all finalizers, as a user may."""
    await cluster.kube.patch(kind, name, {"metadata": {"finalizers": []}})


async def register_again(cluster: VirtualCluster) -> Node:
    """The kubelet of the claim's instance creates its Node again."""
    provider_id = (await cluster.get_claim()).status.provider_id
    ready = Condition(type="Ready", status="True")
    return await cluster.kube.create(
        kinds.NODE,
        Node(
            metadata=ObjectMeta(name="node-c"),
            spec=NodeSpec(provider_id=provider_id),
            status=NodeStatus(conditions=(ready,)),
        ),
    )


def counted(cluster: VirtualCluster, series: str, **values: str) -> float:
    assert cluster.manager is not None
    return metrics_scrape.counted(cluster.manager.metrics.registry, f"karpenter_{series}", values) or 0.0


def ends(cluster: VirtualCluster) -> int:
    """How often the controller asked the cloud to terminate an instance."""
    return sum(call[0] == "delete" for call in cluster.cloud.calls)


def reported(cluster: VirtualCluster, kind: str) -> list[Event]:
    """Every report about an object of this kind, also those the server has forgotten."""
    written = [write.body for write in cluster.connection.writes if str(write) == "create Event"]
    return [
        element for element in written if element.reason == "FailedTermination" and element.involved_object.kind == kind
    ]


# -- Nodes that went another way -------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["deleted-first", "stripped-first"])
@in_virtual_time
async def test_a_node_removed_past_its_finalizer_takes_its_claim_along(cluster: VirtualCluster, order: str) -> None:
    """DIS-S294, DIS-367: otherwise the instance would keep running and cost money without use."""
    await ready(cluster)
    await cluster.running("kept", "node-c", meta={"annotations": PROTECTED})
    if order == "deleted-first":
        await cluster.kube.delete(kinds.NODE, "node-c")
        await remove_finalizers(cluster, kinds.NODE, "node-c")
    else:
        await remove_finalizers(cluster, kinds.NODE, "node-c")
        await cluster.kube.delete(kinds.NODE, "node-c")
    await until(lambda: all_gone(cluster), 20)
    assert cluster.cloud.instances == {}


@in_virtual_time
async def test_a_node_that_never_registered_may_come_and_go(cluster: VirtualCluster) -> None:
    """OPS-052: the registration timeout owns such a claim."""
    await cluster.start()
    await cluster.claim()
    await asyncio.sleep(0.1)
    await cluster.stop()
    await cluster.join()
    await cluster.start()
    await cluster.stop()
    claim = await cluster.get_claim()
    unregistered = [condition for condition in claim.status.conditions if condition.type != "Registered"]
    await cluster.kube.patch(
        kinds.NODE_CLAIM, "c", {"status": {"conditions": msgspec.to_builtins(unregistered)}}, subresource="status"
    )
    await remove_finalizers(cluster, kinds.NODE, "node-c")
    await cluster.kube.delete(kinds.NODE, "node-c")
    await cluster.start()
    await asyncio.sleep(60)
    assert (await cluster.get_claim()).metadata.deletion_timestamp is None


@in_virtual_time
async def test_a_node_registered_again_during_its_drain_is_drained_again(cluster: VirtualCluster) -> None:
    """Its pods are still there: the new Node gets the finalizer that the old one lost."""
    await ready(cluster)
    await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, budget("keep", {"app": "a"}, max_unavailable=0))
    await cluster.running("kept", "node-c", meta={"labels": {"app": "a"}})
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(3)
    old = (await cluster.get_node()).metadata.uid
    await remove_finalizers(cluster, kinds.NODE, "node-c")
    await register_again(cluster)
    await asyncio.sleep(20)
    node = await cluster.get_node()
    assert node.metadata.uid != old
    assert node.metadata.deletion_timestamp is not None
    assert labels.DISRUPTED_TAINT in node.spec.taints
    assert cluster.cloud.instances != {}
    await cluster.gone("kept")
    await until(lambda: all_gone(cluster), 30)
    assert cluster.cloud.instances == {}


@in_virtual_time
async def test_a_claims_deletion_drains_a_node_whose_finalizer_was_removed(cluster: VirtualCluster) -> None:
    await ready(cluster)
    await cluster.stop()
    await cluster.running("kept", "node-c", meta={"annotations": PROTECTED})
    await remove_finalizers(cluster, kinds.NODE, "node-c")
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await cluster.start()
    await asyncio.sleep(30)
    assert (await cluster.get_node()).metadata.deletion_timestamp is not None
    await cluster.gone("kept")
    await until(lambda: all_gone(cluster), 30)


@in_virtual_time
async def test_a_claim_whose_finalizer_was_removed_leaves_a_node_that_still_drains(cluster: VirtualCluster) -> None:
    """DIS-S291: no conditions, no deadline, but no pod is lost."""
    await ready(cluster)
    await cluster.running("busy", "node-c")
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await remove_finalizers(cluster, kinds.NODE_CLAIM, "c")
    await asyncio.sleep(5)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    assert await cluster.has(kinds.NODE, "node-c")
    assert [write.name for write in cluster.connection.writes if write.verb == "evict"] == ["busy"]
    await cluster.gone("busy")
    await until(lambda: all_gone(cluster), 20)


# -- finalizers of others --------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_foreign_finalizer_on_the_node_is_reported_and_waited_for(cluster: VirtualCluster) -> None:
    """The claim stays with its Node; nothing is written or asked while nothing changes."""
    await ready(cluster)
    await cluster.kube.patch(kinds.NODE, "node-c", {"metadata": {"finalizers": [labels.TERMINATION_FINALIZER, HOLD]}})
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(60)
    assert (await cluster.get_node()).metadata.finalizers == (HOLD,)
    assert await cluster.has(kinds.NODE_CLAIM, "c")
    writes, calls = len(cluster.writes()), ends(cluster)
    await asyncio.sleep(360)
    assert (len(cluster.writes()), ends(cluster)) == (writes, calls)
    events = await cluster.events("FailedTermination")
    assert {(event.involved_object.kind, event.type) for event in events} == {
        ("Node", "Warning"),
        ("NodeClaim", "Warning"),
    }
    assert all(f"Node node-c is held by finalizer {HOLD}" in event.message for event in events)
    await remove_finalizers(cluster, kinds.NODE, "node-c")
    await until(lambda: all_gone(cluster), 20)


@in_virtual_time
async def test_a_foreign_finalizer_on_the_claim_is_reported_and_not_looped(cluster: VirtualCluster) -> None:
    await ready(cluster)
    await cluster.kube.patch(kinds.NODE_CLAIM, "c", {"metadata": {"finalizers": [labels.TERMINATION_FINALIZER, HOLD]}})
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await until(lambda: _released(cluster), 30)
    writes, calls = len(cluster.writes()), ends(cluster)
    await asyncio.sleep(400)
    assert (len(cluster.writes()), ends(cluster)) == (writes, calls)
    (event,) = await cluster.events("FailedTermination")
    assert event.involved_object.kind == "NodeClaim"
    assert f"NodeClaim c is held by finalizer {HOLD}" in event.message
    assert counted(cluster, "nodeclaims_terminated_total", nodepool="", capacity_type="on-demand", zone="z1") == 1


async def _released(cluster: VirtualCluster) -> bool:
    return (await cluster.get_claim()).metadata.finalizers == (HOLD,)


@in_virtual_time
async def test_a_pod_with_a_finalizer_is_named_until_the_drain_ignores_it(cluster: VirtualCluster) -> None:
    """DIS-010, DIS-S302"""
    await ready(cluster)
    await cluster.running("held", "node-c", meta={"finalizers": (HOLD,)})
    await cluster.kube.delete(kinds.POD, "held", "default", grace_period_seconds=0)
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(20)
    condition = await cluster.condition("c", "Drained")
    assert condition == ("Unknown", "Draining", f"past their grace period, held by finalizer {HOLD}: pod default/held")
    await until(lambda: all_gone(cluster), 90)


# -- the report ------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_what_blocks_a_drain_is_logged_after_five_minutes_and_then_less_and_less_often(
    cluster: VirtualCluster,
) -> None:
    await ready(cluster)
    await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, budget("keep", {"app": "a"}, max_unavailable=0))
    await cluster.running("kept", "node-c", meta={"labels": {"app": "a"}})
    await cluster.kube.delete(kinds.NODE, "node-c")
    started = cluster.clock.now()
    await asyncio.sleep(20)
    cause = "PodDisruptionBudget default/keep allows no eviction now: pod default/kept"
    assert await cluster.condition("c", "Drained") == ("Unknown", "Draining", cause)
    await asyncio.sleep(270)
    assert await cluster.events("FailedTermination") == []
    await asyncio.sleep(50 * 60)
    events = reported(cluster, "NodeClaim")
    at = [(time - started).total_seconds() for time in cluster.event_times("FailedTermination", "NodeClaim")]
    assert [round(moment / 60) for moment in at] == [5, 10, 20, 40]
    # A Node that gets many events loses some to the limit every object has (OPS-503); the first report comes before that.
    assert reported(cluster, "Node")
    assert any(cause in event.message for event in await cluster.events("FailedDraining", "Node"))
    assert all(cause in event.message for event in events)
    lines = cluster.lines("termination is held up")
    assert len(lines) == len(at)
    assert lines[0]["blockers"] == [cause]
    assert lines[0]["Node"] == {"name": "node-c"}


@in_virtual_time
async def test_a_restart_does_not_start_the_five_minutes_anew(cluster: VirtualCluster) -> None:
    await ready(cluster)
    await cluster.running("kept", "node-c", meta={"annotations": PROTECTED})
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(250)
    await cluster.crash()
    await cluster.start()
    await asyncio.sleep(60)
    assert len(await cluster.events("FailedTermination", "Node")) == 1


@in_virtual_time
async def test_an_unblocked_drain_names_no_pod_and_writes_little(cluster: VirtualCluster) -> None:
    """A whole termination writes conditions three times: Unknown, Drained, and VolumesDetached with InstanceTerminating."""
    await ready(cluster)
    for number in range(5):
        await cluster.running(f"p{number}", "node-c")
    before = len(cluster.writes("NodeClaim"))
    await cluster.kube.delete(kinds.NODE, "node-c")
    for number in range(5):
        await asyncio.sleep(3)
        await cluster.gone(f"p{number}")
    await until(lambda: all_gone(cluster), 30)
    statuses = [text for text in cluster.writes("NodeClaim")[before:] if text == "patch NodeClaim/status"]
    assert len(statuses) <= 3
    assert await cluster.events("FailedTermination") == []


@in_virtual_time
async def test_a_cause_that_changes_all_the_time_is_written_every_ten_seconds_at_most(cluster: VirtualCluster) -> None:
    await ready(cluster)
    for number in range(60):
        await cluster.running(f"p{number:02}", "node-c", meta={"annotations": PROTECTED})
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(3)
    before = len(cluster.writes("NodeClaim"))
    for number in range(55):
        await cluster.gone(f"p{number:02}")
        await asyncio.sleep(1)
    assert len(cluster.writes("NodeClaim")) - before <= 6
    condition = await cluster.condition("c", "Drained")
    assert condition is not None
    assert "p59" not in condition[2] or "other(s)" not in condition[2]


@in_virtual_time
async def test_the_clouds_error_is_in_the_condition_and_in_the_report(cluster: VirtualCluster) -> None:
    """DIS-S312: retried, the finalizers stay, and a condition gives the reason."""
    await ready(cluster)
    cluster.cloud.refuse("delete", *(ProviderError("zone z1 is shifted away") for _ in range(30)))
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(330)
    assert await cluster.condition("c", "Drained") == ("True", "Drained", "")
    assert await cluster.condition("c", "InstanceTerminating") == (
        "Unknown",
        "DeletionFailed",
        "zone z1 is shifted away",
    )
    (event,) = await cluster.events("FailedTermination", "NodeClaim")
    assert "the cloud does not end instance" in event.message
    assert "zone z1 is shifted away" in event.message
    cluster.cloud.refusals.clear()
    await until(lambda: all_gone(cluster), 90)


@in_virtual_time
async def test_the_clouds_error_is_reported_on_a_claim_that_never_had_a_node(cluster: VirtualCluster) -> None:
    """OPS-L32"""
    await cluster.start()
    await cluster.claim()
    await asyncio.sleep(0.1)
    cluster.cloud.refuse("delete", *(ProviderError("broken") for _ in range(30)))
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(400)
    (event,) = await cluster.events("FailedTermination")
    assert "broken" in event.message
    assert labels.TERMINATION_FINALIZER in (await cluster.get_claim()).metadata.finalizers


@in_virtual_time
async def test_a_silent_node_is_not_drained_while_the_cloud_cannot_say_whether_its_instance_exists(
    cluster: VirtualCluster,
) -> None:
    """DIS-512: the call to the cloud is retried every five seconds, and its error is named; no pod is evicted meanwhile."""
    await ready(cluster)
    await cluster.running("busy", "node-c")
    await cluster.set_ready("node-c", "Unknown")
    cluster.cloud.refuse("get", *(ProviderError("cloud is down") for _ in range(1000)))
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(60)
    assert [write.name for write in cluster.connection.writes if write.verb == "evict"] == []
    assert 10 <= len([call for call in cluster.cloud.calls if call[0] == "get"]) <= 13
    condition = await cluster.condition("c", "Drained")
    assert condition is not None
    assert "cloud is down" in condition[2]
    cluster.cloud.refusals.clear()
    await until(lambda: _is_evicted(cluster, "busy"), 10)
    cluster.cloud.instances.clear()
    await until(lambda: all_gone(cluster), 20)


async def _is_evicted(cluster: VirtualCluster, name: str) -> bool:
    return name in [write.name for write in cluster.connection.writes if write.verb == "evict"]


@pytest.mark.parametrize("text", ["banana", "2026-01-01T00:00:00", "soon " * 200], ids=["word", "no-zone", "long"])
@in_virtual_time
async def test_a_deadline_that_cannot_be_parsed_is_reported_and_the_drain_goes_on_without(
    cluster: VirtualCluster, text: str
) -> None:
    """DIS-513"""
    await ready(cluster)
    await cluster.running("kept", "node-c", meta={"annotations": PROTECTED}, termination_grace_period_seconds=30)
    await cluster.running("busy", "node-c")
    await cluster.kube.patch(kinds.NODE_CLAIM, "c", {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: text}}})
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(30)
    assert [write.name for write in cluster.connection.writes if write.verb == "evict"][:1] == ["busy"]
    condition = await cluster.condition("c", "Drained")
    assert condition is not None
    assert "is no RFC 3339 time" in condition[2]
    assert [event for event in await cluster.events("FailedDraining") if "is no RFC 3339 time" in event.message]
    assert len(cluster.lines("Reconciler error")) == 0
    await cluster.gone("kept")
    await cluster.gone("busy")
    await until(lambda: all_gone(cluster), 30)


@in_virtual_time
async def test_a_grace_period_beyond_the_largest_date_forces_no_pod(cluster: VirtualCluster) -> None:
    """API-028: admitted by the pattern, though longer than any human life."""
    await ready(cluster, termination_grace_period="99999999999h")
    await cluster.running("busy", "node-c", termination_grace_period_seconds=3600)
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(5)
    assert [write.verb for write in cluster.connection.writes if write.name == "busy" and write.kind == "Pod"] == [
        "evict"
    ]
    assert cluster.lines("Reconciler error") == []
    await cluster.gone("busy")
    await until(lambda: all_gone(cluster), 30)


@in_virtual_time
async def test_a_server_whose_clock_is_ahead_is_not_asked_every_second(cluster: VirtualCluster) -> None:
    """DIS-536: the time it grants always seems too long; once in ten seconds is enough to say so."""
    await ready(cluster, termination_grace_period="300s")
    await cluster.running("slow", "node-c", termination_grace_period_seconds=6000)
    await cluster.kube.delete(kinds.POD, "slow", "default")
    asked: list[float] = []
    delete = cluster.connection.delete

    async def ahead(kind: object, name: str, *args: object, **more: object) -> None:
        if kind is kinds.POD:
            asked.append(cluster.elapsed)
        else:
            await delete(kind, name, *args, **more)

    cluster.connection.delete = ahead
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(60)
    assert 5 <= len(asked) <= 7
    assert all(later - earlier >= 10 for earlier, later in pairwise(asked))


# -- figures ---------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_an_ending_is_counted_once_and_timed(cluster: VirtualCluster) -> None:
    """OPS-412, OPS-416 to OPS-420, DIS-404 to DIS-409"""
    await cluster.pool("np")
    await ready(cluster, pool="np")
    cluster.cloud.lingers = 2
    await cluster.kube.delete(kinds.NODE, "node-c")
    await until(lambda: all_gone(cluster), 40)
    node = {"nodepool": "np"}
    assert counted(cluster, "nodes_drained_total", **node) == 1
    assert counted(cluster, "nodes_terminated_total", zone="z1", **node) == 1
    assert counted(cluster, "nodeclaims_terminated_total", zone="z1", capacity_type="on-demand", **node) == 1
    assert counted(cluster, "nodes_termination_duration_seconds_count", **node) == 1
    assert 10 <= counted(cluster, "nodes_termination_duration_seconds_sum", **node) <= 20
    assert counted(cluster, "nodeclaims_termination_duration_seconds_count", **node) == 1
    assert 10 <= counted(cluster, "nodeclaims_termination_duration_seconds_sum", **node) <= 20
    assert counted(cluster, "nodeclaims_instance_termination_duration_seconds_count", **node) == 1
    assert 5 <= counted(cluster, "nodeclaims_instance_termination_duration_seconds_sum", **node) <= 15


@in_virtual_time
async def test_a_request_the_server_writes_its_own_way_ends_like_any_other(cluster: VirtualCluster) -> None:
    """OPS-L35: a quantity in other words is no difference to be written again and again."""
    await ready(cluster, requests={"memory": "50000"})
    before = len(cluster.writes("NodeClaim"))
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await until(lambda: all_gone(cluster), 30)
    assert len(cluster.writes("NodeClaim")) - before <= 6


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
