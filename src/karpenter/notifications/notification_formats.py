"""What is posted: the body of a batch and its content type."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from string import Template
from typing import assert_never

import msgspec

from karpenter.model.clock import rfc3339
from karpenter.notifications.notification_config import Destination, NotificationFormat
from karpenter.notifications.notification_rules import Notification

_SPEC_VERSION = "1.0"
_TYPE_PREFIX = "sh.karpenter.event."
#: Signs with a meaning in Slack's text, which names and messages must not have.
_SLACK_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_TRANSLATION = str.maketrans(_SLACK_ESCAPES)


@dataclass(frozen=True)
class Post:
    """A body to post."""

    content_type: str
    body: bytes


def write_post(batch: tuple[Notification, ...], destination: Destination, cluster: str) -> Post:
    """The body of a batch of at least one event."""
    match destination.format:
        case NotificationFormat.CLOUD_EVENTS:
            return _cloud_events_post(batch, destination, cluster)
        case NotificationFormat.SLACK:
            return Post("application/json", _slack_body(batch, destination, cluster).encode())
        case _ as unreachable:
            assert_never(unreachable)


def _cloud_events_post(batch: tuple[Notification, ...], destination: Destination, cluster: str) -> Post:
    events = [cloud_event(notification, cluster) for notification in batch]
    if destination.batch.max_events == 1:
        return Post("application/cloudevents+json; charset=utf-8", msgspec.json.encode(events[0]))
    return Post("application/cloudevents-batch+json; charset=utf-8", msgspec.json.encode(events))


def cloud_event(notification: Notification, cluster: str) -> dict[str, object]:
    """An event in the JSON format of CloudEvents 1.0. The id is derived from its content, so a repeated post has the same."""
    time = rfc3339(notification.time)
    identity = "\0".join((*notification.key, time, str(notification.count)))
    return {
        "specversion": _SPEC_VERSION,
        "id": hashlib.sha256(identity.encode()).hexdigest()[:32],
        "source": f"/karpenter/{cluster}" if cluster else "/karpenter",
        "type": _TYPE_PREFIX + notification.reason,
        "subject": notification.object,
        "time": time,
        "severity": notification.severity.lower(),
        "datacontenttype": "application/json",
        "data": {
            "reason": notification.reason,
            "message": notification.message,
            "count": notification.count,
            "involvedObject": {
                "kind": notification.kind,
                "namespace": notification.namespace,
                "name": notification.name,
                "uid": notification.uid,
            },
        },
    }


def _slack_body(batch: tuple[Notification, ...], destination: Destination, cluster: str) -> str:
    lines = "\n".join(_line(notification, destination.line, cluster) for notification in batch)
    total = sum(notification.count for notification in batch)
    fields = {"lines": lines, "events": str(total), "cluster": cluster.translate(_TRANSLATION)}
    return Template(destination.body).substitute({name: _json_escaped(value) for name, value in fields.items()})


def _line(notification: Notification, template: str, cluster: str) -> str:
    fields = {
        "severity": notification.severity.value,
        "reason": notification.reason,
        "kind": notification.kind,
        "namespace": notification.namespace,
        "name": notification.name,
        "object": notification.object,
        "message": notification.message,
        "count": str(notification.count),
        "time": rfc3339(notification.time),
        "cluster": cluster,
    }
    return Template(template).substitute({name: value.translate(_TRANSLATION) for name, value in fields.items()})


def _json_escaped(text: str) -> str:
    """A text as it stands between the quotes of a JSON string."""
    return msgspec.json.encode(text).decode()[1:-1]
