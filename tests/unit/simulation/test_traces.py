"""Generated workloads: the same from the same seed, and in the promised proportions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpenter.model import pods, quantity
from karpenter.model import resources as res
from karpenter.simulation import workload_traces
from karpenter.simulation.workload_traces import REQUEST_SIZES, daemon_sets, microservices


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


def test_a_negative_number_of_pods_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        microservices(1, -1)
