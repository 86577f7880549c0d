"""Unavailable offerings, and for how long they are unavailable."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from karpenter.providers.aws.instancetype.ec2_offerings import (
    OfferingKey,
    ReservationAvailability,
    UnavailableOfferings,
)
from support.ec2_instance_types import START
from support.manual_clock import ManualClock

ICE = "InsufficientInstanceCapacity"
SPOT = OfferingKey("spot", "m5.large", "zone-a")


class Launches:
    """``UnavailableOfferings`` with a clock."""

    def __init__(self) -> None:
        self.clock = ManualClock(START)
        self.memory = UnavailableOfferings(self.clock)

    def minutes_away(self, offering: OfferingKey = SPOT, reason: str = ICE) -> int:
        """Mark an offering as unavailable, and advance the clock until it is available."""
        self.memory.mark_unavailable(offering, reason)
        for minute in range(1, 200):
            self.clock.advance(minutes=1)
            if not self.memory.is_unavailable(offering):
                return minute
        raise AssertionError("it never came back")


def test_an_unavailable_offering_is_available_after_three_minutes() -> None:
    """AWS-375."""
    assert Launches().minutes_away() == 3


def test_marking_an_offering_again_restarts_the_time() -> None:
    """AWS-375: many launches with the same answer at once still give three minutes."""
    launches = Launches()
    for _ in range(20):
        launches.memory.mark_unavailable(SPOT, ICE)
    launches.clock.advance(minutes=2)
    assert launches.minutes_away() == 3


def test_repeatedly_unavailable_offerings_stay_unavailable_longer() -> None:
    """AWS-375 Beyond."""
    launches = Launches()
    assert [launches.minutes_away() for _ in range(7)] == [3, 6, 12, 24, 48, 60, 60]


def test_an_hour_without_a_mark_resets_the_backoff() -> None:
    """AWS-375 Beyond."""
    launches = Launches()
    assert [launches.minutes_away(), launches.minutes_away()] == [3, 6]
    launches.clock.advance(minutes=60)
    assert launches.minutes_away() == 3


def test_each_offering_has_its_own_backoff() -> None:
    launches = Launches()
    launches.minutes_away()
    assert launches.minutes_away(OfferingKey("spot", "m5.large", "zone-b")) == 3


@pytest.mark.parametrize("reason", ["VcpuLimitExceeded", "MaxSpotInstanceCountExceeded"])
def test_a_quota_error_does_not_increase_the_backoff(reason: str) -> None:
    """AWS-375 Beyond."""
    launches = Launches()
    assert [launches.minutes_away(reason=reason) for _ in range(3)] == [3, 3, 3]


@pytest.mark.parametrize(
    ("marked", "asked", "covered"),
    [
        (SPOT, SPOT, True),
        (SPOT, OfferingKey("on-demand", "m5.large", "zone-a"), False),
        (SPOT, OfferingKey("spot", "m5.xlarge", "zone-a"), False),
        (SPOT, OfferingKey("spot", "m5.large", "zone-b"), False),
        (SPOT, OfferingKey("spot", "m5.large", "zone-a", "pg-1", "1"), True),
        (
            OfferingKey("spot", "m5.large", "zone-a", "pg-1"),
            OfferingKey("spot", "m5.large", "zone-a", "pg-1", "1"),
            True,
        ),
        (
            OfferingKey("spot", "m5.large", "zone-a", "pg-1", "1"),
            OfferingKey("spot", "m5.large", "zone-a", "pg-1", "1"),
            True,
        ),
        (
            OfferingKey("spot", "m5.large", "zone-a", "pg-1", "1"),
            OfferingKey("spot", "m5.large", "zone-a", "pg-1", "2"),
            False,
        ),
        (OfferingKey("spot", "m5.large", "zone-a", "pg-1"), SPOT, False),
    ],
)
def test_the_scope_of_an_unavailability_mark(marked: OfferingKey, asked: OfferingKey, covered: bool) -> None:
    """AWS-375, AWS-376."""
    memory = Launches().memory
    memory.mark_unavailable(marked, ICE)
    assert memory.is_unavailable(asked) == covered


def test_a_capacity_type_and_subnets_are_available_after_three_minutes() -> None:
    """AWS-377, AWS-378."""
    launches = Launches()
    launches.memory.mark_capacity_type_unavailable("spot")
    launches.memory.mark_subnet_unavailable("subnet-1")
    assert launches.memory.is_unavailable(SPOT)
    assert launches.memory.are_subnets_unavailable({"subnet-1"})
    assert not launches.memory.are_subnets_unavailable({"subnet-1", "subnet-2"})
    assert not launches.memory.are_subnets_unavailable(())
    launches.clock.advance(minutes=3)
    assert not launches.memory.is_unavailable(SPOT)
    assert not launches.memory.are_subnets_unavailable({"subnet-1"})


def test_every_mark_and_its_expiry_change_the_sequence_number_of_the_type() -> None:
    """AWS-379."""
    launches = Launches()
    numbers = [launches.memory.sequence_number("m5.large")]
    others = [launches.memory.sequence_number("c5.large")]
    for step in (lambda: launches.memory.mark_unavailable(SPOT, ICE), lambda: launches.clock.advance(minutes=3)):
        step()
        numbers.append(launches.memory.sequence_number("m5.large"))
        others.append(launches.memory.sequence_number("c5.large"))
    assert numbers == sorted(set(numbers))
    assert len(set(others)) == 1
    launches.memory.mark_subnet_unavailable("subnet-1")
    assert launches.memory.sequence_number("c5.large") > others[0]


def test_marks_can_be_listed() -> None:
    launches = Launches()
    launches.memory.mark_unavailable(SPOT, ICE)
    assert launches.memory.unavailable_offerings() == (SPOT,)
    launches.clock.advance(minutes=3)
    assert launches.memory.unavailable_offerings() == ()


def test_the_log_names_the_unavailable_offering_and_the_reason() -> None:
    """AWS-380."""
    with capture_logs() as logs:
        Launches().memory.mark_unavailable(OfferingKey("spot", "m5.large", "zone-a", "pg-1", "2"), ICE, "fleet-1")
    assert logs == [
        {
            "event": "removing offering from offerings",
            "log_level": "debug",
            "reason": ICE,
            "instance-type": "m5.large",
            "zone": "zone-a",
            "capacity-type": "spot",
            "ttl": "0:03:00",
            "fleet-id": "fleet-1",
            "placement-group-id": "pg-1",
            "placement-group-partition": "2",
        }
    ]


def test_the_count_of_a_reservation_follows_launches_and_terminations() -> None:
    """AWS-T600."""
    units = ReservationAvailability(ManualClock(START))
    units.set_available_count("cr-1", 5)
    units.mark_launched("cr-1")
    units.mark_launched("cr-1")
    units.mark_terminated("cr-1")
    assert units.available_count("cr-1") == 4


def test_a_refused_reservation_is_full_until_ec2_is_read_again() -> None:
    """AWS-T601."""
    units = ReservationAvailability(ManualClock(START))
    units.set_available_count("cr-1", 5)
    units.mark_exhausted("cr-1")
    assert units.available_count("cr-1") == 0
    units.set_available_count("cr-1", 2)
    assert units.available_count("cr-1") == 2


def test_an_unknown_reservation_is_full() -> None:
    """AWS-600."""
    clock = ManualClock(START)
    units = ReservationAvailability(clock)
    units.mark_terminated("cr-1")
    units.mark_launched("cr-1")
    assert units.available_count("cr-1") == 0
    units.set_available_count("cr-1", 5)
    clock.advance(hours=24)
    assert units.available_count("cr-1") == 0
