"""The life of a NodeClaim: launch, registration, initialisation, liveness (OPS §1)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import NodeClassReference, NodePoolTaint
from karpenter.api.meta import OwnerReference
from karpenter.api.scheduling_constraints import Taint
from karpenter.kube.errors import Conflict, Forbidden, KubeError
from karpenter.metrics.exposition import render_sync
from karpenter.model import conditions, labels
from karpenter.nodeclaim.lifecycle import _requeue_after
from karpenter.providers.contract import InsufficientCapacity, LaunchFailed, NodeClassNotReady, ProviderError
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft
from support.builders import NODE_CLASS, claim, pod
from support.metrics_scrape import Scrape
from support.nodeclaim_stages import launched, registered
from support.virtual_cluster import VirtualCluster, in_virtual_time, startup, until

UNINITIALIZED = Taint(key="node.cloudprovider.kubernetes.io/uninitialized", value="true", effect="NoSchedule")


@in_virtual_time
async def test_a_new_claim_gets_its_finalizer_then_its_instance(cluster: VirtualCluster) -> None:
    """OPS-L1, OPS-003, OPS-005, OPS-007, OPS-011, OPS-013, API-139: the finalizer comes before the instance."""
    await launched(cluster, metadata={"labels": {"mine": "yes"}, "annotations": {"from": "user"}})
    claim = await cluster.get_claim()
    assert claim.metadata.finalizers == (labels.TERMINATION_FINALIZER,)
    assert claim.status.provider_id == cluster.cloud.launched[0]
    assert claim.status.image_id == "image-1"
    assert claim.status.capacity["cpu"] == "4"
    assert claim.status.allocatable["memory"]
    assert claim.metadata.labels == {
        "mine": "yes",
        "karpenter.kwok.sh/kwoknodeclass": "default",
        labels.INSTANCE_TYPE: "t3",
        labels.ZONE: "z1",
        labels.CAPACITY_TYPE: "on-demand",
    }
    assert claim.metadata.annotations["from"] == "cloud"
    assert await cluster.condition("c", "Launched") == ("True", "Launched", "")
    assert cluster.writes("NodeClaim") == ["patch NodeClaim", "patch NodeClaim", "patch NodeClaim/status"]
    assert cluster.connection.writes[0].body == {"metadata": {"finalizers": [labels.TERMINATION_FINALIZER]}}
    line = cluster.lines("launched nodeclaim")[0]
    assert line["NodeClaim"] == {"name": "c"}
    assert line["provider-id"] == claim.status.provider_id
    assert (line["instance-type"], line["zone"], line["capacity-type"]) == ("t3", "z1", "on-demand")


@in_virtual_time
async def test_a_launch_is_counted_once_by_instance_type(cluster: VirtualCluster) -> None:
    """OPS-810: a counter with the instance type, from which a timeline of launches can be drawn."""
    await launched(cluster, pool="np")
    await asyncio.sleep(600)
    counted = Scrape(render_sync(cluster.manager.metrics.registry))
    expected = {"instance_type": "t3", "zone": "z1", "capacity_type": "on-demand", "nodepool": "np"}
    assert counted.value("karpenter_nodeclaims_launched_total", **expected) == 1
    assert counted.total("karpenter_nodeclaims_launched_total") == 1


FOREIGN = NodeClassReference(group="other.example", kind="OtherClass", name="default")


@in_virtual_time
async def test_a_claim_of_a_class_we_do_not_serve_is_left_alone(cluster: VirtualCluster) -> None:
    """OPS-L2, OPS-002: in every step, from launch to expiration, and in the end; its Node and the pods there as well."""
    await cluster.start()
    await cluster.claim(node_class_ref=FOREIGN, expire_after="30s", pool="np")
    other_instance = {"providerID": "other://instance", "capacity": {"cpu": "64"}}
    await cluster.edit(kinds.NODE_CLAIM, "c", other_instance)
    node = await cluster.join()
    await cluster.running("busy", node.metadata.name)
    before = await cluster.get_claim()
    await asyncio.sleep(3600)
    assert await cluster.get_claim() == before
    assert await cluster.get_node() == node
    await cluster.edit(kinds.NODE_CLAIM, "c", finalizers=["example.com/hold"])
    await cluster.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(60)
    assert {call[0] for call in cluster.cloud.calls} <= {"list", "instance_types"}
    assert [text for text in cluster.writes() if not text.endswith("Lease")] == []
    assert [line["NodeClaim"] for line in cluster.lines() if "NodeClaim" in line] == []


@in_virtual_time
async def test_a_class_is_known_by_group_and_kind_whatever_its_name(cluster: VirtualCluster) -> None:
    """OPS-002"""
    await launched(cluster, node_class_ref=msgspec.structs.replace(NODE_CLASS, name="another"))
    assert (await cluster.condition("c", "Launched") or ("",))[0] == "True"


@in_virtual_time
async def test_a_claim_keeps_the_labels_it_came_with(cluster: VirtualCluster) -> None:
    """OPS-011: of two values the claim's label wins, the provider's annotation does."""
    await launched(cluster, metadata={"labels": {labels.ZONE: "mine"}})
    assert (await cluster.get_claim()).metadata.labels[labels.ZONE] == "mine"


@in_virtual_time
async def test_a_claim_without_a_pool_lives_like_any_other(cluster: VirtualCluster) -> None:
    """OPS-104, API-140: no pool health and no consolidation."""
    await cluster.node_class()
    await cluster.pool()
    await registered(cluster)
    await asyncio.sleep(600)
    claim = await cluster.get_claim()
    assert conditions.is_true(claim.status.conditions, "Ready")
    assert {condition.type for condition in claim.status.conditions} == {
        "Launched",
        "Registered",
        "Initialized",
        "Ready",
        "ConsistentStateFound",
    }
    assert (await cluster.pool_condition("NodeRegistrationHealthy"))[0] == "Unknown"
    assert cluster.counted("nodes_created_total", nodepool="", zone="z1") == 1


@pytest.mark.parametrize(
    ("error", "event", "reason"),
    [
        (NodeClassNotReady("class is broken"), "NodeClassNotReady", "nodeclass_not_ready"),
        (InsufficientCapacity("all gone"), "InsufficientCapacityError", "insufficient_capacity"),
    ],
    ids=["OPS-L3-class-not-ready", "OPS-014-no-capacity"],
)
@in_virtual_time
async def test_a_claim_that_cannot_be_launched_goes_without_back_off(
    cluster: VirtualCluster, error: ProviderError, event: str, reason: str
) -> None:
    """OPS-L3, OPS-014, OPS-015, OPS-017, OPS-506, OPS-546, DIS-363, DIS-364, API-S092: the claim is deleted."""
    cluster.cloud.refuse("create", error)
    await launched(cluster)
    assert not await cluster.has(kinds.NODE_CLAIM, "c")
    assert cluster.cloud.launched == []
    warnings = [
        stored_event for stored_event in await cluster.events(about="NodeClaim") if stored_event.type == "Warning"
    ]
    assert [(warning.reason, warning.message) for warning in warnings] == [(event, f"NodeClaim c event: {error}")]
    assert cluster.ended_for(reason) == 1
    assert cluster.lines("failed launching nodeclaim")[0]["level"] == "ERROR"
    assert cluster.lines("Reconciler error") == []


@in_virtual_time
async def test_the_pods_planned_on_a_claim_that_cannot_be_launched_get_events(cluster: VirtualCluster) -> None:
    """K15-380, K15-493"""
    await cluster.node_class()
    await cluster.pool()
    cluster.cloud.refuse("create", InsufficientCapacity("all gone"))
    await cluster.start()
    await cluster.waiting(pod("p", {"cpu": "1"}))
    await until(lambda: _has_event(cluster, "p"), 30)
    (told,) = await cluster.events("InsufficientCapacityError", "p")
    assert told.type == "Warning"
    assert told.message.startswith("NodeClaim np-")
    assert told.message.endswith(" nominated for this pod failed to launch: insufficient capacity, all gone")


async def _has_event(cluster: VirtualCluster, about: str) -> bool:
    return bool(await cluster.events("InsufficientCapacityError", about))


@in_virtual_time
async def test_a_refused_launch_shows_the_clouds_reason_and_is_tried_again(cluster: VirtualCluster) -> None:
    """OPS-L4, OPS-016"""
    cluster.cloud.refuse("create", LaunchFailed("CustomReason", "instance creation failed"))
    await launched(cluster)
    status, reason, message = await cluster.condition("c", "Launched") or ("", "", "")
    assert (status, reason, message) == ("Unknown", "CustomReason", "instance creation failed")
    assert cluster.lines("Reconciler error")[0]["controller"] == "nodeclaim.lifecycle"
    await asyncio.sleep(2)
    assert len(cluster.cloud.launched) == 1


@in_virtual_time
async def test_a_reason_no_condition_can_have_does_not_keep_the_refusal_from_being_written(
    cluster: VirtualCluster,
) -> None:
    """OPS-016, API-607"""
    cluster.cloud.refuse("create", LaunchFailed("not a reason!", "no quota"))
    await launched(cluster)
    assert await cluster.condition("c", "Launched") == ("Unknown", "LaunchFailed", "not a reason!: no quota")


@in_virtual_time
async def test_a_long_error_of_the_cloud_is_cut(cluster: VirtualCluster) -> None:
    """OPS-L5, API-120, API-S091, K15-381: it has 1024 characters in all, with the dots."""
    cluster.cloud.refuse("create", ProviderError("x" * 2000))
    await launched(cluster)
    assert await cluster.condition("c", "Launched") == ("Unknown", "LaunchFailed", "x" * 1021 + "...")


@in_virtual_time
async def test_a_cloud_that_words_every_refusal_differently_is_not_asked_without_pause(cluster: VirtualCluster) -> None:
    """A new message is a write, a write wakes the claim; the cloud must still be asked with growing pauses only."""
    cluster.cloud.refuse("create", *(LaunchFailed("Denied", f"request {number}") for number in range(500)))
    await launched(cluster)
    await asyncio.sleep(60)
    asked = [call for call in cluster.cloud.calls if call[0] == "create"]
    assert 4 <= len(asked) <= 8


@in_virtual_time
async def test_the_instance_that_joins_becomes_the_claims_node(cluster: VirtualCluster) -> None:
    """OPS-L6, OPS-L16, OPS-001, OPS-024, OPS-026, OPS-028, OPS-045: the Node's arrival alone brings the claim on."""
    await registered(cluster, pool="np")
    claim, node = await cluster.get_claim(), await cluster.get_node()
    assert claim.status.node_name == "node-c"
    assert await cluster.condition("c", "Registered") == ("True", "Registered", "")
    assert node.metadata.labels[labels.REGISTERED] == "true"
    assert node.metadata.labels[labels.NODE_POOL] == "np"
    assert node.metadata.labels["karpenter.kwok.sh/kwoknodeclass"] == "default"
    assert labels.UNREGISTERED_TAINT not in node.spec.taints
    assert node.metadata.finalizers == (labels.TERMINATION_FINALIZER,)
    owner = node.metadata.owner_references[0]
    assert (owner.kind, owner.name, owner.uid, owner.block_owner_deletion) == (
        "NodeClaim",
        "c",
        claim.metadata.uid,
        True,
    )
    line = cluster.lines("registered nodeclaim")[0]
    assert line["Node"] == {"name": "node-c"}
    assert line["provider-id"] == claim.status.provider_id


