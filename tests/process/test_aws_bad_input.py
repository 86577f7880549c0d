"""What is wrong on AWS or in a class: the documented condition, event or line, and everything else goes on.

The controller is a process, AWS is the double, the API server is the one in memory: nobody schedules here.
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
from support.aws.clients import client
from support.aws.double import Double
from support.aws.seeds import Seeds, seed
from support.aws.small_stage import SmallStage, claim, small_stage
from support.aws.stage import CLUSTER, node_class
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
async def running(double: Double, *objects: Json) -> AsyncIterator[tuple[SmallStage, Controller]]:
    """A controller with these objects."""
    async with small_stage(double, *objects) as stage:
        double.control.add_cluster(CLUSTER, stage.url, "Q0E=")
        async with stage.controller(INTERRUPTION_QUEUE=CLUSTER) as process:
            yield stage, process


async def _reason(stage: SmallStage, name: str, type_: str) -> str:
    """Status and reason of a class's condition."""
    stored_class = await stage.kube.get(EC2_NODE_CLASS, name)
    condition = conditions.find_condition(stored_class.status.conditions, type_)
    return f"{condition.status} {condition.reason}" if condition is not None else ""


async def _becomes(stage: SmallStage, name: str, type_: str, expected: str) -> None:
    async def missing() -> str:
        reason = await _reason(stage, name, type_)
        return "" if reason == expected else f"{name}: {type_} is {reason!r}, not {expected!r}"

    await settled(missing, _SECONDS)


async def _buys(stage: SmallStage, name: str, node_class: str) -> None:
    """A new claim of a class gets an instance."""
    stage.load(claim(name, "1", "2Gi", node_class=node_class))

    async def missing() -> str:
        bought = [nodeclaim.metadata.name for nodeclaim in await stage.claims() if nodeclaim.status.provider_id]
        return "" if name in bought else f"{name} has no machine, only {bought}"

    await settled(missing, _SECONDS)


# -- the start ------------------------------------------------------------------------------------------------------------------

_NOTHING = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.mark.parametrize(
    ("environment", "part"),
    [
        pytest.param(
            {**_NOTHING, "AWS_CONFIG_FILE": "/none", "AWS_SHARED_CREDENTIALS_FILE": "/none"}, "AWS_PROFILE", id="none"
        ),
        pytest.param(
            {"AWS_REGION": "us-wset-2", "AWS_ENDPOINT_URL": ""}, "check the region", id="region", marks=pytest.mark.soak
        ),
    ],
)
async def test_a_start_that_cannot_reach_aws_ends_with_one_line(
    double: Double, seeds: Seeds, environment: dict[str, str], part: str
) -> None:
    async with small_stage(double) as stage, stage.controller(**environment) as process:
        await _refuses(process, part)


@pytest.mark.soak
async def test_a_start_with_expired_credentials_says_so(double: Double, seeds: Seeds) -> None:
    double.control.expire_credentials()
    async with small_stage(double) as stage, stage.controller() as process:
        await _refuses(process, "the credentials have expired: renew them")


async def _refuses(process: Controller, part: str) -> None:
    assert await asyncio.to_thread(process.ended, _SECONDS) == 1
    text_lines = [line for line in process.log.splitlines() if not line.startswith("{")]
    assert len(text_lines) == 1, process.log
    assert part in text_lines[0]


# -- classes --------------------------------------------------------------------------------------------------------------------


