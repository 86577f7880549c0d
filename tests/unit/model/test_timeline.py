"""The timeline of a pool agrees with what is allowed at every moment of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from karpenter.api.karpenter import Budget, Disruption
from karpenter.model import freezes, labels
from karpenter.model.budget_windows import TimeSpan
from karpenter.model.disruption_rules import disruption_rules, disruption_timeline
from support.builders import annotated, node_pool

REASONS = ("Empty", "Drifted")
#: A Thursday; clocks in Berlin go forward on Sunday.
PERIOD = TimeSpan(datetime(2026, 3, 26, 7, 30, tzinfo=UTC), datetime(2026, 3, 31, tzinfo=UTC))
BUDGETS = (
    Budget(nodes="20%"),
    Budget(nodes="1", schedule="0 9 * * *", duration="8h", reasons=("Drifted",)),
    Budget(nodes="0", schedule="*/50 22-23 * * sat", duration="5h"),
)


def test_every_minute_is_in_one_stretch_which_says_what_is_allowed_then() -> None:
    windows = '[null, {"timeZone": "Europe/Berlin"}, {"timeZone": "America/New_York", "until": "2026-03-29T03:17:00Z"}]'
    notes = {labels.BUDGET_WINDOWS: windows, labels.FREEZE_UNTIL: "2026-03-26T12:00:00Z"}
    rules = disruption_rules(annotated(node_pool(disruption=Disruption(budgets=BUDGETS)), notes), None)
    timeline_segments = disruption_timeline(rules, 12, PERIOD, REASONS)
    assert (timeline_segments[0].span.begin, timeline_segments[-1].span.end) == (PERIOD.begin, PERIOD.end)
    assert all(a.span.end == b.span.begin for a, b in pairwise(timeline_segments))
    assert all(
        (a.allowance_by_reason, a.freeze) != (b.allowance_by_reason, b.freeze) for a, b in pairwise(timeline_segments)
    )
    moment = PERIOD.begin
    while moment < PERIOD.end:
        (stretch,) = (
            timeline_segment
            for timeline_segment in timeline_segments
            if timeline_segment.span.begin <= moment < timeline_segment.span.end
        )
        assert stretch.allowance_by_reason == {reason: rules.allowance(12, reason, moment) for reason in REASONS}, (
            moment
        )
        assert stretch.freeze == rules.active_freeze(moment)
        moment += timedelta(minutes=1)


def test_a_pool_without_rules_has_one_stretch() -> None:
    rules = disruption_rules(node_pool(disruption=Disruption(budgets=())), None)
    (only,) = disruption_timeline(rules, 12, PERIOD, REASONS)
    assert only.span == PERIOD
    assert only.freeze is None


def test_a_freeze_that_is_over_shows_nowhere() -> None:
    notes = {labels.FREEZE: "x", labels.FREEZE_UNTIL: "2026-03-26T07:30:00Z"}
    pool = annotated(node_pool(), notes)
    assert freezes.nodepool_freeze(pool) is not None
    (only,) = disruption_timeline(disruption_rules(pool, None), 12, PERIOD, REASONS)
    assert only.freeze is None
