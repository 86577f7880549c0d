"""The conditions of a ProvisioningRequest: pending, booked for ten minutes, ended."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from karpenter.api.capacity_buffer import PodTemplateReference
from karpenter.api.core import Container, PodSpec, PodTemplateSpec, ResourceRequirements
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.api.provisioning_request import (
    ATOMIC_SCALE_UP,
    CHECK_CAPACITY,
    ProvisioningRequest,
    ProvisioningRequestSpec,
    ProvisioningRequestStatus,
    RequestedPodSet,
)
from karpenter.capacitybuffer.buffer_placements import BufferPlacement
from karpenter.provisioningrequest.request_decision import RequestObservation, decide_conditions
from karpenter.provisioningrequest.request_pods import build_request_pods, request_gang, without_consumed
from support.builders import NOW, pod

READY = BufferPlacement(on_ready_nodes=3)
STARTING = BufferPlacement(on_ready_nodes=1, on_new_nodes=2)
NOWHERE = BufferPlacement(unschedulable=3)
SEEN = RequestObservation(NOW, total=3)


def request(class_name: str = ATOMIC_SCALE_UP, *own: Condition, **parameters: str) -> ProvisioningRequest:
    sets = (
        RequestedPodSet(pod_template_ref=PodTemplateReference(name="driver"), count=1),
        RequestedPodSet(pod_template_ref=PodTemplateReference(name="worker"), count=2),
    )
    return ProvisioningRequest(
        metadata=ObjectMeta(name="train", namespace="ns", uid="u", creation_timestamp=NOW),
        spec=ProvisioningRequestSpec(provisioning_class_name=class_name, pod_sets=sets, parameters=parameters),
        status=ProvisioningRequestStatus(conditions=own),
    )


def decided(asked: ProvisioningRequest, seen: RequestObservation) -> list[tuple[str, str, str]]:
    return [(each.type, each.status, each.reason) for each in decide_conditions(asked, seen)]


ACCEPTED = ("Accepted", "True", "Accepted")
PROVISIONED = Condition(type="Provisioned", status="True", last_transition_time=NOW)


@pytest.mark.parametrize(
    ("class_name", "parameters", "placement", "expected"),
    [
        (ATOMIC_SCALE_UP, {}, READY, ("Provisioned", "True", "CapacityIsProvisioned")),
        (CHECK_CAPACITY, {}, READY, ("Provisioned", "True", "CapacityIsFound")),
        (ATOMIC_SCALE_UP, {}, STARTING, ("Provisioned", "False", "CapacityIsNotReady")),
        (ATOMIC_SCALE_UP, {}, NOWHERE, ("Provisioned", "False", "CapacityIsNotFound")),
        (CHECK_CAPACITY, {"noRetry": "false"}, NOWHERE, ("Provisioned", "False", "CapacityIsNotFound")),
        (CHECK_CAPACITY, {"noRetry": "true"}, NOWHERE, ("Failed", "True", "CapacityIsNotFound")),
        (ATOMIC_SCALE_UP, {"noRetry": "true"}, NOWHERE, ("Provisioned", "False", "CapacityIsNotFound")),
    ],
)
def test_a_pending_request_is_provisioned_once_all_pods_have_room_on_ready_nodes(
    class_name: str, parameters: dict[str, str], placement: BufferPlacement, expected: tuple[str, str, str]
) -> None:
    seen = replace(SEEN, placement=placement)
    assert decided(request(class_name, **parameters), seen) == [ACCEPTED, expected]


def test_a_request_is_accepted_before_any_pass_and_fails_without_its_templates() -> None:
    assert decided(request(), SEEN) == [ACCEPTED]
    assert decided(request(), RequestObservation(NOW, error="missing")) == [("Failed", "True", "FailedToCreatePods")]


@pytest.mark.parametrize(
    ("parameters", "age", "expected"),
    [
        ({"ValidUntilSeconds": "60"}, timedelta(seconds=59), ACCEPTED),
        ({"ValidUntilSeconds": "60"}, timedelta(seconds=60), ("Failed", "True", "Expired")),
        ({}, timedelta(days=6), ACCEPTED),
        ({}, timedelta(days=7), ("Failed", "True", "Expired")),
        ({"ValidUntilSeconds": "soon"}, timedelta(0), ("Failed", "True", "InvalidParameters")),
        ({"ValidUntilSeconds": "9" * 40}, timedelta(0), ("Failed", "True", "InvalidParameters")),
    ],
)
def test_a_request_is_given_up_after_its_validity(
    parameters: dict[str, str], age: timedelta, expected: tuple[str, str, str]
) -> None:
    assert decided(request(ATOMIC_SCALE_UP, **parameters), replace(SEEN, now=NOW + age)) == [expected]


def test_a_booking_ends_after_ten_minutes_when_its_pods_have_come_or_when_its_room_is_lost_for_a_minute() -> None:
    booked = request(ATOMIC_SCALE_UP, PROVISIONED)
    assert decided(booked, replace(SEEN, now=NOW + timedelta(minutes=9), consumed=2)) == []
    late = replace(SEEN, now=NOW + timedelta(minutes=10))
    assert decided(booked, late) == [("BookingExpired", "True", "CapacityReservationTimeExpired")]
    assert decided(booked, replace(SEEN, consumed=3)) == [("BookingExpired", "True", "CapacityBookingConsumed")]
    lost = replace(SEEN, now=NOW + timedelta(minutes=3), lost_since=NOW + timedelta(minutes=2, seconds=1))
    assert decided(booked, lost) == []
    lost = replace(lost, lost_since=NOW + timedelta(minutes=2))
    assert decided(booked, lost) == [("CapacityRevoked", "True", "CapacityIsLost")]


@pytest.mark.parametrize("end", ["Failed", "BookingExpired", "CapacityRevoked"])
def test_nothing_is_reported_about_a_request_that_has_ended(end: str) -> None:
    ended = request(ATOMIC_SCALE_UP, PROVISIONED, Condition(type=end, status="True"))
    assert decided(ended, replace(SEEN, now=NOW + timedelta(days=9), placement=NOWHERE)) == []


def template(cpu: str) -> PodTemplateSpec:
    container = Container(resources=ResourceRequirements(requests={"cpu": cpu}))
    return PodTemplateSpec(spec=PodSpec(containers=(container,), priority=7))


def test_real_pods_take_the_place_of_virtual_ones_that_request_the_same() -> None:
    sets = build_request_pods(request(), [template("1"), template("4")], NOW)
    assert [len(each.pods) for each in sets] == [1, 2]
    worker, driver = pod("w", {"cpu": "4"}), pod("d", {"cpu": "1"})
    assert [len(each.pods) for each in without_consumed(sets, [worker])] == [1, 1]
    assert [len(each.pods) for each in without_consumed(sets, [worker, driver])] == [0, 1]
    other = pod("other", {"cpu": "9"})
    assert [len(each.pods) for each in without_consumed(sets, [other, worker, worker, worker])] == [0, 0]


def test_the_gang_of_a_request_is_all_pods_that_have_not_come() -> None:
    asked = request(CHECK_CAPACITY)
    sets = build_request_pods(asked, [template("1"), template("4")], NOW)
    own = request_gang(asked, sets, None)
    assert own is not None
    assert (own.name, own.minimum, own.priority) == ("ProvisioningRequest ns/train", 3, 7)
    assert own.on_existing_nodes_only
    assert request_gang(asked, without_consumed(sets, [pod("p", {"cpu": "1"})] * 3), None) is None
