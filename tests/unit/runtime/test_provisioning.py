"""From pending pods to claims: batches, creation, events and logs, nomination (SCH §1, §22, §23)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption, NodePool
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube.errors import AlreadyExists, Invalid, ServerUnavailable
from karpenter.model import labels
from karpenter.providers.contract import InsufficientCapacity, NodeClassNotReady, ProviderError
from karpenter.settings import Settings
from support.builders import container, pod, pods, wanted
from support.fake_cloud import Write
from support.provisioning_cases import CALM, claims, start_with_pool
from support.virtual_cluster import VirtualCluster, in_virtual_time, until


@in_virtual_time
async def test_waiting_pods_become_claims_after_a_quiet_second(cluster: VirtualCluster) -> None:
    """SCH-005, SCH-630, and the lines users look for (OPS §4.7)."""
    await start_with_pool(cluster)
    await cluster.waiting(*pods(3, {"cpu": "1"}))
    await asyncio.sleep(0.9)
    assert await claims(cluster) == []
    await asyncio.sleep(0.3)
    launched = await claims(cluster)
    assert launched
    actual = cluster.lines("found provisionable pod(s)")[0]
    assert sorted(actual["Pods"].split(", ")) == ["default/pod-000", "default/pod-001", "default/pod-002"]
    assert actual["duration"].endswith("ms")
    computed = cluster.lines("computed new nodeclaim(s) to fit pod(s)")[0]
    assert (computed["nodeclaims"], computed["pods"]) == (len(launched), 3)
    created = cluster.lines("created nodeclaim")
    assert {line["NodeClaim"]["name"] for line in created} == {element.metadata.name for element in launched}
    assert created[0]["NodePool"] == {"name": "np"}
    assert created[0]["requests"]["cpu"]
    assert created[0]["instance-types"].count(",") <= 4
    assert cluster.lines("computing scheduling decision for provisionable pod(s)")[0]["pending-pods"] == 3


@in_virtual_time
async def test_a_claim_belongs_to_its_pool_and_its_class(cluster: VirtualCluster) -> None:
    """SCH-620. API-135, API-S085: the name begins with that of the NodePool, which owns the NodeClaim."""
    await start_with_pool(cluster)
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await asyncio.sleep(2)
    claim = (await claims(cluster))[0]
    assert claim.metadata.labels[labels.NODE_POOL] == "np"
    owner = claim.metadata.owner_references[0]
    assert (owner.kind, owner.name, owner.block_owner_deletion) == ("NodePool", "np", True)
    assert claim.spec.node_class_ref.name == "default"
    assert claim.metadata.name.startswith("np-")
    assert claim.metadata.labels["karpenter.kwok.sh/kwoknodeclass"] == "default"
    assert claim.metadata.finalizers == (labels.TERMINATION_FINALIZER,)


@in_virtual_time
async def test_a_claim_that_exists_already_is_done(cluster: VirtualCluster) -> None:
    """Names are derived: an answer that got lost must not launch twice."""
    await start_with_pool(cluster)

    def lose_the_answer(write: Write) -> None:
        if str(write) == "create NodeClaim":
            cluster.connection.refuse = lambda write: None
            cluster.server.create(
                cluster.server.resource("karpenter.sh", "v1", "nodeclaims"), "", msgspec.to_builtins(write.body)
            )
            raise AlreadyExists("exists", status=409)

    cluster.connection.refuse = lose_the_answer
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await asyncio.sleep(30)
    assert len(await claims(cluster)) == 1
    assert len(cluster.cloud.launched) == 1
    assert cluster.lines("creating nodeclaim failed") == []


@in_virtual_time
async def test_one_claim_that_cannot_be_created_does_not_stop_the_others(cluster: VirtualCluster) -> None:
    """SCH-020 step 13, SCH-632"""
    cluster.cloud.capacity["cpu"] = "8"
    await start_with_pool(cluster)
    refused: list[str] = []

    def refuse(write: Write) -> None:
        if str(write) == "create NodeClaim" and not refused:
            refused.append(write.name)
            raise ServerUnavailable("broken", status=500)

    cluster.connection.refuse = refuse
    await cluster.waiting(*pods(4, {"cpu": "7"}))
    await asyncio.sleep(1.2)
    assert len(await claims(cluster)) == 3
    assert cluster.lines("creating nodeclaim failed")[0]["NodePool"] == {"name": "np"}
    await asyncio.sleep(2.5)
    assert len(await claims(cluster)) == 4


@in_virtual_time
async def test_claims_that_are_always_refused_are_sent_with_growing_pauses(cluster: VirtualCluster) -> None:
    """SCH-008: retried with rate limiting, and said."""
    await start_with_pool(cluster)
    sent: list[float] = []

    def refuse(write: Write) -> None:
        if str(write) == "create NodeClaim":
            sent.append(cluster.elapsed)
            raise Invalid("no", status=422)

    cluster.connection.refuse = refuse
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await asyncio.sleep(120)
    assert 8 <= len(sent) <= 32
    assert cluster.lines("creating nodeclaim failed")


@in_virtual_time
async def test_the_reason_of_an_unschedulable_pod_is_reported_once_and_again_when_it_changes(
    cluster: VirtualCluster,
) -> None:
    """OPS-E8, SCH-652, SCH-654 Beyond, OPS-511.

    SCH-655: an error in the log and an event. OPS-548: a change of cause is reported at once.
    """
    await start_with_pool(cluster)
    await cluster.waiting(pod("big", {"cpu": "500"}))
    await asyncio.sleep(60)
    events = await cluster.events("FailedScheduling", "big")
    assert [event.type for event in events] == ["Warning"]
    assert events[0].message.startswith("Failed to schedule pod, ")
    assert cluster.lines("could not schedule pod")[0]["Pod"] == {"namespace": "default", "name": "big"}
    await cluster.kube.patch(kinds.NODE_POOL, "np", {"spec": {"limits": {"cpu": "0"}}})
    await asyncio.sleep(30)
    events = await cluster.events("FailedScheduling", "big")
    assert len(events) == 2
    assert len({event.message for event in events}) == 2
    await asyncio.sleep(400)
    assert len(await cluster.events("FailedScheduling", "big")) > 2


@in_virtual_time
async def test_a_pool_that_takes_no_part_is_named_when_that_changes(cluster: VirtualCluster) -> None:
    """OPS §4.7, API-070, SCH-653: not with every pass. OPS-512: the event is a Warning on the NodePool."""
    await start_with_pool(cluster, requirements=[wanted(labels.ARCH, "In", "mips")])
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await asyncio.sleep(30)
    assert len(cluster.lines("skipping, nodepool requirements filtered out all instance types")) == 1
    assert cluster.lines("no dynamic nodepools found") == []
    assert [event.type for event in await cluster.events("NoCompatibleInstanceTypes", "np")] == ["Warning"]
    assert cluster.lines("ignoring nodepool, not ready") == []


@in_virtual_time
async def test_without_a_usable_pool_the_controller_says_so_once(cluster: VirtualCluster) -> None:
    """SCH-020.7"""
    await cluster.start()
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await asyncio.sleep(30)
    assert len(cluster.lines("no dynamic nodepools found")) == 1


@in_virtual_time
async def test_a_pool_that_is_not_ready_is_an_error_in_the_log_once(cluster: VirtualCluster) -> None:
    """API-070"""
    await cluster.pool(disruption=CALM)
    await cluster.start()
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await asyncio.sleep(30)
    lines = cluster.lines("ignoring nodepool, not ready")
    assert [(line["level"], line["NodePool"]) for line in lines] == [("ERROR", {"name": "np"})]
    assert "not ready" in lines[0]["error"]


@in_virtual_time
async def test_pods_hear_where_they_are_expected(cluster: VirtualCluster) -> None:
    """SCH-651, OPS-510, OPS-E5: a burst of ten, not thirty."""
    await start_with_pool(cluster)
    await cluster.waiting(*pods(30, {"cpu": "100m"}))
    await asyncio.sleep(1.5)
    events = await cluster.events("Nominated")
    assert len(events) == 10
    name = (await claims(cluster))[0].metadata.name
    assert events[0].message == f"Pod should schedule on: nodeclaim/{name}"


@in_virtual_time
async def test_a_pod_planned_on_a_node_gets_an_event_with_its_name(cluster: VirtualCluster) -> None:
    """SCH-651: claim and node, in that order.

    SCH-684: for a node at the decision, for a new NodeClaim at its creation.
    """
    await start_with_pool(cluster)
    await cluster.waiting(pod("first", {"cpu": "1"}))
    await asyncio.sleep(1.5)
    name = (await claims(cluster))[0].metadata.name
    await cluster.join(name, "node-1")
    await asyncio.sleep(0.5)
    await cluster.waiting(pod("second", {"cpu": "100m"}))
    await asyncio.sleep(1.5)
    event = (await cluster.events("Nominated", "second"))[0]
    assert event.message == f"Pod should schedule on: nodeclaim/{name}, node/node-1"


@in_virtual_time
async def test_an_in_flight_claim_does_not_delay_other_pods(cluster: VirtualCluster) -> None:
    """S-017 settled: a claim without provider ID is capacity that will come, not a barrier."""
    cluster.cloud.refuse("create", *(ProviderError("not yet") for _ in range(1000)))
    await start_with_pool(cluster)
    await cluster.waiting(pod("first", {"cpu": "7"}))
    await asyncio.sleep(2)
    assert len(await claims(cluster)) == 1
    await cluster.waiting(pod("second", {"cpu": "7"}))
    await asyncio.sleep(2)
    assert len(await claims(cluster)) == 2
    await asyncio.sleep(60)
    assert len(await claims(cluster)) == 2


@in_virtual_time
async def test_pods_of_a_claim_that_could_not_be_launched_are_planned_again_at_once(cluster: VirtualCluster) -> None:
    """OPS-014: not only after their next reminder."""
    cluster.cloud.refuse("create", InsufficientCapacity("all gone"))
    await start_with_pool(cluster)
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await asyncio.sleep(1.1)
    await asyncio.sleep(1.6)
    assert len(cluster.cloud.launched) == 1
    assert len(await claims(cluster)) == 1


@in_virtual_time
async def test_a_claim_deleted_before_its_creation_was_answered_leaves_the_cluster_state(
    cluster: VirtualCluster,
) -> None:
    """OPS-094: otherwise its pods would wait forever for an instance that is never launched."""
    await start_with_pool(cluster)
    lost: list[str] = []

    def lose(write: Write) -> None:
        if str(write) == "create NodeClaim" and not lost:
            lost.append(write.name)
            cluster.server.delete(cluster.server.resource("karpenter.sh", "v1", "nodeclaims"), "", write.name)
            assert cluster.manager is not None
            cluster.manager.state.remove_claim(write.name)

    cluster.connection.after = lose
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await asyncio.sleep(30)
    assert lost
    assert len(await claims(cluster)) == 1
    assert len(cluster.cloud.launched) == 1


@pytest.mark.parametrize(
    "broken",
    [
        pod("broken", {"cpu": "lots"}),
        pod("broken", containers=(container({"memory": "1Gi1"}),)),
        pod("broken", {"cpu": "1"}, node_selector={"karpenter.sh/foo": "x"}),
    ],
    ids=["quantity", "other-quantity", "S-007"],
)
@in_virtual_time
async def test_a_pod_that_makes_no_sense_does_not_stop_the_others(cluster: VirtualCluster, broken: Any) -> None:
    await start_with_pool(cluster)
    await cluster.waiting(broken, pod("fine", {"cpu": "1"}))
    await asyncio.sleep(2)
    assert len(cluster.cloud.launched) == 1
    assert any("broken" in str(line) for line in cluster.lines())


@in_virtual_time
async def test_an_object_that_does_not_decode_does_not_stop_the_others(cluster: VirtualCluster) -> None:
    await start_with_pool(cluster)
    body = {"metadata": {"name": "odd", "namespace": "default"}, "spec": {"priority": "high", "containers": [{}]}}
    cluster.server.load_objects([{"apiVersion": "v1", "kind": "Pod", **body}])
    await cluster.waiting(pod("fine", {"cpu": "1"}))
    await asyncio.sleep(2)
    assert len(cluster.cloud.launched) == 1
    assert cluster.lines("object does not decode")[0]["Pod"] == "default/odd"


@in_virtual_time
async def test_a_pool_that_contradicts_itself_does_not_stop_the_others(cluster: VirtualCluster) -> None:
    await cluster.node_class()
    bad = (wanted(labels.CAPACITY_TYPE, "In", "spot"), wanted(labels.CAPACITY_TYPE, "NotIn", "spot"))
    await cluster.pool("bad", requirements=bad)
    await cluster.pool("good")
    await cluster.start()
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await asyncio.sleep(2)
    assert [obj.metadata.labels[labels.NODE_POOL] for obj in await claims(cluster)] == ["good"]


@in_virtual_time
async def test_a_pool_whose_types_cannot_be_had_is_skipped_and_said(cluster: VirtualCluster) -> None:
    """SCH-115, K15-513: the line names the NodePool, and what the provider said."""
    cluster.cloud.refuse("instance_types", ProviderError("no instance types"))
    await cluster.node_class()
    await cluster.pool("a")
    await cluster.pool("b")
    await cluster.start()
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await asyncio.sleep(2)
    assert [obj.metadata.labels[labels.NODE_POOL] for obj in await claims(cluster)] == ["b"]
    line = cluster.lines("skipping, unable to resolve instance types")[0]
    assert (line["NodePool"], line["error"]) == ({"name": "a"}, "no instance types")


@in_virtual_time
async def test_a_pool_without_instance_types_is_skipped(cluster: VirtualCluster) -> None:
    """OPS-P10: the pods stay pending, and each controller that skips the pool says why once, at level INFO."""

    async def none(pool: NodePool) -> tuple[InstanceType, ...]:
        return ()

    cluster.cloud.instance_types = none
    await start_with_pool(cluster)
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await asyncio.sleep(2)
    assert await claims(cluster) == []
    lines = cluster.lines("skipping, no resolved instance types found")
    assert sorted(line["controller"] for line in lines) == ["disruption", "provisioner"]
    assert all((line["level"], line["NodePool"]) == ("INFO", {"name": "np"}) for line in lines)


@in_virtual_time
async def test_a_pool_whose_class_is_not_ready_is_no_error(cluster: VirtualCluster) -> None:
    """OPS-227: every class begins like this, and says so itself."""
    cluster.cloud.refuse("instance_types", NodeClassNotReady("no subnets found"))
    await cluster.node_class()
    await cluster.pool("a", ready=False)
    await cluster.pool("b")
    await cluster.start()
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await asyncio.sleep(2)
    assert [obj.metadata.labels[labels.NODE_POOL] for obj in await claims(cluster)] == ["b"]
    assert cluster.lines("skipping, unable to resolve instance types") == []


# -- nomination -----------------------------------------------------------------------------------------------------------


async def nominated(cluster: VirtualCluster) -> dict[str, str]:
    return {obj.metadata.name: obj.status.nominated_node_name for obj in await cluster.all(kinds.POD)}


async def planned(cluster: VirtualCluster, count: int = 2, settings: Settings | None = None) -> str:
    """Pods planned for one claim whose instance is launched and has not joined; the claim's name."""
    await start_with_pool(cluster, settings)
    await cluster.waiting(*pods(count, {"cpu": "100m"}))
    await asyncio.sleep(1.5)
    result = await claims(cluster)
    assert len(result) == 1
    return str(result[0].metadata.name)


