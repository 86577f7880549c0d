"""The conditions of a ProvisioningRequest: pending, then booked for a while, then ended (pure).

Types and reasons are those of Cluster Autoscaler, which Kueue reads; `CapacityRevoked` it knows from other autoscalers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from karpenter.api.meta import Condition
from karpenter.api.provisioning_request import (
    ACCEPTED,
    ATOMIC_SCALE_UP,
    BOOKING_EXPIRED,
    CAPACITY_REVOKED,
    CHECK_CAPACITY,
    FAILED,
    PROVISIONED,
    ProvisioningRequest,
)
from karpenter.capacitybuffer.buffer_placements import BufferPlacement
from karpenter.model import conditions

#: So long the room of a provisioned request is kept for its pods.
BOOKING_PERIOD = timedelta(minutes=10)
#: A request without a validity of its own is given up after this time.
DEFAULT_VALIDITY = timedelta(days=7)
#: A booking whose room is gone is revoked after this time.
REVOCATION_DELAY = timedelta(minutes=1)
VALID_UNTIL_SECONDS = "ValidUntilSeconds"
NO_RETRY = "noRetry"


class RequestPhase(Enum):
    """Where a request is in its life."""

    PENDING = "pending"
    BOOKED = "booked"
    ENDED = "ended"


@dataclass(frozen=True)
class RequestObservation:
    """What is known of a request beside the object.

    ``error``: why its pods cannot be built. ``total``: how many pods it is for, ``consumed``: how many real ones have come.
    ``placement``: of the virtual pods in the last pass, None before the first. ``lost_since``: since when a booked request has no
    room. ``why_unschedulable``: the reason of the first pod without a place.
    """

    now: datetime
    total: int = 0
    consumed: int = 0
    placement: BufferPlacement | None = None
    lost_since: datetime | None = None
    why_unschedulable: str = ""
    error: str = ""


def is_handled(request: ProvisioningRequest) -> bool:
    """Whether the request is of a class that is served here; others belong to other controllers."""
    return request.spec.provisioning_class_name in (CHECK_CAPACITY, ATOMIC_SCALE_UP)


def request_phase(request: ProvisioningRequest) -> RequestPhase:
    """The phase that the conditions of the request say."""
    own = request.status.conditions
    if any(conditions.is_true(own, ended) for ended in (FAILED, BOOKING_EXPIRED, CAPACITY_REVOKED)):
        return RequestPhase.ENDED
    return RequestPhase.BOOKED if conditions.is_true(own, PROVISIONED) else RequestPhase.PENDING


def decide_conditions(request: ProvisioningRequest, seen: RequestObservation) -> tuple[Condition, ...]:
    """The conditions to set now; those that are not mentioned stay."""
    match request_phase(request):
        case RequestPhase.PENDING:
            return tuple(_pending_conditions(request, seen))
        case RequestPhase.BOOKED:
            return tuple(_booked_conditions(request, seen))
        case RequestPhase.ENDED:
            return ()


def _pending_conditions(request: ProvisioningRequest, seen: RequestObservation) -> Iterator[Condition]:
    if seen.error:
        yield _true(FAILED, "FailedToCreatePods", seen.error)
        return
    validity = _validity(request)
    if validity is None:
        value = request.spec.parameters[VALID_UNTIL_SECONDS]
        yield _true(FAILED, "InvalidParameters", f"{VALID_UNTIL_SECONDS}: {value!r} is not a number of seconds")
        return
    created = request.metadata.creation_timestamp
    if created is not None and seen.now - created >= validity:
        yield _true(FAILED, "Expired", "ProvisioningRequest is expired")
        return
    yield _true(ACCEPTED, "Accepted", "ProvisioningRequest is accepted")
    if seen.placement is not None:
        yield _placement_condition(request, seen.placement, seen)


def _placement_condition(
    request: ProvisioningRequest, placement: BufferPlacement, seen: RequestObservation
) -> Condition:
    checks_only = request.spec.provisioning_class_name == CHECK_CAPACITY
    if placement.unschedulable:
        text = seen.why_unschedulable or "Capacity is not found"
        if checks_only and request.spec.parameters.get(NO_RETRY) == "true":
            return _true(FAILED, "CapacityIsNotFound", text)
        return _not_provisioned("CapacityIsNotFound", f"{text}; it is tried again")
    awaited = seen.total - seen.consumed
    if placement.on_ready_nodes < awaited:
        text = f"{placement.on_ready_nodes} of {awaited} pods have room on nodes that are ready; the other nodes start"
        return _not_provisioned("CapacityIsNotReady", text)
    if checks_only:
        return _true(PROVISIONED, "CapacityIsFound", "Capacity is found in the cluster")
    return _true(PROVISIONED, "CapacityIsProvisioned", "Capacity is provisioned in the cluster")


def _booked_conditions(request: ProvisioningRequest, seen: RequestObservation) -> Iterator[Condition]:
    provisioned = conditions.find_condition(request.status.conditions, PROVISIONED)
    since = provisioned.last_transition_time if provisioned is not None else None
    if seen.total and seen.consumed >= seen.total:
        yield _true(BOOKING_EXPIRED, "CapacityBookingConsumed", "All pods of the request exist")
    elif since is not None and seen.now - since >= BOOKING_PERIOD:
        yield _true(BOOKING_EXPIRED, "CapacityReservationTimeExpired", "Capacity reservation time is expired")
    elif seen.error:
        yield _true(FAILED, "FailedToBookCapacity", seen.error)
    elif seen.lost_since is not None and seen.now - seen.lost_since >= REVOCATION_DELAY:
        text = seen.why_unschedulable or "The capacity is gone"
        yield _true(CAPACITY_REVOKED, "CapacityIsLost", text)


def _validity(request: ProvisioningRequest) -> timedelta | None:
    """How long the request is tried for; None if that cannot be read."""
    text = request.spec.parameters.get(VALID_UNTIL_SECONDS)
    if text is None or request.spec.provisioning_class_name != ATOMIC_SCALE_UP:
        return DEFAULT_VALIDITY
    return timedelta(seconds=int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _true(type_: str, reason: str, message: str) -> Condition:
    return Condition(type=type_, status=conditions.TRUE, reason=reason, message=message)


def _not_provisioned(reason: str, message: str) -> Condition:
    return Condition(type=PROVISIONED, status=conditions.FALSE, reason=reason, message=message)
