"""Emptiness: when empty nodes are deleted, which of them, and how many at once (DIS §4, §6, §9.1, §11-13)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption
from karpenter.api.meta import OwnerReference
from karpenter.api.scheduling_constraints import Taint
from karpenter.disruption.decide.command import ConsolidationType, DisruptionReason
from karpenter.kube.errors import Conflict, KubeError, NotFound, ServerUnavailable
from karpenter.metrics.exposition import render_sync
from karpenter.model import labels
from support.commands import carry_out, command
from support.metrics_scrape import Scrape
from support.virtual_cluster import VirtualCluster, in_virtual_time, refusing, until

DAEMON = OwnerReference(api_version="apps/v1", kind="DaemonSet", name="d", uid="d", controller=True)
MIRROR = OwnerReference(api_version="v1", kind="Node", name="n", uid="n", controller=True)
REPLICA_SET = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="r", uid="r", controller=True)
OPEN = (Budget(nodes="100%"),)


def disruption_spec(after: str = "0s", budgets: tuple[Budget, ...] = OPEN) -> Disruption:
    return Disruption(consolidate_after=after, budgets=budgets)


async def start_with_nodes(cluster: VirtualCluster, count: int = 1, **pool: Any) -> None:
    """A running controller, a pool and so many initialized, empty nodes of it: n0, n1, ..."""
    await cluster.node_class()
    await cluster.pool(**{"disruption": disruption_spec(), **pool})
    await cluster.start()
    for number in range(count):
        await cluster.claim(f"n{number}", pool="np")
    await asyncio.sleep(0.1)
    for number in range(count):
        await cluster.join(f"n{number}", f"n{number}")
    await asyncio.sleep(0.5)


async def nodes(cluster: VirtualCluster) -> list[str]:
    return [obj.metadata.name for obj in await cluster.all(kinds.NODE)]


async def leaving(cluster: VirtualCluster) -> list[str]:
    return [obj.metadata.name for obj in await cluster.all(kinds.NODE_CLAIM) if obj.metadata.deletion_timestamp]


@in_virtual_time
async def test_an_empty_node_goes_after_validation(cluster: VirtualCluster) -> None:
    """DIS-S160, DIS-S170, DIS-023, DIS-020, DIS-221: first chosen within ten seconds, then fifteen of doubt."""
    await start_with_nodes(cluster)
    started = cluster.elapsed
    await until(lambda: _is_leaving(cluster, "n0"), 30, 0.1)
    waited = cluster.elapsed - started
    assert 15 <= waited <= 25.5
    line = cluster.lines("disrupting node(s)")[0]
    assert (line["reason"], line["decision"], line["disrupted-node-count"]) == ("Empty", "delete", 1)
    assert line["disrupted-nodes"][0]["Node"] == {"name": "n0"}
    events = await cluster.events("DisruptionTerminating")
    assert sorted(event.involved_object.kind for event in events) == ["Node", "NodeClaim"]
    assert {event.message for event in events} == {"Disrupting Node: Empty"}
    await until(lambda: _no_nodes(cluster), 60)
    assert cluster.cloud.instances == {}


async def _is_leaving(cluster: VirtualCluster, name: str) -> bool:
    return name in await leaving(cluster)


async def _no_nodes(cluster: VirtualCluster) -> bool:
    return await nodes(cluster) == []


@in_virtual_time
async def test_nothing_happens_to_a_node_during_the_wait(cluster: VirtualCluster) -> None:
    """DIS-S170"""
    await start_with_nodes(cluster)
    await asyncio.sleep(12)
    node = await cluster.get_node("n0")
    assert node.spec.taints == ()
    assert node.metadata.deletion_timestamp is None
    assert await leaving(cluster) == []


@pytest.mark.parametrize(
    ("owner", "phase"),
    [(DAEMON, "Running"), (MIRROR, "Running"), (None, "Succeeded"), (None, "Failed")],
    ids=["DIS-S161-daemon", "DIS-S161-mirror", "DIS-S163", "DIS-S163-failed"],
)
@in_virtual_time
async def test_pods_that_need_no_place_do_not_keep_a_node(cluster: VirtualCluster, owner: object, phase: str) -> None:
    """DIS-S161, DIS-S163"""
    await start_with_nodes(cluster)
    await cluster.running("p", "n0", meta={"owner_references": (owner,)} if owner else {})
    await cluster.kube.patch(kinds.POD, "p", {"status": {"phase": phase}}, "default", subresource="status")
    await until(lambda: _is_leaving(cluster, "n0"), 60)


@in_virtual_time
async def test_a_replica_set_pod_on_its_way_out_does_not_keep_a_node(cluster: VirtualCluster) -> None:
    """DIS-S162"""
    await start_with_nodes(cluster)
    await cluster.running("p", "n0", meta={"owner_references": (REPLICA_SET,)}, termination_grace_period_seconds=3600)
    await cluster.kube.delete(kinds.POD, "p", "default")
    await until(lambda: _is_leaving(cluster, "n0"), 60)


@in_virtual_time
async def test_a_node_with_a_pod_stays(cluster: VirtualCluster) -> None:
    await start_with_nodes(cluster)
    await cluster.running("p", "n0")
    await asyncio.sleep(300)
    assert await leaving(cluster) == []


@pytest.mark.parametrize(
    ("value", "stays"),
    [("true", True), ("24h", True), ("1s", False), ("false", False)],
    ids=["DIS-S165", "API-451", "API-451-over", "false"],
)
@in_virtual_time
async def test_a_node_may_ask_to_be_left_alone(cluster: VirtualCluster, value: str, stays: bool) -> None:
    """DIS-S165, DIS-076; DIS-390, OPS-515: the event `DisruptionBlocked` names the annotation."""
    await start_with_nodes(cluster)
    note = {"metadata": {"annotations": {labels.DO_NOT_DISRUPT: value}}}
    await cluster.kube.patch(kinds.NODE, "n0", note)
    await asyncio.sleep(60)
    assert (await nodes(cluster) == ["n0"]) is stays
    blocked = await cluster.events("DisruptionBlocked", "Node")
    assert any("annotation" in event.message for event in blocked) is stays
    assert bool(await cluster.events("InvalidDoNotDisruptAnnotation", "n0")) is (value == "false")


@pytest.mark.parametrize("after", ["Never", "1h"], ids=["DIS-S168", "DIS-S164-not-yet"])
@in_virtual_time
async def test_a_pool_decides_how_long_its_nodes_stay_empty(cluster: VirtualCluster, after: str) -> None:
    """DIS-S164, DIS-S168. DIS-100: with Never, or before the node is Consolidatable, it is no candidate."""
    await start_with_nodes(cluster, disruption=disruption_spec(after))
    await asyncio.sleep(600)
    assert await leaving(cluster) == []
    assert await cluster.condition("n0", "Consolidatable") is None


@in_virtual_time
async def test_nodes_of_a_static_pool_stay(cluster: VirtualCluster) -> None:
    """DIS-S169"""
    await start_with_nodes(cluster, replicas=1)
    await asyncio.sleep(120)
    assert await leaving(cluster) == []


@pytest.mark.parametrize(("last_event", "turns_true_at"), [(None, 60.0), (30.0, 90.0)], ids=["DIS-S236", "DIS-S235"])
@in_virtual_time
async def test_quiet_time_counts_from_the_last_pod_event(
    cluster: VirtualCluster, last_event: float | None, turns_true_at: float
) -> None:
    """DIS-S235, DIS-S236, DIS-241: true exactly when the time is over, absent before.

    DIS-320, API-123: the condition is True or absent.
    """
    await start_with_nodes(cluster, disruption=disruption_spec("60s"))
    claim = await cluster.get_claim("n0")
    ready_at = next(c.last_transition_time for c in claim.status.conditions if c.type == "Initialized")
    assert ready_at is not None
    begin = cluster.elapsed - (cluster.clock.now() - ready_at).total_seconds()
    if last_event is not None:
        await asyncio.sleep(begin + last_event - cluster.elapsed)
        await cluster.running("p", "n0")
        await asyncio.sleep(0.1)
    await asyncio.sleep(begin + turns_true_at - 1.5 - cluster.elapsed)
    assert await cluster.condition("n0", "Consolidatable") is None
    await asyncio.sleep(2)
    assert (await cluster.condition("n0", "Consolidatable") or ())[0] == "True"


@in_virtual_time
async def test_a_pod_event_ends_the_quiet(cluster: VirtualCluster) -> None:
    """DIS-S237, DIS-327. API-123: the condition is removed, not False."""
    await start_with_nodes(cluster, disruption=disruption_spec("60s", (Budget(nodes="0"),)))
    await asyncio.sleep(65)
    assert (await cluster.condition("n0", "Consolidatable") or ())[0] == "True"
    await cluster.running("p", "n0")
    await asyncio.sleep(0.5)
    assert await cluster.condition("n0", "Consolidatable") is None
    assert cluster.lines("removing consolidatable status condition")


@pytest.mark.parametrize("status", ["Unknown", "False"])
@in_virtual_time
async def test_a_claim_that_is_not_initialized_is_not_consolidatable(cluster: VirtualCluster, status: str) -> None:
    """DIS-S238: the condition is removed while the NodeClaim's Initialized is Unknown or False."""
    await start_with_nodes(cluster, disruption=disruption_spec("60s", (Budget(nodes="0"),)))
    await asyncio.sleep(65)
    assert (await cluster.condition("n0", "Consolidatable") or ())[0] == "True"
    await cluster.set_condition(kinds.NODE, "n0", "Ready", "False")
    await cluster.set_condition(kinds.NODE_CLAIM, "n0", "Initialized", status)
    await asyncio.sleep(1)
    assert await cluster.condition("n0", "Consolidatable") is None


