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
from support.launch_environment import CLUSTER, START, LaunchEnvironment, run_scenario


async def joined(environment: LaunchEnvironment, provider_id: str = "aws:///a/i-1", **metadata: Any) -> NodeClaim:
    await environment.claim("one", uid="", **metadata)
    status = {"status": {"providerID": provider_id, "nodeName": "node-1"}}
    return await environment.kube.patch(NODE_CLAIM, "one", status, subresource="status")


def tagger(environment: LaunchEnvironment) -> InstanceTagger:
    return InstanceTagger(environment.instances, environment.kube, CLUSTER)


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
    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info(own=own))
        await tagger(environment).reconcile(await joined(environment))
        actual = tag_map(environment.ec2.instances["i-1"].info.tags)
        assert {key: actual[key] for key in expected} == expected
        assert environment.ec2.calls["CreateTags"] == 1
        stored = await environment.kube.get(NODE_CLAIM, "one")
        assert not needs_tags(stored)
        assert (
            stored.metadata.annotations[aws_labels.TAGGED]
            == stored.metadata.annotations[aws_labels.CLUSTER_NAME_TAGGED]
            == "true"
        )
        asked = environment.ec2.calls.total()
        await tagger(environment).reconcile(stored)
        assert environment.ec2.calls.total() == asked

    run_scenario(scenario)


def test_an_instance_with_all_tags_causes_no_call() -> None:
    """AWS-531."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(
            environment,
            info(own={aws_labels.NAME_TAG: "x", aws_labels.NODE_CLAIM_TAG: "one", aws_labels.CLUSTER_TAG: "c"}),
        )
        await tagger(environment).reconcile(await joined(environment))
        assert environment.ec2.calls["CreateTags"] == 0
        assert not needs_tags(await environment.kube.get(NODE_CLAIM, "one"))

    run_scenario(scenario)


def test_at_most_one_instance_a_second_is_tagged() -> None:
    """AWS-532."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info())
        began = asyncio.get_running_loop().time()
        await tagger(environment).reconcile(await joined(environment))
        assert asyncio.get_running_loop().time() - began >= 1.0

    run_scenario(scenario)


def test_instances_without_a_node_or_with_a_claim_being_deleted_are_not_tagged() -> None:
    """AWS-T530."""

    async def scenario(environment: LaunchEnvironment) -> None:
        one = await joined(environment)
        absent = msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, node_name=""))
        going = msgspec.structs.replace(one, metadata=ObjectMeta(name="one", deletion_timestamp=START))
        for nodeclaim in (absent, going):
            await tagger(environment).reconcile(nodeclaim)
        assert environment.ec2.calls.total() == 0

    run_scenario(scenario)


@pytest.mark.parametrize(
    "provider_id", [pytest.param("bogus", id="AWS-T531"), pytest.param("aws:///a/i-404", id="gone")]
)
def test_a_permanent_tagging_error_is_not_retried(provider_id: str) -> None:
    """AWS-533."""

    async def scenario(environment: LaunchEnvironment) -> None:
        await tagger(environment).reconcile(await joined(environment, provider_id))
        assert environment.ec2.calls["CreateTags"] == 0
        assert needs_tags(await environment.kube.get(NODE_CLAIM, "one"))

    run_scenario(scenario)


def test_tagging_in_a_shifted_zone_is_retried() -> None:
    """AWS-533."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info())
        environment.shifted = frozenset({"az1"})
        with pytest.raises(ZoneShifted):
            await tagger(environment).reconcile(await joined(environment))

    run_scenario(scenario)


def collector(environment: LaunchEnvironment) -> InstanceGarbageCollector:
    return InstanceGarbageCollector(environment.instances, environment.kube, environment.seen, environment.clock)


@pytest.mark.parametrize(
    ("described", "is_ended"),
    [
        pytest.param(info(age=31), True, id="AWS-T524 old"),
        pytest.param(info(age=29), False, id="AWS-T524 young"),
        pytest.param(info(age=99, own=POOL_ONLY), False, id="AWS-T525"),
        pytest.param(info(age=99, own={**OURS, aws_labels.CLUSTER_TAG: "other"}), False, id="AWS-T526"),
        pytest.param(info(age=99, state=InstanceState(name="shutting-down")), False, id="AWS-536 launching"),
    ],
)
def test_instances_without_a_claim_are_terminated(described: InstanceInfo, is_ended: bool) -> None:
    """DIS-366, OPS-093: once they are older than thirty seconds. DIS-S267."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, described)
        assert await collector(environment).collect() == ("aws:///a/i-1",) * is_ended
        assert environment.ec2.terminated == [("i-1",)] * is_ended

    run_scenario(scenario)


