"""Zones the cluster keeps away from, because somebody shifts it away from them in AWS (AWS §13.3).

Every answer replaces all that was known: a shift that is taken back early is over at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import structlog

from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.karpenter import NodePool
from karpenter.model import labels
from karpenter.model.clock import Clock
from karpenter.model.requirements import from_labels, from_wire
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.events import subjects
from karpenter.providers.aws.ports import ZonalShiftPort
from karpenter.providers.aws.surroundings import Herald, Observed
from karpenter.providers.contract import ProviderError

ZONE_ID = "topology.k8s.aws/zone-id"
_PERIOD_SECONDS = 30.0
_APPLIED = "APPLIED"
_log = structlog.get_logger()


class Places(NamedTuple):
    """The cluster as watches tell it, and its node classes by name."""

    observed: Observed
    node_class: Callable[[str], EC2NodeClass | None]


class ZonalShifts:
    """The loop over the shifts of one cluster, by its ARN. ``look`` is one round."""

    def __init__(self, arn: str, port: ZonalShiftPort, places: Places, herald: Herald, clock: Clock) -> None:
        self._arn = arn
        self._port = port
        self._places = places
        self._herald = herald
        self._clock = clock
        self._until: Mapping[str, datetime | None] = {}
        self._told: frozenset[str] = frozenset()

    def shifted(self) -> frozenset[str]:
        """The ids of zones the cluster is shifted away from now (AWS-615)."""
        now = self._clock.now()
        return frozenset(zone for zone, until in self._until.items() if until is None or until > now)

    async def hydrate(self) -> None:
        """Know before the first launch. When AWS does not tell, no zone counts as shifted (AWS-618).

        Nobody is told yet: there are no watches to say which pools are concerned. The first look tells.
        """
        try:
            await self._read()
        except ProviderError as error:
            _log.error("failed hydrating zonal shifts", error=str(error))

    async def look(self) -> float:
        """Ask, and tell NodePools what has changed for them; seconds until the next round. Raises ``ProviderError``.

        After a fault what was known stays.
        """
        await self._read()
        self._tell_changes()
        return _PERIOD_SECONDS

    async def _read(self) -> None:
        try:
            shifts = await self._port.get_managed_resource(self._arn)
        except AwsError as error:
            raise ProviderError(f"zonal shifts cannot be read: {error}") from error
        self._until = {shift.away_from: shift.expiry_time for shift in shifts if shift.applied_status == _APPLIED}

    def _tell_changes(self) -> None:
        now = self.shifted()
        for zone_id in sorted(now - self._told):
            for pool, zone in self._concerned(zone_id):
                text = f"Zone {zone} ({zone_id}) is shifted away from: nothing is launched there"
                self._herald.warning(subjects.POOL, pool.metadata, "ZonalShiftActive", text)
        for zone_id in sorted(self._told - now):
            for pool, zone in self._concerned(zone_id):
                text = f"Zone {zone} ({zone_id}) is not shifted away from any more"
                self._herald.normal(subjects.POOL, pool.metadata, "ZonalShiftCleared", text)
        self._told = now

    def _concerned(self, zone_id: str) -> Iterator[tuple[NodePool, str]]:
        """Pools that can use a zone, and how they call it (AWS-617)."""
        for pool in self._places.observed.pools():
            node_class = self._places.node_class(pool.spec.template.spec.node_class_ref.name)
            subnets = node_class.status.subnets if node_class is not None else ()
            zone = next((subnet.zone for subnet in subnets if subnet.zone_id == zone_id), "")
            if zone and _allows(pool, zone, zone_id):
                yield pool, zone


def _allows(pool: NodePool, zone: str, zone_id: str) -> bool:
    template = pool.spec.template
    wanted = from_wire(template.spec.requirements).intersect(from_labels(template.metadata.labels))
    return wanted.of(labels.ZONE).allows(zone) and wanted.of(ZONE_ID).allows(zone_id)
