"""What a fleet's refusals teach the rest of the provider (AWS-453 to AWS-456).

They are counted once per answer, however many claims share it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM, Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.model import labels
from karpenter.providers.aws import failures
from karpenter.providers.aws.failures import Refused
from karpenter.providers.aws.launch.addresses import Addresses
from karpenter.providers.aws.launch.plan import LaunchPlan
from karpenter.providers.aws.series import InstanceSeries


class Pool(NamedTuple):
    """What can run out: a type in a zone, paid for in one way, perhaps only within a placement group or a partition of one."""

    capacity_type: str
    instance_type: str
    zone: str
    group: str = ""
    partition: str = ""


class Shortages(Protocol):
    """Remembers for a while what could not be had (AWS §8.3)."""

    def lacks(self, pool: Pool, reason: str, fleet_id: str) -> None:
        """There is none of these now."""

    def lacks_all(self, capacity_type: str) -> None:
        """Nothing can be bought in this way now."""

    def lacks_addresses(self, subnet_id: str) -> None:
        """The subnet is full."""


class Reservations(Protocol):
    """Counts what reservations still hold (AWS-600)."""

    def taken(self, reservation: str) -> None:
        """One machine was put into it."""

    def exhausted(self, reservation: str) -> None:
        """It holds no more."""


class Notices(Protocol):
    """Publishes events."""

    def warning(self, kind: Kind[Wire], about: ObjectMeta, reason: str, message: str) -> None:
        """Something happened that somebody should look at."""


class Consequences:
    """Tells everybody concerned."""

    def __init__(
        self,
        shortages: Shortages,
        reservations: Reservations,
        addresses: Addresses,
        series: InstanceSeries,
        notices: Notices,
    ) -> None:
        self._shortages = shortages
        self._reservations = reservations
        self._addresses = addresses
        self._series = series
        self._notices = notices

    def took(self, reservation: str) -> None:
        """A machine was bought (AWS-469)."""
        if reservation:
            self._reservations.taken(reservation)

    def refused(self, plan: LaunchPlan, refusals: Iterable[Refused], fleet_id: str) -> None:
        """The refusals of one answer."""
        for item in refusals:
            self._series.launch_failed(item.zone, plan.capacity_type, item.reason)
            self._mark(plan, item, fleet_id)

    def tell(self, claims: Iterable[NodeClaim], refusals: Iterable[Refused]) -> None:
        """Events on the claims that got nothing, for what waiting alone does not mend (AWS-456, Beyond AWS-453)."""
        told = tuple(dict.fromkeys(sentence for item in refusals if (sentence := _sentence(item))))
        for claim in claims:
            for reason, message in told:
                self._notices.warning(NODE_CLAIM, claim.metadata, reason, message)  # type: ignore[arg-type]

    def _mark(self, plan: LaunchPlan, item: Refused, fleet_id: str) -> None:
        if item.code == failures.NO_SPOT_ROLE:
            self._shortages.lacks_all(labels.SPOT)
        if item.code == failures.INSUFFICIENT_ADDRESSES and item.subnet_id:
            self._shortages.lacks_addresses(item.subnet_id)
            self._addresses.exhausted(item.subnet_id)
        if item.is_capacity and plan.capacity_type == labels.RESERVED:
            self._mark_reserved(plan, item)
        elif failures.marks_offering(item, plan.capacity_type):
            for name in _concerned(plan, item):
                self._shortages.lacks(_pool(plan, name, item.zone), item.code, fleet_id)

    def _mark_reserved(self, plan: LaunchPlan, item: Refused) -> None:
        """A full reservation is counted down, not a market without machines (AWS-455)."""
        offer = plan.offer(item.instance_type, item.zone)
        if offer is not None and offer.reservation and not item.is_spread_limit:
            self._reservations.exhausted(offer.reservation)


def _concerned(plan: LaunchPlan, item: Refused) -> tuple[str, ...]:
    """A full spread group takes no type in that zone (AWS-454)."""
    if not (item.is_spread_limit and plan.group_id):
        return (item.instance_type,)
    offers = (offer for template in plan.templates for offer in template.offers)
    return tuple(dict.fromkeys(offer.instance_type for offer in offers if offer.zone == item.zone))


def _pool(plan: LaunchPlan, instance_type: str, zone: str) -> Pool:
    partition = str(plan.partition) if plan.partition else ""
    return Pool(plan.capacity_type, instance_type, zone, plan.group_id, partition)


def _sentence(item: Refused) -> tuple[str, str] | None:
    if item.code == failures.NO_SPOT_ROLE:
        return (
            "SpotServiceLinkedRoleMissing",
            "spot machines need the service-linked role AWSServiceRoleForEC2Spot, which the controller may not create: "
            "create it once, or allow iam:CreateServiceLinkedRole",
        )
    if item.code in failures.QUOTAS:
        return "QuotaExceeded", f"a quota of the AWS account is used up ({item.code}): {item.message}"
    return None
