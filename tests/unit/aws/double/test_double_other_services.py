"""Other services of the double: queue and events, instance profiles, clusters, zonal shifts, identity."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from support.aws import interruption_queue
from support.aws.clients import client
from support.aws.double import Double
from support.aws.interruption_queue import InterruptionQueue, Message
from support.aws.refusals import refused


def _receive(aws: Double, queue: InterruptionQueue) -> dict[str, Any]:
    sqs = client(aws, "sqs")
    (message,) = sqs.receive_message(QueueUrl=queue.url, WaitTimeSeconds=5, AttributeNames=["SentTimestamp"])[
        "Messages"
    ]
    assert int(message["Attributes"]["SentTimestamp"]) > 0
    sqs.delete_message(QueueUrl=queue.url, ReceiptHandle=message["ReceiptHandle"])
    return dict(json.loads(message["Body"]))


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (interruption_queue.spot_interruption("i-1"), "EC2 Spot Instance Interruption Warning"),
        (interruption_queue.rebalance("i-1"), "EC2 Instance Rebalance Recommendation"),
        (interruption_queue.state_change("i-1", "stopping"), "EC2 Instance State-change Notification"),
        (interruption_queue.scheduled_change(["i-1", "i-2"]), "AWS Health Event"),
        (interruption_queue.reservation_interruption("i-1"), "EC2 Capacity Reservation Instance Interruption Warning"),
    ],
    ids=["AWS-645", "AWS-646", "AWS-647", "AWS-648", "AWS-649"],
)
def test_messages_have_the_common_envelope(aws: Double, message: Message, kind: str) -> None:
    """AWS-651, AWS-979."""
    queue = InterruptionQueue(aws)
    queue.send(message, datetime(2026, 5, 1, 12, tzinfo=UTC))
    body = _receive(aws, queue)
    assert body["version"] == "0"
    assert body["detail-type"] == kind
    assert body["time"] == "2026-05-01T12:00:00Z"
    assert body["detail"] == message.detail
    assert queue.remaining() == 0


def test_a_spot_interruption_warning_is_delivered_by_a_rule(aws: Double) -> None:
    """AWS-979, AWS-T963."""
    queue = InterruptionQueue(aws)
    queue.subscribe_to_rules()
    queue.publish(Message("aws.ec2", "EC2 Something Else", {"instance-id": "i-2"}, ("i-2",)))
    queue.publish(interruption_queue.spot_interruption("i-1"))
    body = _receive(aws, queue)
    assert (body["source"], body["detail"]["instance-id"]) == ("aws.ec2", "i-1")
    assert queue.remaining() == 0


def test_a_missing_queue_has_two_error_codes(aws: Double) -> None:
    """AWS-979."""
    with refused("AWS.SimpleQueueService.NonExistentQueue") as error:
        client(aws, "sqs").get_queue_url(QueueName="nowhere")
    assert error["QueryErrorCode"] == "QueueDoesNotExist"


def test_instance_profiles_are_listed_by_path(aws: Double) -> None:
    """AWS-981."""
    iam = client(aws, "iam")
    for name, path in (("one", "/karpenter/us-west-2/a/"), ("two", "/karpenter/us-west-2/b/"), ("three", "/")):
        iam.create_instance_profile(InstanceProfileName=name, Path=path)
    pages = iam.get_paginator("list_instance_profiles").paginate(
        PathPrefix="/karpenter/us-west-2/", PaginationConfig={"PageSize": 1}
    )
    assert [entry["InstanceProfileName"] for page in pages for entry in page["InstanceProfiles"]] == ["one", "two"]


def test_an_unknown_role_and_a_second_role_are_refused(aws: Double) -> None:
    """AWS-981, AWS-120."""
    iam = client(aws, "iam")
    iam.create_instance_profile(InstanceProfileName="one")
    with refused("NoSuchEntity") as error:
        iam.add_role_to_instance_profile(InstanceProfileName="one", RoleName="nobody")
    assert "role" in error["Message"].lower()
    for name in ("first", "second"):
        iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")
    iam.add_role_to_instance_profile(InstanceProfileName="one", RoleName="first")
    with refused("LimitExceeded"):
        iam.add_role_to_instance_profile(InstanceProfileName="one", RoleName="second")
    with refused("DeleteConflict"):
        iam.delete_instance_profile(InstanceProfileName="one")


@pytest.mark.parametrize(("cidr", "field"), [("172.20.0.0/16", "serviceIpv4Cidr"), ("fd00::/108", "serviceIpv6Cidr")])
def test_a_cluster_is_described(aws: Double, cidr: str, field: str) -> None:
    """AWS-982."""
    aws.control.add_cluster("test", "https://api.example", "Y2E=", "1.35", cidr)
    cluster = client(aws, "eks").describe_cluster(name="test")["cluster"]
    assert (cluster["endpoint"], cluster["version"]) == ("https://api.example", "1.35")
    assert cluster["certificateAuthority"]["data"] == "Y2E="
    assert cluster["kubernetesNetworkConfig"][field] == cidr


def test_an_unknown_cluster_is_not_found(aws: Double) -> None:
    """AWS-982."""
    with refused("ResourceNotFoundException"):
        client(aws, "eks").describe_cluster(name="nobody")


def test_a_cluster_has_zonal_shifts(aws: Double) -> None:
    """AWS-978, AWS-615."""
    arn = aws.control.add_cluster("test", "https://api.example", "Y2E=")
    port = client(aws, "arc-zonal-shift")
    assert port.get_managed_resource(resourceIdentifier=arn)["zonalShifts"] == []
    aws.control.set_shifts(arn, [{"zone_id": "usw2-az1", "expires": "2027-01-01T00:00:00Z", "status": "NOT_APPLIED"}])
    (shift,) = port.get_managed_resource(resourceIdentifier=arn)["zonalShifts"]
    assert (shift["awayFrom"], shift["appliedStatus"], shift["expiryTime"].year) == ("usw2-az1", "NOT_APPLIED", 2027)
    with refused("ResourceNotFoundException"):
        port.get_managed_resource(resourceIdentifier=f"{arn}-other")


def test_a_reset_removes_everything(aws: Double) -> None:
    """AWS-983."""
    assert client(aws, "sts").get_caller_identity()["Account"] == "123456789012"
    InterruptionQueue(aws)
    aws.reset()
    assert aws.calls.all == []
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        client(aws, "sqs").get_queue_url(QueueName="interruptions")