@pytest.mark.soak
async def test_classes_that_cannot_work_say_why_and_another_buys(double: Double, seeds: Seeds) -> None:
    """AWS-T081, AWS §3, AWS-340."""
    double.control.add_image("ami-0aaaaaaaaaaaaaaaa", "own-i386", architecture="i386")
    nowhere = [{"tags": {"karpenter.sh/discovery": "nowhere"}}]
    classes = (
        node_class("good"),
        node_class("no-subnet", subnetSelectorTerms=nowhere),
        node_class("no-group", securityGroupSelectorTerms=nowhere),
        node_class("no-image", amiFamily="AL2023", amiSelectorTerms=[{"id": "ami-0bbbbbbbbbbbbbbbb"}]),
        node_class("other-machine", amiFamily="AL2023", amiSelectorTerms=[{"id": "ami-0aaaaaaaaaaaaaaaa"}]),
        node_class("no-toml", amiSelectorTerms=[{"alias": "bottlerocket@latest"}], userData="[settings\n"),
    )
    async with running(double, *classes) as (stage, process):
        await _buys(stage, "first", "good")
        await _becomes(stage, "no-subnet", "SubnetsReady", "False SubnetsNotFound")
        await _becomes(stage, "no-group", "SecurityGroupsReady", "False SecurityGroupsNotFound")
        await _becomes(stage, "no-image", "AMIsReady", "False AMINotFound")
        await _becomes(stage, "other-machine", "Ready", "False UnhealthyDependents")
        await _becomes(stage, "no-toml", "Ready", "False UnhealthyDependents")
        assert await _reason(stage, "good", "Ready") == "True Ready"
        assert not process.lines("controller failed")


@pytest.mark.soak
@pytest.mark.parametrize("call", ["CreateLaunchTemplate", "CreateFleet", "RunInstances"])
async def test_a_missing_permission_is_in_the_class(double: Double, seeds: Seeds, call: str) -> None:
    """AWS-T702."""
    double.control.deny(f"ec2:{call}")
    async with running(double, node_class()) as (stage, _):
        await _becomes(stage, "default", "ValidationSucceeded", f"False {call}AuthCheckFailed")


# -- under our feet -------------------------------------------------------------------------------------------------------------


@pytest.mark.soak
async def test_a_deleted_template_is_made_again_and_a_message_nobody_can_read_is_dropped(
    double: Double, seeds: Seeds
) -> None:
    """AWS-457, AWS-642: a template is made again, a message nobody can read is dropped."""
    ec2, sqs = client(double, "ec2"), client(double, "sqs")
    async with running(double, node_class("good")) as (stage, process):
        await _buys(stage, "first", "good")
        await asyncio.to_thread(_delete_templates, ec2)
        await _buys(stage, "second", "good")
        url = sqs.get_queue_url(QueueName=CLUSTER)["QueueUrl"]
        await asyncio.to_thread(_poison, sqs, url)
        await _says(process, "failed parsing interruption message")
        await settled(lambda: _left_in(sqs, url), _SECONDS)
        assert not process.lines("controller failed")


@pytest.mark.soak
async def test_a_group_deleted_under_our_feet_is_named(double: Double, seeds: Seeds) -> None:
    """AWS-451: the launch is tried again, since the class finds others a little later."""
    async with running(double, node_class()) as (stage, process):
        await _becomes(stage, "default", "Ready", "True Ready")
        await asyncio.to_thread(client(double, "ec2").delete_security_group, GroupId=seeds.group)
        stage.load(claim("first", "1", "2Gi"))
        await _says(process, "the fleet made no instance")
        assert f"'{seeds.group}' does not exist" in str(process.lines("the fleet made no instance")[0]["error"])
        assert not process.lines("controller failed")


def _delete_templates(ec2: Any) -> None:
    for describe_launch_template in ec2.describe_launch_templates()["LaunchTemplates"]:
        ec2.delete_launch_template(LaunchTemplateId=describe_launch_template["LaunchTemplateId"])


def _poison(sqs: Any, url: str) -> None:
    for body in ("{", json.dumps({"detail-type": 7}), "not json"):
        sqs.send_message(QueueUrl=url, MessageBody=body)


async def _says(process: Controller, message: str) -> None:
    async def missing() -> str:
        return "" if process.lines(message) else f"no line {message!r}"

    await settled(missing, _SECONDS)


async def _left_in(sqs: Any, url: str) -> str:
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    counts = (await asyncio.to_thread(sqs.get_queue_attributes, QueueUrl=url, AttributeNames=list(names)))["Attributes"]
    return "" if {counts[name] for name in names} == {"0"} else f"messages are left: {counts}"
