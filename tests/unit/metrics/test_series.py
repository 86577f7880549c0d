"""The registry of counted series and the text it becomes."""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections.abc import Iterable

import pytest

from karpenter import __version__
from karpenter.metrics import BuildInfo, Metrics
from karpenter.metrics.exposition import GaugeFamily, SeriesWriter, escape_label_value, label_pairs, render, render_sync
from karpenter.metrics.registry import DURATION_BUCKETS_SECONDS, LIFETIME_BUCKETS_SECONDS, RECONCILE_BUCKETS_SECONDS
from support.metrics_scrape import Scrape


def scraped(metrics: Metrics) -> Scrape:
    return Scrape(render_sync(metrics.registry))


class Ticking:
    """Seconds that never go back, moved by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


# -- what is declared -----------------------------------------------------------------------------------------------------


def test_both_searches_for_consolidation_are_there_before_anything_has_happened() -> None:
    """OPS-M14, OPS-454"""
    actual = scraped(Metrics()).values(
        "karpenter_voluntary_disruption_consolidation_timeouts_total", "consolidation_type"
    )
    assert actual == {"multi": 0, "single": 0}


def test_other_counters_appear_with_their_first_event() -> None:
    """OPS-403"""
    metrics = Metrics()
    assert scraped(metrics).series("karpenter_nodeclaims_created_total") == []
    metrics.nodeclaims_created_total.labels(reason="provisioned", nodepool="np", min_values_relaxed="true").inc()
    assert scraped(metrics).value("karpenter_nodeclaims_created_total", min_values_relaxed="true") == 1  # OPS-M12


def test_the_build_info_has_the_label_names_users_know() -> None:
    """OPS-410"""
    (labels,) = scraped(Metrics(BuildInfo("1.2.3", "abcdef0"))).series("karpenter_build_info")
    assert set(labels) == {"version", "goversion", "goarch", "commit"}
    assert (labels["version"], labels["commit"]) == ("1.2.3", "abcdef0")
    assert re.fullmatch(r"python3\.\d+\.\d+.*", labels["goversion"])
    assert labels["goarch"]
    assert scraped(Metrics()).series("karpenter_build_info")[0]["version"] == __version__


@pytest.mark.parametrize(
    "name", ["process_resident_memory_bytes", "process_cpu_seconds_total", "process_start_time_seconds"]
)
def test_the_process_has_series_about_itself(name: str) -> None:
    """OPS-496"""
    assert scraped(Metrics()).value(name) > 0


def test_no_series_has_the_creation_time_of_a_counter_and_no_name_has_total_twice() -> None:
    metrics = Metrics()
    metrics.nodes_created_total.labels(nodepool="np", zone="z").inc()
    text = scraped(metrics).text
    assert "_created{" not in text.replace("_created_total{", "")
    assert "_total_total" not in text
    assert "karpenter_nodes_created_total" in text


def test_buckets_are_those_dashboards_expect() -> None:
    """OPS-401, OPS-422, OPS-492"""
    assert len(DURATION_BUCKETS_SECONDS) == 45
    assert (DURATION_BUCKETS_SECONDS[0], DURATION_BUCKETS_SECONDS[-1]) == (0.005, 600)
    assert list(DURATION_BUCKETS_SECONDS) == sorted(DURATION_BUCKETS_SECONDS)
    assert RECONCILE_BUCKETS_SECONDS[-1] == 60
    hours = [limit / 3600 for limit in LIFETIME_BUCKETS_SECONDS]
    assert hours[:4] == [0.25, 0.5, 0.75, 1]
    assert hours[-1] == 30 * 24
    metrics = Metrics()
    metrics.nodeclaims_termination_duration_seconds.labels(nodepool="np").observe(1)
    limits = scraped(metrics).values("karpenter_nodeclaims_termination_duration_seconds_bucket", "le")
    assert next(iter(limits)) == "1.0"
    assert list(limits)[-2:] == ["2048.0", "+Inf"]


def test_an_attribute_is_called_as_its_series() -> None:
    metrics = Metrics()
    for name in vars(metrics):
        if name != "registry" and not name.startswith("_"):
            head = f"# TYPE karpenter_{name} ", f"# TYPE {name} "
            assert any(text in scraped(metrics).text for text in head), name


# -- summaries ------------------------------------------------------------------------------------------------------------


def quantiles(metrics: Metrics, **labels: str) -> dict[str, float]:
    result = scraped(metrics).values("karpenter_nodes_termination_duration_seconds", "quantile", **labels)
    return {key: value for key, value in result.items() if key}


def test_a_summary_has_the_quantiles_dashboards_ask_for() -> None:
    """OPS-402: off by one per cent at most."""
    metrics = Metrics(now=Ticking())
    for number in range(1, 1001):
        metrics.nodes_termination_duration_seconds.labels(nodepool="np").observe(number / 10)
    actual = quantiles(metrics, nodepool="np")
    assert list(actual) == ["0", "0.5", "0.9", "0.99", "1"]
    assert (actual["0"], actual["1"]) == (0.1, 100)
    assert actual["0.5"] == pytest.approx(50, rel=0.01)
    assert actual["0.9"] == pytest.approx(90, rel=0.01)
    assert actual["0.99"] == pytest.approx(99, rel=0.01)
    assert scraped(metrics).value("karpenter_nodes_termination_duration_seconds_count", nodepool="np") == 1000
    assert scraped(metrics).value("karpenter_nodes_termination_duration_seconds_sum", nodepool="np") == 50050


def test_one_observation_is_every_quantile() -> None:
    metrics = Metrics(now=Ticking())
    metrics.nodes_termination_duration_seconds.labels(nodepool="np").observe(7)
    assert set(quantiles(metrics).values()) == {7}


def test_quantiles_forget_after_ten_minutes_and_totals_do_not() -> None:
    """OPS-402"""
    now = Ticking()
    metrics = Metrics(now=now)
    window = metrics.nodes_termination_duration_seconds.labels(nodepool="np")
    window.observe(100)
    now.seconds = 300
    window.observe(1)
    assert quantiles(metrics)["1"] == 100
    now.seconds = 601
    assert quantiles(metrics)["1"] == 1
    now.seconds = 2000
    assert all(math.isnan(value) for value in quantiles(metrics).values())
    assert scraped(metrics).value("karpenter_nodes_termination_duration_seconds_sum", nodepool="np") == 101


def test_a_summary_keeps_no_more_for_more_observations() -> None:
    metrics = Metrics(now=Ticking())
    window = metrics.nodes_termination_duration_seconds.labels(nodepool="np")
    for number in range(20000):
        window.observe(1 + number % 100)
    assert sum(len(part.counts) for part in window._slices) <= 100


def test_no_time_at_all_can_be_observed() -> None:
    metrics = Metrics(now=Ticking())
    metrics.nodes_termination_duration_seconds.labels(nodepool="np").observe(0)
    assert set(quantiles(metrics).values()) == {0}


def test_a_summary_without_labels_is_there_from_the_start() -> None:
    """OPS-441"""
    assert scraped(Metrics()).value("karpenter_pods_startup_duration_seconds_count") == 0


def test_a_missing_label_is_an_error() -> None:
    with pytest.raises(KeyError):
        Metrics().nodes_termination_duration_seconds.labels()


# -- text -----------------------------------------------------------------------------------------------------------------


class Worked:
    """A source that notes where its two halves run."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def prepare(self) -> SeriesWriter:
        self.seen.append(("picture", threading.get_ident()))

        def write() -> Iterable[str]:
            self.seen.append(("write", threading.get_ident()))
            yield from GaugeFamily("karpenter_worked", "What was worked out.").lines(
                [("", 1), (label_pairs(name='a"b'), 2.5)]
            )

        return write


