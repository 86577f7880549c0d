"""Termination of nodes and claims: finalizers, drain, eviction, instance (DIS §17, OPS §1.8, §1.11)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise

import pytest

from karpenter.api import kinds
from karpenter.api.core import Node, NodeSpec
from karpenter.api.meta import ObjectMeta, OwnerReference
from karpenter.api.scheduling_constraints import Toleration
from karpenter.kube.errors import Conflict, Forbidden, NotFound, ServerUnavailable, TooManyRequests
from karpenter.model import labels
from support.builders import budget
from support.nodeclaim_stages import all_gone, evicted, ready
from support.virtual_cluster import START, VirtualCluster, in_virtual_time, refusing, until

PROTECTED = {labels.DO_NOT_DISRUPT: "true"}


@in_virtual_time
async def test_an_empty_node_ends_step_by_step(cluster: VirtualCluster) -> None:
    """Taint, drain, instance, finalizers.

    DIS-S290, DIS-S295, DIS-S309, OPS-L30, OPS-L34, DIS-034, DIS-323, DIS-325, DIS-434, DIS-435, DIS-514, DIS-515,
    DIS-524, DIS-545

    DIS-013, API-471: the Node gets the disruption taint first.
    API-125, API-127: Drained is Unknown, then True; InstanceTerminating is True once the cloud was called.
    """
    cluster.cloud.lingers = 3
    await ready(cluster)
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(2)
    node, claim = await cluster.get_node(), await cluster.get_claim()
    assert labels.DISRUPTED_TAINT in node.spec.taints
    assert node.metadata.labels[labels.EXCLUDE_FROM_LOAD_BALANCERS] == "karpenter"
    assert claim.metadata.deletion_timestamp is not None
    assert labels.TERMINATION_TIMESTAMP not in claim.metadata.annotations
    assert await cluster.condition("c", "Drained") == ("Unknown", "Draining", "Draining")
    assert [call for call in cluster.cloud.calls if call[0] == "delete"] == []
    await asyncio.sleep(4.5)
    assert await cluster.condition("c", "Drained") == ("True", "Drained", "")
    assert (await cluster.condition("c", "InstanceTerminating") or ())[0] == "True"
    await until(lambda: all_gone(cluster), 20)
    assert cluster.cloud.instances == {}
    for message in ("tainted node", "deleted node", "deleted nodeclaim"):
        assert len(cluster.lines(message)) == 1
    assert cluster.lines("tainted node")[0]["taint.Key"] == "karpenter.sh/disrupted"


@in_virtual_time
async def test_a_deleted_claim_takes_its_node_along(cluster: VirtualCluster) -> None:
    """DIS-S294, OPS-L30, DIS-502, DIS-504, OPS-072, OPS-075: the Node goes first, the NodeClaim's finalizer last.

    OPS-070: the deletion timestamp is what begins it.
    """
    await ready(cluster)
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await until(lambda: all_gone(cluster), 20)
    order = [text for text in cluster.writes() if text in ("delete Node", "evict Pod", "patch NodeClaim/status")]
    assert order.index("delete Node") < len(order)
    assert cluster.cloud.instances == {}


@in_virtual_time
async def test_a_node_without_a_claim_goes_after_its_drain(cluster: VirtualCluster) -> None:
    """DIS-S291"""
    await ready(cluster)
    await cluster.running("busy", "node-c")
    await cluster.kube.patch(kinds.NODE_CLAIM, "c", {"metadata": {"finalizers": []}})
    # Its owner gone, the node is deleted by the cluster's garbage collection.
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(2)
    assert evicted(cluster) == ["busy"]
    assert await cluster.has(kinds.NODE, "node-c")
    await cluster.gone("busy")
    await asyncio.sleep(2)
    assert not await cluster.has(kinds.NODE, "node-c")


@in_virtual_time
async def test_a_node_of_two_claims_ends_as_if_it_had_none(cluster: VirtualCluster) -> None:
    """DIS-S292, DIS-511"""
    await ready(cluster)
    provider_id = (await cluster.get_claim()).status.provider_id
    await cluster.claim("twin")
    await asyncio.sleep(0.1)
    cluster.cloud.hangs.add(("create", "twin"))  # or the cloud would tell the twin its own instance again
    status = {"status": {"providerID": provider_id}}
    await cluster.kube.patch(kinds.NODE_CLAIM, "twin", status, subresource="status")
    await asyncio.sleep(0.1)
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(3)
    assert not await cluster.has(kinds.NODE, "node-c")
    assert (await cluster.get_claim()).metadata.deletion_timestamp is None
    assert (await cluster.get_claim("twin")).metadata.deletion_timestamp is None


@in_virtual_time
async def test_a_node_of_another_controllers_class_is_left_alone(cluster: VirtualCluster) -> None:
    """DIS-S293"""
    await ready(cluster)
    theirs = Node(
        metadata=ObjectMeta(
            name="theirs",
            labels={"other.example/otherclass": "default", labels.NODE_POOL: "elsewhere"},
            finalizers=(labels.TERMINATION_FINALIZER,),
        ),
        spec=NodeSpec(provider_id="other:///theirs"),
    )
    await cluster.kube.create(kinds.NODE, theirs)
    await asyncio.sleep(0.1)
    before = cluster.writes()
    await cluster.kube.delete(kinds.NODE, "theirs")
    await asyncio.sleep(20)
    assert await cluster.has(kinds.NODE, "theirs")
    assert cluster.writes() == before


@in_virtual_time
async def test_a_node_that_lost_its_class_label_still_ends_with_its_claim(cluster: VirtualCluster) -> None:
    """DIS-510: the claim says as well whose the node is."""
    await ready(cluster)
    await cluster.kube.patch(kinds.NODE, "node-c", {"metadata": {"labels": {"karpenter.kwok.sh/kwoknodeclass": None}}})
    await asyncio.sleep(0.1)
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await until(lambda: all_gone(cluster), 30)
    assert cluster.cloud.instances == {}


@in_virtual_time
async def test_a_pod_the_watch_has_not_shown_yet_is_drained_all_the_same(cluster: VirtualCluster) -> None:
    """The end of a drain is judged by the API server's list, not by a watch that may be behind."""
    await ready(cluster)
    await cluster.running("unseen", "node-c")
    await asyncio.sleep(0.1)
    cluster.manager.state.remove_pod(("default", "unseen"))
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(10)
    assert "unseen" in evicted(cluster)
    assert cluster.cloud.instances != {}


