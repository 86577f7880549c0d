"""Subnets and security groups of a class (AWS-088 to AWS-090, AWS-143 to AWS-147)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from math import inf
from typing import Final, NamedTuple

import structlog
from cachetools import TTLCache
from msgspec.structs import replace

from karpenter.api.ec2_node_class import (
    CapacityReservation,
    CapacityReservationSelectorTerm,
    EC2NodeClass,
    PlacementGroupSelector,
    SecurityGroup,
    Subnet,
)
from karpenter.model.clock import Clock
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_apis import DiscoveryApi, ReservationQuery
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.ec2_descriptions import (
    CapacityReservationInfo,
    PlacementGroupInfoEntry,
    SecurityGroupInfo,
    SubnetInfo,
)
from karpenter.providers.aws.nodeclass import selector_queries
from karpenter.providers.aws.nodeclass.nodeclass_subreconcilers import (
    CAPACITY_RESERVATIONS_READY,
    MINUTE,
    PLACEMENT_GROUP_READY,
    SECURITY_GROUPS_READY,
    SUBNETS_READY,
    NodeClassChangeLog,
    NodeClassWarnings,
    SubreconcileResult,
    condition_false,
    condition_true,
)

_GROUPS_REQUEUE_SECONDS = 5 * MINUTE
_SEVERAL_VPCS_REASON = "SubnetsInSeveralVPCs"
#: The word launches use when EC2 refuses for this reason (AWS-452).
_VPC_MISMATCH_REASON = "SecurityGroupSubnetVPCMismatch"
_log = structlog.get_logger()

#: Gets the free addresses of each subnet with every answer of EC2 (AWS-143).
FreeAddressRecorder = Callable[[str, int], None]


class NodeClassGeneration(NamedTuple):
    """A class as its owner last changed it: what is cached of its selectors is cached for this."""

    uid: str
    generation: int


def generation_of(node_class: EC2NodeClass) -> NodeClassGeneration:
    """The edition of a class."""
    return NodeClassGeneration(node_class.metadata.uid, node_class.metadata.generation)


class SubnetProvider:
    """Finds subnets. Answers are kept for ``refresh``; the free addresses of each also go to ``record_addresses``."""

    def __init__(
        self, ec2: DiscoveryApi, clock: Clock, refresh: timedelta, record_addresses: FreeAddressRecorder
    ) -> None:
        self._ec2 = ec2
        self._record_addresses = record_addresses
        self._cache: TTLCache[NodeClassGeneration, tuple[SubnetInfo, ...], datetime] = TTLCache(inf, refresh, clock.now)

    def cached(self, node_class: EC2NodeClass) -> tuple[SubnetInfo, ...] | None:
        """The class's subnets as they were found lately; None if they were not."""
        return self._cache.get(generation_of(node_class))

    async def find(self, node_class: EC2NodeClass) -> tuple[SubnetInfo, ...]:
        """The class's subnets, most free addresses first (AWS-089). Raises ``AwsError``."""
        cached = self.cached(node_class)
        if cached is not None:
            return cached
        queries = selector_queries.subnet_filters(node_class.spec.subnet_selector_terms)
        answers = await asyncio.gather(*(self._ec2.describe_subnets(filters) for filters in queries))
        by_id = {subnet.subnet_id: subnet for answer in answers for subnet in answer}
        subnets = tuple(sorted(by_id.values(), key=lambda info: (-info.available_ip_address_count, info.subnet_id)))
        for subnet_info in subnets:
            self._record_addresses(subnet_info.subnet_id, subnet_info.available_ip_address_count)
        self._cache[generation_of(node_class)] = subnets
        return subnets


