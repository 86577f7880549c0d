"""Errors in AWS or in an EC2NodeClass give the documented condition, event or log line; all other work continues.

The controller is a process, AWS is the double, the API server is the one in memory. There is no scheduler.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from controlplane.harness import Json
from controlplane.process import Controller
from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.model import conditions
from support.aws.aws_cluster import CLUSTER, node_class
from support.aws.clients import client
from support.aws.double import Double
from support.aws.memory_cluster import MemoryCluster, claim, memory_cluster
from support.aws.seeds import Seeds, seed
from support.rollouts import settled

_SECONDS = 120.0


@pytest.fixture(scope="module")
def double() -> Iterator[Double]:
    with Double() as running:
        yield running


@pytest.fixture
def seeds(double: Double) -> Seeds:
    double.reset()
    made = seed(double)
    client(double, "sqs").create_queue(QueueName=CLUSTER)
    return made


@asynccontextmanager
async def running(double: Double, *objects: Json) -> AsyncIterator[tuple[MemoryCluster, Controller]]:
    """A controller with these objects."""
    async with memory_cluster(double, *objects) as cluster:
        double.control.add_cluster(CLUSTER, cluster.url, "Q0E=")
        async with cluster.controller(INTERRUPTION_QUEUE=CLUSTER) as process:
            yield cluster, process


async def _reason(cluster: MemoryCluster, name: str, type_: str) -> str:
    """Status and reason of a class's condition."""
    stored_class = await cluster.kube.get(EC2_NODE_CLASS, name)
    condition = conditions.find_condition(stored_class.status.conditions, type_)
    return f"{condition.status} {condition.reason}" if condition is not None else ""


async def _has_condition(cluster: MemoryCluster, name: str, type_: str, expected: str) -> None:
    async def missing() -> str:
        reason = await _reason(cluster, name, type_)
        return "" if reason == expected else f"{name}: {type_} is {reason!r}, not {expected!r}"

    await settled(missing, _SECONDS)


async def _launches(cluster: MemoryCluster, name: str, node_class: str) -> None:
    """A new NodeClaim of a class gets an instance."""
    cluster.load(claim(name, "1", "2Gi", node_class=node_class))

    async def missing() -> str:
        launched = [nodeclaim.metadata.name for nodeclaim in await cluster.claims() if nodeclaim.status.provider_id]
        return "" if name in launched else f"{name} has no instance, only {launched} have"

    await settled(missing, _SECONDS)


# -- startup --------------------------------------------------------------------------------------------------------------------

_NO_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.mark.parametrize(
    ("environment", "part"),
    [
        pytest.param(
            {**_NO_CREDENTIALS, "AWS_CONFIG_FILE": "/none", "AWS_SHARED_CREDENTIALS_FILE": "/none"},
            "AWS_PROFILE",
            id="none",
        ),
        pytest.param(
            {"AWS_REGION": "us-wset-2", "AWS_ENDPOINT_URL": ""}, "check the region", id="region", marks=pytest.mark.soak
        ),
    ],
)
async def test_a_controller_that_cannot_reach_aws_exits_with_one_line(
    double: Double, seeds: Seeds, environment: dict[str, str], part: str
) -> None:
    async with memory_cluster(double) as cluster, cluster.controller(**environment) as process:
        await _exits_with(process, part)


@pytest.mark.soak
async def test_a_controller_with_expired_credentials_exits_and_names_them(double: Double, seeds: Seeds) -> None:
    double.control.expire_credentials()
    async with memory_cluster(double) as cluster, cluster.controller() as process:
        await _exits_with(process, "the credentials have expired: renew them")


async def _exits_with(process: Controller, part: str) -> None:
    assert await asyncio.to_thread(process.ended, _SECONDS) == 1
    text_lines = [line for line in process.log.splitlines() if not line.startswith("{")]
    assert len(text_lines) == 1, process.log
    assert part in text_lines[0]


