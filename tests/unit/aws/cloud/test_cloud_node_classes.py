"""EC2NodeClasses and NodePools with the wired provider: readiness, reasons, instance profiles (AWS chapters 2 and 7)."""

from __future__ import annotations

import pytest

from karpenter.api.ec2_node_class import BlockDevice, BlockDeviceMapping
from karpenter.api.kinds import EC2_NODE_CLASS, NODE_CLAIM
from karpenter.model import conditions
from karpenter.providers.aws.sdk.aws_session import AwsSession
from karpenter.providers.contract import (
    NodeClassNotReady,
)
from support.aws.clients import client
from support.aws.double import Double
from support.aws.provider_process import NAME, ProviderProcess, claim, launched, node_class, pool, provider_process
from support.aws.seeds import Seeds

PROFILES = "instanceprofile.garbagecollection"


async def test_a_node_pool_whose_class_is_not_ready_has_no_types(
    aws: Double, account: AwsSession, seeds: Seeds
) -> None:
    """AWS-283, OPS-227: missing, without subnets, ready."""
    async with provider_process(aws, account) as process:
        with pytest.raises(NodeClassNotReady, match="EC2NodeClass default of NodePool default does not exist"):
            await process.cloud.provider.instance_types(pool())
        await process.kube.create(EC2_NODE_CLASS, node_class())
        await process.until(lambda: process.classes.get("default") is not None, "the class being seen")
        with pytest.raises(NodeClassNotReady, match="no subnets found"):
            await process.cloud.provider.instance_types(pool())
        process.start("nodeclass")
        await process.until(lambda: _is_true(process, "Ready"), "the class being ready")
        types = await process.cloud.provider.instance_types(pool())
        assert {instance_type.name for instance_type in types} == set(process.fake_region.names)
        assert await process.cloud.provider.instance_types(pool()) is types


def _is_true(process: ProviderProcess, type_: str) -> bool:
    default = process.classes.get("default")
    return default is not None and conditions.is_true(default.status.conditions, type_)


async def test_an_invalid_volume_size_is_reported_and_nothing_is_launched(
    aws: Double, account: AwsSession, seeds: Seeds
) -> None:
    """AWS-054"""
    async with provider_process(aws, account) as process:
        mapping = BlockDeviceMapping(device_name="/dev/xvda", ebs=BlockDevice(volume_size="Ti"))
        await process.kube.create(EC2_NODE_CLASS, node_class(block_device_mappings=(mapping,)))
        process.start("nodeclass")
        await process.until(lambda: _reason(process) == "InvalidBlockDeviceMapping", "the class telling what is wrong")
        with pytest.raises(NodeClassNotReady):
            await process.cloud.provider.create(await process.kube.create(NODE_CLAIM, claim("one", "m5.large")))
    assert process.carried_out("CreateFleet", "CreateLaunchTemplate") == 0


def _reason(process: ProviderProcess) -> str:
    default = process.classes.get("default")
    condition = (
        conditions.find_condition(default.status.conditions, "ValidationSucceeded") if default is not None else None
    )
    return condition.reason if condition is not None else ""


async def test_a_deleted_class_leaves_no_resources_and_metrics(aws: Double, account: AwsSession, seeds: Seeds) -> None:
    """AWS-123, AWS-124: launch templates, instance profile and metrics are deleted. OPS-477: also the metric of its user data."""
    async with provider_process(aws, account) as process:
        await process.ready_class()
        _, instance = await launched(process)
        size = "karpenter_ec2nodeclasses_userdata_bytes"
        assert (process.metrics.registry.get_sample_value(size, {"nodeclass": "default"}) or 0) > 500
        await process.kube.delete(EC2_NODE_CLASS, "default")
        expected_event = ("Normal", "default", "WaitingOnNodeClaimTermination")
        await process.until(lambda: expected_event in process.events.events, "the class waiting for its NodeClaims")
        await process.cloud.provider.delete(instance.provider_id)
        await process.kube.delete(NODE_CLAIM, "one")
        await process.until(lambda: process.classes.get("default") is None, "the class being gone")
        assert process.metrics.registry.get_sample_value(size, {"nodeclass": "default"}) is None
    assert client(aws, "ec2").describe_launch_templates()["LaunchTemplates"] == []
    profiles = client(aws, "iam").list_instance_profiles(PathPrefix="/karpenter/")["InstanceProfiles"]
    assert profiles == []


async def test_unused_instance_profiles_are_deleted_and_those_of_instances_stay(
    aws: Double, account: AwsSession, seeds: Seeds
) -> None:
    """AWS-125, AWS-T092"""
    async with provider_process(aws, account) as process:
        await process.ready_class()
        await launched(process)
        path = f"/karpenter/{aws.region_name}/{NAME}/gone/"
        client(aws, "iam").create_instance_profile(InstanceProfileName="left", Path=path)
        process.start(PROFILES)
        await process.until(lambda: _profiles(aws) == _of_status(process), "only the used profile being there")


def _profiles(aws: Double) -> set[str]:
    instance_profiles = client(aws, "iam").list_instance_profiles(PathPrefix="/karpenter/")["InstanceProfiles"]
    return {element["InstanceProfileName"] for element in instance_profiles}


def _of_status(process: ProviderProcess) -> set[str]:
    return {listed_class.status.instance_profile for listed_class in process.classes}