@in_virtual_time
async def test_which_pods_are_evicted(cluster: VirtualCluster) -> None:
    """Pods that tolerate the taint, mirror pods and finished pods stay.

    DIS-S296, DIS-S297, DIS-S298, DIS-S299, DIS-008, DIS-009, DIS-011, DIS-520
    """
    await ready(cluster)
    key = labels.DISRUPTED_TAINT.key
    mirror = OwnerReference(api_version="v1", kind="Node", name="node-c", uid="n", controller=True)
    await cluster.running("naked", "node-c")
    await cluster.running("stays", "node-c", tolerations=(Toleration(key=key, operator="Exists"),))
    await cluster.running("stays-too", "node-c", tolerations=(Toleration(key=key, operator="Equal", value=""),))
    cordon = Toleration(key="node.kubernetes.io/unschedulable", operator="Exists")
    await cluster.running("goes", "node-c", tolerations=(cordon,))
    await cluster.running("static", "node-c", meta={"owner_references": (mirror,)})
    for phase in ("Succeeded", "Failed"):
        name = phase.lower()
        await cluster.running(name, "node-c")
        await cluster.kube.patch(kinds.POD, name, {"status": {"phase": phase}}, "default", subresource="status")
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(3)
    assert sorted(evicted(cluster)) == ["goes", "naked"]
    assert len(await cluster.events("Evicted")) == 2
    assert (await cluster.events("Evicted"))[0].message == "Evicted pod: Forceful Termination"
    for name in ("goes", "naked"):
        await cluster.gone(name)
    await until(lambda: all_gone(cluster), 30)