@in_virtual_time
async def test_pods_are_nominated_before_their_node_opens(cluster: VirtualCluster) -> None:
    """The journey of a pending pod, step 5: first the nominations, then the taint goes."""
    name = await planned(cluster)
    before = len(cluster.connection.writes)
    await cluster.join(name, "node-1")
    await asyncio.sleep(6)
    assert await nominated(cluster) == {"pod-000": "node-1", "pod-001": "node-1"}
    since = [str(write) for write in cluster.connection.writes[before:] if write.kind in ("Pod", "Node")]
    assert since[:3] == ["patch Pod/status", "patch Pod/status", "patch Node"]


@in_virtual_time
async def test_a_nomination_by_another_client_is_left_alone(cluster: VirtualCluster) -> None:
    name = await planned(cluster)
    foreign = {"status": {"nominatedNodeName": "elsewhere"}}
    await cluster.kube.patch(kinds.POD, "pod-000", foreign, "default", subresource="status")
    await cluster.join(name, "node-1")
    await asyncio.sleep(6)
    assert await nominated(cluster) == {"pod-000": "elsewhere", "pod-001": "node-1"}


@in_virtual_time
async def test_nomination_can_be_switched_off(cluster: VirtualCluster) -> None:
    name = await planned(cluster, settings=Settings(nominate_pods=False))
    await cluster.join(name, "node-1")
    await asyncio.sleep(6)
    assert set((await nominated(cluster)).values()) == {""}
    assert (await cluster.get_node("node-1")).metadata.labels[labels.REGISTERED] == "true"