def test_the_node_of_an_instance_without_a_claim_is_deleted_with_it() -> None:
    """AWS-T524, AWS-536."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info(age=60))
        node = Node(metadata=ObjectMeta(name="node-1"), spec=NodeSpec(provider_id="aws:///a/i-1"))
        environment.seen.nodes = [await environment.kube.create(NODE, node)]
        await collector(environment).collect()
        assert (await environment.kube.list(NODE)).items == ()

    run_scenario(scenario)


def test_an_instance_of_a_known_claim_is_kept_without_a_read_of_claims() -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info(age=60))
        await environment.set_provider_id(await environment.claim("one", uid=""), "i-1")
        environment.kube.list = None
        assert await collector(environment).collect() == ()

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("batch", "is_ended"), [("b-1", False), ("b-2", True)], ids=["without an instance", "in another launch batch"]
)
def test_instances_of_a_launch_batch_in_progress_are_kept_at_any_age(batch: str, is_ended: bool) -> None:
    """Issue 8: they are adopted before garbage collection may terminate them."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info(age=9999, own={**OURS, aws_labels.LAUNCH_BATCH: "b-1"}))
        await environment.claim("one", uid="", annotations={aws_labels.LAUNCH_BATCH: batch})
        assert bool(await collector(environment).collect()) is is_ended

    run_scenario(scenario)


def test_a_claim_that_cannot_be_decoded_keeps_instances_that_may_be_its_own() -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info("i-1", age=60), info("i-2", age=60, own={**OURS, aws_labels.NODE_CLAIM_TAG: "other"}))
        for name in ("broken", "other"):
            await environment.claim(name, uid="")
        claims = environment.kube.server.resource(NODE_CLAIM.group, NODE_CLAIM.version, NODE_CLAIM.plural)
        environment.kube.server.update_any(claims, "", "broken", lambda body: {**body, "status": {"nodeName": 5}})
        assert await collector(environment).collect() == ("aws:///a/i-2",)

    run_scenario(scenario)


def test_a_claim_made_while_instances_are_listed_keeps_its_instance() -> None:
    """AWS-535: instances are listed before NodeClaims; the reverse order would terminate an instance being launched."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, info(age=60))
        list_instances = environment.instances.list

        async def list_and_launch() -> tuple[InstanceInfo, ...]:
            listed = await list_instances()
            await environment.set_provider_id(await environment.claim("late", uid=""), "i-1")
            return listed

        environment.instances.list = list_and_launch
        assert await collector(environment).collect() == ()
        assert environment.ec2.terminated == []

    run_scenario(scenario)


def test_fifty_instances_without_claims_are_terminated_in_one_call() -> None:
    """AWS-T532."""

    async def scenario(environment: LaunchEnvironment) -> None:
        put(environment, *(info(f"i-{n:02}", age=60) for n in range(50)))
        assert len(await collector(environment).collect()) == 50
        assert [len(ids) for ids in environment.ec2.terminated] == [50]

    run_scenario(scenario)


def test_garbage_collection_runs_often_at_first_and_rarely_later_and_retries_errors() -> None:
    """AWS-537, DIS-042: ten seconds, then two minutes."""

    async def scenario(environment: LaunchEnvironment) -> None:
        environment.ec2.faults["DescribeInstances"] = [AwsError("InternalError", "no")]
        running = asyncio.ensure_future(SingletonReconciler("test", collector(environment).reconcile).run())
        await asyncio.sleep(1 + 20 * 10 + 5)
        assert environment.ec2.calls["DescribeInstances"] == 1 + 21
        await asyncio.sleep(240)
        assert environment.ec2.calls["DescribeInstances"] == 1 + 21 + 2
        running.cancel()

    run_scenario(scenario)