@in_virtual_time
async def test_an_owner_that_is_there_already_is_not_added_twice(cluster: VirtualCluster) -> None:
    """OPS-L7"""
    await launched(cluster)
    uid = (await cluster.get_claim()).metadata.uid
    owner_reference = OwnerReference(api_version="karpenter.sh/v1", kind="NodeClaim", name="c", uid=uid)
    await cluster.join(owner_references=(owner_reference,))
    await asyncio.sleep(0.1)
    assert (await cluster.get_node()).metadata.owner_references == (owner_reference,)


@in_virtual_time
async def test_a_node_without_the_unregistered_taint_registers_with_a_warning(cluster: VirtualCluster) -> None:
    """OPS-L8, OPS-023, API-S086, OPS-507: an event and a log line say so."""
    await launched(cluster)
    await cluster.join(taints=())
    await asyncio.sleep(5)
    assert await cluster.condition("c", "Registered") == ("True", "Registered", "")
    events = await cluster.events("UnregisteredTaintMissing")
    assert [(event.type, event.involved_object.kind) for event in events] == [("Warning", "NodeClaim")]
    assert cluster.lines("node claim registration error")[0]["taint"] == "karpenter.sh/unregistered"


@in_virtual_time
async def test_a_label_that_the_kubelet_may_not_set_comes_with_registration(cluster: VirtualCluster) -> None:
    """AWS-929: restricted labels are no part of the user data; the claim's are copied to the Node, as for EKS."""
    role = "node-role.kubernetes.io/worker"
    await launched(cluster, metadata={"labels": {role: "yes"}})
    await cluster.join()
    await asyncio.sleep(0.1)
    assert (await cluster.get_node()).metadata.labels[role] == "yes"


