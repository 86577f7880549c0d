"""The life of a NodeClaim: launch, registration, initialisation, liveness (OPS §1)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import msgspec
import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import NodeClassReference, NodePoolTaint
from karpenter.api.meta import OwnerReference
from karpenter.api.scheduling_constraints import Taint
from karpenter.kube.errors import Conflict, Invalid, ServerUnavailable, TooManyRequests
from karpenter.metrics import Metrics
from karpenter.model import conditions, labels
from karpenter.nodeclaim.lifecycle import NodeClaimLifecycle
from karpenter.nodeclaim.liveness import LivenessTimeouts
from karpenter.providers.contract import InsufficientCapacity, LaunchFailed, NodeClassNotReady, ProviderError
from karpenter.provisioning.nomination import DisabledNominator
from karpenter.runtime.controller_context import ControllerContext as ActWorld
from karpenter.runtime.events import EventRecorder
from karpenter.state import ClusterState
from karpenter.termination.instance_termination import InstanceTermination
from support.builders import NODE_CLASS
from support.world import World, refusing, startup, story

UNINITIALIZED = Taint(key="node.cloudprovider.kubernetes.io/uninitialized", value="true", effect="NoSchedule")


async def launched(world: World, **fields: object) -> None:
    """A running controller and one claim with its machine bought."""
    await world.start()
    await world.claim(**fields)  # type: ignore[arg-type]
    await asyncio.sleep(0.1)


def apart(world: World) -> ActWorld:
    """What actions need, without a controller around it."""
    recorder = EventRecorder(world.kube, world.clock)
    return ActWorld(world.kube, world.cloud, ClusterState(), world.clock, recorder, Metrics())


async def registered(world: World, **fields: object) -> None:
    await launched(world, **fields)
    await world.join()
    await asyncio.sleep(0.1)


@story
async def test_a_new_claim_gets_its_finalizer_then_its_instance(world: World) -> None:
    """OPS-L1, OPS-003, OPS-005, OPS-007, OPS-011, OPS-013, API-139: the finalizer comes before the instance."""
    await launched(world, metadata={"labels": {"mine": "yes"}, "annotations": {"from": "user"}})
    claim = await world.get_claim()
    assert claim.metadata.finalizers == (labels.TERMINATION_FINALIZER,)
    assert claim.status.provider_id == world.cloud.bought[0]
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
    assert await world.condition("c", "Launched") == ("True", "Launched", "")
    assert world.writes("NodeClaim") == ["patch NodeClaim", "patch NodeClaim", "patch NodeClaim/status"]
    assert world.wire.writes[0].body == {"metadata": {"finalizers": [labels.TERMINATION_FINALIZER]}}
    line = world.lines("launched nodeclaim")[0]
    assert line["NodeClaim"] == {"name": "c"}
    assert line["provider-id"] == claim.status.provider_id
    assert (line["instance-type"], line["zone"], line["capacity-type"]) == ("t3", "z1", "on-demand")


FOREIGN = NodeClassReference(group="other.example", kind="OtherClass", name="default")


@story
async def test_a_claim_of_a_class_we_do_not_serve_is_left_alone(world: World) -> None:
    """OPS-L2, OPS-002: in every step, from launch to expiration, and in the end; its Node and the pods there as well."""
    await world.start()
    await world.claim(node_class_ref=FOREIGN, expire_after="30s", pool="np")
    machine = {"providerID": "other://machine", "capacity": {"cpu": "64"}}
    await world.edit(kinds.NODE_CLAIM, "c", machine)
    node = await world.join()
    await world.running("busy", node.metadata.name)
    before = await world.get_claim()
    await asyncio.sleep(3600)
    assert await world.get_claim() == before
    assert await world.get_node() == node
    await world.edit(kinds.NODE_CLAIM, "c", finalizers=["example.com/hold"])
    await world.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(60)
    assert {call[0] for call in world.cloud.calls} <= {"list", "instance_types"}
    assert [text for text in world.writes() if not text.endswith("Lease")] == []
    assert [line["NodeClaim"] for line in world.lines() if "NodeClaim" in line] == []


@story
async def test_a_class_is_known_by_group_and_kind_whatever_its_name(world: World) -> None:
    """OPS-002"""
    await launched(world, node_class_ref=msgspec.structs.replace(NODE_CLASS, name="another"))
    assert (await world.condition("c", "Launched") or ("",))[0] == "True"


@story
async def test_a_claim_keeps_the_labels_it_came_with(world: World) -> None:
    """OPS-011: of two values the claim's label wins, the provider's annotation does."""
    await launched(world, metadata={"labels": {labels.ZONE: "mine"}})
    assert (await world.get_claim()).metadata.labels[labels.ZONE] == "mine"


@story
async def test_a_claim_without_a_pool_lives_like_any_other(world: World) -> None:
    """OPS-104, API-140: no pool health and no consolidation."""
    await world.node_class()
    await world.pool()
    await registered(world)
    await asyncio.sleep(600)
    claim = await world.get_claim()
    assert conditions.is_true(claim.status.conditions, "Ready")
    assert {condition.type for condition in claim.status.conditions} == {
        "Launched",
        "Registered",
        "Initialized",
        "Ready",
        "ConsistentStateFound",
    }
    assert (await world.pool_condition("NodeRegistrationHealthy"))[0] == "Unknown"
    assert world.counted("nodes_created_total", nodepool="", zone="z1") == 1


@pytest.mark.parametrize(
    ("error", "event", "reason"),
    [
        (NodeClassNotReady("class is broken"), "NodeClassNotReady", "nodeclass_not_ready"),
        (InsufficientCapacity("all gone"), "InsufficientCapacityError", "insufficient_capacity"),
    ],
    ids=["OPS-L3-class-not-ready", "OPS-014-no-capacity"],
)
@story
async def test_a_claim_that_cannot_be_bought_goes_without_back_off(
    world: World, error: ProviderError, event: str, reason: str
) -> None:
    """OPS-L3, OPS-014, OPS-015, OPS-017, OPS-506, OPS-546, DIS-363, DIS-364, API-S092: the claim is deleted."""
    world.cloud.refuse("create", error)
    await launched(world)
    assert not await world.has(kinds.NODE_CLAIM, "c")
    assert world.cloud.bought == []
    warnings = [
        stored_event for stored_event in await world.events(about="NodeClaim") if stored_event.type == "Warning"
    ]
    assert [(warning.reason, warning.message) for warning in warnings] == [(event, f"NodeClaim c event: {error}")]
    assert world.ended_for(reason) == 1
    assert world.lines("failed launching nodeclaim")[0]["level"] == "ERROR"
    assert world.lines("Reconciler error") == []


@story
async def test_a_refused_launch_shows_the_clouds_reason_and_is_tried_again(world: World) -> None:
    """OPS-L4, OPS-016"""
    world.cloud.refuse("create", LaunchFailed("CustomReason", "instance creation failed"))
    await launched(world)
    status, reason, message = await world.condition("c", "Launched") or ("", "", "")
    assert (status, reason, message) == ("Unknown", "CustomReason", "instance creation failed")
    assert world.lines("Reconciler error")[0]["controller"] == "nodeclaim.lifecycle"
    await asyncio.sleep(2)
    assert len(world.cloud.bought) == 1


@story
async def test_a_reason_no_condition_can_have_does_not_keep_the_refusal_from_being_written(world: World) -> None:
    """OPS-016, API-607"""
    world.cloud.refuse("create", LaunchFailed("not a reason!", "no quota"))
    await launched(world)
    assert await world.condition("c", "Launched") == ("Unknown", "LaunchFailed", "not a reason!: no quota")


@story
async def test_a_long_error_of_the_cloud_is_cut(world: World) -> None:
    """OPS-L5, API-120, API-S091: 300 characters are kept."""
    world.cloud.refuse("create", ProviderError("x" * 450))
    await launched(world)
    assert await world.condition("c", "Launched") == ("Unknown", "LaunchFailed", "x" * 300 + "...")


@story
async def test_a_cloud_that_words_every_refusal_differently_is_not_asked_without_pause(world: World) -> None:
    """A new message is a write, a write wakes the claim; the cloud must still be asked with growing pauses only."""
    world.cloud.refuse("create", *(LaunchFailed("Denied", f"request {number}") for number in range(500)))
    await launched(world)
    await asyncio.sleep(60)
    asked = [call for call in world.cloud.calls if call[0] == "create"]
    assert 4 <= len(asked) <= 8


@story
async def test_the_instance_that_joins_becomes_the_claims_node(world: World) -> None:
    """OPS-L6, OPS-L16, OPS-001, OPS-024, OPS-026, OPS-028, OPS-045: the Node's arrival alone brings the claim on."""
    await registered(world, pool="np")
    claim, node = await world.get_claim(), await world.get_node()
    assert claim.status.node_name == "node-c"
    assert await world.condition("c", "Registered") == ("True", "Registered", "")
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
    line = world.lines("registered nodeclaim")[0]
    assert line["Node"] == {"name": "node-c"}
    assert line["provider-id"] == claim.status.provider_id


