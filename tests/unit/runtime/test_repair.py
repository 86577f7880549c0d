"""Node repair of release 1.14 (LEGACY_NODE_REPAIR): what is broken for too long is deleted, unless too much is (DIS §16)."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from karpenter.api import kinds
from karpenter.api.core import Node, NodeStatus
from karpenter.api.karpenter import Budget, Disruption
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.model import labels
from karpenter.model.clock import rfc3339
from karpenter.model.feature_gate_flags import parse_feature_gates
from karpenter.model.repair_policies import RepairAction, RepairPolicy
from karpenter.node.node_health import first_due_condition
from karpenter.settings import Settings
from support.builders import NOW
from support.virtual_cluster import VirtualCluster, in_virtual_time

DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
ON = Settings(feature_gates=parse_feature_gates("NodeRepair=true"), legacy_node_repair=True)
CLOSED = Disruption(consolidate_after="Never", budgets=(Budget(nodes="0"),))
POLICIES = (
    RepairPolicy("Ready", "False", timedelta(minutes=30)),
    RepairPolicy("Ready", "Unknown", timedelta(minutes=30)),
    RepairPolicy("StorageReady", "False", timedelta(minutes=10)),
)


async def start_with_nodes(cluster: VirtualCluster, count: int = 1, settings: Settings = ON, **spec: object) -> None:
    """So many nodes of a pool whose budgets allow nothing, a pod that may not be disrupted on the first."""
    cluster.cloud.repair_policies = lambda: POLICIES
    await cluster.node_class()
    pool = await cluster.pool(disruption=CLOSED)
    await cluster.start(settings)
    for number in range(count):
        await cluster.owned_claim(pool, f"n{number}", **spec)
    await asyncio.sleep(0.1)
    for number in range(count):
        await cluster.join(f"n{number}", f"n{number}", annotations={labels.DO_NOT_DISRUPT: "true"})
    await asyncio.sleep(1)
    await cluster.running("p", "n0", meta={"annotations": {labels.DO_NOT_DISRUPT: "true"}})


async def leaving(cluster: VirtualCluster) -> list[str]:
    return [obj.metadata.name for obj in await cluster.all(kinds.NODE_CLAIM) if obj.metadata.deletion_timestamp]


@in_virtual_time
async def test_a_broken_node_is_replaced_when_its_time_is_over(cluster: VirtualCluster) -> None:
    """DIS-S275, DIS-S276, DIS-S280, DIS-383, DIS-385, DIS-387: budgets and protections are not asked.

    K15-271: its series have the label of the termination mode.
    """
    await start_with_nodes(cluster)
    await cluster.set_ready("n0", "Unknown")
    await asyncio.sleep(30 * 60 - 2)
    assert await leaving(cluster) == []
    await cluster.set_condition(kinds.NODE, "n0", "DiskPressure", "False")
    await asyncio.sleep(4)
    assert await leaving(cluster) == ["n0"]
    assert cluster.lines("deleting unhealthy node")
    assert len(cluster.lines("annotated nodeclaim")) == 1
    assert cluster.ended_for("unhealthy", "np") == 1
    described = {
        "condition": "ready",
        "nodepool": "np",
        "capacity_type": "on-demand",
        "image_id": "image-1",
        "termination_mode": "forceful",
    }
    assert cluster.counted("nodeclaims_unhealthy_disrupted_total", **described) == 1
    await asyncio.sleep(60)
    assert cluster.ended_for("unhealthy", "np") == 1


@pytest.mark.parametrize("claim_count", [0, 2])
@in_virtual_time
async def test_a_node_without_a_claim_of_its_own_is_not_repaired(cluster: VirtualCluster, claim_count: int) -> None:
    """DIS-382: a Node with no NodeClaim, or with several of its provider ID, is ignored."""
    await start_with_nodes(cluster)
    if claim_count:
        twin = await cluster.owned_claim(await cluster.pool("other"), "twin")
        same = {"status": {"providerID": (await cluster.get_claim("n0")).status.provider_id}}
        await cluster.kube.patch(kinds.NODE_CLAIM, twin.metadata.name, same, subresource="status")
    else:
        await cluster.kube.patch(kinds.NODE_CLAIM, "n0", {"metadata": {"finalizers": []}})
        await cluster.kube.delete(kinds.NODE_CLAIM, "n0")
    await cluster.set_ready("n0", "Unknown")
    await asyncio.sleep(40 * 60)
    assert cluster.lines("deleting unhealthy node") == []


@in_virtual_time
async def test_the_policy_that_is_due_first_counts(cluster: VirtualCluster) -> None:
    """DIS-383"""
    await start_with_nodes(cluster)
    await cluster.set_ready("n0", "False")
    await asyncio.sleep(60)
    await cluster.set_condition(kinds.NODE, "n0", "StorageReady", "False")
    await asyncio.sleep(605)
    assert await leaving(cluster) == ["n0"]


@in_virtual_time
async def test_a_node_that_recovers_in_time_stays(cluster: VirtualCluster) -> None:
    await start_with_nodes(cluster)
    await cluster.set_ready("n0", "False")
    await asyncio.sleep(1700)
    await cluster.set_ready("n0", "True")
    await asyncio.sleep(3600)
    assert await leaving(cluster) == []


@in_virtual_time
async def test_conditions_without_a_repair_policy_are_ignored(cluster: VirtualCluster) -> None:
    """DIS-S277"""
    await start_with_nodes(cluster)
    await cluster.set_condition(kinds.NODE, "n0", "StorageReady", "Unknown")
    await cluster.set_condition(kinds.NODE, "n0", "Whatever", "False")
    await asyncio.sleep(7200)
    assert await leaving(cluster) == []


@pytest.mark.parametrize("stored", ["", "past", "future"], ids=["DIS-S276", "DIS-S279", "future"])
@in_virtual_time
async def test_the_drain_ends_at_once_whatever_the_claim_grants(cluster: VirtualCluster, stored: str) -> None:
    """DIS-S278, DIS-S279, DIS-385"""
    await start_with_nodes(cluster, termination_grace_period="1h")
    past, future = rfc3339(cluster.clock.now()), rfc3339(cluster.clock.now() + timedelta(days=1))
    if stored:
        note = {labels.TERMINATION_TIMESTAMP: past if stored == "past" else future}
        await cluster.kube.patch(kinds.NODE_CLAIM, "n0", {"metadata": {"annotations": note}})
    await cluster.kube.patch(kinds.NODE_CLAIM, "n0", {"metadata": {"finalizers": ["example.com/hold"]}})
    await cluster.set_ready("n0", "False")
    at = cluster.clock.now() + timedelta(minutes=30)
    await asyncio.sleep(30 * 60 + 1)
    claim = await cluster.get_claim("n0")
    assert claim.metadata.deletion_timestamp is not None
    assert claim.metadata.annotations[labels.TERMINATION_TIMESTAMP] == (past if stored == "past" else rfc3339(at))


@pytest.mark.parametrize(("broken", "replaced"), [(3, 3), (4, 0)], ids=["DIS-E9", "DIS-E9-fourth"])
@in_virtual_time
async def test_when_too_many_are_broken_none_is_replaced(cluster: VirtualCluster, broken: int, replaced: int) -> None:
    """DIS-E9, DIS-384: of twelve three may be broken. OPS-522, 547, K15-271: the event `NodeRepairBlocked` says so.

    DIS-043: evaluated again after five minutes.
    """
    await start_with_nodes(cluster, 12)
    for number in range(broken):
        await cluster.set_ready(f"n{number}", "Unknown")
    await asyncio.sleep(31 * 60)
    gone = 12 - len(await cluster.all(kinds.NODE_CLAIM)) + len(await leaving(cluster))
    assert gone == replaced
    blocked = await cluster.events("NodeRepairBlocked")
    assert {event.involved_object.kind for event in blocked} == (
        set() if replaced else {"Node", "NodeClaim", "NodePool"}
    )
    if not replaced:
        await cluster.set_ready("n3", "True")
        await asyncio.sleep(310)
        assert 12 - len(await cluster.all(kinds.NODE_CLAIM)) + len(await leaving(cluster)) == 3


async def small_pools(cluster: VirtualCluster, count: int, broken: int) -> None:
    """Pools of one node each, of which so many break at once."""
    cluster.cloud.repair_policies = lambda: POLICIES
    await cluster.node_class()
    pools = [await cluster.pool(f"np{number}", disruption=CLOSED) for number in range(count)]
    await cluster.start(ON)
    for number, pool in enumerate(pools):
        await cluster.owned_claim(pool, f"n{number}")
    await asyncio.sleep(0.1)
    for number in range(count):
        await cluster.join(f"n{number}", f"n{number}", annotations={labels.DO_NOT_DISRUPT: "true"})
    await asyncio.sleep(1)
    for number in range(broken):
        await cluster.set_ready(f"n{number}", "Unknown")
    await asyncio.sleep(31 * 60)


@pytest.mark.parametrize(("broken", "replaced"), [(2, 2), (3, 0), pytest.param(10, 0, marks=pytest.mark.soak)])
@in_virtual_time
async def test_many_small_pools_are_not_replaced_when_their_nodes_break_together(
    cluster: VirtualCluster, broken: int, replaced: int
) -> None:
    """Of ten nodes two may be broken, whatever their pools: more look like a failure of the network, not of the nodes."""
    await small_pools(cluster, 10, broken)
    assert 10 - len(await cluster.all(kinds.NODE_CLAIM)) + len(await leaving(cluster)) == replaced
    texts = {event.message for event in await cluster.events("NodeRepairBlocked")}
    assert texts == (set() if replaced else {"More than 20% nodes are unhealthy in the cluster"})


@pytest.mark.parametrize(
    ("created", "changed", "due"),
    [
        pytest.param(-DAY, -DAY, 6 * MINUTE, id="node-and-condition-from-before-the-start"),
        pytest.param(-DAY, MINUTE, 31 * MINUTE, id="condition-from-after-the-start"),
        pytest.param(MINUTE, -DAY, timedelta(0), id="node-from-after-the-start"),
    ],
)
def test_a_condition_from_before_the_start_counts_only_after_kubelets_could_report(
    created: timedelta, changed: timedelta, due: timedelta
) -> None:
    """A restored etcd shows a node as it was on the day of the backup. Times count from the start of the controller."""
    condition = Condition(type="Ready", status="Unknown", last_transition_time=NOW + changed)
    node = Node(metadata=ObjectMeta(creation_timestamp=NOW + created), status=NodeStatus(conditions=(condition,)))
    assert first_due_condition(node, POLICIES, NOW) == (NOW + due, condition)


@in_virtual_time
async def test_a_condition_that_changed_since_the_start_counts_at_once(cluster: VirtualCluster) -> None:
    """DIS-383: a process that has just started knows such a condition to be of today."""
    await start_with_nodes(cluster)
    cluster.cloud.repair_policies = lambda: (RepairPolicy("Ready", "False", timedelta(seconds=10)),)
    await cluster.set_ready("n0", "False")
    await asyncio.sleep(12)
    assert await leaving(cluster) == ["n0"]


@in_virtual_time
async def test_a_node_from_after_the_start_counts_at_once_whatever_its_conditions_say(cluster: VirtualCluster) -> None:
    """DIS-383: no backup has it. Karpenter's suite writes conditions that began half an hour ago."""
    await start_with_nodes(cluster)
    began = cluster.clock.now() - timedelta(minutes=31)
    await cluster.set_condition(kinds.NODE, "n0", "Ready", "False", last_transition_time=began)
    await asyncio.sleep(2)
    assert await leaving(cluster) == ["n0"]


