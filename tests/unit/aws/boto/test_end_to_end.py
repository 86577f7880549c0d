"""Startup and an interruption, with boto3 against the double of AWS."""

from __future__ import annotations

import json

import pytest

from karpenter.model.clock import rfc3339
from karpenter.providers.aws.aws_settings import AwsSettings
from karpenter.providers.aws.cluster_discovery import ApiServerAccess, AwsStartupError, discover_cluster
from karpenter.providers.aws.interruption.interruption_controllers import (
    InstanceStatusController,
    InterruptionQueueController,
)
from karpenter.providers.aws.sdk.aws_session import AwsSession
from karpenter.simulation.apiserver import MemoryKube
from support.aws.clients import client
from support.aws.double import Double
from support.interruption_cluster import FakeAwsCluster

SPOT_WARNING = "EC2 Spot Instance Interruption Warning"


async def test_a_spot_interruption_warning_in_the_queue_deletes_the_claim(account: AwsSession, aws: Double) -> None:
    """AWS-T963, from the queue on."""
    sqs = client(aws, "sqs")
    url = sqs.create_queue(QueueName="prod")["QueueUrl"]
    cluster = FakeAwsCluster()
    await cluster.add_instance("a", "i-1")
    warning = {
        "version": "0",
        "id": "7bf73129",
        "detail-type": SPOT_WARNING,
        "source": "aws.ec2",
        "account": "123456789012",
        "time": rfc3339(cluster.clock.now()),
        "region": aws.region_name,
        "resources": ["arn:aws:ec2:us-west-2a:instance/i-1"],
        "detail": {"instance-id": "i-1", "instance-action": "terminate"},
    }
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps(warning))
    port = account.services.sqs
    queue = InterruptionQueueController("prod", port, cluster.handler, cluster.interruptions, cluster.clock)
    assert await queue.reconcile() == 0.0
    assert await cluster.deleted_claims() == ["a"]
    left = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert left["ApproximateNumberOfMessages"] == left["ApproximateNumberOfMessagesNotVisible"] == "0"


async def test_a_missing_permission_for_instance_status_stops_only_that_controller(
    account: AwsSession, aws: Double
) -> None:
    """AWS-T702."""
    aws.control.deny("ec2:DescribeInstanceStatus")
    cluster = FakeAwsCluster()
    health = InstanceStatusController(
        account.services.ec2, cluster, cluster.handler, cluster.interruptions, cluster.clock
    )
    assert await health.reconcile() == 3600.0


def api_server(cluster: FakeAwsCluster) -> ApiServerAccess:
    async def version() -> str:
        return "1.35"

    return ApiServerAccess(MemoryKube(cluster.server), version, "Q0E=")


async def test_a_start_on_eks_discovers_the_cluster(account: AwsSession, aws: Double) -> None:
    """AWS-018, AWS-019, AWS-022, AWS-026, AWS-T008."""
    arn = aws.control.add_cluster("prod", "https://prod.eks", "Q0E=", "1.35")
    settings = AwsSettings(cluster_name="prod", enable_zonal_shift=True, eks_control_plane=True)
    cluster = (await discover_cluster(account, settings, api_server(FakeAwsCluster()))).cluster
    assert (cluster.endpoint, cluster.arn) == ("https://prod.eks", arn)
    assert (cluster.region, cluster.version) == (aws.region_name, "1.35")
    assert cluster.service_cidr == "172.20.0.0/16"


async def test_a_start_without_permission_names_the_permission(account: AwsSession, aws: Double) -> None:
    """AWS-018. OPS-370: startup fails with the connectivity check."""
    aws.control.deny("ec2:DescribeInstanceTypes")
    with pytest.raises(AwsStartupError) as caught:
        await discover_cluster(account, AwsSettings(cluster_name="prod"), api_server(FakeAwsCluster()))
    assert "ec2 api connectivity check failed" in str(caught.value)
    assert "ec2:DescribeInstanceTypes" in str(caught.value)