@story
async def test_an_owner_that_is_there_already_is_not_added_twice(world: World) -> None:
    """OPS-L7"""
    await launched(world)
    uid = (await world.get_claim()).metadata.uid
    owner_reference = OwnerReference(api_version="karpenter.sh/v1", kind="NodeClaim", name="c", uid=uid)
    await world.join(owner_references=(owner_reference,))
    await asyncio.sleep(0.1)
    assert (await world.get_node()).metadata.owner_references == (owner_reference,)


@story
async def test_a_node_without_the_unregistered_taint_registers_with_a_warning(world: World) -> None:
    """OPS-L8, OPS-023, API-S086, OPS-507: an event and a log line say so."""
    await launched(world)
    await world.join(taints=())
    await asyncio.sleep(5)
    assert await world.condition("c", "Registered") == ("True", "Registered", "")
    events = await world.events("UnregisteredTaintMissing")
    assert [(event.type, event.involved_object.kind) for event in events] == [("Warning", "NodeClaim")]
    assert world.lines("node claim registration error")[0]["taint"] == "karpenter.sh/unregistered"


@pytest.mark.parametrize(
    ("value", "copied"),
    [("", True), ("false", True), ("true", False)],
    ids=["OPS-L9", "OPS-L11-not-true", "OPS-L10-true"],
)
@story
async def test_registration_copies_what_the_claim_says(world: World, value: str, copied: bool) -> None:
    """Labels, annotations and taints; the unregistered taint goes.

    OPS-L9, OPS-L10, OPS-L11, OPS-024, OPS-025, API-141, API-470, API-S090
    """
    own = NodePoolTaint(key="own", effect="NoSchedule", value="claim")
    await launched(
        world,
        taints=(own, NodePoolTaint(key="kept", effect="NoSchedule", value="claim")),
        startup_taints=(startup("starting"),),
        metadata={"labels": {"team": "a"}, "annotations": {"note": "claim"}},
    )
    kept = Taint(key="kept", effect="NoSchedule", value="node")
    await world.join(
        labels={"team": "b", "disk": "fast", **({labels.DO_NOT_SYNC_TAINTS: value} if value else {})},
        annotations={"kubelet": "yes"},
        taints=(labels.UNREGISTERED_TAINT, kept),
    )
    await asyncio.sleep(0.1)
    node = await world.get_node()
    assert (node.metadata.labels["team"], node.metadata.labels["disk"]) == ("a", "fast")
    assert (node.metadata.annotations["note"], node.metadata.annotations["kubelet"]) == ("claim", "yes")
    actual = [taint.key for taint in node.spec.taints]
    assert actual == (["kept", "own", "starting"] if copied else ["kept"])
    assert kept in node.spec.taints