@in_virtual_time
async def test_a_budget_holds_the_node_until_its_pod_is_gone(cluster: VirtualCluster) -> None:
    """DIS-S300, DIS-523, OPS-525: the warning counts the pods that wait."""
    await ready(cluster)
    await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, budget("keep", {"app": "a"}, max_unavailable=0))
    await cluster.running("kept", "node-c", meta={"labels": {"app": "a"}})
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(60)
    assert await cluster.has(kinds.NODE, "node-c")
    assert (await cluster.get_node()).metadata.deletion_timestamp is not None
    events = await cluster.events("FailedDraining", "node-c")
    assert {event.type for event in events} == {"Warning"}
    assert any("default/kept" in event.message for event in events)
    assert any("1 pods are waiting" in event.message for event in events)
    assert evicted(cluster) == []
    await cluster.gone("kept")
    await until(lambda: all_gone(cluster), 30)


@in_virtual_time
async def test_a_node_that_drains_is_reconciled_every_second(cluster: VirtualCluster) -> None:
    """DIS-038: no event reports a PDB that opens, so the drain is retried each second."""
    await ready(cluster)
    await cluster.kube.create(kinds.POD_DISRUPTION_BUDGET, budget("keep", {"app": "a"}, max_unavailable=0))
    await cluster.running("kept", "node-c", meta={"labels": {"app": "a"}})
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(60)

    def passes() -> float:
        results = ("success", "requeue_after", "requeue")
        assert cluster.manager is not None
        read = cluster.manager.metrics.registry.get_sample_value
        name = "controller_runtime_reconcile_total"
        return sum(read(name, {"controller": "node.termination", "result": result}) or 0.0 for result in results)

    before = passes()
    await asyncio.sleep(30)
    assert 28 <= passes() - before <= 33


@in_virtual_time
async def test_pods_leave_tier_by_tier(cluster: VirtualCluster) -> None:
    """DIS-S301, DIS-522"""
    await ready(cluster)
    daemon = OwnerReference(api_version="apps/v1", kind="DaemonSet", name="d", uid="d", controller=True)
    critical = {"priority_class_name": "system-cluster-critical"}
    await cluster.running("d-critical-daemon", "node-c", meta={"owner_references": (daemon,)}, **critical)
    await cluster.running("c-critical", "node-c", **critical)
    await cluster.running("b-daemon", "node-c", meta={"owner_references": (daemon,)})
    await cluster.running("a-plain", "node-c")
    await cluster.kube.delete(kinds.NODE, "node-c")
    for number, name in enumerate(("a-plain", "b-daemon", "c-critical", "d-critical-daemon"), start=1):
        await asyncio.sleep(5)
        assert len(evicted(cluster)) == number
        assert evicted(cluster)[-1] == name
        await cluster.gone(name)
    await until(lambda: all_gone(cluster), 30)


@pytest.mark.parametrize("critical", ["system-cluster-critical", "system-node-critical"])
@in_virtual_time
async def test_critical_pods_stay_while_the_workload_is_forced_at_the_deadline(
    cluster: VirtualCluster, critical: str
) -> None:
    """DIS-521, DIS-522: a pod that the deadline forces keeps its tier until it is gone, so DNS and CNI go last."""
    await ready(cluster, termination_grace_period="300s")
    await cluster.running("dns", "node-c", priority_class_name=critical, termination_grace_period_seconds=5)
    await cluster.running("web", "node-c", meta={"annotations": PROTECTED}, termination_grace_period_seconds=120)
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(190)
    deleted = [write.name for write in cluster.connection.writes if str(write) == "delete Pod"]
    assert deleted == ["web"]
    assert evicted(cluster) == []
    await cluster.gone("web")
    await asyncio.sleep(3)
    assert evicted(cluster) == ["dns"]