@in_virtual_time
async def test_pod_events_are_written_at_most_every_ten_seconds(cluster: VirtualCluster) -> None:
    """DIS-S239, DIS-032, OPS-099"""
    await start_with_nodes(cluster, disruption=disruption_spec("1h"))
    times = []
    for name in ("one", "two", "three"):
        await cluster.running(name, "n0")
        await asyncio.sleep(0.5)
        times.append((await cluster.get_claim("n0")).status.last_pod_event_time)
        await asyncio.sleep(5)
    assert times[0] == times[1]
    assert times[2] != times[1]


@in_virtual_time
async def test_daemon_pods_are_no_pod_events(cluster: VirtualCluster) -> None:
    """DIS-S240"""
    await start_with_nodes(cluster, disruption=disruption_spec("1h"))
    await cluster.running("p", "n0", meta={"owner_references": (DAEMON,)})
    await asyncio.sleep(1)
    assert (await cluster.get_claim("n0")).status.last_pod_event_time is None


@in_virtual_time
async def test_a_restart_is_no_pod_event(cluster: VirtualCluster) -> None:
    """DIS §13 Beyond: otherwise every restart would postpone all consolidation."""
    await start_with_nodes(cluster, disruption=disruption_spec("1h"))
    await cluster.running("p", "n0")
    await asyncio.sleep(1)
    before = (await cluster.get_claim("n0")).status.last_pod_event_time
    await asyncio.sleep(60)
    await cluster.stop()
    await cluster.start()
    await asyncio.sleep(5)
    assert before is not None
    assert (await cluster.get_claim("n0")).status.last_pod_event_time == before