@story
async def test_a_startup_taint_that_was_removed_stays_away(world: World) -> None:
    """OPS-L12, OPS-L19, OPS-027, OPS-042; API-S088, API-122: Initialized is Unknown until the startup taint is gone."""
    await registered(world, startup_taints=(startup("starting"),))
    assert await world.condition("c", "Initialized") == (
        "Unknown",
        "StartupTaintsExist",
        'StartupTaint "starting:NoSchedule" still exists',
    )
    await world.set_taints("node-c", ())
    await asyncio.sleep(30)
    node = await world.get_node()
    assert node.spec.taints == ()
    assert node.metadata.labels[labels.INITIALIZED] == "true"
    assert await world.condition("c", "Initialized") == ("True", "Initialized", "")
    assert (await world.condition("c", "Ready") or ("",))[0] == "True"
    assert world.lines("initialized nodeclaim")[0]["allocatable"]["cpu"] == "4"


@story
async def test_a_node_that_is_not_ready_is_not_initialised(world: World) -> None:
    """OPS-L17"""
    await launched(world)
    await world.join(ready="False")
    await asyncio.sleep(0.1)
    assert await world.condition("c", "Initialized") == ("Unknown", "NodeNotReady", "Node status is NotReady")
    await world.set_ready("node-c", "True")
    await asyncio.sleep(0.1)
    assert await world.condition("c", "Initialized") == ("True", "Initialized", "")


