"""Machines after they were bought: reading, ending, tagging, collecting (AWS §11)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from karpenter.api.core import Node, NodeSpec
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.api.meta import ObjectMeta
from karpenter.model import labels
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import tag_list, tag_map
from karpenter.providers.aws.ec2_descriptions import (
    InstanceInfo,
    InstancePlacement,
    InstanceReservationSpecification,
    InstanceState,
    NetworkInterfaceInfo,
    StateChange,
    StateReason,
)
from karpenter.providers.aws.instance import instance_info
from karpenter.providers.aws.instance.instance_controllers import (
    EndedInstanceReporter,
    InstanceGarbageCollector,
    InstanceTagger,
    needs_tags,
)
from karpenter.providers.aws.instance.instance_provider import VISIBILITY_DELAY, InstanceTerminator, ZoneShifted
from karpenter.providers.contract import InstanceNotFound, ProviderError
from karpenter.runtime.reconciler import SingletonReconciler
from support.launch_cases import CLUSTER, START, World, claim, machine, node_class, play

OURS = {labels.NODE_POOL: "default", aws_labels.NODE_CLASS: "default", aws_labels.CLUSTER_TAG: "c"}
POOL_ONLY = {labels.NODE_POOL: "default", aws_labels.CLUSTER_TAG: "c"}


def info(name: str = "i-1", age: float = 0.0, own: dict[str, str] = OURS, **more: Any) -> InstanceInfo:
    defaults: dict[str, Any] = {
        "state": InstanceState(name="running"),
        "placement": InstancePlacement(availability_zone="a"),
        "launch_time": START - timedelta(seconds=age),
        "tags": tag_list(own),
    }
    return InstanceInfo(instance_id=name, **{**defaults, **more})


def put(world: World, *machines: InstanceInfo) -> None:
    for info_ in machines:
        world.ec2.put(info_)


# -- facts -----------------------------------------------------------------------------------------------------------------


def test_provider_ids_are_read_and_written() -> None:
    """AWS-520, AWS-465."""
    assert instance_info.parse_instance_id("aws:///us-west-2a/i-0123") == "i-0123"
    assert instance_info.provider_id_of(info("i-1")) == "aws:///a/i-1"
    for text in ("bogus", "", "aws:///i-1", "aws://x/a/i-1", "aws:///a/i-1/x"):
        with pytest.raises(instance_info.InvalidProviderId):
            instance_info.parse_instance_id(text)


BOUND = InstanceReservationSpecification(capacity_reservation_preference="capacity-reservations-only")
OPEN = InstanceReservationSpecification(capacity_reservation_preference="open")


@pytest.mark.parametrize(
    ("more", "gate", "expected"),
    [
        pytest.param({"spot_instance_request_id": "sir-1"}, True, "spot", id="AWS-523 spot"),
        pytest.param({"instance_lifecycle": "spot"}, True, "spot", id="AWS-523 Beyond"),
        pytest.param(
            {"capacity_reservation_id": "cr-1", "capacity_reservation_specification": BOUND},
            True,
            "reserved",
            id="reserved",
        ),
        pytest.param(
            {"capacity_reservation_id": "cr-1", "capacity_reservation_specification": BOUND},
            False,
            "on-demand",
            id="AWS-523 gate off",
        ),
        pytest.param(
            {"capacity_reservation_id": "cr-1", "capacity_reservation_specification": OPEN},
            True,
            "on-demand",
            id="AWS-T522",
        ),
        pytest.param({}, True, "on-demand", id="AWS-523 neither"),
    ],
)
def test_how_an_instance_is_paid_for(more: dict[str, Any], gate: bool, expected: str) -> None:
    assert instance_info.instance_capacity_type(info(**more), gate) == expected


def test_other_facts() -> None:
    """AWS-524."""
    plain = info()
    assert (instance_info.instance_tenancy(plain), instance_info.efa_interface_count(plain)) == ("default", 0)
    kinds = ("interface", "efa", "efa-only")
    rich = info(
        placement=InstancePlacement(availability_zone="a", tenancy="dedicated"),
        network_interfaces=tuple(NetworkInterfaceInfo(interface_type=kind) for kind in kinds),
    )
    assert (instance_info.instance_tenancy(rich), instance_info.efa_interface_count(rich)) == ("dedicated", 2)


def test_a_described_instance_is_told_like_one_just_bought() -> None:
    """AWS-466 to AWS-470 from a description."""
    described = info(
        "i-7",
        instance_type="m5.large",
        instance_lifecycle="capacity-block",
        capacity_reservation_id="cr-1",
        capacity_reservation_specification=BOUND,
        state=InstanceState(name="shutting-down"),
        placement=InstancePlacement(availability_zone="b", group_id="pg-1", partition_number=2),
    )
    group = {aws_labels.PLACEMENT_GROUP_ID: ("pg-1",), aws_labels.PLACEMENT_GROUP_PARTITION: ("1", "2")}
    instance = instance_info.provider_instance(
        instance_info.instance_of_info(described, True),
        claim("one"),
        node_class(),
        machine("m5.large", more=group),
        START,
    )
    assert instance.provider_id == "aws:///b/i-7"
    assert instance.terminating
    told = {
        key: instance.labels[key]
        for key in (aws_labels.RESERVATION_TYPE, aws_labels.PLACEMENT_GROUP_PARTITION, aws_labels.ZONE_ID)
    }
    assert told == {
        aws_labels.RESERVATION_TYPE: "capacity-block",
        aws_labels.PLACEMENT_GROUP_PARTITION: "2",
        aws_labels.ZONE_ID: "az2",
    }


# -- reading ---------------------------------------------------------------------------------------------------------------


def test_an_instance_is_read_once() -> None:
    """AWS-T520."""

    async def scene(world: World) -> None:
        put(world, info())
        first = await world.instances.get("i-1")
        assert await world.instances.get("i-1") is first
        assert world.ec2.calls["DescribeInstances"] == 1

    play(scene)


def test_a_fresh_look_finds_that_an_instance_is_gone() -> None:
    """AWS-T521."""

    async def scene(world: World) -> None:
        put(world, info())
        await world.instances.get("i-1")
        put(world, info(state=InstanceState(name="terminated")))
        assert (await world.instances.get("i-1")).instance_id == "i-1"
        with pytest.raises(InstanceNotFound):
            await world.instances.describe("i-1")
        with pytest.raises(InstanceNotFound):
            await world.instances.get("i-1")

    play(scene)


def test_one_unknown_id_does_not_spoil_the_others() -> None:
    """AWS-T753."""

    async def scene(world: World) -> None:
        put(world, *(info(f"i-{n}") for n in range(4)))
        asked = (world.instances.describe(f"i-{n}") for n in range(5))
        gather = await asyncio.gather(*asked, return_exceptions=True)
        assert [getattr(element, "instance_id", "") for element in gather[:4]] == ["i-0", "i-1", "i-2", "i-3"]
        assert isinstance(gather[4], InstanceNotFound)
        assert [len(ids) for ids in world.ec2.asked_ids] == [5, 1, 1, 1, 1, 1]

    play(scene)


def test_calls_grow_with_batches_not_with_instances() -> None:
    """Issue 8: 500 ids are one call (AWS-751)."""

    async def scene(world: World) -> None:
        put(world, *(info(f"i-{n}") for n in range(500)))
        await asyncio.gather(*(world.instances.describe(f"i-{n}") for n in range(500)))
        assert world.ec2.calls["DescribeInstances"] == 1

    play(scene)


def test_an_instance_just_made_is_not_gone_because_ec2_does_not_show_it() -> None:
    async def scene(world: World) -> None:
        world.instances.mark_launched("i-1")
        with pytest.raises(ProviderError, match="does not show it yet") as refused:
            await world.instances.describe("i-1")
        assert not isinstance(refused.value, InstanceNotFound)
        await asyncio.sleep(VISIBILITY_DELAY.total_seconds())
        with pytest.raises(InstanceNotFound):
            await world.instances.describe("i-1")

    play(scene)


def test_an_ec2_that_cannot_answer_says_nothing_about_an_instance() -> None:
    async def scene(world: World) -> None:
        put(world, info())
        world.ec2.faults["DescribeInstances"] = [AwsError("InternalError", "no", status=500)] * 2
        with pytest.raises(ProviderError, match="InternalError") as refused:
            await world.instances.describe("i-1")
        assert not isinstance(refused.value, InstanceNotFound)

    play(scene)


@pytest.mark.parametrize(
    ("machine_", "is_listed"),
    [
        pytest.param(info(), True, id="ours"),
        pytest.param(info(own=POOL_ONLY), False, id="AWS-T525"),
        pytest.param(info(own={**OURS, aws_labels.CLUSTER_TAG: "other"}), False, id="AWS-T526"),
        pytest.param(info(state=InstanceState(name="terminated")), False, id="AWS-521 terminated"),
        pytest.param(info(state=InstanceState(name="shutting-down")), True, id="AWS-521 shutting down"),
    ],
)
def test_only_our_own_instances_are_listed(machine_: InstanceInfo, is_listed: bool) -> None:
    async def scene(world: World) -> None:
        put(world, machine_)
        assert [obj.instance_id for obj in await world.instances.list()] == ["i-1"] * is_listed

    play(scene)


def test_a_list_replaces_what_was_known() -> None:
    """AWS-521."""

    async def scene(world: World) -> None:
        put(world, info("i-1"), info("i-2"))
        await world.instances.list()
        put(world, info("i-1", state=InstanceState(name="terminated")))
        await world.instances.list()
        asked = world.ec2.calls["DescribeInstances"]
        await world.instances.get("i-2")
        assert world.ec2.calls["DescribeInstances"] == asked
        with pytest.raises(InstanceNotFound):
            await world.instances.get("i-1")

    play(scene)


# -- ending ----------------------------------------------------------------------------------------------------------------


def test_an_instance_is_ended_and_then_gone() -> None:
    """AWS-526, AWS-527."""

    async def scene(world: World) -> None:
        put(world, info())
        await world.instances.delete("aws:///a/i-1")
        assert world.ec2.ended == [("i-1",)]
        with pytest.raises(InstanceNotFound):
            await world.instances.delete("aws:///a/i-1")

    play(scene)


def test_an_instance_that_shuts_down_is_not_told_again() -> None:
    """AWS-T523, DIS-546: EC2 is not called."""

    async def scene(world: World) -> None:
        put(world, info(state=InstanceState(name="shutting-down")))
        await world.instances.delete("aws:///a/i-1")
        assert world.ec2.ended == []

    play(scene)


def test_what_the_answer_leaves_out_is_ended_singly() -> None:
    """AWS-T754, AWS-752: one call for each ID."""

    async def scene(world: World) -> None:
        put(world, *(info(f"i-{n}") for n in range(5)))
        whole = world.ec2.terminate_instances

        async def forgetful(ids: Any) -> tuple[StateChange, ...]:
            changes = await whole(ids)
            return changes[:4] if len(changes) == 5 else changes

        world.ec2.terminate_instances = forgetful  # type: ignore[method-assign]
        await asyncio.gather(*(world.instances.delete(f"aws:///a/i-{n}") for n in range(5)))
        assert [len(ids) for ids in world.ec2.ended] == [5, 1]

    play(scene)


def test_an_instance_that_cannot_be_ended_is_counted() -> None:
    """AWS-526, AWS-784."""

    async def scene(world: World) -> None:
        put(world, info())
        world.ec2.faults["TerminateInstances"] = [AwsError("UnauthorizedOperation", "no")] * 2
        with pytest.raises(ProviderError, match="no policy allows it"):
            await world.instances.delete("aws:///a/i-1")
        name = "karpenter_cloudprovider_instance_termination_failures_total"
        assert world.sample(name, zone="a", zone_id="az1") == 1

    play(scene)


def test_nothing_is_done_to_instances_in_a_shifted_zone() -> None:
    """AWS-T608, AWS-616, AWS-522: what is known of them is kept and told."""

    async def scene(world: World) -> None:
        put(world, info())
        await world.instances.list()
        world.shifted = frozenset({"az1"})
        with pytest.raises(ZoneShifted):
            await world.instances.delete("aws:///a/i-1")
        with pytest.raises(ZoneShifted):
            await world.instances.tag(info(), {"a": "b"})
        world.ec2.machines.clear()
        assert await world.instances.list() == ()
        assert (await world.instances.describe("i-1")).instance_id == "i-1"
        assert (world.ec2.ended, world.ec2.calls["CreateTags"]) == ([], 0)
        world.shifted = frozenset()
        with pytest.raises(InstanceNotFound):
            await world.instances.delete("aws:///a/i-1")

    play(scene)


def test_a_reserved_instance_that_is_gone_gives_its_place_back_once() -> None:
    """AWS-T600, AWS-526."""

    async def scene(world: World) -> None:
        await world.claim("one", uid="", labels={labels.RESERVATION_ID: "cr-1"})
        await world.own(await world.kube.get(NODE_CLAIM, "one"), "i-1")
        ending = InstanceTerminator(world.instances, world.seen, world.told, world.clock)
        for _ in range(2):
            with pytest.raises(InstanceNotFound):
                await ending.delete("aws:///a/i-1")
        assert world.told.units == {"cr-1": 1}

    play(scene)


# -- tagging ---------------------------------------------------------------------------------------------------------------


async def joined(world: World, provider_id: str = "aws:///a/i-1", **metadata: Any) -> NodeClaim:
    await world.claim("one", uid="", **metadata)
    status = {"status": {"providerID": provider_id, "nodeName": "node-1"}}
    return await world.kube.patch(NODE_CLAIM, "one", status, subresource="status")


def tagger(world: World) -> InstanceTagger:
    return InstanceTagger(world.instances, world.kube, CLUSTER)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        pytest.param(
            POOL_ONLY,
            {aws_labels.NAME_TAG: "node-1", aws_labels.NODE_CLAIM_TAG: "one", aws_labels.CLUSTER_TAG: "c"},
            id="AWS-T528",
        ),
        pytest.param(
            {aws_labels.NAME_TAG: "mine"},
            {aws_labels.NAME_TAG: "mine", aws_labels.NODE_CLAIM_TAG: "one", aws_labels.CLUSTER_TAG: "c"},
            id="AWS-T529",
        ),
    ],
)
def test_a_joined_instance_gets_the_tags_it_lacks(own: dict[str, str], expected: dict[str, str]) -> None:
    async def scene(world: World) -> None:
        put(world, info(own=own))
        await tagger(world).reconcile(await joined(world))
        actual = tag_map(world.ec2.machines["i-1"].info.tags)
        assert {key: actual[key] for key in expected} == expected
        assert world.ec2.calls["CreateTags"] == 1
        stored = await world.kube.get(NODE_CLAIM, "one")
        assert not needs_tags(stored)
        assert (
            stored.metadata.annotations[aws_labels.TAGGED]
            == stored.metadata.annotations[aws_labels.CLUSTER_NAME_TAGGED]
            == "true"
        )
        asked = world.ec2.calls.total()
        await tagger(world).reconcile(stored)
        assert world.ec2.calls.total() == asked

    play(scene)


def test_an_instance_that_has_all_tags_costs_no_call() -> None:
    """AWS-531."""

    async def scene(world: World) -> None:
        put(world, info(own={aws_labels.NAME_TAG: "x", aws_labels.NODE_CLAIM_TAG: "one", aws_labels.CLUSTER_TAG: "c"}))
        await tagger(world).reconcile(await joined(world))
        assert world.ec2.calls["CreateTags"] == 0
        assert not needs_tags(await world.kube.get(NODE_CLAIM, "one"))

    play(scene)


def test_at_most_one_instance_a_second_is_tagged() -> None:
    """AWS-532."""

    async def scene(world: World) -> None:
        put(world, info())
        began = asyncio.get_running_loop().time()
        await tagger(world).reconcile(await joined(world))
        assert asyncio.get_running_loop().time() - began >= 1.0

    play(scene)


def test_instances_that_have_not_joined_or_whose_claim_goes_are_left_alone() -> None:
    """AWS-T530."""

    async def scene(world: World) -> None:
        one = await joined(world)
        absent = msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, node_name=""))
        going = msgspec.structs.replace(one, metadata=ObjectMeta(name="one", deletion_timestamp=START))
        for nodeclaim in (absent, going):
            await tagger(world).reconcile(nodeclaim)
        assert world.ec2.calls.total() == 0

    play(scene)


@pytest.mark.parametrize(
    "provider_id", [pytest.param("bogus", id="AWS-T531"), pytest.param("aws:///a/i-404", id="gone")]
)
def test_what_cannot_be_tagged_is_not_tried_again(provider_id: str) -> None:
    """AWS-533."""

    async def scene(world: World) -> None:
        await tagger(world).reconcile(await joined(world, provider_id))
        assert world.ec2.calls["CreateTags"] == 0
        assert needs_tags(await world.kube.get(NODE_CLAIM, "one"))

    play(scene)


def test_tagging_in_a_shifted_zone_is_tried_again() -> None:
    """AWS-533."""

    async def scene(world: World) -> None:
        put(world, info())
        world.shifted = frozenset({"az1"})
        with pytest.raises(ZoneShifted):
            await tagger(world).reconcile(await joined(world))

    play(scene)


# -- collecting ------------------------------------------------------------------------------------------------------------


def collector(world: World) -> InstanceGarbageCollector:
    return InstanceGarbageCollector(world.instances, world.kube, world.seen, world.clock)


@pytest.mark.parametrize(
    ("machine_", "is_ended"),
    [
        pytest.param(info(age=31), True, id="AWS-T524 old"),
        pytest.param(info(age=29), False, id="AWS-T524 young"),
        pytest.param(info(age=99, own=POOL_ONLY), False, id="AWS-T525"),
        pytest.param(info(age=99, own={**OURS, aws_labels.CLUSTER_TAG: "other"}), False, id="AWS-T526"),
        pytest.param(info(age=99, state=InstanceState(name="shutting-down")), False, id="AWS-536 on its way"),
    ],
)
def test_instances_without_a_claim_are_ended(machine_: InstanceInfo, is_ended: bool) -> None:
    """DIS-366, OPS-093: once they are older than thirty seconds. DIS-S267."""

    async def scene(world: World) -> None:
        put(world, machine_)
        assert await collector(world).collect() == ("aws:///a/i-1",) * is_ended
        assert world.ec2.ended == [("i-1",)] * is_ended

    play(scene)


def test_the_node_of_a_lost_instance_goes_with_it() -> None:
    """AWS-T524, AWS-536."""

    async def scene(world: World) -> None:
        put(world, info(age=60))
        node = Node(metadata=ObjectMeta(name="node-1"), spec=NodeSpec(provider_id="aws:///a/i-1"))
        world.seen.nodes = [await world.kube.create(NODE, node)]
        await collector(world).collect()
        assert (await world.kube.list(NODE)).items == ()

    play(scene)


def test_an_instance_somebody_has_is_kept_and_costs_no_look_at_claims() -> None:
    async def scene(world: World) -> None:
        put(world, info(age=60))
        await world.own(await world.claim("one", uid=""), "i-1")
        world.kube.list = None  # type: ignore[assignment, method-assign]
        assert await collector(world).collect() == ()

    play(scene)


@pytest.mark.parametrize(
    ("batch", "is_ended"), [("b-1", False), ("b-2", True)], ids=["still owed a machine", "in another purchase"]
)
def test_instances_of_an_unsettled_purchase_are_kept_however_old(batch: str, is_ended: bool) -> None:
    """Issue 8: adopted before the collector may act."""

    async def scene(world: World) -> None:
        put(world, info(age=9999, own={**OURS, aws_labels.LAUNCH_BATCH: "b-1"}))
        await world.claim("one", uid="", annotations={aws_labels.LAUNCH_BATCH: batch})
        assert bool(await collector(world).collect()) is is_ended

    play(scene)


def test_a_claim_nobody_can_read_keeps_instances_that_may_be_its_own() -> None:
    async def scene(world: World) -> None:
        put(world, info("i-1", age=60), info("i-2", age=60, own={**OURS, aws_labels.NODE_CLAIM_TAG: "other"}))
        for name in ("broken", "other"):
            await world.claim(name, uid="")
        claims = world.kube.server.resource(NODE_CLAIM.group, NODE_CLAIM.version, NODE_CLAIM.plural)
        world.kube.server.update_any(claims, "", "broken", lambda body: {**body, "status": {"nodeName": 5}})
        assert await collector(world).collect() == ("aws:///a/i-2",)

    play(scene)


def test_a_claim_made_while_instances_are_listed_keeps_its_instance() -> None:
    """AWS-535: instances are listed first, then claims; the other way round a running launch would be ended."""

    async def scene(world: World) -> None:
        put(world, info(age=60))
        list_instances = world.instances.list

        async def list_and_launch() -> tuple[InstanceInfo, ...]:
            listed = await list_instances()
            await world.own(await world.claim("late", uid=""), "i-1")
            return listed

        world.instances.list = list_and_launch  # type: ignore[method-assign]
        assert await collector(world).collect() == ()
        assert world.ec2.ended == []

    play(scene)


def test_fifty_orphans_are_one_call() -> None:
    """AWS-T532."""

    async def scene(world: World) -> None:
        put(world, *(info(f"i-{n:02}", age=60) for n in range(50)))
        assert len(await collector(world).collect()) == 50
        assert [len(ids) for ids in world.ec2.ended] == [50]

    play(scene)


def test_rounds_are_close_at_first_and_rare_later_and_faults_are_tried_again() -> None:
    """AWS-537, DIS-042: ten seconds, then two minutes."""

    async def scene(world: World) -> None:
        world.ec2.faults["DescribeInstances"] = [AwsError("InternalError", "no")]
        running = asyncio.ensure_future(SingletonReconciler("test", collector(world).reconcile).run())
        await asyncio.sleep(1 + 20 * 10 + 5)
        assert world.ec2.calls["DescribeInstances"] == 1 + 21
        await asyncio.sleep(240)
        assert world.ec2.calls["DescribeInstances"] == 1 + 21 + 2
        running.cancel()

    play(scene)


# -- dying -----------------------------------------------------------------------------------------------------------------

BAD_KEY = StateReason(code="Client.InvalidKMSKey.InvalidState", message="the key is disabled")
WISHED = StateReason(code="Client.UserInitiatedShutdown", message="")
DEAD = InstanceState(name="terminated")


@pytest.mark.parametrize(
    ("machine_", "status", "told"),
    [
        pytest.param(info(state=DEAD, state_reason=BAD_KEY), {}, [("one", "InstanceEnded")], id="AWS-858"),
        pytest.param(info(state=DEAD, state_reason=WISHED), {}, [], id="wished for"),
        pytest.param(info(state=DEAD, state_reason=BAD_KEY), {"nodeName": "node-1"}, [], id="joined"),
        pytest.param(info(), {}, [], id="alive"),
    ],
)
def test_why_an_instance_ended_before_it_joined_is_told_once(
    machine_: InstanceInfo, status: dict[str, str], told: list[tuple[str, str]]
) -> None:
    """AWS-858: a key the launcher may not use looks like nothing at all from inside the cluster."""

    async def scene(world: World) -> None:
        put(world, machine_)
        await world.own(await world.claim("one", uid=""), "i-1")
        await world.kube.patch(NODE_CLAIM, "one", {"status": status}, subresource="status")
        deaths = EndedInstanceReporter(world.ec2, world.seen, world.told, world.clock)
        assert await deaths.reconcile() == await deaths.reconcile() == 60.0
        assert world.told.warnings == told

    play(scene)


def test_looking_for_deaths_costs_nothing_while_all_instances_have_joined() -> None:
    async def scene(world: World) -> None:
        await EndedInstanceReporter(world.ec2, world.seen, world.told, world.clock).reconcile()
        assert world.ec2.calls.total() == 0

    play(scene)