@in_virtual_time
async def test_a_nomination_that_cannot_be_written_does_not_keep_the_node_closed(cluster: VirtualCluster) -> None:
    name = await planned(cluster)

    def refuse(write: Write) -> None:
        if str(write) == "patch Pod/status":
            raise ServerUnavailable("broken", status=500)

    cluster.connection.refuse = refuse
    await cluster.join(name, "node-1")
    await asyncio.sleep(6)
    assert (await cluster.get_node("node-1")).metadata.labels[labels.REGISTERED] == "true"
    assert cluster.lines("nominating pod failed")


@in_virtual_time
async def test_our_nomination_is_taken_back_when_the_plan_changes(cluster: VirtualCluster) -> None:
    name = await planned(cluster, 1)
    await cluster.join(name, "node-1")
    await asyncio.sleep(6)
    assert await nominated(cluster) == {"pod-000": "node-1"}
    # Another pod takes the room before the scheduler binds the pod, and the next pass plans another node.
    await cluster.running("squatter", "node-1", requests={"cpu": "3950m"})
    await asyncio.sleep(15)
    assert (await nominated(cluster))["pod-000"] == ""
    assert len(await claims(cluster)) == 2


@in_virtual_time
async def test_a_nomination_is_no_reason_to_leave_a_pod_out_of_planning(cluster: VirtualCluster) -> None:
    """Schedulers that ignore the field must still converge: what stays waiting is planned again."""
    await start_with_pool(cluster)
    body = msgspec.structs.replace(pod("p", {"cpu": "1"}).status, nominated_node_name="nowhere")
    await cluster.waiting(msgspec.structs.replace(pod("p", {"cpu": "1"}), status=body))
    await asyncio.sleep(15)
    assert len(await claims(cluster)) == 1