@pytest.mark.parametrize("error", [Conflict("changed", status=409), ServerUnavailable("broken", status=500)])
@in_virtual_time
async def test_a_pod_event_survives_a_refused_write(cluster: VirtualCluster, error: KubeError) -> None:
    """Quiet time must not begin too early because a write got lost."""
    await start_with_nodes(cluster, disruption=disruption_spec("1h"))
    cluster.connection.refuse = refusing(lambda: error, 2, "patch NodeClaim/status")
    await cluster.running("p", "n0")
    await asyncio.sleep(10)
    assert (await cluster.get_claim("n0")).status.last_pod_event_time is not None


@pytest.mark.parametrize(
    ("budget", "at_once"),
    [("1", 1), ("50%", 2), ("0", 0), ("100%", 4), ("30%", 2)],
    ids=["1", "50%", "0", "100%", "30%"],
)
@in_virtual_time
async def test_a_budget_limits_how_many_go_at_once(cluster: VirtualCluster, budget: str, at_once: int) -> None:
    """DIS-140, DIS-144, DIS-151; DIS-391, OPS-516: the event `DisruptionBlocked` names the budget."""
    await start_with_nodes(cluster, 4, disruption=disruption_spec("0s", (Budget(nodes=budget),)))
    await asyncio.sleep(60)
    first = cluster.lines("disrupting node(s)")[:1]
    assert [line["disrupted-node-count"] for line in first] == ([at_once] if at_once else [])
    if not at_once:
        blocked = await cluster.events("DisruptionBlocked")
        assert any("budget (spec.disruption.budgets[0])" in event.message for event in blocked)


