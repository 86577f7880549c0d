"""Controllers of instances: tags, garbage collection (AWS §11)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from karpenter.api.core import Node, NodeSpec
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.api.meta import ObjectMeta
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import tag_map
from karpenter.providers.aws.ec2_descriptions import (
    InstanceInfo,
    InstanceState,
)
from karpenter.providers.aws.instance.instance_controllers import (
    InstanceGarbageCollector,
    InstanceTagger,
    needs_tags,
)
from karpenter.providers.aws.instance.instance_provider import ZoneShifted
from karpenter.runtime.reconciler import SingletonReconciler
from support.described_instances import OURS, POOL_ONLY, info, put
from support.launch_cases import CLUSTER, START, World, play


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