@in_virtual_time
async def test_a_node_with_nominated_pods_is_not_consolidated(cluster: VirtualCluster) -> None:
    """SCH-640, OPS-114: twice the longest batch, at least ten seconds."""
    assert Settings().nomination_window == timedelta(seconds=20)
    assert Settings(batch_max_duration=timedelta(seconds=2)).nomination_window == timedelta(seconds=10)
    await start_with_pool(cluster, disruption=Disruption(consolidate_after="0s", budgets=(Budget(nodes="100%"),)))
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await asyncio.sleep(1.5)
    name = (await claims(cluster))[0].metadata.name
    await cluster.join(name, "node-1")
    # The pod stays pending (no scheduler runs here), so every pass plans it on the empty node.
    await asyncio.sleep(120)
    assert await cluster.has(kinds.NODE, "node-1")
    await cluster.kube.delete(kinds.POD, "p", "default")

    async def gone() -> bool:
        return not await cluster.has(kinds.NODE, "node-1")

    await until(gone, 90)


@in_virtual_time
async def test_a_pending_pod_is_in_a_pass_every_ten_seconds(cluster: VirtualCluster) -> None:
    """SCH-001: for as long as it stays pending, though nothing else happens."""
    await start_with_pool(cluster)
    await cluster.waiting(pod("big", {"cpu": "500"}))
    await asyncio.sleep(5)
    line = "computing scheduling decision for provisionable pod(s)"
    before = len(cluster.lines(line))
    await asyncio.sleep(60)
    assert len(cluster.lines(line)) == before + 6
