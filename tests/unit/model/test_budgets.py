"""Budgets of a NodePool: what they allow and when, and budgets that cannot be parsed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from karpenter.api.karpenter import Budget, Disruption, NodePool
from karpenter.model import labels, nodepool_budgets
from karpenter.model.budget_windows import TimeSpan
from karpenter.model.nodepool_budgets import DisruptionAllowance
from support.builders import annotated, node_pool

#: A Thursday (API §19.3).
NOW = datetime(2000, 6, 15, 12, 30, 30, tzinfo=UTC)
WINDOWS = f"metadata.annotations[{labels.BUDGET_WINDOWS}]"


def pool(given: Sequence[Budget], extension: object = None) -> NodePool:
    """A pool with these budgets; ``extension`` is put into the annotation as JSON, or as it is if it is a text."""
    made = node_pool(disruption=Disruption(budgets=tuple(given)))
    if extension is None:
        return made
    text = extension if isinstance(extension, str) else json.dumps(extension)
    return annotated(made, {labels.BUDGET_WINDOWS: text})


def allowed(
    given: Sequence[Budget], nodes: int, reason: str = "Empty", now: datetime = NOW, extension: object = None
) -> int:
    return nodepool_budgets.nodepool_budgets(pool(given, extension)).allowance(nodes, reason, now).nodes


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize(
    ("given", "nodes", "reason", "want"),
    [
        ([Budget(nodes="10")], 100, "Empty", 10),  # API-S060
        ([Budget(nodes="10%")], 100, "Empty", 10),
        ([Budget(nodes="10%")], 95, "Empty", 10),
        ([Budget(nodes="10%")], 1, "Empty", 1),
        ([Budget(nodes="10%")], 0, "Empty", 0),
        ([Budget(nodes="5%")], 10, "Empty", 1),  # DIS-S084
        ([Budget(nodes="100%")], 37, "Empty", 37),
        ([Budget(nodes="0")], 5, "Empty", 0),
        ([Budget(nodes="0%")], 5, "Empty", 0),
        ([], 5, "Empty", 2147483647),
        ([Budget(nodes="10"), Budget(nodes="5", reasons=("Drifted",))], 9, "Empty", 10),
        ([Budget(nodes="10"), Budget(nodes="5", reasons=("Drifted",))], 9, "Drifted", 5),
        ([Budget(nodes="5", reasons=("Drifted",))], 9, "Empty", 2147483647),
        ([Budget(nodes="10%"), Budget(nodes="1")], 5, "Empty", 1),
        ([Budget(nodes="10%"), Budget(nodes="1")], 50, "Empty", 1),
        ([Budget(nodes="10%")], 25, "Empty", 3),  # DIS-S099
        ([Budget(nodes="3", reasons=())], 9, "Empty", 3),
        ([Budget(nodes="ten"), Budget(nodes="1")], 9, "Empty", 0),
        ([Budget(nodes="1000a%"), Budget(nodes="1")], 9, "Empty", 0),  # DIS-S088
        ([Budget(nodes="ten", reasons=("Drifted",)), Budget(nodes="1")], 9, "Empty", 0),  # API-088
        ([Budget(nodes="101%")], 9, "Empty", 0),
        ([Budget(nodes="-1")], 9, "Empty", 0),
    ],
)
def test_budgets_allow_what_the_strictest_allows(given: list[Budget], nodes: int, reason: str, want: int) -> None:
    """API-084 to API-089, API-S060 to API-S066, S071.

    API-080: without a schedule a budget is always active. DIS-S099: the default of 10 % rounds up.
    """
    assert allowed(given, nodes, reason) == want


@pytest.mark.parametrize(("reason", "want"), [("Empty", 4), ("Drifted", 5), ("Underutilized", 10)])
def test_each_reason_has_its_own_strictest_budget(reason: str, want: int) -> None:
    """DIS-S085"""
    given = [
        Budget(nodes="10"),
        Budget(nodes="15", reasons=("Drifted", "Underutilized")),
        Budget(nodes="5", reasons=("Drifted",)),
        Budget(nodes="4", reasons=("Empty",)),
    ]
    assert allowed(given, 100, reason) == want


@pytest.mark.parametrize(
    ("schedule", "duration", "now", "want"),
    [
        ("@weekly", "30m", NOW, 10),  # API-S067
        ("* * * * *", "1h", NOW, 1),  # API-S068
        ("0 12 * * *", "1h", NOW, 1),  # API-S069
        ("0 12 * * *", "1h", NOW + timedelta(hours=1), 10),
        ("@hourly", "10m", NOW.replace(minute=5), 1),  # API-S070
        ("@hourly", "10m", NOW, 10),
        ("@daily", "24h", NOW, 1),  # API-S072
        ("1 1 1 1 1", "24h", NOW, 10),  # API-S073
        ("@yearly", "24h", at("2000-01-01T12:00:00+00:00"), 1),  # DIS-S089
        ("@daily", "48h", NOW, 1),  # DIS-S090
        ("30 6 * * SUN", "6h", at("2000-06-18T00:00:00+00:00"), 10),  # DIS-S091
        ("@daily", "30m", at("2000-06-16T00:00:00+01:00"), 10),  # DIS-S092: 23:00 in UTC
        ("0 22 * * *", "8h", at("2000-06-15T22:00:00+00:00"), 1),  # DIS-E10
        ("0 22 * * *", "8h", at("2000-06-16T05:59:59+00:00"), 1),
        ("0 22 * * *", "8h", at("2000-06-16T06:00:00+00:00"), 10),
        ("0 9-17 * * mon-fri", "8h", at("2000-06-16T00:59:00+00:00"), 1),  # every hit opens eight hours (DIS §6 Beyond)
        ("0 12 * * *", "0m", NOW.replace(minute=0, second=0), 10),
    ],
)
def test_a_budget_counts_in_its_windows_only(schedule: str, duration: str, now: datetime, want: int) -> None:
    """API-081, API-085, DIS-141, DIS-133, DIS-134: schedules are UTC."""
    assert allowed([Budget(nodes="10"), Budget(nodes="1", schedule=schedule, duration=duration)], 50, now=now) == want


def test_outside_all_windows_nothing_is_limited() -> None:
    """API-085, DIS-S086"""
    assert allowed([Budget(nodes="0", schedule="@weekly", duration="1h")], 9) == nodepool_budgets.UNLIMITED_DISRUPTIONS


@pytest.mark.parametrize(
    ("broken", "path"),
    [
        (Budget(schedule="99 99 99 99 99", duration="1h"), "schedule"),  # API-086
        (Budget(schedule="@wrongly", duration="1h", reasons=("Drifted",)), "schedule"),  # API-088, DIS-S087
        (Budget(schedule="* * * * tue-mon", duration="1h"), "schedule"),  # DIS-S093
        (Budget(schedule="0 0 30 2 *", duration="1h"), "schedule"),  # API-082a
        (Budget(schedule="@daily", duration="never"), "duration"),
        (Budget(schedule="@daily", duration="-5h"), "duration"),
        (Budget(schedule="@daily", duration="9999999h"), "duration"),
        (Budget(schedule="@daily"), ""),
        (Budget(duration="1h"), ""),
    ],
)
def test_a_budget_that_cannot_be_read_closes_the_pool_and_names_its_field(broken: Budget, path: str) -> None:
    """API-086, API-088, DIS-143"""
    made = pool([Budget(nodes="5"), broken])
    where = f"spec.disruption.budgets[1].{path}".rstrip(".")
    for reason in ("Empty", "Drifted", "Underutilized"):
        assert nodepool_budgets.nodepool_budgets(made).allowance(100, reason, NOW) == DisruptionAllowance(0, where)
    (finding,) = nodepool_budgets.nodepool_budgets(made).findings
    assert finding.path == where
    assert "no node of the pool may be disrupted" in finding.message


def test_the_budget_that_binds_is_named() -> None:
    """DIS §6 Beyond"""
    given = [Budget(nodes="10%"), Budget(nodes="1", reasons=("Drifted",)), Budget(nodes="10")]
    budgets = nodepool_budgets.nodepool_budgets(pool(given))
    assert budgets.allowance(100, "Empty", NOW) == DisruptionAllowance(10, "spec.disruption.budgets[0]")
    assert budgets.allowance(100, "Drifted", NOW) == DisruptionAllowance(1, "spec.disruption.budgets[1]")
    assert budgets.allowance(200, "Empty", NOW) == DisruptionAllowance(10, "spec.disruption.budgets[2]")
    assert nodepool_budgets.nodepool_budgets(pool([])).allowance(9, "Empty", NOW) == DisruptionAllowance(
        nodepool_budgets.UNLIMITED_DISRUPTIONS
    )


# -- time zones and dates -----------------------------------------------------------------------------------------------------

OFFICE = Budget(nodes="0", schedule="0 9 * * mon-fri", duration="8h")


@pytest.mark.parametrize(
    ("zone", "now", "want"),
    [
        ("Asia/Seoul", "2000-06-15T09:00:00+09:00", 0),
        ("Asia/Seoul", "2000-06-15T16:59:59+09:00", 0),
        ("Asia/Seoul", "2000-06-15T17:00:00+09:00", 5),
        ("Asia/Seoul", "2000-06-15T12:00:00+00:00", 5),
        ("Asia/Seoul", "2000-06-19T00:30:00+00:00", 0),  # Monday there, though hardly begun in UTC
        ("Asia/Seoul", "2000-06-18T15:30:00+00:00", 5),
        ("America/New_York", "2000-06-15T13:00:00+00:00", 0),  # daylight saving time
        ("America/New_York", "2000-01-13T13:30:00+00:00", 5),
        ("America/New_York", "2000-01-13T14:00:00+00:00", 0),
        ("Asia/Kathmandu", "2000-06-15T03:14:59+00:00", 5),
        ("Asia/Kathmandu", "2000-06-15T03:15:00+00:00", 0),
        ("UTC", "2000-06-15T09:00:00+00:00", 0),
    ],
)
def test_a_schedule_can_mean_the_clocks_of_a_place(zone: str, now: str, want: int) -> None:
    """API-083, DIS §6 Beyond"""
    extension: list[Mapping[str, str] | None] = [None, {"timeZone": zone}]
    assert allowed([Budget(nodes="5"), OFFICE], 50, now=at(now), extension=extension) == want


@pytest.mark.parametrize(
    ("now", "want"),
    [
        ("2000-06-14T23:59:59+00:00", 5),
        ("2000-06-15T00:00:00+00:00", 0),
        ("2000-06-16T23:59:59+00:00", 0),
        ("2000-06-17T00:00:00+00:00", 5),
    ],
)
def test_a_budget_can_hold_between_two_dates(now: str, want: int) -> None:
    """Beyond"""
    dates = {"from": "2000-06-15T09:00:00+09:00", "until": "2000-06-17T00:00:00Z"}
    assert allowed([Budget(nodes="5"), Budget(nodes="0")], 50, now=at(now), extension=[{}, dates]) == want


def test_dates_bound_the_windows_of_a_schedule() -> None:
    """A window is cut where the dates begin and end."""
    dates = {"from": "2000-06-15T12:00:00Z", "until": "2000-06-16T10:00:00Z"}
    actual = nodepool_budgets.nodepool_budgets(pool([OFFICE], [dates]))
    edges = actual.transitions(TimeSpan(at("2000-06-14T00:00:00+00:00"), at("2000-06-20T00:00:00+00:00")))
    assert sorted(edges) == [
        at("2000-06-15T12:00:00+00:00"),
        at("2000-06-15T17:00:00+00:00"),
        at("2000-06-16T09:00:00+00:00"),
        at("2000-06-16T10:00:00+00:00"),
    ]


def test_a_window_that_is_open_already_changes_only_at_its_end() -> None:
    """Whoever waits for the next change must not find it now."""
    actual = nodepool_budgets.nodepool_budgets(pool([Budget(nodes="5"), OFFICE]))
    assert actual.transitions(TimeSpan(NOW, NOW + timedelta(hours=12))) == {at("2000-06-15T17:00:00+00:00")}


def test_one_end_alone_is_enough() -> None:
    """Beyond"""
    assert (
        allowed([Budget(nodes="0")], 5, extension=[{"from": "2000-06-16T00:00:00Z"}])
        == nodepool_budgets.UNLIMITED_DISRUPTIONS
    )
    assert allowed([Budget(nodes="0")], 5, extension=[{"until": "2000-06-16T00:00:00Z"}]) == 0


@pytest.mark.parametrize("extension", [[None], [{}], [{"timeZone": None}]])
def test_a_member_that_adds_nothing_changes_nothing(extension: object) -> None:
    assert allowed([Budget(nodes="5")], 9, extension=extension) == 5


@pytest.mark.parametrize(
    ("extension", "path", "words"),
    [
        ("", "", "is not JSON"),
        ("Asia/Seoul", "", "is not JSON"),
        ("[" * 10_000, "", "list[0]"),
        ({"timeZone": "Asia/Seoul"}, "", "array"),
        ([None], "", "1 members for 2 budgets"),
        ([None, None, None], "", "3 members for 2 budgets"),
        ([None, "Asia/Seoul"], "", "list[1]"),
        ([None, {"timezone": "Asia/Seoul"}], "", "unknown field 'timezone'"),
        ([None, {"timeZone": 9}], "", "str"),
        ([None, {"x" * 9999: 9}], "", "unknown field"),
        ([None, {"timeZone": "x" * 9999}], "[1].timeZone", "is not a time zone"),
        ([None, {"timeZone": "Asia/Soul"}], "[1].timeZone", "did you mean 'Asia/Seoul'?"),
        ([None, {"timeZone": "asia/seoul"}], "[1].timeZone", "is not a time zone"),
        ([None, {"timeZone": "America"}], "[1].timeZone", "is not a time zone"),
        ([None, {"timeZone": "../../etc/passwd"}], "[1].timeZone", "is not a time zone"),
        ([None, {"timeZone": "localtime"}], "[1].timeZone", "is not a time zone"),
        ([None, {"timeZone": ""}], "[1].timeZone", "expected an IANA name"),
        ([{"timeZone": "Asia/Seoul"}, None], "[0].timeZone", "has no schedule"),
        ([None, {"from": "2000-06-15"}], "[1].from", "UTC offset"),
        ([None, {"from": "2000-06-15T00:00:00"}], "[1].from", "UTC offset"),
        ([None, {"until": "2000-06-31T00:00:00Z"}], "[1].until", "is not a date and time"),
        ([None, {"until": "0001-01-01T00:00:00+23:00"}], "[1].until", "is not a date and time"),
        ([None, {"until": "2000-06-15T24:00:00Z"}], "[1].until", "is not a date and time"),
        ([None, {"from": "2001-01-01T00:00:00Z", "until": "2000-01-01T00:00:00Z"}], "[1].until", "is not after"),
        ([None, {"from": "2001-01-01T00:00:00Z", "until": "2001-01-01T09:00:00+09:00"}], "[1].until", "is not after"),
    ],
)
def test_an_extension_that_cannot_be_read_closes_the_pool(extension: object, path: str, words: str) -> None:
    """API-086: as a schedule that cannot be read does."""
    made = pool([Budget(nodes="5"), OFFICE], extension)
    budgets = nodepool_budgets.nodepool_budgets(made)
    assert budgets.allowance(9, "Empty", NOW).nodes == 0
    (finding,) = budgets.findings
    assert finding.path == WINDOWS + path
    assert words in finding.message
    assert len(finding.message) < 400
