"""An old, incomplete or refused view of the cluster: no needed node is removed, and broken ones are still given up."""

from __future__ import annotations

import asyncio

import msgspec

from karpenter.api import kinds
from karpenter.api.core import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from karpenter.api.karpenter import Budget, Disruption
from karpenter.api.meta import LabelSelector, ObjectMeta, OwnerReference
from karpenter.kube.errors import Conflict, Forbidden, ServerUnavailable
from karpenter.runtime.events import NORMAL, EventRecorder, ObjectEvent, involved_claim
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.virtual_time import LoopClock, run_virtual
from karpenter.state import ClusterState
from support.builders import node, pod
from support.virtual_cluster import START, VirtualCluster, in_virtual_time, refusing, until

OPEN = Disruption(consolidate_after="0s", budgets=(Budget(nodes="100%"),))
DAEMON = OwnerReference(api_version="apps/v1", kind="DaemonSet", name="d", uid="d", controller=True)


async def start_with_empty_node(cluster: VirtualCluster, disruption: Disruption = OPEN) -> None:
    await cluster.node_class()
    await cluster.pool(disruption=disruption)
    await cluster.start()
    await cluster.claim("n0", pool="np")
    await asyncio.sleep(0.1)
    await cluster.join("n0", "n0")
    await asyncio.sleep(0.5)


async def _leaves(cluster: VirtualCluster) -> bool:
    return (await cluster.get_claim("n0")).metadata.deletion_timestamp is not None


@in_virtual_time
async def test_a_pod_the_watch_has_not_shown_keeps_its_node(cluster: VirtualCluster) -> None:
    """The taint closes the node, then its pods are listed from the API server."""
    await start_with_empty_node(cluster)
    await asyncio.sleep(20)
    await cluster.running("unseen", "n0")
    assert cluster.manager is not None
    state = cluster.manager.state
    await asyncio.sleep(0.1)
    state.remove_pod(("default", "unseen"))
    await cluster.kube.patch(kinds.NODE_CLAIM, "n0", {"status": {"lastPodEventTime": None}}, subresource="status")
    await asyncio.sleep(60)
    assert not await _leaves(cluster)
    assert not [write for write in cluster.connection.writes if write.verb == "evict"]


@in_virtual_time
async def test_nothing_is_removed_while_a_watch_fails(cluster: VirtualCluster) -> None:
    await start_with_empty_node(cluster)
    assert cluster.manager is not None
    cluster.manager.informers.pods.fault = ServerUnavailable("the stream broke")
    await asyncio.sleep(120)
    assert not await _leaves(cluster)
    cluster.manager.informers.pods.fault = None
    await until(lambda: _leaves(cluster), 60)


@in_virtual_time
async def test_a_conflicting_write_does_not_stop_a_removal(cluster: VirtualCluster) -> None:
    """DIS-302"""
    await start_with_empty_node(cluster)
    cluster.connection.refuse = refusing(lambda: Conflict("changed", status=409), 2, "patch Node")
    await until(lambda: _leaves(cluster), 40)
    assert not cluster.lines("failed terminating nodes while executing a disruption command")


@in_virtual_time
async def test_a_budget_over_a_daemon_set_keeps_an_empty_node(cluster: VirtualCluster) -> None:
    """DIS-081, DIS-085: evicting its pod would be refused for ever."""
    await start_with_empty_node(cluster)
    await cluster.running("agent", "n0", meta={"labels": {"app": "agent"}, "owner_references": (DAEMON,)})
    await cluster.kube.create(
        kinds.POD_DISRUPTION_BUDGET,
        PodDisruptionBudget(
            metadata=ObjectMeta(name="strict", namespace="default"),
            spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "agent"}), min_available=1),
            status=PodDisruptionBudgetStatus(disruptions_allowed=0),
        ),
    )
    await asyncio.sleep(90)
    assert not await _leaves(cluster)
    events = await cluster.events("DisruptionBlocked")
    assert any("PodDisruptionBudget=[default/strict]" in event.message for event in events)


@in_virtual_time
async def test_a_closed_budget_gives_an_event_on_the_pool(cluster: VirtualCluster) -> None:
    """DIS-149"""
    await start_with_empty_node(cluster, Disruption(consolidate_after="0s", budgets=(Budget(nodes="0"),)))
    await asyncio.sleep(60)
    assert not await _leaves(cluster)
    about = {event.involved_object.kind for event in await cluster.events("DisruptionBlocked")}
    assert about == {"NodePool"}


@in_virtual_time
async def test_a_pool_that_never_consolidates_is_reported_as_such(cluster: VirtualCluster) -> None:
    """DIS-105; OPS-514: Node and NodeClaim get the event."""
    await start_with_empty_node(cluster, Disruption(consolidate_after="Never"))
    await asyncio.sleep(60)
    events = await cluster.events("Unconsolidatable")
    assert {event.involved_object.kind for event in events} == {"Node", "NodeClaim"}


@in_virtual_time
async def test_a_claim_whose_node_cannot_be_written_is_given_up_in_time(cluster: VirtualCluster) -> None:
    """OPS-004, OPS-051: a step that fails does not keep liveness from being judged."""
    await cluster.start()
    await cluster.claim("c")
    await asyncio.sleep(0.1)
    cluster.connection.refuse = refusing(lambda: Forbidden("no", status=403), 10_000, "patch Node")
    await cluster.join("c")
    await asyncio.sleep(17 * 60)
    assert cluster.lines("terminating due to timeout")
    assert cluster.lines("Reconciler error")


@in_virtual_time
async def test_a_node_that_opened_is_drained_although_its_claim_was_never_registered(cluster: VirtualCluster) -> None:
    """The write of the claim's status was lost after the Node had been opened."""
    await cluster.start()
    await cluster.claim("c")
    await asyncio.sleep(0.1)
    cluster.connection.refuse = refusing(
        lambda: ServerUnavailable("lost", status=503), 10_000, "patch NodeClaim/status"
    )
    await cluster.join("c")
    await asyncio.sleep(1)
    await cluster.running("early", "node-c")
    cluster.connection.refuse = lambda write: None
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(3)
    assert [write.name for write in cluster.connection.writes if write.verb == "evict"] == ["early"]
    assert cluster.cloud.instances != {}


def test_a_bound_pod_whose_requests_cannot_be_read_still_keeps_its_node_from_being_empty() -> None:
    rejected: list[str] = []
    state = ClusterState(lambda _kind, name, _why: rejected.append(name))
    state.set_node(node("n", {"cpu": "4"}))
    broken = pod("broken", {"cpu": "a lot"})
    state.set_pod(msgspec.structs.replace(broken, spec=msgspec.structs.replace(broken.spec, node_name="n")))
    state.set_pod(pod("waiting", {"cpu": "a lot"}))
    assert [bound.metadata.name for bound in state.pods_on("n")] == ["broken"]
    assert list(state.pending_pods()) == []
    assert rejected == ["default/broken", "default/waiting"]


def test_many_events_are_forgotten_now_and_then_and_not_at_each() -> None:
    async def main(clock: LoopClock) -> tuple[int, int]:
        recorder = EventRecorder(MemoryKube(MemoryServer(clock)), clock)
        for number in range(5000):
            about = involved_claim(ObjectMeta(name=f"c{number}"))
            recorder.publish(ObjectEvent(about, NORMAL, "Said", "text"))
        many = len(recorder._deduped_until)
        await asyncio.sleep(200)
        recorder.publish(ObjectEvent(involved_claim(ObjectMeta(name="last")), NORMAL, "Said", "text"))
        return many, len(recorder._deduped_until)

    assert run_virtual(main, START) == (5000, 1)