@in_virtual_time
async def test_a_pod_stuck_in_its_own_ending_is_not_waited_for(cluster: VirtualCluster) -> None:
    """DIS-S302"""
    await ready(cluster)
    await cluster.running("stuck", "node-c", meta={"finalizers": ("example.com/hold",)})
    await cluster.kube.delete(kinds.POD, "stuck", "default", grace_period_seconds=30)
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(80)
    assert await cluster.has(kinds.NODE, "node-c")
    await until(lambda: all_gone(cluster), 40)


@pytest.mark.parametrize("error", [NotFound("gone", status=404), Conflict("other uid", status=409)], ids=["404", "409"])
@in_virtual_time
async def test_an_eviction_that_met_another_pod_is_dropped_silently(cluster: VirtualCluster, error: Exception) -> None:
    """DIS-S303"""
    await ready(cluster)
    await cluster.running("busy", "node-c")
    cluster.connection.refuse = refusing(lambda: error, 100, "evict Pod")
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(0.5)
    assert await cluster.events("Evicted") == []
    assert [event for event in await cluster.events("FailedDraining") if "evicting" in event.message] == []


@pytest.mark.parametrize(
    "error",
    [Forbidden("pods/eviction is forbidden", status=403), ServerUnavailable("broken", status=500)],
    ids=["403", "500"],
)
@in_virtual_time
async def test_a_failed_eviction_is_reported_and_retried(cluster: VirtualCluster, error: Exception) -> None:
    """A missing permission would otherwise hold nodes without a word."""
    await ready(cluster)
    await cluster.running("busy", "node-c")
    cluster.connection.refuse = refusing(lambda: error, 3, "evict Pod")
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(5)
    assert any(str(error) in event.message for event in await cluster.events("FailedDraining"))
    assert cluster.lines("evicting pod failed")[0]["Pod"] == {"namespace": "default", "name": "busy"}
    assert evicted(cluster) == ["busy"]


@in_virtual_time
async def test_refused_evictions_are_tried_with_growing_pauses(cluster: VirtualCluster) -> None:
    """DIS-035"""
    await ready(cluster)
    await cluster.running("busy", "node-c")
    asked: list[float] = []

    def refuse(write: object) -> None:
        if str(write) == "evict Pod":
            asked.append(cluster.elapsed)
            raise TooManyRequests("budget")

    cluster.connection.refuse = refuse
    await cluster.kube.delete(kinds.NODE, "node-c")
    await asyncio.sleep(120)
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert 10 < len(asked) < 25
    assert max(pauses) <= 11.5


@pytest.mark.parametrize(
    ("grace", "own", "at", "forced"),
    [(300, 300, 3, True), (300, 60, 90, False), (300, 60, 265, True)],
    ids=["DIS-S305", "DIS-S306-early", "DIS-S306-late"],
)
@in_virtual_time
async def test_a_protected_pod_is_deleted_when_the_nodes_time_is_short(
    cluster: VirtualCluster, grace: int, own: int, at: float, forced: bool
) -> None:
    """DIS-S305, DIS-S306, DIS-530.

    OPS-524, API-S225: the drain waits until the deadline, and the Pod gets the event `Disrupted`.
    DIS-E8: the pod is left alone until its own grace period before the deadline.
    """
    await ready(cluster, termination_grace_period=f"{grace}s")
    await cluster.running("protected", "node-c", meta={"annotations": PROTECTED}, termination_grace_period_seconds=own)
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(at)
    stored_pod = await cluster.kube.get(kinds.POD, "protected", "default")
    assert (stored_pod.metadata.deletion_timestamp is not None) is forced
    assert evicted(cluster) == []
    assert bool(await cluster.events("Disrupted")) is forced


