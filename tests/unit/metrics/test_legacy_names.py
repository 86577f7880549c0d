"""Older names of series beside the present ones (OPS §5.9, OPS-498)."""

from __future__ import annotations

from pathlib import Path

import pytest

from karpenter.metrics import Metrics
from karpenter.metrics.exposition import render_sync
from karpenter.metrics.legacy_names import LEGACY_NAMES
from support.metrics_scrape import Scrape
from support.observed_cluster import ObservedCluster

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
_DECIDED = {"reason": "empty", "consolidation_type": "empty"}


def _scraped(metrics: Metrics, *, has_legacy_names: bool) -> Scrape:
    metrics.registry.has_legacy_names = has_legacy_names
    return Scrape(render_sync(metrics.registry))


@pytest.fixture
def metrics() -> Metrics:
    counted = Metrics()
    counted.nodes_created_total.labels(nodepool="a", zone="z1").inc(3)
    counted.pods_startup_duration_seconds.observe(2.0)
    counted.scheduler_scheduling_duration_seconds.labels(controller="provisioner").observe(0.3)
    decisions = counted.voluntary_disruption_decisions_by_nodepool_total
    decisions.labels(nodepool="a", decision="delete", **_DECIDED).inc()
    return counted


def test_a_counter_has_its_older_name_with_the_same_value_and_labels(metrics: Metrics) -> None:
    """Read as text: the usual parser takes ``_created`` for the moment a counter began."""
    lines = _scraped(metrics, has_legacy_names=True).text.splitlines()
    for name in ("karpenter_nodes_created", "karpenter_nodes_created_total"):
        assert lines.count(f'{name}{{nodepool="a",zone="z1"}} 3.0') == 1
        assert lines.count(f"# TYPE {name} counter") == 1


def test_a_summary_and_a_histogram_keep_all_their_series(metrics: Metrics) -> None:
    scraped = _scraped(metrics, has_legacy_names=True)
    assert scraped.value("karpenter_pods_startup_time_seconds", quantile="0.5") == 2
    assert scraped.value("karpenter_pods_startup_time_seconds_count") == 1
    for older in ("provisioner_scheduling_simulation_duration_seconds", "provisioner_scheduling_duration_seconds"):
        buckets = scraped.values(f"karpenter_{older}_bucket", "le", controller="provisioner")
        assert (buckets["0.25"], buckets["0.3"], buckets["+Inf"]) == (0, 1, 1)


def test_the_action_of_a_disruption_is_under_its_older_label(metrics: Metrics) -> None:
    scraped = _scraped(metrics, has_legacy_names=True)
    assert scraped.value("karpenter_disruption_actions_performed_total", nodepool="a", action="delete", **_DECIDED) == 1


def test_without_the_setting_there_is_no_older_name(metrics: Metrics) -> None:
    names = {name for name, _, _ in _scraped(metrics, has_legacy_names=False)}
    assert not names & {f"karpenter_{older}" for older in LEGACY_NAMES}


def test_every_older_name_stands_for_a_series_that_is_exported_and_is_none_itself() -> None:
    exported = ObservedCluster().scrape().types()
    assert {present for present in LEGACY_NAMES.values() if f"karpenter_{present}" not in exported} == set()
    assert {older for older in LEGACY_NAMES if f"karpenter_{older}" in exported} == set()


def test_the_page_names_every_older_name() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [older for older in LEGACY_NAMES if f"`karpenter_{older}`" not in page] == []
