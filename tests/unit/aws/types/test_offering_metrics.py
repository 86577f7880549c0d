"""Metrics of instance types and offerings."""

from __future__ import annotations

from karpenter.metrics.exposition import MetricsRegistry, render_sync
from karpenter.providers.aws.instancetype.ec2_offerings import OfferingKey, UnavailableOfferings
from karpenter.providers.aws.instancetype.offering_metrics import (
    OfferingMetrics,
    OfferingSamples,
    offered_to_pool,
    offering_samples,
)
from support.builders import node_pool
from support.ec2_instance_types import PLAIN, START, A, B, instance_type_fixture, of_status, subnets
from support.instance_type_queries import reservation
from support.manual_clock import ManualClock

OFFERING = "karpenter_cloudprovider_instance_type_offering_"


def lines(registry: MetricsRegistry, start: str) -> list[str]:
    return sorted(line for line in render_sync(registry).decode().splitlines() if line.startswith(start))


def row(kind: str, zone: str) -> str:
    return f'instance_type="m5.large",capacity_type="{kind}",zone="{zone}"'


async def test_an_offering_is_available_when_any_node_pool_allows_it() -> None:
    """AWS-790. OPS-472."""
    fixture = await instance_type_fixture()
    registry = MetricsRegistry()
    shown = OfferingMetrics(registry, fixture.memories.unavailable.unavailable_offerings)
    in_a, in_b = (
        offered_to_pool(node_pool(), fixture.provider.types_for(of_status(subnets=subnets(zone)))) for zone in (A, B)
    )
    shown.publish(lambda: offering_samples([in_a], reserved=False))
    assert f"{OFFERING}available{{{row('spot', A)}}} 1" in lines(registry, OFFERING)
    assert f"{OFFERING}available{{{row('spot', B)}}} 0" in lines(registry, OFFERING)
    shown.publish(lambda: offering_samples([in_a, in_b], reserved=False))
    assert f"{OFFERING}available{{{row('spot', B)}}} 1" in lines(registry, OFFERING)
    assert f"{OFFERING}price_estimate{{{row('on-demand', B)}}} 0.096" in lines(registry, OFFERING)


async def test_every_zone_has_a_row_for_reserved_capacity_if_it_is_enabled() -> None:
    """AWS-790."""
    types = offered_to_pool(node_pool(), (await instance_type_fixture()).provider.types_for(PLAIN))
    on, off = (offering_samples([types], reserved=reserved).available for reserved in (True, False))
    assert {way.zone for way in on if way.capacity_type == "reserved"} == {way.zone for way in off}
    assert not any(now for way, now in on.items() if way.capacity_type == "reserved")
    assert "reserved" not in {way.capacity_type for way in off}


async def test_a_full_reservation_that_is_healthy_has_a_row_of_one() -> None:
    """K15-A103: the row depends on availability, not on remaining capacity."""
    fixture = await instance_type_fixture()
    held = reservation()
    fixture.memories.reservations.set_available_count("cr-1", 0)
    types = fixture.provider.types_for(of_status(capacity_reservations=(held,)))
    (full,) = [each for each in types[0].offerings if each.reservation_id == "cr-1"]
    assert (full.available, full.launchable) == (True, False)
    offered = offered_to_pool(node_pool(), types)
    assert offering_samples([offered], reserved=True).available["m5.large", "reserved", full.zone] is True


async def test_metrics_have_the_size_of_each_type() -> None:
    """AWS-782. OPS-473."""
    registry = MetricsRegistry()
    shown = OfferingMetrics(registry, tuple)
    types = offered_to_pool(node_pool(), (await instance_type_fixture()).provider.types_for(PLAIN))
    shown.publish(lambda: offering_samples([types], reserved=True))
    prefix = "karpenter_cloudprovider_instance_type_"
    assert lines(registry, f"{prefix}cpu_cores") == [f'{prefix}cpu_cores{{instance_type="m5.large"}} 2.0']
    memory = 7577 * 2**20
    assert lines(registry, f"{prefix}memory_bytes") == [f'{prefix}memory_bytes{{instance_type="m5.large"}} {memory}']


def test_metrics_are_computed_at_a_scrape_and_once_per_change() -> None:
    """A process without scrapes computes nothing, and scrapes between two changes share one result."""
    registry = MetricsRegistry()
    shown = OfferingMetrics(registry, tuple)
    made: list[OfferingSamples] = []

    def sums() -> OfferingSamples:
        made.append(OfferingSamples(size={"m5.large": (2.0, 1)}))
        return made[-1]

    shown.publish(sums)
    assert made == []
    for _ in range(2):
        assert lines(registry, "karpenter_cloudprovider_instance_type_cpu_cores") != []
    assert len(made) == 1


def test_unavailable_offerings_are_counted() -> None:
    """8.3 Beyond, AWS-283 Beyond."""
    memory = UnavailableOfferings(ManualClock(START))
    registry = MetricsRegistry()
    shown = OfferingMetrics(registry, memory.unavailable_offerings)
    memory.mark_unavailable(OfferingKey("spot", "m5.large", A), "InsufficientInstanceCapacity")
    memory.mark_unavailable(OfferingKey("spot", "m5.large", B), "InsufficientInstanceCapacity")
    shown.record_skipped(2)
    prefix = "karpenter_cloudprovider_"
    assert lines(registry, f"{prefix}unavailable") == [f'{prefix}unavailable_offerings{{capacity_type="spot"}} 2']
    assert lines(registry, f"{prefix}instance_types_skipped") == [f"{prefix}instance_types_skipped 2"]
