"""Generated workloads: the same from the same seed, and in the promised proportions."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpenter.model import pods, quantity
from karpenter.model import resources as res
from karpenter.simulation import workload_traces
from karpenter.simulation.workload_traces import REQUEST_SIZES, LoadTrace, daemon_sets, load_trace, microservices


@given(st.integers(), st.integers(0, 3000))
def test_there_are_exactly_as_many_pods_as_asked_for(seed: int, count: int) -> None:
    services = microservices(seed, count)
    sizes = [service.spec.replicas or 0 for service in services]
    assert sum(sizes) == count
    assert all(0 < size <= workload_traces.MAX_REPLICAS for size in sizes)
    assert len({service.metadata.name for service in services}) == len(services)


def test_the_seed_decides_everything() -> None:
    assert microservices(5, 400) == microservices(5, 400)
    assert microservices(5, 400) != microservices(6, 400)
    assert load_trace(5, timedelta(days=2)) == load_trace(5, timedelta(days=2))


def test_request_classes_are_as_common_as_their_weights() -> None:
    services = microservices(11, 40_000)
    seen = Counter(service.spec.template.spec.containers[0].resources.requests["cpu"] for service in services)
    for each in REQUEST_SIZES:
        assert seen[each.cpu] / len(services) == pytest.approx(each.weight / 100, abs=0.03)


def test_small_services_are_more_common_than_large_ones() -> None:
    sizes = Counter(service.spec.replicas or 0 for service in microservices(11, 40_000))
    assert sizes[2] / sizes[8] == pytest.approx(4, rel=0.35)
    assert sum(count for size, count in sizes.items() if size > 30) > 0


def test_half_of_the_services_spread_over_zones() -> None:
    services = microservices(11, 40_000)
    spreading = sum(bool(service.spec.template.spec.topology_spread_constraints) for service in services)
    assert spreading / len(services) == pytest.approx(0.5, abs=0.03)


def test_the_agents_of_a_node_ask_for_what_was_measured() -> None:
    totals = res.add(*(pods.template_requests(each.spec.template.spec) for each in daemon_sets()))
    assert totals[res.CPU] == 502
    assert totals[res.MEMORY] == quantity.parse_milli("1095Mi")
    assert len(daemon_sets()) == 7


def _total_at(course: LoadTrace, moment: timedelta) -> int:
    replicas = {change.deployment: change.replicas for change in course.changes if change.after <= moment}
    return sum(replicas.values())


@pytest.mark.parametrize("duration", [timedelta(minutes=10), timedelta(days=1), timedelta(days=10)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_load_arrives_runs_and_falls(seed: int, duration: timedelta) -> None:
    course = load_trace(seed, duration, 300)
    assert all((each.spec.replicas or 0) == 0 for each in course.deployments)
    assert _total_at(course, timedelta(0)) < 30
    assert max(_total_at(course, duration * share / 20) for share in range(4, 15)) > 300
    assert 0 < _total_at(course, duration) < 45
    moments = [change.after for change in course.changes]
    assert moments == sorted(moments)
    assert timedelta(0) <= moments[0]
    assert moments[-1] < duration


@pytest.mark.parametrize("duration", [timedelta(0), timedelta(seconds=-1)])
def test_a_load_without_duration_is_refused(duration: timedelta) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        load_trace(1, duration)


def test_a_negative_number_of_pods_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        microservices(1, -1)