@in_virtual_time
async def test_nodes_that_would_go_if_budgets_let_them_are_shown(cluster: VirtualCluster) -> None:
    """OPS-453, DIS-414, DIS-426: none while a pod is there, and none once they are gone."""
    await start_with_nodes(cluster, 3, disruption=disruption_spec("0s", (Budget(nodes="0"),)))
    await cluster.running("p", "n0")
    await asyncio.sleep(25)

    def eligible() -> dict[str, float]:
        assert cluster.manager is not None
        page = Scrape(render_sync(cluster.manager.metrics.registry))
        return page.values("karpenter_voluntary_disruption_eligible_nodes", "reason")

    assert eligible() == {"empty": 2, "drifted": 0, "underutilized": 0, "unhealthy": 0}
    assert await leaving(cluster) == []
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"disruption": {"budgets": [{"nodes": "100%"}]}}})
    await until(lambda: _is_leaving(cluster, "n1"), 60)
    await asyncio.sleep(60)
    assert await nodes(cluster) == ["n0"]
    assert eligible()["empty"] == 0


@in_virtual_time
async def test_nodes_that_are_not_ready_use_up_the_budget(cluster: VirtualCluster) -> None:
    """DIS-146"""
    await start_with_nodes(cluster, 4, disruption=disruption_spec("1m", (Budget(nodes="2"),)))
    await cluster.set_ready("n0", "False")
    await cluster.set_ready("n1", "Unknown")
    await asyncio.sleep(120)
    assert await leaving(cluster) == []
    await cluster.set_ready("n0", "True")
    await asyncio.sleep(27)
    assert len(await leaving(cluster)) == 1


@in_virtual_time
async def test_a_pod_that_comes_during_the_wait_keeps_its_node(cluster: VirtualCluster) -> None:
    """DIS-S180 for empty nodes, DIS-275: the others go all the same."""
    await start_with_nodes(cluster, 2)
    await asyncio.sleep(12)
    await cluster.running("p", "n0")
    await until(lambda: _is_leaving(cluster, "n1"), 30)
    await asyncio.sleep(120)
    assert await leaving(cluster) == []
    assert await nodes(cluster) == ["n0"]


@in_virtual_time
async def test_a_node_with_nominated_pods_is_kept(cluster: VirtualCluster) -> None:
    """DIS-S182, DIS-075: nominated during the wait.

    DIS-222: a pending pod protects an empty node through its nomination.
    """
    await start_with_nodes(cluster)
    await asyncio.sleep(12)
    assert cluster.manager is not None
    from datetime import timedelta

    cluster.manager.state.nominate("n0", cluster.clock.now() + timedelta(seconds=60))
    await asyncio.sleep(40)
    assert await leaving(cluster) == []
    said = cluster.lines("abandoning empty node consolidation attempt due to pod churn, command is no longer valid")
    assert said
    await asyncio.sleep(60)
    assert await nodes(cluster) == [] or await leaving(cluster) == ["n0"]


