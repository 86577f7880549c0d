"""The interruption queue's messages (AWS-645 to AWS-651), sent as EventBridge sends them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

from support.aws.clients import client
from support.aws.double import Double
from support.aws.event_bridge import envelope
from support.aws.moto_backend import ACCOUNT

_RULES = {
    "instances": {
        "source": ["aws.ec2"],
        "detail-type": [
            "EC2 Spot Instance Interruption Warning",
            "EC2 Instance Rebalance Recommendation",
            "EC2 Instance State-change Notification",
            "EC2 Capacity Reservation Instance Interruption Warning",
        ],
    },
    "health": {"source": ["aws.health"], "detail-type": ["AWS Health Event"]},
}


@dataclass(frozen=True)
class Message:
    """An event and the instances it is about."""

    source: str
    detail_type: str
    detail: Mapping[str, object]
    instances: tuple[str, ...]


def spot_interruption(instance_id: str) -> Message:
    """A spot instance is interrupted in two minutes (AWS-645)."""
    detail = {"instance-id": instance_id, "instance-action": "terminate"}
    return Message("aws.ec2", "EC2 Spot Instance Interruption Warning", detail, (instance_id,))


def rebalance(instance_id: str) -> Message:
    """A spot instance has an elevated risk of interruption (AWS-646)."""
    detail = {"instance-id": instance_id}
    return Message("aws.ec2", "EC2 Instance Rebalance Recommendation", detail, (instance_id,))


def state_change(instance_id: str, state: str) -> Message:
    """The state of an instance has changed (AWS-647)."""
    detail = {"instance-id": instance_id, "state": state}
    return Message("aws.ec2", "EC2 Instance State-change Notification", detail, (instance_id,))


def scheduled_change(instance_ids: Sequence[str], service: str = "EC2") -> Message:
    """AWS has scheduled an event for instances (AWS-648)."""
    detail = {
        "eventArn": f"arn:aws:health:us-west-2::event/{service}/AWS_{service}_INSTANCE_RETIREMENT_SCHEDULED/{uuid4()}",
        "service": service,
        "eventTypeCode": f"AWS_{service}_INSTANCE_RETIREMENT_SCHEDULED",
        "eventTypeCategory": "scheduledChange",
        "affectedEntities": [{"entityValue": name} for name in instance_ids],
    }
    return Message("aws.health", "AWS Health Event", detail, tuple(instance_ids))


def reservation_interruption(instance_id: str) -> Message:
    """The capacity reservation of an instance is interrupted (AWS-649)."""
    detail = {"instance-id": instance_id, "instance-action": "terminate"}
    return Message("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning", detail, (instance_id,))


class InterruptionQueue:
    """The interruption queue of a double, created on first use."""

    def __init__(self, double: Double, name: str = "interruptions") -> None:
        self.name = name
        self._double = double
        self._sqs = client(double, "sqs")
        self.url: str = self._sqs.create_queue(QueueName=name)["QueueUrl"]

    def send(self, message: Message, at: datetime | None = None) -> None:
        """Send a message about an event ``at`` that time, or now."""
        moment = at or self._double.region.moment()
        region = self._double.region_name
        body = envelope(message.source, message.detail_type, message.detail, region=region, at=moment)
        arns = [f"arn:aws:ec2:{region}:{ACCOUNT}:instance/{name}" for name in message.instances]
        self.send_text(json.dumps({**body, "resources": arns}))

    def send_text(self, body: str) -> None:
        """Send any text."""
        self._sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def remaining(self) -> int:
        """The number of messages that are not deleted, including those in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        counts = self._sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(int(counts[name]) for name in names)

    def subscribe_to_rules(self) -> None:
        """Create EventBridge rules that deliver the five kinds from the default bus (AWS-979)."""
        events = client(self._double, "events")
        arn = self._sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        for name, pattern in _RULES.items():
            events.put_rule(Name=name, EventPattern=json.dumps(pattern))
            events.put_targets(Rule=name, Targets=[{"Id": "queue", "Arn": arn}])

    def publish(self, message: Message) -> None:
        """Put an event on the default bus."""
        entry = {
            "Source": message.source,
            "DetailType": message.detail_type,
            "Detail": json.dumps(message.detail),
            "Resources": list(message.instances),
        }
        client(self._double, "events").put_events(Entries=[entry])
