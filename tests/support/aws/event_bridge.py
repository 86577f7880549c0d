"""EventBridge: delivers events to queues by rules (AWS-979). moto stores the rules but does not deliver."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from uuid import uuid4

from support.aws.moto_backend import ACCOUNT, Moto
from support.aws.wire import Fields


class EventBridge:
    """The default event bus."""

    def __init__(self, moto: Moto, moment: Callable[[], datetime]) -> None:
        self._moto = moto
        self._moment = moment

    def put(self, parameters: Fields) -> Fields:
        """PutEvents."""
        event_ids = [self._publish(entry) for entry in parameters["Entries"]]
        return {"FailedEntryCount": 0, "Entries": [{"EventId": event_id} for event_id in event_ids]}

    def _publish(self, entry: Fields) -> str:
        event = envelope(
            entry["Source"],
            entry["DetailType"],
            json.loads(entry["Detail"]),
            region=self._moto.region,
            at=entry.get("Time") or self._moment(),
        )
        event["resources"] = list(entry.get("Resources") or ())
        for rule in self._moto.ask("events", "ListRules")["Rules"]:
            if _matches(json.loads(rule.get("EventPattern") or "{}"), event):
                self._deliver(rule["Name"], event)
        return str(event["id"])

    def _deliver(self, rule: str, event: Fields) -> None:
        for target in self._moto.ask("events", "ListTargetsByRule", {"Rule": rule})["Targets"]:
            queue = target["Arn"].rpartition(":")[2]
            url = self._moto.ask("sqs", "GetQueueUrl", {"QueueName": queue})["QueueUrl"]
            self._moto.ask("sqs", "SendMessage", {"QueueUrl": url, "MessageBody": json.dumps(event)})


def envelope(source: str, kind: str, detail: Mapping[str, object], *, region: str, at: datetime) -> Fields:
    """An event as a queue receives it (AWS-651)."""
    return {
        "version": "0",
        "id": str(uuid4()),
        "detail-type": kind,
        "source": source,
        "account": ACCOUNT,
        "time": f"{at:%Y-%m-%dT%H:%M:%SZ}",
        "region": region,
        "resources": [],
        "detail": dict(detail),
    }


def _matches(pattern: Mapping[str, object], event: Mapping[str, object]) -> bool:
    """Whether an event matches a pattern: lists are allowed values, maps are patterns of nested fields."""
    for key, wanted in pattern.items():
        value = event.get(key)
        if isinstance(wanted, dict):
            if not isinstance(value, dict) or not _matches(wanted, value):
                return False
        elif isinstance(wanted, list) and value not in wanted:
            return False
    return True