class SubnetReconciler:
    """Puts subnets into the status."""

    condition: Final = SUBNETS_READY

    def __init__(self, subnets: SubnetProvider, changes: NodeClassChangeLog, warnings: NodeClassWarnings) -> None:
        self._subnets = subnets
        self._changes = changes
        self._warnings = warnings

    async def reconcile(self, node_class: EC2NodeClass) -> SubreconcileResult:
        """See ``NodeClassSubreconciler.reconcile``."""
        subnets = await self._subnets.find(node_class)
        status = replace(node_class.status, subnets=tuple(map(_subnet_status, subnets)))
        if not subnets:
            return SubreconcileResult(
                status,
                condition_false(SUBNETS_READY, "SubnetsNotFound", "SubnetSelector did not match any Subnets"),
                MINUTE,
            )
        # The order follows free addresses, so it changes all the time and does not count as a change.
        shown = tuple(
            f"{subnet_info.subnet_id}:{subnet_info.availability_zone}"
            for subnet_info in sorted(subnets, key=_subnet_id)
        )
        if self._changes.has_changed("subnets", node_class, shown):
            _log.info("discovered subnets", subnets=list(shown))
        self._warnings.warn_if_changed(node_class, _SEVERAL_VPCS_REASON, _several_vpcs_warning(subnets))
        return SubreconcileResult(status, condition_true(SUBNETS_READY), MINUTE)


class SecurityGroupProvider:
    """Finds security groups, again after ``refresh_interval`` (K15-A05)."""

    def __init__(self, ec2: DiscoveryApi, clock: Clock, refresh_interval: timedelta) -> None:
        self._ec2 = ec2
        self._cache: TTLCache[NodeClassGeneration, tuple[SecurityGroupInfo, ...], datetime] = TTLCache(
            inf, refresh_interval, clock.now
        )

    async def find(self, node_class: EC2NodeClass) -> tuple[SecurityGroupInfo, ...]:
        """The class's groups, by id. Raises ``AwsError``."""
        cached = self._cache.get(generation_of(node_class))
        if cached is not None:
            return cached
        queries = selector_queries.security_group_filters(node_class.spec.security_group_selector_terms)
        answers = await asyncio.gather(*(self._ec2.describe_security_groups(filters) for filters in queries))
        by_id = {group_info.group_id: group_info for answer in answers for group_info in answer}
        groups = tuple(by_id[group_id] for group_id in sorted(by_id))
        self._cache[generation_of(node_class)] = groups
        return groups


class SecurityGroupReconciler:
    """Puts security groups into the status, and warns where they cannot go with the subnets."""

    condition: Final = SECURITY_GROUPS_READY

    def __init__(
        self,
        groups: SecurityGroupProvider,
        subnets: SubnetProvider,
        changes: NodeClassChangeLog,
        warnings: NodeClassWarnings,
    ) -> None:
        self._groups = groups
        self._subnets = subnets
        self._changes = changes
        self._warnings = warnings

    async def reconcile(self, node_class: EC2NodeClass) -> SubreconcileResult:
        """See ``NodeClassSubreconciler.reconcile``."""
        groups = await self._groups.find(node_class)
        status_groups = tuple(
            SecurityGroup(id=group_info.group_id, name=group_info.group_name) for group_info in groups
        )
        status = replace(node_class.status, security_groups=status_groups)
        if not groups:
            message = "SecurityGroupSelector did not match any SecurityGroups"
            return SubreconcileResult(
                status, condition_false(SECURITY_GROUPS_READY, "SecurityGroupsNotFound", message), MINUTE
            )
        shown = tuple(group_info.group_id for group_info in groups)
        if self._changes.has_changed("security-groups", node_class, shown):
            _log.info("discovered security groups", **{"security-groups": list(shown)})
        subnets = self._subnets.cached(node_class)
        if subnets is not None:
            self._warnings.warn_if_changed(node_class, _VPC_MISMATCH_REASON, _foreign_groups_warning(groups, subnets))
        return SubreconcileResult(status, condition_true(SECURITY_GROUPS_READY), _GROUPS_REQUEUE_SECONDS)


def _subnet_status(subnet: SubnetInfo) -> Subnet:
    return Subnet(id=subnet.subnet_id, zone=subnet.availability_zone, zone_id=subnet.availability_zone_id)


def _subnet_id(subnet: SubnetInfo) -> str:
    return subnet.subnet_id


def _several_vpcs_warning(subnets: Iterable[SubnetInfo]) -> str:
    """A tag may be on subnets of several VPCs, and a launch would come to lie in any of them."""
    vpcs = sorted({subnet_info.vpc_id for subnet_info in subnets})
    return f"selected subnets lie in {len(vpcs)} VPCs: {', '.join(vpcs)}" if len(vpcs) > 1 else ""