@story
async def test_a_requested_device_is_waited_for_and_others_are_not(world: World) -> None:
    """OPS-L18, OPS-043, API-S089: a resource counts once the Node has it."""
    await launched(world, requests={"example.com/gpu": "1"})
    await world.join(amounts={"example.com/gpu": "0", "example.com/nic": "0"})
    await asyncio.sleep(0.1)
    expected = ("Unknown", "ResourceNotRegistered", 'Resource "example.com/gpu" was requested but not registered')
    assert await world.condition("c", "Initialized") == expected
    amounts = {"status": {"allocatable": {"example.com/gpu": "1"}}}
    await world.kube.patch(kinds.NODE, "node-c", amounts, subresource="status")
    await asyncio.sleep(0.1)
    assert await world.condition("c", "Initialized") == ("True", "Initialized", "")


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
@story
async def test_taints_that_will_go_by_themselves_hold_initialisation(world: World, taint: Taint, waits: bool) -> None:
    """OPS-L20, OPS-L21, OPS-041, API-472: only known ephemeral taints do."""
    await launched(world)
    await world.join(taints=(labels.UNREGISTERED_TAINT, taint))
    await asyncio.sleep(0.1)
    status, reason, _ = await world.condition("c", "Initialized") or ("", "", "")
    assert (status, reason) == (("Unknown", "KnownEphemeralTaintsExist") if waits else ("True", "Initialized"))


@story
async def test_a_claim_without_a_node_is_neither_registered_nor_initialised(world: World) -> None:
    """OPS-L22, OPS-021, API-121: both conditions say that the Node is missing."""
    await launched(world)
    assert await world.condition("c", "Registered") == (
        "Unknown",
        "NodeNotFound",
        "Node not registered with cluster",
    )
    assert (await world.condition("c", "Initialized") or ("", ""))[:2] == ("Unknown", "AwaitingReconciliation")


@story
async def test_a_second_node_of_the_same_instance_is_waited_out(world: World) -> None:
    """API-S087, OPS-022 and its Beyond"""
    await launched(world)
    await world.stop()
    for name in ("one", "two", "three"):
        await world.join("c", name)
    await world.start()
    await asyncio.sleep(0.1)
    assert (await world.condition("c", "Registered") or ())[:2] == ("False", "MultipleNodesFound")
    await world.kube.delete(kinds.NODE, "one")
    await world.kube.delete(kinds.NODE, "three")
    await asyncio.sleep(0.1)
    assert (await world.condition("c", "Registered") or ())[0] == "True"


