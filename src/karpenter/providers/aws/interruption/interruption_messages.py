"""Parses messages of the interruption queue (AWS-642 to AWS-651).

Version, source and detail-type identify a message, all three to the letter. Other messages, and those without a consequence (an
instance that starts, another service's maintenance), are ``NO_OP``. Words inside a message are compared without regard to case.
A message that cannot be parsed raises ``MalformedInterruptionMessage``; it would fail again after another delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TypeVar

import msgspec

from karpenter.providers.aws.instance.instance_info import TERMINATING_STATES

D = TypeVar("D")

_VERSION = "0"
_EC2, _HEALTH = "aws.ec2", "aws.health"
_STOPPED = frozenset({"stopping", "stopped"})
_SCHEDULED_CHANGE = "scheduledchange"
_CLOSED = "closed"


class MalformedInterruptionMessage(Exception):
    """Not a message of the form AWS promises; the text says why."""


class InterruptionKind(StrEnum):
    """What a notice is about, as figures and logs call it."""

    SPOT_INTERRUPTED = "spot_interrupted"
    REBALANCE = "rebalance_recommendation"
    STOPPED = "instance_stopped"
    TERMINATED = "instance_terminated"
    SCHEDULED_CHANGE = "scheduled_change"
    RESERVATION_INTERRUPTED = "capacity_reservation_interrupted"
    INSTANCE_STATUS = "instance_status"
    SYSTEM_STATUS = "system_status"
    EVENT_STATUS = "event_status"
    NO_OP = "no_op"


@dataclass(frozen=True, slots=True)
class InterruptionMessage:
    """Something AWS says of these instances. ``start_time``: when it happened; ``begins_at``: when what is announced begins,
    None where that is now or not said."""

    kind: InterruptionKind
    instance_ids: tuple[str, ...] = ()
    start_time: datetime | None = None
    begins_at: datetime | None = None


NO_OP_MESSAGE = InterruptionMessage(InterruptionKind.NO_OP)


class _Envelope(msgspec.Struct, frozen=True, rename="kebab"):
    version: str = ""
    source: str = ""
    detail_type: str = ""
    time: str = ""
    detail: msgspec.Raw = msgspec.Raw(b"{}")


class _InstanceDetail(msgspec.Struct, frozen=True, rename="kebab"):
    instance_id: str
    state: str = ""


class _Entity(msgspec.Struct, frozen=True, rename="camel"):
    entity_value: str


class _Health(msgspec.Struct, frozen=True, rename="camel"):
    service: str = ""
    event_type_category: str = ""
    status_code: str = ""
    start_time: str = ""
    affected_entities: tuple[_Entity, ...] = ()


def parse_interruption_message(body: str | None) -> InterruptionMessage:
    """The notice in a message's body. Raises ``MalformedInterruptionMessage``."""
    if not body:
        raise MalformedInterruptionMessage("it has no body")
    envelope = _decode(body.encode(), _Envelope)
    reader = _PARSERS.get((envelope.source, envelope.detail_type))
    if envelope.version != _VERSION or reader is None:
        return NO_OP_MESSAGE
    return reader(envelope)


def _instance_message(kind: InterruptionKind) -> Callable[[_Envelope], InterruptionMessage]:
    def reader(envelope: _Envelope) -> InterruptionMessage:
        instance = _decode(envelope.detail, _InstanceDetail)
        return InterruptionMessage(kind, (instance.instance_id,), parse_event_time(envelope.time))

    return reader


def _state_change_message(envelope: _Envelope) -> InterruptionMessage:
    detail = _decode(envelope.detail, _InstanceDetail)
    state = detail.state.lower()
    if state in _STOPPED:
        return InterruptionMessage(InterruptionKind.STOPPED, (detail.instance_id,), parse_event_time(envelope.time))
    if state in TERMINATING_STATES:
        return InterruptionMessage(InterruptionKind.TERMINATED, (detail.instance_id,), parse_event_time(envelope.time))
    return NO_OP_MESSAGE


def _health_message(envelope: _Envelope) -> InterruptionMessage:
    """A change AWS plans. One that is closed is over, or will not come."""
    health = _decode(envelope.detail, _Health)
    is_planned = health.service.upper() == "EC2" and health.event_type_category.lower() == _SCHEDULED_CHANGE
    if not is_planned or health.status_code.lower() == _CLOSED:
        return NO_OP_MESSAGE
    instances = tuple(entity.entity_value for entity in health.affected_entities)
    return InterruptionMessage(
        InterruptionKind.SCHEDULED_CHANGE,
        instances,
        parse_event_time(envelope.time),
        parse_event_time(health.start_time),
    )


_PARSERS: Mapping[tuple[str, str], Callable[[_Envelope], InterruptionMessage]] = {
    (_EC2, "EC2 Spot Instance Interruption Warning"): _instance_message(InterruptionKind.SPOT_INTERRUPTED),
    (_EC2, "EC2 Instance Rebalance Recommendation"): _instance_message(InterruptionKind.REBALANCE),
    (_EC2, "EC2 Instance State-change Notification"): _state_change_message,
    (_HEALTH, "AWS Health Event"): _health_message,
    (_EC2, "EC2 Capacity Reservation Instance Interruption Warning"): _instance_message(
        InterruptionKind.RESERVATION_INTERRUPTED
    ),
}


def parse_event_time(text: str) -> datetime | None:
    """A time as EventBridge (RFC 3339) or Health (RFC 1123) writes it; None for anything else."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = parse(text)
        except ValueError:
            continue
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return None


def _decode(data: bytes | msgspec.Raw, form: type[D]) -> D:
    try:
        return msgspec.json.decode(data, type=form)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise MalformedInterruptionMessage(str(error)) from error