def _foreign_groups_warning(groups: Iterable[SecurityGroupInfo], subnets: Iterable[SubnetInfo]) -> str:
    """EC2 refuses a launch whose groups and subnet are of different VPCs."""
    vpcs = {subnet_info.vpc_id for subnet_info in subnets}
    foreign = sorted(
        f"{group_info.group_id} ({group_info.vpc_id})" for group_info in groups if group_info.vpc_id not in vpcs
    )
    if not foreign or not vpcs:
        return ""
    return f"security groups lie in another VPC than the subnets ({', '.join(sorted(vpcs))}): {', '.join(foreign)}"


_GROUP_REFRESHED = timedelta(minutes=1)
_GROUP_TTL = timedelta(hours=24)
#: How EC2 says that it knows no such group, instead of an empty answer.
_UNKNOWN_GROUP_CODES = frozenset({"InvalidPlacementGroup.Unknown", "InvalidPlacementGroupId.NotFound"})


class PlacementGroupProvider:
    """Resolves selectors. What was found is kept for a day, so that launches go on while EC2 does not answer."""

    def __init__(self, ec2: DiscoveryApi, clock: Clock) -> None:
        self._ec2 = ec2
        self._recently_read: TTLCache[PlacementGroupSelector, bool, datetime] = TTLCache(
            inf, _GROUP_REFRESHED, clock.now
        )
        self._cache: TTLCache[PlacementGroupSelector, PlacementGroupInfoEntry, datetime] = TTLCache(
            inf, _GROUP_TTL, clock.now
        )

    def cached(self, node_class: EC2NodeClass) -> PlacementGroupInfoEntry | None:
        """The group the class's instances go into, as far as is known; None without one."""
        selector = node_class.spec.placement_group_selector
        return None if selector is None else self._cache.get(selector)

    async def find(self, selector: PlacementGroupSelector) -> PlacementGroupInfoEntry | None:
        """The group, looked up at most once a minute. That EC2 knows of none ends what was kept. Raises ``AwsError``."""
        if self._recently_read.get(selector) is None:
            groups = await self._describe(selector)
            self._recently_read[selector] = True
            if groups:
                self._cache[selector] = groups[0]
            else:
                self._cache.pop(selector, None)
        return self._cache.get(selector)

    async def _describe(self, selector: PlacementGroupSelector) -> tuple[PlacementGroupInfoEntry, ...]:
        try:
            return await self._ec2.describe_placement_groups(selector_queries.placement_group_query(selector))
        except AwsError as error:
            if error.code not in _UNKNOWN_GROUP_CODES:
                raise
            return ()


class PlacementGroupReconciler:
    """Judges whether the class's group is there; the status has no field for it."""

    condition: Final = PLACEMENT_GROUP_READY

    def __init__(self, groups: PlacementGroupProvider) -> None:
        self._groups = groups

    async def reconcile(self, node_class: EC2NodeClass) -> SubreconcileResult:
        """See ``NodeClassSubreconciler.reconcile``."""
        selector = node_class.spec.placement_group_selector
        if selector is None:
            return SubreconcileResult(node_class.status, condition_true(PLACEMENT_GROUP_READY))
        try:
            group = await self._groups.find(selector)
        except AwsError as error:
            verdict = condition_false(
                PLACEMENT_GROUP_READY, "PlacementGroupResolutionFailed", f"resolving placement group, {error}"
            )
            return SubreconcileResult(node_class.status, verdict, error=error)
        if group is None:
            group_name = selector.id or selector.name
            verdict = condition_false(
                PLACEMENT_GROUP_READY, "PlacementGroupNotFound", f"no placement group {group_name} is available"
            )
            return SubreconcileResult(node_class.status, verdict, MINUTE)
        return SubreconcileResult(node_class.status, condition_true(PLACEMENT_GROUP_READY))


_RESERVATION_TYPES = frozenset({"default", aws_labels.CAPACITY_BLOCK})
_MATCH_CRITERIA = frozenset({"open", "targeted"})
_RESERVATION_TTL = timedelta(minutes=1)
#: EC2 begins to terminate the instances of a capacity block 30 minutes before its end; drain them before (AWS-152).
EXPIRING_BEFORE_END = timedelta(minutes=40)

#: Gets the remaining instances of each reservation with every answer of EC2 (AWS-600).
AvailableCountRecorder = Callable[[str, int], None]


