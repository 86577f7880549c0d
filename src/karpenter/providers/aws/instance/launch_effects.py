"""What a fleet's refusals teach the rest of the provider (AWS-453 to AWS-456).

They are counted once per answer, however many claims share it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.model import labels
from karpenter.providers.aws import aws_errors
from karpenter.providers.aws.aws_context import AwsEventRecorder
from karpenter.providers.aws.aws_errors import LaunchRefusal
from karpenter.providers.aws.aws_metrics import InstanceMetrics
from karpenter.providers.aws.instance.fleet_request import SubnetAddresses
from karpenter.providers.aws.instance.launch_plan import LaunchPlan
from karpenter.providers.aws.instancetype.ec2_offerings import OfferingKey

_log = structlog.get_logger()


class UnavailableRecorder(Protocol):
    """Remembers for a while what could not be had (AWS §8.3)."""

    def mark_unavailable(self, key: OfferingKey, reason: str, fleet_id: str) -> None:
        """There is none of these now."""

    def mark_capacity_type_unavailable(self, capacity_type: str) -> None:
        """Nothing can be launched with this capacity type now."""

    def mark_subnet_unavailable(self, subnet_id: str) -> None:
        """The subnet is full."""


class ReservationUsage(Protocol):
    """Counts what reservations still hold (AWS-600)."""

    def mark_launched(self, reservation: str) -> None:
        """One instance was put into it."""

    def mark_exhausted(self, reservation: str) -> None:
        """It holds no more."""


class LaunchEffects:
    """Marks offerings unavailable, counts failures and publishes events."""

    def __init__(
        self,
        unavailable: UnavailableRecorder,
        reservations: ReservationUsage,
        addresses: SubnetAddresses,
        metrics: InstanceMetrics,
        events: AwsEventRecorder,
    ) -> None:
        self._unavailable = unavailable
        self._reservations = reservations
        self._addresses = addresses
        self._metrics = metrics
        self._events = events

    def record_launched(self, reservation: str) -> None:
        """An instance was launched (AWS-469)."""
        if reservation:
            self._reservations.mark_launched(reservation)

    def record_refusals(self, plan: LaunchPlan, refusals: Iterable[LaunchRefusal], fleet_id: str) -> None:
        """The refusals of one answer."""
        for launch_refusal in refusals:
            self._metrics.launch_failed(launch_refusal.zone, plan.capacity_type, launch_refusal.reason)
            self._mark_unavailable(plan, launch_refusal, fleet_id)

    def record_events(self, claims: Iterable[NodeClaim], refusals: Iterable[LaunchRefusal]) -> None:
        """Events on the claims without an instance, for refusals that waiting alone does not fix (AWS-456, Beyond AWS-453)."""
        messages = tuple(
            dict.fromkeys(sentence for launch_refusal in refusals if (sentence := _event_of(launch_refusal)))
        )
        for claim in claims:
            for reason, message in messages:
                self._events.warning(NODE_CLAIM, claim.metadata, reason, message)

    def _mark_unavailable(self, plan: LaunchPlan, refusal: LaunchRefusal, fleet_id: str) -> None:
        if refusal.code == aws_errors.NO_SPOT_SERVICE_LINKED_ROLE:
            self._unavailable.mark_capacity_type_unavailable(labels.SPOT)
        if refusal.code == aws_errors.INSUFFICIENT_ADDRESSES and refusal.subnet_id:
            self._unavailable.mark_subnet_unavailable(refusal.subnet_id)
            self._addresses.mark_exhausted(refusal.subnet_id)
        if refusal.is_capacity and plan.capacity_type == labels.RESERVED:
            self._mark_reserved(plan, refusal, fleet_id)
        elif aws_errors.marks_offering_unavailable(refusal, plan.capacity_type):
            for name in _affected_types(plan, refusal):
                self._unavailable.mark_unavailable(_offering_key(plan, name, refusal.zone), refusal.code, fleet_id)

    def _mark_reserved(self, plan: LaunchPlan, refusal: LaunchRefusal, fleet_id: str) -> None:
        """A full reservation is counted down and stays healthy; any other refusal marks that reservation alone (K15-A48)."""
        if refusal.is_spread_limit:
            return
        offer = plan.offering(refusal.instance_type, refusal.zone)
        reservation = offer.reservation if offer is not None else ""
        if refusal.code == aws_errors.RESERVATION_FULL:
            if reservation:
                self._reservations.mark_exhausted(reservation)
            return
        key = OfferingKey(plan.capacity_type, refusal.instance_type, refusal.zone, reservation=reservation)
        _log.debug(
            "marking reserved offering unavailable",
            **{
                "reason": refusal.code,
                "instance-type": refusal.instance_type,
                "zone": refusal.zone,
                "capacity-type": plan.capacity_type,
            },
        )
        self._unavailable.mark_unavailable(key, refusal.code, fleet_id)


def _affected_types(plan: LaunchPlan, refusal: LaunchRefusal) -> tuple[str, ...]:
    """A full spread group takes no type in that zone (AWS-454)."""
    if not (refusal.is_spread_limit and plan.group_id):
        return (refusal.instance_type,)
    offers = (offer for template in plan.templates for offer in template.offerings)
    return tuple(dict.fromkeys(offer.instance_type for offer in offers if offer.zone == refusal.zone))


def _offering_key(plan: LaunchPlan, instance_type: str, zone: str) -> OfferingKey:
    partition = str(plan.partition) if plan.partition else ""
    return OfferingKey(plan.capacity_type, instance_type, zone, plan.group_id, partition)


def _event_of(refusal: LaunchRefusal) -> tuple[str, str] | None:
    if refusal.code == aws_errors.NO_SPOT_SERVICE_LINKED_ROLE:
        return (
            "SpotServiceLinkedRoleMissing",
            "spot instances need the service-linked role AWSServiceRoleForEC2Spot, which the controller may not create: "
            "create it once, or allow iam:CreateServiceLinkedRole",
        )
    if refusal.code in aws_errors.QUOTA_CODES:
        return "QuotaExceeded", f"a quota of the AWS account is used up ({refusal.code}): {refusal.message}"
    return None
