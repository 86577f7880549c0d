"""Types and labels of series as the specification states them; dashboards and alerts select by them."""

from __future__ import annotations

from pathlib import Path

import pytest

from karpenter.metrics.registry import Metrics

_DISRUPTED = ("reason", "nodepool", "capacity_type", "consolidation_policy", "termination_mode")
_SCORED = ("decision", "nodepool", "policy")


@pytest.mark.parametrize(
    ("series", "kind", "label_names"),
    [
        pytest.param("nodeclaims_disrupted_total", "counter", _DISRUPTED, id="DIS-401, K15-450"),
        pytest.param("pods_disruption_initiated_total", "counter", _DISRUPTED, id="DIS-402, K15-451"),
        pytest.param(
            "nodeclaims_unhealthy_disrupted_total",
            "counter",
            ("condition", "nodepool", "capacity_type", "image_id", "termination_mode"),
            id="DIS-403, K15-452",
        ),
        pytest.param(
            "voluntary_disruption_terminate_first_decisions_total",
            "counter",
            ("nodepool", "reason", "terminate_first_reason"),
            id="K15-456",
        ),
        pytest.param("nodes_lifetime_duration_seconds", "histogram", ("nodepool",), id="DIS-410"),
        pytest.param(
            "voluntary_disruption_decision_evaluation_duration_seconds",
            "histogram",
            ("reason", "consolidation_type"),
            id="DIS-411, OPS-450",
        ),
        pytest.param(
            "voluntary_disruption_consolidation_timeouts_total", "counter", ("consolidation_type",), id="DIS-415"
        ),
        pytest.param(
            "voluntary_disruption_queue_failures_total",
            "counter",
            ("decision", "reason", "consolidation_type"),
            id="DIS-419, OPS-456",
        ),
        pytest.param("consolidation_score", "histogram", _SCORED, id="DIS-420, OPS-457"),
        pytest.param("consolidation_moves_total", "counter", _SCORED, id="DIS-421, OPS-458"),
        pytest.param("pods_drained_total", "counter", ("reason",), id="DIS-425"),
        pytest.param("voluntary_disruption_failed_validations_total", "counter", ("consolidation_type",), id="OPS-455"),
        pytest.param("scheduler_scheduling_duration_seconds", "histogram", ("controller",), id="SCH-660"),
        pytest.param("pods_scheduling_decision_duration_seconds", "histogram", (), id="SCH-666"),
    ],
)
def test_a_series_has_its_type_and_labels(series: str, kind: str, label_names: tuple[str, ...]) -> None:
    """OPS-400: every series has the prefix ``karpenter_``."""
    metrics = Metrics()
    metric = getattr(metrics, series)
    (family,) = metric.describe()
    assert family.name == f"karpenter_{series.removesuffix('_total')}"
    assert family.type == kind
    assert metric._labelnames == label_names


def test_the_buckets_of_scores_are_those_dashboards_expect() -> None:
    """DIS-420: from 0.1 to 10. DIS-430: evaluations are counted up to ten minutes."""
    metrics = Metrics()
    assert metrics.consolidation_score.labels("approved", "np", "Balanced")._upper_bounds == [
        0.1,
        0.25,
        0.33,
        0.5,
        1,
        2,
        5,
        10,
        float("inf"),
    ]
    evaluation = metrics.voluntary_disruption_decision_evaluation_duration_seconds.labels("empty", "")
    assert (evaluation._upper_bounds[0], evaluation._upper_bounds[-2]) == (0.005, 600)


def test_gauges_of_a_pools_limits_are_stable() -> None:
    """K15-465: the page about metrics promises it."""
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = {
        line.split("`")[1]: [cell.strip() for cell in line.split("|")] for line in page.splitlines() if "| `" in line
    }
    names = ("nodepools_limit", "nodepools_usage", "nodepools_allowed_disruptions")
    assert {rows[f"karpenter_{name}"][4] for name in names} == {"stable"}