class CapacityReservationProvider:
    """Finds capacity reservations. Equal queries of several classes are one."""

    def __init__(self, ec2: DiscoveryApi, clock: Clock, record_available: AvailableCountRecorder) -> None:
        self._ec2 = ec2
        self._clock = clock
        self._record_available = record_available
        self._cache: TTLCache[ReservationQuery, tuple[CapacityReservationInfo, ...], datetime] = TTLCache(
            inf, _RESERVATION_TTL, clock.now
        )

    async def find(self, terms: Iterable[CapacityReservationSelectorTerm]) -> tuple[CapacityReservationInfo, ...]:
        """Reservations that have not ended, by id (AWS-150). Raises ``AwsError``."""
        by_id = {
            reservation_info.capacity_reservation_id: reservation_info
            for term in terms
            for reservation_info in await self._describe(term)
        }
        now = self._clock.now()
        return tuple(by_id[key] for key in sorted(by_id) if not _has_ended(by_id[key], now))

    async def _describe(self, term: CapacityReservationSelectorTerm) -> tuple[CapacityReservationInfo, ...]:
        query = selector_queries.reservation_query(term)
        cached = self._cache.get(query)
        if cached is not None:
            return cached
        try:
            reservations = await self._ec2.describe_capacity_reservations(query)
        except AwsError as error:
            if not error.is_not_found:
                raise
            reservations = ()
        for reservation_info in reservations:
            self._record_available(reservation_info.capacity_reservation_id, reservation_info.available_instance_count)
        self._cache[query] = reservations
        return reservations


class CapacityReservationReconciler:
    """Puts capacity reservations into the status. Only with gate ReservedCapacity."""

    condition: Final = CAPACITY_RESERVATIONS_READY

    def __init__(self, reservations: CapacityReservationProvider, clock: Clock, changes: NodeClassChangeLog) -> None:
        self._reservations = reservations
        self._clock = clock
        self._changes = changes

    async def reconcile(self, node_class: EC2NodeClass) -> SubreconcileResult:
        """See ``NodeClassSubreconciler.reconcile``."""
        discovered = await self._reservations.find(node_class.spec.capacity_reservation_selector_terms)
        supported = tuple(reservation_info for reservation_info in discovered if _is_supported(reservation_info))
        if len(supported) < len(discovered):
            counts = {"error-count": len(discovered) - len(supported), "total-count": len(discovered)}
            _log.error("failed to parse discovered capacity reservations", **counts)
        now = self._clock.now()
        status = replace(
            node_class.status, capacity_reservations=tuple(reservation_status(info, now) for info in supported)
        )
        ids = tuple(reservation_info.capacity_reservation_id for reservation_info in supported)
        if self._changes.has_changed("capacity-reservations", node_class, ids) and ids:
            _log.info("discovered capacity reservations", ids=list(ids))
        return SubreconcileResult(status, condition_true(CAPACITY_RESERVATIONS_READY), _until_next_end(supported, now))


def reservation_status(info: CapacityReservationInfo, now: datetime) -> CapacityReservation:
    """A reservation as the status shows it (AWS-151, AWS-152)."""
    type_ = _reservation_type(info)
    ends_soon = info.end_date is not None and info.end_date - EXPIRING_BEFORE_END <= now
    return CapacityReservation(
        id=info.capacity_reservation_id,
        availability_zone=info.availability_zone,
        instance_type=info.instance_type,
        instance_match_criteria=info.instance_match_criteria,
        owner_id=info.owner_id,
        reservation_type=type_,
        interruptible=info.interruptible,
        state="expiring" if type_ == aws_labels.CAPACITY_BLOCK and ends_soon else "active",
        end_time=info.end_date,
    )


def _reservation_type(info: CapacityReservationInfo) -> str:
    return info.reservation_type or "default"


def _is_supported(info: CapacityReservationInfo) -> bool:
    return _reservation_type(info) in _RESERVATION_TYPES and info.instance_match_criteria in _MATCH_CRITERIA


def _has_ended(info: CapacityReservationInfo, now: datetime) -> bool:
    return info.end_date is not None and info.end_date <= now


def _until_next_end(reservations: Iterable[CapacityReservationInfo], now: datetime) -> float:
    ends = (
        (reservation_info.end_date - now).total_seconds()
        for reservation_info in reservations
        if reservation_info.end_date is not None
    )
    return min((MINUTE, *ends))
