"""Bills and waiting times."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpenter.api.core import PodStatus
from karpenter.api.meta import Condition
from karpenter.simulation.run_report import CostMeter, PodWaitTimes, StepFunction, summarize_run, wait_statistics
from support.stand_in_cluster import START, pod

HOUR = timedelta(hours=1)
moments = st.integers(0, 10**12).map(lambda microseconds: START + timedelta(microseconds=microseconds))
changes = st.lists(st.tuples(moments, st.integers(0, 9), st.floats(0, 100)), max_size=30)


def metered(prices: list[tuple[datetime, int, float]]) -> CostMeter:
    """A meter fed with prices in the order of time; a price below 1 stops the instance."""
    meter = CostMeter()
    for at, instance, price in sorted(prices):
        if price < 1:
            meter.stop(instance, at)
        else:
            meter.set_price(instance, at, price)
    return meter


@given(changes, moments, moments, moments)
def test_costs_of_adjoining_spans_add_up_exactly(
    prices: list[tuple[datetime, int, float]], first: datetime, second: datetime, third: datetime
) -> None:
    """Law: cost(a, b) + cost(b, c) = cost(a, c), for any three moments."""
    meter = metered(prices)
    parts = meter.exact_cost_usd(first, second) + meter.exact_cost_usd(second, third)
    assert parts == meter.exact_cost_usd(first, third)


@given(changes, moments, moments)
def test_a_meter_costs_what_its_nodes_cost(
    prices: list[tuple[datetime, int, float]], start: datetime, end: datetime
) -> None:
    """Rule: the cost of all instances metered together is the sum of their single costs."""
    together = metered(prices).exact_cost_usd(start, end)
    apart = [metered([each for each in prices if each[1] == instance]) for instance in range(10)]
    assert together == sum(meter.exact_cost_usd(start, end) for meter in apart)


@given(changes, moments, moments)
def test_peak_and_mean_agree_with_the_level(
    prices: list[tuple[datetime, int, float]], first: datetime, second: datetime
) -> None:
    start, end = min(first, second), max(first, second)
    bill = metered(prices).bill(start, end)
    assert 0 <= bill.mean_usd_per_hour <= bill.peak_usd_per_hour + 1e-9
    assert 0 <= bill.mean_instances <= bill.peak_instances + 1e-9


def test_a_bill_in_plain_figures() -> None:
    meter = CostMeter()
    meter.set_price("a", START, 1.0)
    meter.set_price("b", START + HOUR, 0.5)
    meter.set_price("a", START + 2 * HOUR, 2.0)
    meter.stop("b", START + 3 * HOUR)
    meter.stop("never-started", START + 3 * HOUR)
    assert meter.cost_usd(START, START + HOUR) == 1.0
    assert meter.cost_usd(START, START + 4 * HOUR) == 1 + 1.5 + 2.5 + 2
    assert meter.cost_usd(START - HOUR, START + HOUR / 2) == 0.5
    assert meter.rate_usd_per_hour(START + 2.5 * HOUR) == 2.5
    bill = meter.bill(START, START + 4 * HOUR)
    assert (bill.cost_usd, bill.mean_usd_per_hour, bill.peak_usd_per_hour) == (7.0, 1.75, 2.5)
    assert (bill.mean_instances, bill.peak_instances) == (1.5, 2)


def test_a_peak_that_ended_before_the_span_is_not_part_of_it() -> None:
    steps = StepFunction()
    steps.set(START, 9)
    steps.set(START + HOUR, 1)
    assert steps.peak(START + HOUR, START + 2 * HOUR) == 1
    assert steps.peak(START + HOUR / 2, START + 2 * HOUR) == 9


def test_time_does_not_go_backwards() -> None:
    meter = CostMeter()
    meter.set_price("a", START, 1.0)
    with pytest.raises(ValueError, match="before the last change"):
        meter.set_price("b", START - HOUR, 1.0)


def test_percentiles_are_waits_that_occurred() -> None:
    actual = wait_statistics(range(1, 101))
    assert (actual.count, actual.mean_seconds) == (100, 50.5)
    assert (actual.p50_seconds, actual.p90_seconds, actual.p95_seconds, actual.p99_seconds) == (50, 90, 95, 99)
    assert actual.max_seconds == 100
    assert wait_statistics([]).count == 0


def test_pods_are_timed_from_creation_even_when_they_are_gone() -> None:
    times = PodWaitTimes()
    created = pod("web")
    created = msgspec.structs.replace(
        created, metadata=msgspec.structs.replace(created.metadata, creation_timestamp=START)
    )
    bound = msgspec.structs.replace(created, spec=msgspec.structs.replace(created.spec, node_name="n1"))
    condition = Condition(type="Ready", status="True", last_transition_time=START + timedelta(seconds=42))
    ready = msgspec.structs.replace(bound, status=PodStatus(conditions=(condition,)))
    for seconds, state in ((1, created), (30, bound), (35, bound), (50, ready)):
        times.observe(state, START + timedelta(seconds=seconds))
    times.remove(ready)
    for name in ("stuck", "stuck-and-gone"):
        stuck = pod(name)
        stuck = msgspec.structs.replace(stuck, metadata=msgspec.structs.replace(stuck.metadata, uid=name))
        times.observe(stuck, START)
    times.remove(stuck)
    summary = summarize_run(CostMeter(), times, START, START + HOUR)
    assert summary.time_to_bound.max_seconds == 30
    assert summary.time_to_ready.max_seconds == 42
    assert summary.never_ready == (("default", "stuck"), ("default", "stuck-and-gone"))