async def test_pictures_are_taken_on_the_loop_and_written_elsewhere() -> None:
    metrics, worked = Metrics(), Worked()
    metrics.registry.sources.append(worked)
    actual = Scrape(await render(metrics.registry))
    (picture, written) = worked.seen
    assert picture == ("picture", threading.get_ident())
    assert written[0] == "write"
    assert written[1] != threading.get_ident()
    assert actual.value("karpenter_worked", name="") == 1
    assert actual.value("karpenter_worked", name='a"b') == 2.5
    assert actual.value("karpenter_build_info") == 1


async def test_one_answer_is_written_at_a_time() -> None:
    metrics = Metrics()
    going_on: list[int] = []
    most: list[int] = []

    class Slow:
        def prepare(self) -> SeriesWriter:
            def write() -> Iterable[str]:
                going_on.append(1)
                most.append(len(going_on))
                threading.Event().wait(0.02)
                going_on.pop()
                return ()

            return write

    metrics.registry.sources.append(Slow())
    await asyncio.gather(*(render(metrics.registry) for _ in range(3)))
    assert most == [1, 1, 1]


@pytest.mark.parametrize("value", ["plain", 'a"b', "a\\b", "a\nb", '\\"\n', "ä"])
def test_label_values_come_back_as_they_were(value: str) -> None:
    (head, line) = "".join(GaugeFamily("x", "An x.").lines([(label_pairs(name=value), 1)])).rsplit("\n", 2)[:2]
    assert escape_label_value(value) in line
    assert Scrape(f"{head}\n{line}\n".encode()).series("x") == [{"name": value}]


def test_a_family_without_samples_is_named_all_the_same() -> None:
    assert "".join(GaugeFamily("x", "An x.").lines([])) == "# HELP x An x.\n# TYPE x gauge\n"
