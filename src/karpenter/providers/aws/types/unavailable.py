"""What EC2 had none of when we asked, and is not asked for again for a while (AWS-375 to AWS-380).

An entry is a way to buy a type: capacity type, type and zone, for launches into a placement group also the group and its
partition, so that a crowded group does not spoil the zone for everybody else. Beyond the reference the while grows: something
that is gone again right after its time was up stays away twice as long, up to an hour. Quotas are nobody's stock-out: more is
free as soon as something ends, so their entries stay short.

Entries end by time alone. Whoever keeps what it made of them asks ``version`` first, which settles what has ended.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog

from karpenter.model.clock import Clock

#: How long the first time; doubled each further time, up to ``LONGEST``.
SHORTEST = timedelta(minutes=3)
LONGEST = timedelta(minutes=60)
#: Something that stayed available for so long begins anew.
FORGIVEN = timedelta(minutes=60)
#: Answers that speak of a limit of the account instead of stock.
QUOTA_CODES = frozenset({"MaxSpotInstanceCountExceeded", "VcpuLimitExceeded", "MaxFleetCountExceeded"})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Sold:
    """A way to buy a type; ``group`` and ``partition`` are empty for launches outside a placement group."""

    capacity_type: str
    instance_type: str
    zone: str
    group: str = ""
    partition: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    until: datetime
    ttl: timedelta


class Unavailable:
    """What cannot be had now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sold: dict[str, dict[Sold, _Entry]] = {}
        self._past: dict[Sold, _Entry] = {}
        self._capacity_types: dict[str, datetime] = {}
        self._subnets: dict[str, datetime] = {}
        self._ends: list[datetime] = []
        self._sequences: Counter[str] = Counter()
        self._common = 0
        self._version = 0

    def mark(self, sold: Sold, reason: str, fleet_id: str = "") -> None:
        """EC2 has none of it now; ``reason`` is the code of its answer. Marking again begins the time anew (AWS-375)."""
        self._settle()
        now = self._clock.now()
        entries = self._sold.setdefault(sold.instance_type, {})
        ttl = self._time_away(sold, entries.get(sold), reason, now)
        entries[sold] = _Entry(now + ttl, ttl)
        heapq.heappush(self._ends, now + ttl)
        self._touch(sold.instance_type)
        _log.debug("removing offering from offerings", **_told(sold, reason, ttl, fleet_id))

    def _time_away(self, sold: Sold, current: _Entry | None, reason: str, now: datetime) -> timedelta:
        if reason in QUOTA_CODES:
            return SHORTEST
        if current is not None:
            return current.ttl
        past = self._past.get(sold)
        if past is None or past.until + FORGIVEN <= now:
            return SHORTEST
        return min(2 * past.ttl, LONGEST)

    def mark_capacity_type(self, capacity_type: str) -> None:
        """Nothing of this capacity type can be had now (AWS-377)."""
        self._mark_common(self._capacity_types, capacity_type)

    def mark_subnet(self, subnet_id: str) -> None:
        """A subnet has no addresses left (AWS-378)."""
        self._mark_common(self._subnets, subnet_id)

    def _mark_common(self, marks: dict[str, datetime], name: str) -> None:
        self._settle()
        marks[name] = self._clock.now() + SHORTEST
        heapq.heappush(self._ends, marks[name])
        self._common += 1
        self._version += 1

    def covers(self, sold: Sold) -> bool:
        """Whether it cannot be had: marked as such, for its whole group, or for launches anywhere (AWS-376 with its Beyond)."""
        self._settle()
        if sold.capacity_type in self._capacity_types:
            return True
        entries = self._sold.get(sold.instance_type)
        if not entries:
            return False
        scopes = {sold, replace(sold, partition=""), replace(sold, group="", partition="")}
        return not entries.keys().isdisjoint(scopes)

    def covers_subnets(self, subnet_ids: Iterable[str]) -> bool:
        """Whether there is at least one of them and all are marked (AWS-378)."""
        self._settle()
        ids = frozenset(subnet_ids)
        return bool(ids) and ids <= self._subnets.keys()

    @property
    def version(self) -> int:
        """Grows with every mark and every end of one."""
        self._settle()
        return self._version

    def sequence(self, instance_type: str) -> int:
        """Grows with every mark, and end of one, that concerns the type (AWS-379)."""
        self._settle()
        return self._common + self._sequences[instance_type]

    def current(self) -> tuple[Sold, ...]:
        """All ways to buy that are marked now, in no order."""
        self._settle()
        return tuple(sold for entries in self._sold.values() for sold in entries)

    def _settle(self) -> None:
        """End what has come to its end."""
        if not self._ends:
            return
        now = self._clock.now()
        if self._ends[0] > now:
            return
        while self._ends and self._ends[0] <= now:
            heapq.heappop(self._ends)
        for name, entries in tuple(self._sold.items()):
            self._end(name, entries, now)
        for marks in (self._capacity_types, self._subnets):
            for key in [key for key, until in marks.items() if until <= now]:
                del marks[key]
                self._common += 1
                self._version += 1
        self._past = {sold: past for sold, past in self._past.items() if past.until + FORGIVEN > now}

    def _end(self, name: str, entries: dict[Sold, _Entry], now: datetime) -> None:
        for sold in [sold for sold, entry in entries.items() if entry.until <= now]:
            self._past[sold] = entries.pop(sold)
            self._touch(name)
        if not entries:
            del self._sold[name]

    def _touch(self, name: str) -> None:
        self._sequences[name] += 1
        self._version += 1


def _told(sold: Sold, reason: str, ttl: timedelta, fleet_id: str) -> dict[str, str]:
    """What the log says of a mark (AWS-380)."""
    told = {
        "reason": reason,
        "instance-type": sold.instance_type,
        "zone": sold.zone,
        "capacity-type": sold.capacity_type,
        "ttl": str(ttl),
        "fleet-id": fleet_id,
        "placement-group-id": sold.group,
        "placement-group-partition": sold.partition,
    }
    return {key: value for key, value in told.items() if value}