@in_virtual_time
async def test_without_its_gate_nothing_is_repaired(cluster: VirtualCluster) -> None:
    """DIS-S281, DIS-380"""
    await start_with_nodes(cluster, settings=Settings(feature_gates=parse_feature_gates("NodeRepair=false")))
    await cluster.set_ready("n0", "False")
    await asyncio.sleep(7200)
    assert await leaving(cluster) == []


@in_virtual_time
async def test_repair_as_in_the_older_release_has_no_reboots_no_veto_and_no_fallback(cluster: VirtualCluster) -> None:
    """K15-270: policies that reboot are ignored; a pattern needs its reason, and a policy without one takes any reason."""
    await start_with_nodes(cluster, 10)
    gpu = RepairPolicy("GpuReady", "False", MINUTE, action=RepairAction.REBOOT)
    disk = RepairPolicy("DiskReady", "False", MINUTE, "Full")
    anything = RepairPolicy("StorageReady", "False", MINUTE)
    cluster.cloud.repair_policies = lambda: (gpu, disk, anything)
    await cluster.kube.patch(kinds.NODE, "n2", {"metadata": {"annotations": {labels.DO_NOT_REPAIR: "true"}}})
    await cluster.set_condition(kinds.NODE, "n0", "GpuReady", "False")
    await cluster.set_condition(kinds.NODE, "n1", "DiskReady", "False", reason="Slow")
    await cluster.set_condition(kinds.NODE, "n2", "StorageReady", "False", reason="Whatever")
    await cluster.set_condition(kinds.NODE, "n3", "DiskReady", "False", reason="DiskFull")
    await asyncio.sleep(90)
    left = {one.metadata.name for one in await cluster.all(kinds.NODE_CLAIM)} - set(await leaving(cluster))
    assert {f"n{number}" for number in range(10)} - left == {"n2", "n3"}
