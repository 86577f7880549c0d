"""Which events go where, in which batches, and in which words."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from karpenter.notifications.notification_batches import MAX_WAITING, WaitingEvents
from karpenter.notifications.notification_config import (
    Destination,
    EventSeverity,
    NotificationConfig,
    parse_notification_config,
)
from karpenter.notifications.notification_formats import write_post
from karpenter.notifications.notification_rules import Notification, destinations_of

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
NIGHT = NOON + timedelta(hours=12)
NOTIFICATION = Notification(
    EventSeverity.WARNING, "FailedDraining", 'pod "a" <!here> blocks', "Node", "", "n1", "u1", NOON
)


def config(destination: str = "", rule: str = "") -> NotificationConfig:
    text = f"cluster: prod\ndestinations: [{{name: ops, url: 'http://x'{destination}}}]\nrules: [{{destinations: [ops]{rule}}}]"
    return parse_notification_config(text.encode())


def destination(text: str = "") -> Destination:
    return config(text).destinations[0]


def waiting(place: Destination, *notifications: Notification) -> WaitingEvents:
    events = WaitingEvents(place)
    for notification in notifications:
        events.add(notification, 100.0)
    return events


@pytest.mark.parametrize(
    ("rule", "goes"),
    [
        ("", True),
        (", reasons: [Failed*]", True),
        (", reasons: [Disruption*, Unconsolidatable]", False),
        (", kinds: [NodeClaim]", False),
        (", severities: [Normal]", False),
        (", severities: [Warning], kinds: [Node], reasons: [FailedDraining]", True),
        (", namespaces: [shop]", False),
    ],
)
def test_a_rule_lets_through_what_all_its_parts_match(rule: str, goes: bool) -> None:
    assert bool(destinations_of(NOTIFICATION, config(rule=rule))) is goes


def test_a_batch_is_due_when_its_window_is_over_or_it_is_full() -> None:
    place = destination(", batch: {window: 30s, maxEvents: 2}")
    other = replace(NOTIFICATION, name="n2")
    assert waiting(place, NOTIFICATION).batch(NOON, 129.0) == ()
    assert waiting(place, NOTIFICATION).batch(NOON, 130.0) == (NOTIFICATION,)
    assert waiting(place, NOTIFICATION, other).batch(NOON, 100.0) == (NOTIFICATION, other)


def test_equal_events_of_a_batch_are_one_with_a_count() -> None:
    events = waiting(destination(), NOTIFICATION, NOTIFICATION, NOTIFICATION)
    assert [one.count for one in events.batch(NOON, 1000.0)] == [3]


def test_what_comes_while_a_batch_is_posted_is_not_lost() -> None:
    events = waiting(destination(), NOTIFICATION, NOTIFICATION)
    posted = events.batch(NOON, 200.0)
    events.add(NOTIFICATION, 201.0)
    events.add(replace(NOTIFICATION, name="n2"), 201.0)
    events.remove(posted, 202.0)
    assert events.batch(NOON, 231.0) == (), "they begin a window of their own"
    assert {(one.name, one.count) for one in events.batch(NOON, 232.0)} == {("n1", 1), ("n2", 1)}


def test_beyond_a_thousand_the_oldest_are_dropped_and_counted() -> None:
    events = WaitingEvents(destination(", batch: {maxEvents: 1}"))
    dropped = sum(events.add(replace(NOTIFICATION, name=f"n{number}"), 100.0) for number in range(MAX_WAITING + 3))
    assert (len(events), dropped, events.batch(NOON, 200.0)[0].name) == (MAX_WAITING, 3, "n3")


def test_events_wait_for_the_end_of_quiet_hours_but_for_the_excepted_severities() -> None:
    quiet = ", quietHours: {timeZone: UTC, windows: [{from: '22:00', until: '07:00'}], except: [Warning]}"
    normal = replace(NOTIFICATION, severity=EventSeverity.NORMAL)
    events = waiting(destination(quiet), normal, NOTIFICATION)
    assert events.batch(NIGHT, 200.0) == (NOTIFICATION,)
    events.remove((NOTIFICATION,), 200.0)
    assert events.batch(NIGHT, 300.0) == ()
    assert events.batch(NIGHT + timedelta(hours=7), 300.0) == (normal,)


def test_cloud_events_are_one_batch_with_derived_ids() -> None:
    post = write_post((NOTIFICATION, replace(NOTIFICATION, name="n2")), destination(), "prod")
    first, second = json.loads(post.body)
    assert post.content_type == "application/cloudevents-batch+json; charset=utf-8"
    assert {name: first[name] for name in ("specversion", "source", "type", "subject", "time", "severity")} == {
        "specversion": "1.0",
        "source": "/karpenter/prod",
        "type": "sh.karpenter.event.FailedDraining",
        "subject": "Node/n1",
        "time": "2026-11-24T12:00:00Z",
        "severity": "warning",
    }
    assert first["data"]["message"] == NOTIFICATION.message
    assert first["id"] != second["id"]
    assert json.loads(write_post((NOTIFICATION,), destination(), "prod").body)[0]["id"] == first["id"]


def test_cloud_events_one_by_one_are_in_the_structured_mode() -> None:
    post = write_post((NOTIFICATION,), destination(", batch: {maxEvents: 1}"), "")
    assert post.content_type == "application/cloudevents+json; charset=utf-8"
    assert json.loads(post.body)["source"] == "/karpenter"


def test_a_chat_gets_json_whatever_names_and_messages_hold() -> None:
    hostile = replace(NOTIFICATION, message='"}, {"x": "\\ <!channel> & ${time}\n')
    post = write_post((hostile,), destination(", format: Slack"), "prod")
    assert json.loads(post.body) == {
        "text": 'Warning Node/n1: "}, {"x": "\\ &lt;!channel&gt; &amp; ${time}\n (FailedDraining)'
    }


def test_templates_decide_what_a_chat_gets() -> None:
    body = '{"blocks": [{"n": $events, "t": "$lines"}], "from": "$cluster"}'
    templates = f", format: Slack, line: '*$reason* x$count', body: '{body}'"
    post = write_post((replace(NOTIFICATION, count=2),), destination(templates), "prod")
    assert json.loads(post.body) == {"blocks": [{"n": 2, "t": "*FailedDraining* x2"}], "from": "prod"}
