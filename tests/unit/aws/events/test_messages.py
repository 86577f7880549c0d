"""Parsing messages of the interruption queue (AWS §14.1)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from karpenter.providers.aws.interruption.interruption_messages import (
    NO_OP_MESSAGE,
    InterruptionKind,
    InterruptionMessage,
    MalformedInterruptionMessage,
    parse_interruption_message,
)

AT = datetime(2024, 5, 1, 12, tzinfo=UTC)
STATE = "EC2 Instance State-change Notification"


def body(detail_type: str, detail: dict[str, Any], source: str = "aws.ec2", version: str = "0") -> str:
    return json.dumps(
        {
            "version": version,
            "id": "7bf73129",
            "detail-type": detail_type,
            "source": source,
            "account": "123456789012",
            "time": "2024-05-01T12:00:00Z",
            "region": "us-west-2",
            "resources": [],
            "detail": detail,
        }
    )


def health(**more: Any) -> str:
    detail = {
        "service": "EC2",
        "eventTypeCategory": "scheduledChange",
        "startTime": "Mon, 20 May 2024 10:00:00 GMT",
        "affectedEntities": [{"entityValue": "i-1"}, {"entityValue": "i-2"}],
        **more,
    }
    return body("AWS Health Event", detail, "aws.health")


@pytest.mark.parametrize(
    ("detail_type", "detail", "kind"),
    [
        pytest.param("EC2 Spot Instance Interruption Warning", {}, InterruptionKind.SPOT_INTERRUPTED, id="AWS-645"),
        pytest.param("EC2 Instance Rebalance Recommendation", {}, InterruptionKind.REBALANCE, id="AWS-646"),
        pytest.param(STATE, {"state": "stopping"}, InterruptionKind.STOPPED, id="AWS-647 stopping"),
        pytest.param(STATE, {"state": "stopped"}, InterruptionKind.STOPPED, id="AWS-647 stopped"),
        pytest.param(STATE, {"state": "STOPPING"}, InterruptionKind.STOPPED, id="AWS-650"),
        pytest.param(STATE, {"state": "shutting-down"}, InterruptionKind.TERMINATED, id="AWS-T643"),
        pytest.param(STATE, {"state": "Terminated"}, InterruptionKind.TERMINATED, id="AWS-647 any case"),
        pytest.param(
            "EC2 Capacity Reservation Instance Interruption Warning",
            {},
            InterruptionKind.RESERVATION_INTERRUPTED,
            id="AWS-649",
        ),
    ],
)
def test_messages_about_one_instance_are_parsed(
    detail_type: str, detail: dict[str, Any], kind: InterruptionKind
) -> None:
    assert parse_interruption_message(body(detail_type, {"instance-id": "i-1", **detail})) == InterruptionMessage(
        kind, ("i-1",), AT
    )


def test_a_scheduled_change_has_its_instances_and_its_start_time() -> None:
    """AWS-648."""
    begins = datetime(2024, 5, 20, 10, tzinfo=UTC)
    assert parse_interruption_message(health()) == InterruptionMessage(
        InterruptionKind.SCHEDULED_CHANGE, ("i-1", "i-2"), AT, begins
    )
    assert parse_interruption_message(health(startTime="soon")).begins_at is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(body(STATE, {"instance-id": "i-1", "state": "running"}), id="AWS-T642"),
        pytest.param(health(service="RDS"), id="AWS-T644"),
        pytest.param(health(eventTypeCategory="accountNotification"), id="another category"),
        pytest.param(health(statusCode="closed"), id="a completed change"),
        pytest.param(body("EC2 Spot Instance Interruption Warning", {"instance-id": "i-1"}, version="1"), id="version"),
        pytest.param(body("EC2 Spot Instance Interruption Warning", {"instance-id": "i-1"}, "aws.rds"), id="source"),
        pytest.param(body("ec2 spot instance interruption warning", {"instance-id": "i-1"}), id="detail-type"),
        pytest.param("{}", id="an empty object"),
    ],
)
def test_messages_of_other_kinds_are_ignored(text: str) -> None:
    assert parse_interruption_message(text) == NO_OP_MESSAGE


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="no body"),
        pytest.param("", id="empty"),
        pytest.param("garbage", id="AWS-T647"),
        pytest.param("[]", id="a list"),
        pytest.param('{"version": 0}', id="a number"),
        pytest.param(body("EC2 Spot Instance Interruption Warning", {}), id="no instance"),
        pytest.param(body("EC2 Spot Instance Interruption Warning", {"instance-id": 5}), id="no text"),
        pytest.param('{"version": "\ud800"}'.encode("utf-8", "surrogatepass").decode("latin-1")[:-1], id="cut"),
    ],
)
def test_a_message_that_cannot_be_parsed_is_an_error(text: str | None) -> None:
    """AWS-642."""
    with pytest.raises(MalformedInterruptionMessage):
        parse_interruption_message(text)


def test_a_message_with_an_invalid_time_is_parsed_without_the_time() -> None:
    text = body("EC2 Instance Rebalance Recommendation", {"instance-id": "i-1"}).replace("2024-05-01T12:00:00Z", "noon")
    assert parse_interruption_message(text) == InterruptionMessage(InterruptionKind.REBALANCE, ("i-1",))