@in_virtual_time
async def test_a_closed_budget_during_the_wait_stops_the_removal(cluster: VirtualCluster) -> None:
    """DIS-S183 for empty nodes"""
    await start_with_nodes(cluster)
    await asyncio.sleep(12)
    closed = {"spec": {"disruption": {"budgets": [{"nodes": "0"}]}}}
    await cluster.kube.patch(kinds.NODE_POOL, "np", closed)
    await asyncio.sleep(120)
    assert await leaving(cluster) == []


@pytest.mark.parametrize(
    "shown", ["patch Node", "patch NodeClaim/status", "delete NodeClaim"], ids=["taint", "reason", "delete"]
)
@pytest.mark.parametrize(
    "error",
    [lambda: Conflict("changed", status=409), lambda: ServerUnavailable("broken", status=500)],
    ids=["409", "500"],
)
@in_virtual_time
async def test_a_removal_that_failed_is_tried_again(cluster: VirtualCluster, shown: str, error: Any) -> None:
    """DIS-303: nothing stays marked or tainted for ever."""
    await start_with_nodes(cluster)
    cluster.connection.refuse = refusing(error, 1, shown)
    await until(lambda: _no_nodes(cluster), 120)
    assert cluster.cloud.instances == {}


@in_virtual_time
async def test_leftovers_of_a_crashed_process_are_cleared_away(cluster: VirtualCluster) -> None:
    """DIS-054. DIS-S007, OPS-121: taint and condition go with the first pass."""
    await start_with_nodes(cluster, 2, disruption=disruption_spec("Never"))
    await cluster.stop()
    taint = msgspec.to_builtins((labels.DISRUPTED_TAINT,))
    await cluster.kube.patch(kinds.NODE, "n0", {"spec": {"taints": taint}})
    for name in ("n0", "n1"):
        await cluster.set_condition(kinds.NODE_CLAIM, name, "DisruptionReason", "True", reason="Empty")
    await cluster.start()
    await asyncio.sleep(15)
    assert (await cluster.get_node("n0")).spec.taints == ()
    assert await cluster.condition("n0", "DisruptionReason") is None
    assert await cluster.condition("n1", "DisruptionReason") is None


@in_virtual_time
async def test_the_taint_that_v1beta1_left_on_a_node_that_stays_goes(cluster: VirtualCluster) -> None:
    """API-473: after an upgrade nothing else would remove it, and the node would take no pods."""
    await start_with_nodes(cluster, 2, disruption=disruption_spec("Never"))
    await cluster.stop()
    foreign = Taint(key="karpenter.sh/not-ready", effect="NoSchedule")
    older = Taint(key="karpenter.sh/disruption", value="disrupting", effect="NoSchedule")
    await cluster.kube.patch(kinds.NODE, "n0", {"spec": {"taints": msgspec.to_builtins((foreign, older))}})
    await cluster.start()
    await asyncio.sleep(15)
    assert (await cluster.get_node("n0")).spec.taints == (foreign,)


@in_virtual_time
async def test_a_draining_node_keeps_its_taint(cluster: VirtualCluster) -> None:
    """DIS-054: what has the taint and a deletion timestamp is left alone."""
    await start_with_nodes(cluster, disruption=disruption_spec("Never"))
    await cluster.running("p", "n0", meta={"annotations": {labels.DO_NOT_DISRUPT: "true"}})
    await cluster.kube.delete(kinds.NODE, "n0")
    for _ in range(40):
        await asyncio.sleep(1)
        assert labels.DISRUPTED_TAINT in (await cluster.get_node("n0")).spec.taints
    assert len(cluster.lines("tainted node")) == 1


@in_virtual_time
async def test_a_node_deleted_by_hand_while_it_was_being_removed_leaves_no_mark(cluster: VirtualCluster) -> None:
    """Its claim must not be kept out of every later decision."""
    await start_with_nodes(cluster, disruption=disruption_spec("Never"))
    stale = command(cluster, "n0", reason=DisruptionReason.EMPTY, kind=ConsolidationType.EMPTY)
    cluster.connection.refuse = refusing(lambda: NotFound("gone", status=404), 1, "patch Node")
    assert not await carry_out(cluster, stale)
    assert cluster.manager is not None
    assert not any(view.marked_for_deletion for view in cluster.manager.state.state_nodes())