@story
async def test_an_instance_that_never_joins_is_given_up(world: World) -> None:
    """OPS-L23, OPS-051, OPS-055 Beyond, DIS-362, DIS-S264: once, for one reason."""
    await launched(world)
    await asyncio.sleep(14 * 60)
    assert await world.has(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(61 + 10)
    assert not await world.has(kinds.NODE_CLAIM, "c")
    assert world.cloud.instances == {}
    (line,) = world.lines("terminating due to timeout")
    assert (line["reason"], line["timeout"]) == ("registration_timeout", "15m0s")
    assert world.ended_for("registration_timeout") == 1
    assert world.ended_for("launch_timeout") == 0


@story
async def test_the_time_to_register_begins_with_the_launch(world: World) -> None:
    """OPS-051 Beyond: a launch that took four minutes takes nothing from the machine's fifteen."""
    world.cloud.refuse("create", *(ProviderError("not yet") for _ in range(8)))
    await world.start()
    await world.claim()
    while not world.cloud.bought:
        await asyncio.sleep(1)
    assert world.elapsed > 120
    at = world.elapsed
    await asyncio.sleep(14.8 * 60)
    assert (await world.get_claim()).metadata.deletion_timestamp is None
    await asyncio.sleep(20)
    assert not await world.has(kinds.NODE_CLAIM, "c")
    assert world.elapsed - at < 15.5 * 60


@story
async def test_an_instance_that_cannot_be_written_down_is_given_up_all_the_same(world: World) -> None:
    """OPS-051: nor does every new attempt start the clock anew."""
    await world.start()
    world.wire.refuse = refusing(lambda: Invalid("no such label", status=422), 10**6, "patch NodeClaim/status")
    await world.claim()
    await asyncio.sleep(14 * 60)
    assert (await world.get_claim()).metadata.deletion_timestamp is None
    await asyncio.sleep(3 * 60)
    assert world.ended_for("registration_timeout") == 1
    world.wire.refuse = lambda write: None
    await asyncio.sleep(70)
    assert not await world.has(kinds.NODE_CLAIM, "c")
    assert world.cloud.instances == {}


@story
async def test_a_registered_claim_is_never_given_up(world: World) -> None:
    """OPS-L24, OPS-052"""
    await registered(world)
    await asyncio.sleep(20 * 60)
    assert await world.has(kinds.NODE_CLAIM, "c")
    assert await world.has(kinds.NODE, "node-c")


@story
async def test_a_launch_that_keeps_failing_is_given_up(world: World) -> None:
    """OPS-L25, OPS-050, DIS-361, API-142, DIS-040: after five minutes."""
    world.cloud.refuse("create", *(ProviderError("no") for _ in range(1000)))
    await launched(world)
    await asyncio.sleep(60)
    assert await world.has(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(5 * 60)
    assert not await world.has(kinds.NODE_CLAIM, "c")
    (line,) = world.lines("terminating due to timeout")
    assert (line["reason"], line["timeout"]) == ("launch_timeout", "5m0s")
    assert world.ended_for("launch_timeout") == 1


@pytest.mark.parametrize("step", ["launch", "registration"])
@story
async def test_how_long_a_claim_may_take_can_be_chosen(world: World, step: str) -> None:
    """OPS §1.6 Beyond"""
    if step == "launch":
        world.cloud.refuse("create", *(ProviderError("no") for _ in range(1000)))
    own = apart(world)
    lifecycle = NodeClaimLifecycle(
        own,
        DisabledNominator(),
        InstanceTermination(own),
        LivenessTimeouts(timedelta(minutes=30), timedelta(minutes=40)),
    )
    await world.claim(metadata={"finalizers": (labels.TERMINATION_FINALIZER,)})
    limit = 30 if step == "launch" else 40
    for minute in range(limit + 1):
        own.state.set_claim(await world.get_claim())
        with suppress(ProviderError):
            await lifecycle.reconcile("c")
        gone = (await world.get_claim()).metadata.deletion_timestamp is not None
        assert gone is (minute == limit)
        await asyncio.sleep(60)


@story
async def test_who_writes_an_odd_claim_by_hand_is_told(world: World) -> None:
    """API-028: legal, and probably not meant."""
    await launched(world, expire_after="99999999999h")
    (event,) = await world.events("NodeClaimAdvice")
    assert (event.type, event.involved_object.name) == ("Warning", "c")
    assert "spec.expireAfter" in event.message


@story
async def test_a_claim_the_watch_still_shows_after_it_was_given_up_is_counted_once(world: World) -> None:
    """OPS-050: whatever wakes a look at an old picture of it."""
    world.cloud.refuse("create", *(InsufficientCapacity("none") for _ in range(5)))
    own = apart(world)
    metrics = own.metrics
    lifecycle = NodeClaimLifecycle(own, DisabledNominator(), InstanceTermination(own))
    own.state.set_claim(await world.claim(metadata={"finalizers": (labels.TERMINATION_FINALIZER,)}))
    for _ in range(5):
        await lifecycle.reconcile("c")
        await asyncio.sleep(5)
    assert [call for call in world.cloud.calls if call[0] == "create"] == [("create", "c")]
    described = {"reason": "insufficient_capacity", "nodepool": "", "capacity_type": ""}
    modes = {"consolidation_policy": "", "termination_mode": "graceful"}
    count = metrics.registry.get_sample_value("karpenter_nodeclaims_disrupted_total", {**described, **modes})
    assert count == 1


@pytest.mark.parametrize(
    ("launches", "minutes"), [(False, 12), (True, 16)], ids=["OPS-L26-launch", "OPS-L26-registration"]
)
@story
async def test_a_condition_that_changed_late_starts_its_clock_late(world: World, launches: bool, minutes: int) -> None:
    """OPS-L26, OPS-053"""
    if not launches:
        world.cloud.refuse("create", *(ProviderError("no") for _ in range(1000)))
    await launched(world)
    claim = await world.get_claim()
    late = [
        msgspec.structs.replace(condition, last_transition_time=world.clock.now() + timedelta(minutes=10))
        for condition in claim.status.conditions
    ]
    status = {"status": {"conditions": msgspec.to_builtins(late)}}
    await world.kube.patch(kinds.NODE_CLAIM, "c", status, subresource="status")
    await asyncio.sleep(minutes * 60)
    assert await world.has(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(12 * 60)
    assert not await world.has(kinds.NODE_CLAIM, "c")


@story
async def test_a_new_generation_is_observed_by_every_condition(world: World) -> None:
    """OPS-L28, OPS-010, OPS-020"""
    await registered(world)
    claim = await world.get_claim()
    older = [msgspec.structs.replace(condition, observed_generation=0) for condition in claim.status.conditions]
    status = {"status": {"conditions": msgspec.to_builtins(older)}}
    await world.kube.patch(kinds.NODE_CLAIM, "c", status, subresource="status")
    await asyncio.sleep(1)
    claim = await world.get_claim()
    assert {condition.observed_generation for condition in claim.status.conditions} == {claim.metadata.generation}
    assert conditions.is_true(claim.status.conditions, "Ready")


WRITTEN = ("patch NodeClaim", "patch NodeClaim/status", "patch Node")


@pytest.mark.parametrize("shown", WRITTEN)
@pytest.mark.parametrize(
    "error",
    [
        lambda: Conflict("changed", status=409),
        lambda: ServerUnavailable("broken", status=500),
        lambda: TooManyRequests("slow down"),
    ],
    ids=["409", "500", "429"],
)
@pytest.mark.parametrize("times", [1, 3])
@story
async def test_a_refused_write_costs_nothing_but_time(world: World, shown: str, error: object, times: int) -> None:
    """OPS-008, OPS-012: whatever write is refused, the claim gets there with one machine."""
    await world.start()
    world.wire.refuse = refusing(error, times, shown)  # type: ignore[arg-type]
    await world.claim()
    await asyncio.sleep(20)
    await world.join()
    await asyncio.sleep(30)
    claim = await world.get_claim()
    assert all(condition.status == "True" for condition in claim.status.conditions)
    assert len(world.cloud.bought) == 1


@story
async def test_an_answer_of_the_cloud_survives_a_lost_write(world: World) -> None:
    """OPS-012: the cloud is asked once, however often the result cannot be stored."""
    await world.start()
    world.wire.refuse = refusing(lambda: ServerUnavailable("broken", status=500), 3, "patch NodeClaim/status")
    await world.claim()
    await asyncio.sleep(20)
    assert [call for call in world.cloud.calls if call[0] == "create"] == [("create", "c")]
    assert (await world.condition("c", "Launched") or ())[0] == "True"


@story
async def test_a_claim_deleted_before_its_instance_was_written_down_leaves_none_behind(world: World) -> None:
    """OPS §1.8 Beyond"""
    await world.start()
    world.wire.refuse = refusing(lambda: ServerUnavailable("broken", status=500), 1000, "patch NodeClaim/status")
    await world.claim()
    await asyncio.sleep(5)
    assert len(world.cloud.instances) == 1
    await world.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(10)
    world.wire.refuse = lambda write: None
    await asyncio.sleep(60)
    assert not await world.has(kinds.NODE_CLAIM, "c")
    assert world.cloud.instances == {}


@story
async def test_another_controllers_condition_is_not_overwritten(world: World) -> None:
    """API-608: conditions are written against the version they were read at."""
    world.cloud.lingers = 0
    await world.start()
    meddled = []

    def meddle(write: object) -> None:
        if str(write) == "patch NodeClaim" and not meddled and world.cloud.bought:
            meddled.append(write)
            server = world.server
            resource = server.resource("karpenter.sh", "v1", "nodeclaims")

            def add(body: dict[str, object]) -> dict[str, object]:
                status = dict(body.get("status") or {})  # type: ignore[call-overload]
                own = {"type": "Foreign", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "X"}
                return {**body, "status": {**status, "conditions": [*status.get("conditions", []), own]}}

            server.update_status(resource, "", "c", add)  # type: ignore[arg-type]

    world.wire.refuse = meddle  # type: ignore[assignment]
    await world.claim()
    await asyncio.sleep(5)
    assert meddled
    assert (await world.condition("c", "Foreign") or ())[0] == "True"
    assert (await world.condition("c", "Launched") or ())[0] == "True"


@story
async def test_a_claim_of_the_same_name_gets_an_instance_of_its_own(world: World) -> None:
    """The memory of a launch belongs to the claim's uid (OPS-012)."""
    world.cloud.lingers = 0
    await launched(world)
    await world.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(10)
    await world.claim()
    await asyncio.sleep(1)
    first, second = world.cloud.bought
    assert first != second
    assert (await world.get_claim()).status.provider_id == second


@story
async def test_an_expired_claim_is_not_launched_first(world: World) -> None:
    """DIS-360: a controller that was away for long buys nothing for a claim whose time is over."""
    await world.claim(expire_after="30s")
    await asyncio.sleep(60)
    await world.start()
    await asyncio.sleep(5)
    assert not await world.has(kinds.NODE_CLAIM, "c")
    assert world.cloud.bought == []


@story
async def test_quantities_the_api_server_spells_anew_do_not_keep_a_claim(world: World) -> None:
    """OPS-L35: nothing is written again and again because it comes back in other words."""
    await registered(world, requests={"memory": "50000", "cpu": "1000m"})
    await asyncio.sleep(60)
    written = len(world.writes())
    await asyncio.sleep(600 - 70)
    assert len(world.writes()) == written
    await world.kube.delete(kinds.NODE_CLAIM, "c")
    await asyncio.sleep(30)
    assert not await world.has(kinds.NODE_CLAIM, "c")
    assert not await world.has(kinds.NODE, "node-c")
    assert len(world.writes()) < written + 15
