"""Capacity reservations of a class (AWS-091, AWS-092, AWS-148 to AWS-152)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

import structlog
from msgspec.structs import replace

from karpenter.api.ec2 import CapacityReservation, CapacityReservationSelectorTerm, EC2NodeClass
from karpenter.model.clock import Clock
from karpenter.providers.aws.cache import Expiring
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.nodeclass import queries
from karpenter.providers.aws.nodeclass.news import News
from karpenter.providers.aws.nodeclass.told import MINUTE, RESERVATIONS, Told, true
from karpenter.providers.aws.ports import DiscoveryPort, ReservationQuery
from karpenter.providers.aws.shapes import CapacityReservationInfo

_CAPACITY_BLOCK = "capacity-block"
_TYPES = frozenset({"default", _CAPACITY_BLOCK})
_CRITERIA = frozenset({"open", "targeted"})
_KEPT = timedelta(minutes=1)
#: EC2 begins to take a block's machines 30 minutes before its end; they are emptied before (AWS-152).
EXPIRING_BEFORE_END = timedelta(minutes=40)
_log = structlog.get_logger()

#: Told how many machines each reservation still has room for, whenever that was asked for (AWS-600).
CountUnits = Callable[[str, int], None]


class Reservations:
    """Finds capacity reservations. Equal queries of several classes are one."""

    def __init__(self, port: DiscoveryPort, clock: Clock, counted: CountUnits) -> None:
        self._port = port
        self._clock = clock
        self._counted = counted
        self._answers: Expiring[ReservationQuery, tuple[CapacityReservationInfo, ...]] = Expiring(clock, _KEPT)

    async def find(self, terms: Iterable[CapacityReservationSelectorTerm]) -> tuple[CapacityReservationInfo, ...]:
        """Reservations that have not ended, by id (AWS-150). Raises ``AwsError``."""
        by_id = {item.capacity_reservation_id: item for term in terms for item in await self._answer(term)}
        now = self._clock.now()
        return tuple(by_id[key] for key in sorted(by_id) if not _has_ended(by_id[key], now))

    async def _answer(self, term: CapacityReservationSelectorTerm) -> tuple[CapacityReservationInfo, ...]:
        query = queries.reservation(term)
        known = self._answers.get(query)
        if known is not None:
            return known
        try:
            found = await self._port.describe_capacity_reservations(query)
        except AwsError as error:
            if not error.is_not_found:
                raise
            found = ()
        for item in found:
            self._counted(item.capacity_reservation_id, item.available_instance_count)
        self._answers.put(query, found)
        return found


class ReservationsPart:
    """Puts capacity reservations into the status. Only with gate ReservedCapacity."""

    condition: Final = RESERVATIONS

    def __init__(self, reservations: Reservations, clock: Clock, news: News) -> None:
        self._reservations = reservations
        self._clock = clock
        self._news = news

    async def look(self, node_class: EC2NodeClass) -> Told:
        """See ``Part.look``."""
        found = await self._reservations.find(node_class.spec.capacity_reservation_selector_terms)
        known = tuple(item for item in found if _is_known(item))
        if len(known) < len(found):
            counts = {"error-count": len(found) - len(known), "total-count": len(found)}
            _log.error("failed to parse discovered capacity reservations", **counts)
        now = self._clock.now()
        status = replace(node_class.status, capacity_reservations=tuple(reservation(item, now) for item in known))
        ids = tuple(item.capacity_reservation_id for item in known)
        if self._news.is_new("capacity-reservations", node_class, ids) and ids:
            _log.info("discovered capacity reservations", ids=list(ids))
        return Told(status, true(RESERVATIONS), _until_next_end(known, now))


def reservation(item: CapacityReservationInfo, now: datetime) -> CapacityReservation:
    """A reservation as the status shows it (AWS-151, AWS-152)."""
    type_ = _type(item)
    ends_soon = item.end_date is not None and item.end_date - EXPIRING_BEFORE_END <= now
    return CapacityReservation(
        id=item.capacity_reservation_id,
        availability_zone=item.availability_zone,
        instance_type=item.instance_type,
        instance_match_criteria=item.instance_match_criteria,
        owner_id=item.owner_id,
        reservation_type=type_,
        interruptible=item.interruptible,
        state="expiring" if type_ == _CAPACITY_BLOCK and ends_soon else "active",
        end_time=item.end_date,
    )


def _type(item: CapacityReservationInfo) -> str:
    return item.reservation_type or "default"


def _is_known(item: CapacityReservationInfo) -> bool:
    return _type(item) in _TYPES and item.instance_match_criteria in _CRITERIA


def _has_ended(item: CapacityReservationInfo, now: datetime) -> bool:
    return item.end_date is not None and item.end_date <= now


def _until_next_end(found: Iterable[CapacityReservationInfo], now: datetime) -> float:
    ends = ((item.end_date - now).total_seconds() for item in found if item.end_date is not None)
    return min((MINUTE, *ends))