@pytest.mark.parametrize(
    ("value", "copied"),
    [("", True), ("false", True), ("true", False)],
    ids=["OPS-L9", "OPS-L11-not-true", "OPS-L10-true"],
)
@in_virtual_time
async def test_registration_copies_what_the_claim_says(cluster: VirtualCluster, value: str, copied: bool) -> None:
    """Labels, annotations and taints; the unregistered taint goes.

    OPS-L9, OPS-L10, OPS-L11, OPS-024, OPS-025, API-141, API-470, API-S090
    """
    own = NodePoolTaint(key="own", effect="NoSchedule", value="claim")
    await launched(
        cluster,
        taints=(own, NodePoolTaint(key="kept", effect="NoSchedule", value="claim")),
        startup_taints=(startup("starting"),),
        metadata={"labels": {"team": "a"}, "annotations": {"note": "claim"}},
    )
    kept = Taint(key="kept", effect="NoSchedule", value="node")
    await cluster.join(
        labels={"team": "b", "disk": "fast", **({labels.DO_NOT_SYNC_TAINTS: value} if value else {})},
        annotations={"kubelet": "yes"},
        taints=(labels.UNREGISTERED_TAINT, kept),
    )
    await asyncio.sleep(0.1)
    node = await cluster.get_node()
    assert (node.metadata.labels["team"], node.metadata.labels["disk"]) == ("a", "fast")
    assert (node.metadata.annotations["note"], node.metadata.annotations["kubelet"]) == ("claim", "yes")
    actual = [taint.key for taint in node.spec.taints]
    assert actual == (["kept", "own", "starting"] if copied else ["kept"])
    assert kept in node.spec.taints


