"""What AWS tells of machines, as values: messages of the interruption queue are read here, nothing is done (AWS-642 to AWS-651).

A message is recognised by version, source and detail-type, all three to the letter; what is not recognised, or recognised and not
meant (a machine that starts, another service's maintenance), is ``NO_OP``. Words inside a message are compared without regard
to case. A message that cannot be read at all is an ``Unreadable``, and gets no better by being delivered again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TypeVar

import msgspec

D = TypeVar("D")

_VERSION = "0"
_EC2, _HEALTH = "aws.ec2", "aws.health"
_STOPPED = frozenset({"stopping", "stopped"})
_TERMINATED = frozenset({"shutting-down", "terminated"})
_SCHEDULED_CHANGE = "scheduledchange"
_CLOSED = "closed"


class Unreadable(Exception):
    """Not a message of the form AWS promises; the text says why."""


class NoticeKind(StrEnum):
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
class Notice:
    """Something AWS says of these instances. ``at``: when it happened; ``begins``: when what is announced begins, None where
    that is now or not said."""

    kind: NoticeKind
    instances: tuple[str, ...] = ()
    at: datetime | None = None
    begins: datetime | None = None


NOTHING = Notice(NoticeKind.NO_OP)


class _Envelope(msgspec.Struct, frozen=True, rename="kebab"):
    version: str = ""
    source: str = ""
    detail_type: str = ""
    time: str = ""
    detail: msgspec.Raw = msgspec.Raw(b"{}")


class _Machine(msgspec.Struct, frozen=True, rename="kebab"):
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


def read(body: str | None) -> Notice:
    """The notice in a message's body. Raises ``Unreadable``."""
    if not body:
        raise Unreadable("it has no body")
    envelope = _decoded(body.encode(), _Envelope)
    reader = _READERS.get((envelope.source, envelope.detail_type))
    if envelope.version != _VERSION or reader is None:
        return NOTHING
    return reader(envelope)


def _about_machine(kind: NoticeKind) -> Callable[[_Envelope], Notice]:
    def reader(envelope: _Envelope) -> Notice:
        machine = _decoded(envelope.detail, _Machine)
        return Notice(kind, (machine.instance_id,), moment(envelope.time))

    return reader


def _state_change(envelope: _Envelope) -> Notice:
    machine = _decoded(envelope.detail, _Machine)
    state = machine.state.lower()
    if state in _STOPPED:
        return Notice(NoticeKind.STOPPED, (machine.instance_id,), moment(envelope.time))
    if state in _TERMINATED:
        return Notice(NoticeKind.TERMINATED, (machine.instance_id,), moment(envelope.time))
    return NOTHING


def _health(envelope: _Envelope) -> Notice:
    """A change AWS plans. One that is closed is over, or will not come."""
    health = _decoded(envelope.detail, _Health)
    is_planned = health.service.upper() == "EC2" and health.event_type_category.lower() == _SCHEDULED_CHANGE
    if not is_planned or health.status_code.lower() == _CLOSED:
        return NOTHING
    instances = tuple(entity.entity_value for entity in health.affected_entities)
    return Notice(NoticeKind.SCHEDULED_CHANGE, instances, moment(envelope.time), moment(health.start_time))


_READERS: Mapping[tuple[str, str], Callable[[_Envelope], Notice]] = {
    (_EC2, "EC2 Spot Instance Interruption Warning"): _about_machine(NoticeKind.SPOT_INTERRUPTED),
    (_EC2, "EC2 Instance Rebalance Recommendation"): _about_machine(NoticeKind.REBALANCE),
    (_EC2, "EC2 Instance State-change Notification"): _state_change,
    (_HEALTH, "AWS Health Event"): _health,
    (_EC2, "EC2 Capacity Reservation Instance Interruption Warning"): _about_machine(
        NoticeKind.RESERVATION_INTERRUPTED
    ),
}


def moment(text: str) -> datetime | None:
    """A time as EventBridge (RFC 3339) or Health (RFC 1123) writes it; None for anything else."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            found = parse(text)
        except ValueError:
            continue
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return None


def _decoded(data: bytes | msgspec.Raw, form: type[D]) -> D:
    try:
        return msgspec.json.decode(data, type=form)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Unreadable(str(error)) from error