# -- node classes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.soak
async def test_invalid_node_classes_report_the_reason_and_a_valid_class_launches(double: Double, seeds: Seeds) -> None:
    """AWS-T081, AWS §3, AWS-340."""
    double.control.add_image("ami-0aaaaaaaaaaaaaaaa", "own-i386", architecture="i386")
    nowhere = [{"tags": {"karpenter.sh/discovery": "nowhere"}}]
    classes = (
        node_class("good"),
        node_class("no-subnet", subnetSelectorTerms=nowhere),
        node_class("no-group", securityGroupSelectorTerms=nowhere),
        node_class("no-image", amiFamily="AL2023", amiSelectorTerms=[{"id": "ami-0bbbbbbbbbbbbbbbb"}]),
        node_class("other-architecture", amiFamily="AL2023", amiSelectorTerms=[{"id": "ami-0aaaaaaaaaaaaaaaa"}]),
        node_class("no-toml", amiSelectorTerms=[{"alias": "bottlerocket@latest"}], userData="[settings\n"),
    )
    async with running(double, *classes) as (cluster, process):
        await _launches(cluster, "first", "good")
        await _has_condition(cluster, "no-subnet", "SubnetsReady", "False SubnetsNotFound")
        await _has_condition(cluster, "no-group", "SecurityGroupsReady", "False SecurityGroupsNotFound")
        await _has_condition(cluster, "no-image", "AMIsReady", "False AMINotFound")
        await _has_condition(cluster, "other-architecture", "Ready", "False UnhealthyDependents")
        await _has_condition(cluster, "no-toml", "Ready", "False UnhealthyDependents")
        assert await _reason(cluster, "good", "Ready") == "True Ready"
        assert not process.lines("controller failed")


@pytest.mark.soak
@pytest.mark.parametrize("call", ["CreateLaunchTemplate", "CreateFleet", "RunInstances"])
async def test_a_missing_permission_is_in_the_status_of_the_node_class(double: Double, seeds: Seeds, call: str) -> None:
    """AWS-T702."""
    double.control.deny(f"ec2:{call}")
    async with running(double, node_class()) as (cluster, _):
        await _has_condition(cluster, "default", "ValidationSucceeded", f"False {call}AuthCheckFailed")


# -- resources deleted by others ------------------------------------------------------------------------------------------------


@pytest.mark.soak
async def test_a_deleted_launch_template_is_created_again_and_an_invalid_message_is_dropped(
    double: Double, seeds: Seeds
) -> None:
    """AWS-457, AWS-642: a deleted launch template is created again; a message that cannot be parsed is dropped."""
    ec2, sqs = client(double, "ec2"), client(double, "sqs")
    async with running(double, node_class("good")) as (cluster, process):
        await _launches(cluster, "first", "good")
        await asyncio.to_thread(_delete_templates, ec2)
        await _launches(cluster, "second", "good")
        url = sqs.get_queue_url(QueueName=CLUSTER)["QueueUrl"]
        await asyncio.to_thread(_send_invalid_messages, sqs, url)
        await _logs(process, "failed parsing interruption message")
        await settled(lambda: _remaining_messages(sqs, url), _SECONDS)
        assert not process.lines("controller failed")


@pytest.mark.soak
async def test_a_launch_error_names_a_security_group_that_was_deleted(double: Double, seeds: Seeds) -> None:
    """AWS-451: the launch is retried; the node class selects other security groups later."""
    async with running(double, node_class()) as (cluster, process):
        await _has_condition(cluster, "default", "Ready", "True Ready")
        await asyncio.to_thread(client(double, "ec2").delete_security_group, GroupId=seeds.group)
        cluster.load(claim("first", "1", "2Gi"))
        await _logs(process, "the fleet made no instance")
        assert f"'{seeds.group}' does not exist" in str(process.lines("the fleet made no instance")[0]["error"])
        assert not process.lines("controller failed")


def _delete_templates(ec2: Any) -> None:
    for template in ec2.describe_launch_templates()["LaunchTemplates"]:
        ec2.delete_launch_template(LaunchTemplateId=template["LaunchTemplateId"])


def _send_invalid_messages(sqs: Any, url: str) -> None:
    for body in ("{", json.dumps({"detail-type": 7}), "not json"):
        sqs.send_message(QueueUrl=url, MessageBody=body)


async def _logs(process: Controller, message: str) -> None:
    async def missing() -> str:
        return "" if process.lines(message) else f"no line {message!r}"

    await settled(missing, _SECONDS)


async def _remaining_messages(sqs: Any, url: str) -> str:
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    counts = (await asyncio.to_thread(sqs.get_queue_attributes, QueueUrl=url, AttributeNames=list(names)))["Attributes"]
    return "" if {counts[name] for name in names} == {"0"} else f"messages are left: {counts}"