@in_virtual_time
async def test_a_startup_taint_that_was_removed_stays_away(cluster: VirtualCluster) -> None:
    """OPS-L12, OPS-L19, OPS-027, OPS-042; API-S088, API-122: Initialized is Unknown until the startup taint is gone."""
    await registered(cluster, startup_taints=(startup("starting"),))
    assert await cluster.condition("c", "Initialized") == (
        "Unknown",
        "StartupTaintsExist",
        'StartupTaint "starting:NoSchedule" still exists',
    )
    await cluster.set_taints("node-c", ())
    await asyncio.sleep(30)
    node = await cluster.get_node()
    assert node.spec.taints == ()
    assert node.metadata.labels[labels.INITIALIZED] == "true"
    assert await cluster.condition("c", "Initialized") == ("True", "Initialized", "")
    assert (await cluster.condition("c", "Ready") or ("",))[0] == "True"
    assert cluster.lines("initialized nodeclaim")[0]["allocatable"]["cpu"] == "4"


@in_virtual_time
async def test_a_node_that_is_not_ready_is_not_initialised(cluster: VirtualCluster) -> None:
    """OPS-L17"""
    await launched(cluster)
    await cluster.join(ready="False")
    await asyncio.sleep(0.1)
    assert await cluster.condition("c", "Initialized") == ("Unknown", "NodeNotReady", "Node status is NotReady")
    await cluster.set_ready("node-c", "True")
    await asyncio.sleep(0.1)
    assert await cluster.condition("c", "Initialized") == ("True", "Initialized", "")


@in_virtual_time
async def test_a_requested_device_is_waited_for_and_others_are_not(cluster: VirtualCluster) -> None:
    """OPS-L18, OPS-043, API-S089: a resource counts once the Node has it."""
    await launched(cluster, requests={"example.com/gpu": "1"})
    await cluster.join(amounts={"example.com/gpu": "0", "example.com/nic": "0"})
    await asyncio.sleep(0.1)
    expected = ("Unknown", "ResourceNotRegistered", 'Resource "example.com/gpu" was requested but not registered')
    assert await cluster.condition("c", "Initialized") == expected
    amounts = {"status": {"allocatable": {"example.com/gpu": "1"}}}
    await cluster.kube.patch(kinds.NODE, "node-c", amounts, subresource="status")
    await asyncio.sleep(0.1)
    assert await cluster.condition("c", "Initialized") == ("True", "Initialized", "")