@in_virtual_time
async def test_a_pod_that_takes_too_long_is_deleted_again_with_less_time(cluster: VirtualCluster) -> None:
    """DIS-S307, DIS-536, K15-422. DIS-437: a debug line has both grace periods and the deadline.

    The deletion names the pod by its uid, and it is counted.
    """
    await ready(cluster, termination_grace_period="300s")
    await cluster.running("slow", "node-c", termination_grace_period_seconds=6000)
    await cluster.kube.delete(kinds.POD, "slow", "default")
    await asyncio.sleep(1)
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(3)
    graces = [write.body["grace_period_seconds"] for write in cluster.connection.writes if str(write) == "delete Pod"]
    assert len(graces) == 1
    assert 290 <= graces[0] <= 300
    (deletion,) = [write.body for write in cluster.connection.writes if str(write) == "delete Pod"]
    assert deletion["uid"] == (await cluster.kube.get(kinds.POD, "slow", "default")).metadata.uid
    assert cluster.counted("pods_drained_total", reason="Forceful Termination") == 1
    (line,) = cluster.lines("deleting pod")
    assert (line["level"], line["name"], line["pod.terminationGracePeriodSeconds"]) == ("DEBUG", "slow", 6000)
    assert line["delete.gracePeriodSeconds"] == graces[0]
    assert (
        line["nodeclaim.terminationTime"]
        == (await cluster.get_claim()).metadata.annotations[labels.TERMINATION_TIMESTAMP]
    )


@in_virtual_time
async def test_a_missed_deadline_still_leaves_a_pod_one_second(cluster: VirtualCluster) -> None:
    """DIS-S308, DIS-S310, DIS-535: an annotation that is there stays as it is."""
    await ready(cluster, termination_grace_period="300s")
    await cluster.running("busy", "node-c", meta={"annotations": PROTECTED}, termination_grace_period_seconds=30)
    past = (START - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    note = {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: past}}}
    await cluster.kube.patch(kinds.NODE_CLAIM, "c", note)
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(3)
    graces = {write.body["grace_period_seconds"] for write in cluster.connection.writes if str(write) == "delete Pod"}
    assert graces == {1}
    assert (await cluster.get_claim()).metadata.annotations[labels.TERMINATION_TIMESTAMP] == past


@in_virtual_time
async def test_the_deadline_is_written_once_with_events_on_claim_and_node(cluster: VirtualCluster) -> None:
    """DIS-501, DIS-513, OPS-071, OPS-527, DIS-436: both get the event.

    DIS-550: the grace period counts from the deletion of the NodeClaim.
    """
    await ready(cluster, termination_grace_period="300s")
    await cluster.running("busy", "node-c", meta={"annotations": PROTECTED}, termination_grace_period_seconds=1)
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(30)
    deleted = (await cluster.get_claim()).metadata.deletion_timestamp
    assert deleted is not None
    expected = (deleted + timedelta(seconds=300)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert (await cluster.get_claim()).metadata.annotations[labels.TERMINATION_TIMESTAMP] == expected
    events = await cluster.events("TerminationGracePeriodExpiring")
    assert sorted(event.involved_object.kind for event in events) == ["Node", "NodeClaim"]
    assert all(expected in event.message for event in events)
    assert len(cluster.lines("annotated nodeclaim")) == 1


@in_virtual_time
async def test_a_forced_deletion_that_fails_does_not_delay_the_others(cluster: VirtualCluster) -> None:
    """DIS-521: one pod's trouble is not the node's."""
    await ready(cluster, termination_grace_period="60s")
    for name in ("one", "two"):
        await cluster.running(name, "node-c", meta={"annotations": PROTECTED}, termination_grace_period_seconds=60)

    def refuse(write: object) -> None:
        if str(write) == "delete Pod" and write.name == "one":  # type: ignore[attr-defined]
            raise ServerUnavailable("broken", status=500)

    cluster.connection.refuse = refuse
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(3)
    deleted = [write.name for write in cluster.connection.writes if str(write) == "delete Pod"]
    assert deleted == ["two"]
    cluster.connection.refuse = lambda write: None
    await asyncio.sleep(2)
    deleted = [write.name for write in cluster.connection.writes if str(write) == "delete Pod"]
    assert "one" in deleted
