"""The launcher through boto3 against the double of AWS: field names, client tokens, lost answers, termination."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from karpenter.api.ec2_node_class import AMI, EC2NodeClass, SecurityGroup, Subnet
from karpenter.api.kinds import NODE_CLAIM
from karpenter.metrics import Metrics
from karpenter.model import labels
from karpenter.model.clock import SystemClock
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_metrics import SdkMetrics
from karpenter.providers.aws.aws_types import tag_map
from karpenter.providers.aws.instance import instance_info
from karpenter.providers.aws.sdk.aws_session import AwsSession
from karpenter.providers.contract import InstanceNotFound, LaunchFailed
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.aws.double import Double
from support.aws.seeds import Seeds, seed
from support.launch_environment import X86_IMAGE, LaunchEnvironment, ec2_type, node_class, offering


@pytest.fixture(scope="module")
def double() -> Iterator[Double]:
    with Double() as running:
        yield running


@pytest.fixture
async def account(double: Double, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AwsSession]:
    double.reset()
    monkeypatch.setenv("AWS_ENDPOINT_URL", double.url)
    monkeypatch.setenv("AWS_REGION", double.region_name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIADOUBLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    opened = AwsSession(SdkMetrics(Metrics()))
    await opened.open()
    yield opened
    opened.close()


@pytest.fixture
def environment(account: AwsSession) -> LaunchEnvironment:
    clock = SystemClock()
    return LaunchEnvironment(clock, MemoryKube(MemoryServer(clock)), account.services.ec2)


ZONE = "us-west-2a"
TYPES = (
    ec2_type("m5.large", offerings=[offering(labels.SPOT, ZONE, 0.04), offering(labels.ON_DEMAND, ZONE, 0.096)]),
    ec2_type("c5.large", offerings=[offering(labels.SPOT, ZONE, 0.05), offering(labels.ON_DEMAND, ZONE, 0.085)]),
)


def class_of(seeds: Seeds) -> EC2NodeClass:
    return node_class(
        {"tags": {"team": "x"}},
        subnets=tuple(Subnet(id=subnet, zone=zone) for zone, subnet in seeds.subnets.items()),
        security_groups=(SecurityGroup(id=seeds.group),),
        amis=(AMI(id=seeds.image, requirements=X86_IMAGE.requirements),),
        instance_profile=seeds.profile,
    )


async def test_equal_claims_are_launched_in_one_fleet_read_and_terminated(
    environment: LaunchEnvironment, double: Double
) -> None:
    made = class_of(seed(double))
    claims = [await environment.claim(f"c{n}", uid="") for n in range(3)]
    double.calls.clear()
    instances = await asyncio.gather(*(environment.launcher.launch(nodeclaim, made, TYPES) for nodeclaim in claims))
    assert len({instance.provider_id for instance in instances}) == 3
    assert len(double.calls.of("CreateFleet")) == 1
    listed = await environment.instances.list()
    assert {instance_info.provider_id_of(info) for info in listed} == {instance.provider_id for instance in instances}
    assert {instance_info.instance_capacity_type(info, True) for info in listed} == {"spot"}
    assert {tag_map(info.tags)["team"] for info in listed} == {"x"}
    await asyncio.gather(*(environment.instances.delete(instance.provider_id) for instance in instances))
    assert len(double.calls.of("TerminateInstances")) == 1
    assert len(await environment.templates.collect_garbage(())) == 1


async def test_a_lost_answer_is_fetched_with_the_same_client_token(
    environment: LaunchEnvironment, double: Double
) -> None:
    """Issue 8, idempotent launches."""
    made = class_of(seed(double))
    asked = await environment.claim("one", uid="")
    double.control.lose_answer("CreateFleet")
    instance = await environment.launcher.launch(asked, made, TYPES)
    assert [instance_info.provider_id_of(info) for info in await environment.instances.list()] == [instance.provider_id]


async def test_a_new_process_adopts_the_instances_that_the_old_one_launched(
    environment: LaunchEnvironment, double: Double
) -> None:
    made = class_of(seed(double))
    claims = [await environment.claim(f"c{n}", uid="") for n in range(2)]
    instances = await asyncio.gather(*(environment.launcher.launch(nodeclaim, made, TYPES) for nodeclaim in claims))
    environment.restart()
    stored = [await environment.kube.get(NODE_CLAIM, nodeclaim.metadata.name) for nodeclaim in claims]
    again = await asyncio.gather(*(environment.launcher.launch(nodeclaim, made, TYPES) for nodeclaim in stored))
    assert {instance.provider_id for instance in again} == {instance.provider_id for instance in instances}
    assert {instance.image_id for instance in again} == {instance.image_id for instance in instances}
    assert {instance.labels[aws_labels.TENANCY] for instance in again} == {"default"}


async def test_a_missing_permission_is_reported_with_its_reason(environment: LaunchEnvironment, double: Double) -> None:
    """AWS-452, AWS-457."""
    made = class_of(seed(double))
    double.control.deny("ec2:CreateFleet")
    with pytest.raises(LaunchFailed) as refused:
        await environment.launcher.launch(await environment.claim("one", uid=""), made, TYPES)
    assert refused.value.reason == "Unauthorized"
    double.control.allow("ec2:CreateFleet")


async def test_an_unknown_instance_does_not_exist(environment: LaunchEnvironment) -> None:
    with pytest.raises(InstanceNotFound):
        await environment.instances.describe("i-0123456789abcdef0")