@pytest.mark.parametrize(
    ("taint", "waits"),
    [
        (UNINITIALIZED, True),
        (Taint(key="readiness.k8s.io/network", effect="NoSchedule"), True),
        (Taint(key="foo/readiness.k8s.io/bar", effect="NoSchedule"), False),
        (Taint(key="node.kubernetes.io/not-ready", effect="NoExecute"), True),
    ],
    ids=["OPS-L20", "OPS-041-prefix", "OPS-L21", "OPS-041-not-ready"],
)
@in_virtual_time
async def test_taints_that_will_go_by_themselves_hold_initialisation(
    cluster: VirtualCluster, taint: Taint, waits: bool
) -> None:
    """OPS-L20, OPS-L21, OPS-041, API-472: only known ephemeral taints do."""
    await launched(cluster)
    await cluster.join(taints=(labels.UNREGISTERED_TAINT, taint))
    await asyncio.sleep(0.1)
    status, reason, _ = await cluster.condition("c", "Initialized") or ("", "", "")
    assert (status, reason) == (("Unknown", "KnownEphemeralTaintsExist") if waits else ("True", "Initialized"))


@in_virtual_time
async def test_a_claim_without_a_node_is_neither_registered_nor_initialised(cluster: VirtualCluster) -> None:
    """OPS-L22, OPS-021, API-121: both conditions say that the Node is missing."""
    await launched(cluster)
    assert await cluster.condition("c", "Registered") == (
        "Unknown",
        "NodeNotFound",
        "Node not registered with cluster",
    )
    assert (await cluster.condition("c", "Initialized") or ("", ""))[:2] == ("Unknown", "AwaitingReconciliation")


@in_virtual_time
async def test_a_second_node_of_the_same_instance_is_waited_out(cluster: VirtualCluster) -> None:
    """API-S087, OPS-022 and its Beyond"""
    await launched(cluster)
    await cluster.stop()
    for name in ("one", "two", "three"):
        await cluster.join("c", name)
    await cluster.start()
    await asyncio.sleep(0.1)
    assert (await cluster.condition("c", "Registered") or ())[:2] == ("False", "MultipleNodesFound")
    await cluster.kube.delete(kinds.NODE, "one")
    await cluster.kube.delete(kinds.NODE, "three")
    await asyncio.sleep(0.1)
    assert (await cluster.condition("c", "Registered") or ())[0] == "True"


class Failing:
    """A step of a reconcile that fails, or asks for another one after so many seconds."""

    def __init__(self, error: Exception | None = None, seconds: float | None = None) -> None:
        self._error, self._seconds = error, seconds

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        if self._seconds is not None:
            draft.requeue_after(self._seconds)
        if self._error is not None:
            raise self._error

    def forget(self, name: str) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param((Failing(seconds=9), Failing(), Failing(seconds=3)), 3.0, id="the-soonest"),
        pytest.param((Failing(seconds=9), Failing(seconds=0)), 0.001, id="at-once"),
        pytest.param((Failing(), Failing()), None, id="nothing"),
        pytest.param((Failing(ProviderError("a")), Failing(seconds=3)), "a", id="an-error-wins"),
        pytest.param((Failing(ProviderError("a")), Failing(ProviderError("b"))), "a; b", id="errors-together"),
        pytest.param(
            (Failing(Forbidden("a")), Failing(Forbidden("b"))), "a; b", id="errors-of-the-api-server-together"
        ),
        pytest.param((Failing(Forbidden("a")), Failing(ProviderError("b"))), "a; b", id="errors-of-both-together"),
        pytest.param((Failing(Forbidden("a")), Failing(Forbidden("a"))), "a", id="the-same-error-once"),
        pytest.param((Failing(Forbidden("a")), Failing(Conflict("b"))), "a", id="a-conflict-is-no-error"),
    ],
)
@in_virtual_time
async def test_the_result_of_a_reconcile_is_all_errors_or_the_soonest_requeue(
    cluster: VirtualCluster, steps: tuple[Failing, ...], expected: float | str | None
) -> None:
    """OPS-006: an immediate requeue wins over all others; here it comes a millisecond later."""
    await cluster.start()
    assert cluster.manager is not None
    lifecycle = cluster.manager._lifecycle
    lifecycle._subreconcilers = steps
    draft = NodeClaimDraft(claim("c", {}), cluster.clock.now())
    await lifecycle._run_subreconcilers(draft)
    if isinstance(expected, str):
        with pytest.raises((ProviderError, KubeError)) as raised:
            _requeue_after(draft)
        assert str(raised.value) == expected
    else:
        assert _requeue_after(draft) == expected
