"""What a comment beside a schedule says, and when it contradicts the schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from karpenter.lint.schedule_comments import ScheduleComment, StatedHours, parse_comment

POOL = """apiVersion: karpenter.sh/v1
kind: NodePool
metadata:
  name: web{annotations}
spec:
  template:
    spec:
      nodeClassRef: {{group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}}
      requirements:
      - {{key: kubernetes.io/arch, operator: In, values: [amd64]}}
      - {{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}}
  limits: {{cpu: "100"}}
  disruption:
    consolidateAfter: 5m
    budgets:
    - nodes: "10%"
    # {comment}
    - nodes: "0"
      schedule: "{schedule}"
      duration: {duration}
"""
SEOUL = """
  annotations:
    karpenter.sh/budget-windows: '[null, {"timeZone": "Asia/Seoul"}]'"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No disruption from 9am to 5pm.", ScheduleComment(hours=(StatedHours(540, 1020),))),
        ("9-5pm", ScheduleComment(hours=(StatedHours(540, 1020),))),
        ("2-6pm", ScheduleComment(hours=(StatedHours(840, 1080),))),
        ("09:00-17:30", ScheduleComment(hours=(StatedHours(540, 1050),))),
        ("22:00 until 06:00", ScheduleComment(hours=(StatedHours(1320, 360),))),
        ("12am-12pm", ScheduleComment(hours=(StatedHours(0, 720),))),
        ("10-20 nodes at most", ScheduleComment()),
        ("see 2026-10-04", ScheduleComment()),
        ("25:00-26:00", ScheduleComment()),
        ("weekends only", ScheduleComment(weekdays=frozenset({0, 6}))),
        ("mon-fri", ScheduleComment(weekdays=frozenset({1, 2, 3, 4, 5}))),
        ("Friday to Monday", ScheduleComment(weekdays=frozenset({5, 6, 0, 1}))),
        ("weekdays and weekends", ScheduleComment()),
        ("for 8 hours", ScheduleComment(length_minutes=480)),
        ("Seoul (KST)", ScheduleComment(zone="Asia/Seoul")),
        ("Europe/Berlin", ScheduleComment(zone="Europe/Berlin")),
        ("in UTC", ScheduleComment(names_utc=True)),
        ("local time", ScheduleComment(means_local_time=True)),
        ("the best we can", ScheduleComment()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_only_what_is_unmistakable_counts(text: str, expected: ScheduleComment) -> None:
    assert parse_comment(text) == expected


@pytest.mark.parametrize(
    ("comment", "schedule", "duration", "annotations", "rules"),
    [
        ("9am-5pm", "0 9 * * *", "8h", "", []),
        ("9am-5pm", "0 17 * * *", "16h", "", []),
        ("9am-5pm", "0 9 * * *", "9h", "", ["KL110"]),
        ("weekends", "0 0 * * sat", "48h", "", []),
        ("weekends", "0 0 * * mon", "48h", "", ["KL110"]),
        ("nodes may go on weekends", "0 0 * * mon", "120h", "", []),
        ("weekday nights", "0 22 * * mon-fri", "9h", "", []),
        ("for 8h", "0 9 * * *", "10h", "", ["KL110"]),
        ("09:00-18:00 KST", "0 0 * * *", "9h", "", []),
        ("09:00-18:00 KST", "0 9 * * *", "9h", "", ["KL111"]),
        ("09:00-18:00 KST", "0 9 * * *", "9h", SEOUL, []),
        ("09:00-18:00 Europe/Berlin", "0 8 * * *", "9h", "", ["KL111"]),
        ("09:00-18:00 local time", "0 9 * * *", "9h", "", ["KL111"]),
        ("09:00-18:00 UTC", "0 9 * * *", "9h", "", []),
        ("7:00 to 15:00 UTC, 9:00-17:00 CEST", "0 7 * * *", "8h", "", []),
    ],
)
def test_a_comment_contradicts_its_schedule_or_does_not(
    findings: Callable[..., list[dict[str, Any]]],
    comment: str,
    schedule: str,
    duration: str,
    annotations: str,
    rules: list[str],
) -> None:
    text = POOL.format(comment=comment, schedule=schedule, duration=duration, annotations=annotations)
    assert [each["rule"] for each in findings(text) if each["rule"] in ("KL110", "KL111")] == rules
