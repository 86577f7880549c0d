"""What ``karpenter.sh/do-not-disrupt`` means on a pod, and how costly it is to evict one (DIS §4.3, §5)."""

from __future__ import annotations

from datetime import datetime

import pytest

from karpenter.model import labels, pod_disruption
from karpenter.model.pod_disruption import DisruptionProtection
from support.builders import NOW, budget, pod, seconds

ONE_HOUR = 3600.0


def of(value: str, started: float | None, key: str = labels.DO_NOT_DISRUPT) -> DisruptionProtection | None:
    status = {} if started is None else {"start_time": seconds(started)}
    return pod_disruption.disruption_protection(
        pod("p", node_name="n", meta={"annotations": {key: value}}, status=status), NOW
    )


@pytest.mark.parametrize(
    ("value", "started", "active", "until"),
    [
        ("true", 0.0, True, None),
        ("1h", 1 - ONE_HOUR, True, seconds(1.0)),
        ("1h", -ONE_HOUR, False, NOW),
        ("1h30m", -ONE_HOUR, True, seconds(1800.0)),
        ("3600000ms", 0.0, True, seconds(ONE_HOUR)),
        ("1h", None, True, None),
    ],
    ids=["DIS-090", "DIS-091-last-second", "DIS-091-equal", "DIS-091-compound", "DIS-091-ms", "DIS-091-not-started"],
)
def test_a_valid_annotation_protects_for_ever_or_for_a_while(
    value: str, started: float | None, active: bool, until: datetime | None
) -> None:
    """API-450: a duration counts from the start of the pod."""
    assert of(value, started) == DisruptionProtection(active=active, until=until)


@pytest.mark.parametrize("value", ["false", "", "0s", "-5m", "banana", "1d", "True"])
def test_anything_else_protects_nothing_and_says_why(value: str) -> None:
    """DIS-092"""
    protection = of(value, 0.0)
    assert protection is not None
    assert not protection.active
    assert repr(value) in protection.error


@pytest.mark.parametrize("key", ["karpenter.sh/do-not-evict", "karpenter.sh/do-not-consolidate"])
def test_old_names_protect_when_true_and_are_ignored_otherwise(key: str) -> None:
    """API-464"""
    assert of("true", 0.0, key) == DisruptionProtection(active=True)
    assert of("1h", 0.0, key) is None
    assert of("false", 0.0, key) is None


def test_an_old_name_protects_beside_a_new_one_that_is_invalid() -> None:
    both = {"annotations": {labels.DO_NOT_DISRUPT: "no", "karpenter.sh/do-not-evict": "true"}}
    assert pod_disruption.is_protected(pod("p", node_name="n", meta=both), NOW)


@pytest.mark.parametrize(
    ("deletion_cost", "priority", "cost"),
    [
        (None, None, 1.0),
        ("2147483647", None, 10.0),
        ("-2147483647", None, -10.0),
        ("134217728", None, 2.0),
        ("-134217728", None, 0.0),
        (None, 1_000_000, 1.0298),
        (None, 1_000_000_000, 10.0),
        (None, 2_000_000_000, 10.0),
        (None, -33_554_432, 0.0),
        ("cheap", None, 1.0),
        ("nan", None, 1.0),
        ("1.5", None, 1.0),
        ("1e3", None, 1.0),
        ("2147483648", None, 1.0),
        ("+134217728", None, 2.0),
    ],
)
def test_what_evicting_a_pod_costs(deletion_cost: str | None, priority: int | None, cost: float) -> None:
    """DIS-110, its reference values; K15-341: a cost is a 32-bit integer in decimal, anything else counts for nothing."""
    meta = {} if deletion_cost is None else {"annotations": {pod_disruption.DELETION_COST_ANNOTATION: deletion_cost}}
    assert pod_disruption.eviction_cost(pod("p", meta=meta, priority=priority)) == pytest.approx(cost, abs=1e-4)


def test_budgets_prevent_an_eviction_when_they_allow_none_or_are_several() -> None:
    """DIS-080, DIS-081, DIS-084"""
    subject = pod("p", node_name="n", meta={"labels": {"app": "a"}})
    closed, other = budget("closed", {"app": "a"}), budget("other", {"app": "b"})
    assert pod_disruption.blocking_pdbs(subject, [other]) == []
    assert pod_disruption.blocking_pdbs(subject, [closed, other]) == [closed]
    second = budget("second", {"app": "a"})
    assert pod_disruption.blocking_pdbs(subject, [closed, second]) == [closed, second]


@pytest.mark.parametrize(
    ("own", "deletion", "cost"),
    [("134217728", None, 2.0), ("134217728", "-134217728", 2.0), ("1.5", "100", 1.0), (None, "134217728", 2.0)],
)
def test_the_cost_of_disruption_wins_over_that_of_deletion(own: str | None, deletion: str | None, cost: float) -> None:
    """K15-009, K15-340, K15-S19: an unreadable disruption cost does not fall back. K15-342: the clamp is unchanged."""
    given = {pod_disruption.DISRUPTION_COST_ANNOTATION: own, pod_disruption.DELETION_COST_ANNOTATION: deletion}
    meta = {"annotations": {key: value for key, value in given.items() if value is not None}}
    costly = pod("p", meta=meta)
    assert pod_disruption.eviction_cost(costly) == pytest.approx(cost)
    assert (pod_disruption.unreadable_cost(costly) is not None) == (own == "1.5")
